"""FedA2L as hivemind's `scheduler=`: peers train locally and average their parameters once per epoch.

    import hivemind
    from feda2l.integrations.hivemind import HivemindScheduler

    optimizer = hivemind.Optimizer(
        dht=dht, run_id="my_run", batch_size_per_step=32, target_batch_size=4096,
        params=feda2l.layer_groups(model), optimizer=lambda groups: torch.optim.SGD(groups, lr=0.01),
        scheduler=HivemindScheduler,            # knobs: functools.partial(HivemindScheduler, warmup_rounds=5)
        use_local_updates=True,                 # peers train locally ...
        delay_state_averaging=False,            # ... and wait for the average before the next epoch
    )

When the three states exist: hivemind's epoch (`target_batch_size` samples of all peers together) is FedA2L's round. At
its end hivemind calls `scheduler.step()` and then averages the parameters. So the states are read as follows:
    base:       before the first local step of an epoch, by a hook on the optimizer's `step`;
    trained:    in `scheduler.step()`;
    aggregated: before the first local step of the next epoch, which already uses the new rates.

What you must do: set the two options above and use `layer_groups`. Without `use_local_updates` hivemind averages
gradients and all peers hold the same model. Then no peer has a trained state of its own, and FedA2L has no effect. With
`delay_state_averaging` (hivemind's default) the average arrives during the training of the next epoch.

An epoch whose averaging changed nothing (no peer was found) stores no signal, and the first one issues a warning. A
peer that fell behind and loads the state of another peer keeps its own rates and skips the epochs it missed.

This module does not import hivemind. It works with any optimizer that calls a scheduler's `step` once per round, before
it averages. To resume, load the optimizer's state and then this scheduler's (`optimizer.state_averager.scheduler`).
"""

from typing import Any

from torch.optim import Optimizer

from feda2l.errors import warn_once
from feda2l.integrations.rate_scheduler import RateScheduler
from feda2l.scheduler import FedA2L


class HivemindScheduler(RateScheduler):
    """A scheduler that steps once per epoch of hivemind; `knobs` are the arguments of `feda2l.FedA2L`."""

    def __init__(self, optimizer: Optimizer, **knobs: Any) -> None:
        super().__init__(FedA2L(optimizer, **knobs))
        optimizer.register_step_pre_hook(lambda *_: self._before_local_step())
        optimizer.register_load_state_dict_post_hook(lambda _: self._other_state_loaded())

    def step(self, epoch: int | None = None) -> None:
        """Read the trained state of an epoch, or skip the epoch if it had no local step."""
        super().step(epoch)
        if self._step_count == 1:  # torch calls it when it builds a scheduler
            return
        self._read_average()
        if self.rates.next_call == "end_training":
            self.rates.end_training()
        else:
            self.rates.skip_round()

    def _before_local_step(self) -> None:
        self._read_average()
        if self.rates.next_call == "begin_round":
            self.rates.begin_round()

    def _read_average(self) -> None:
        if self.rates.next_call != "step":
            return
        if self.rates.mixed():
            self.rates.step()
            return
        self.rates.skip_round()
        warn_once(
            "averaging changed nothing after a round, which is skipped: no peer was found, or the optimizer lacks "
            "use_local_updates=True or delay_state_averaging=False"
        )

    def _other_state_loaded(self) -> None:
        """Skip the open round and write this peer's rates again, after another peer's state was loaded."""
        if self.rates.next_call == "step":  # its epoch is over and counts
            self.rates.skip_round()
        self.rates.load_state_dict(self.rates.state_dict() | {"done": 0, "kept": []})
