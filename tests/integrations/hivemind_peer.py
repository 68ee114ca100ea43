"""One real hivemind peer with FedA2L as its scheduler: `hivemind_peer.py NUMBER FILE [INITIAL_PEER]`.

Prints its address, trains until the end of epoch 4, and saves rates and models of every local step.
"""

import os
import sys
import time
from functools import partial

import torch
from replay import SETTINGS, snapshot
from torch import nn

import feda2l
from feda2l.integrations.hivemind import HivemindScheduler


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def main(number: int, file: str, initial: list[str]) -> None:
    import hivemind

    dht = hivemind.DHT(initial_peers=initial, start=True)
    print(dht.get_visible_maddrs()[0], flush=True)
    model = small()
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="test",
        batch_size_per_step=8,
        target_batch_size=96,
        params=feda2l.layer_groups(model),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.05),
        scheduler=partial(HivemindScheduler, **SETTINGS),
        use_local_updates=True,
        delay_state_averaging=False,
        matchmaking_time=2.0,
        averaging_timeout=20.0,
        tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": 0.3},
    )
    rates = optimizer.state_averager.scheduler.rates
    while optimizer.tracker.global_progress.num_peers < 2:  # wait until both peers are connected
        optimizer.tracker.report_local_progress(0, 1)  # peers without samples are not counted
        time.sleep(0.2)
    generator = torch.Generator().manual_seed(number)
    steps = []
    trained: dict[int, dict] = {}
    end_training = rates.end_training

    def remember_trained() -> None:
        trained[rates.round] = snapshot(model)
        end_training()

    rates.end_training = remember_trained
    optimizer.opt.register_step_pre_hook(
        lambda opt, *_: steps.append((rates.round, [group["lr"] for group in opt.param_groups], snapshot(model)))
    )
    while optimizer.local_epoch < 5:
        x = torch.randn(8, 6, generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long() + number).backward()
        optimizer.step()
        time.sleep(0.1)
    torch.save({"steps": steps, "trained": trained}, file)
    print("done", flush=True)
    sys.stdin.readline()  # the other peer may still need this one
    os._exit(0)  # hivemind's shutdown waits long for a peer that has left


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
