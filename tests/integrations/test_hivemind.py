"""Two real hivemind peers on this machine, each with FedA2L as its scheduler."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import groupby, pairwise
from pathlib import Path

import pytest
import torch
from replay import replay
from torch import nn

pytest.importorskip("hivemind", reason="hivemind is not installed: make test-integrations")

PEER = Path(__file__).with_name("hivemind_peer.py")


@pytest.mark.long
def test_peers_set_rates_from_their_three_states(tmp_path):
    peers, files = [], [tmp_path / "0.pt", tmp_path / "1.pt"]

    def start(number: int, *initial: str) -> str:
        command = [sys.executable, str(PEER), str(number), str(files[number]), *initial]
        with (tmp_path / f"{number}.log").open("w") as log:
            peers.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
            )
        return peers[-1].stdout.readline().strip()

    def kill() -> None:
        for peer in peers:
            with suppress(ProcessLookupError):
                os.killpg(peer.pid, signal.SIGKILL)  # with its p2p daemon

    limit = threading.Timer(180, kill)
    limit.start()
    try:
        start(1, start(0))
        assert [peer.stdout.readline().strip() for peer in peers] == ["done", "done"]
    finally:
        limit.cancel()
        kill()
        for peer in peers:
            peer.communicate()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    aggregated = []
    for file in files:
        saved = torch.load(file)
        rounds = [list(steps) for _, steps in groupby(saved["steps"], key=lambda step: step[0])]
        assert len(rounds) >= 4
        first = [
            steps[0][2] for steps in rounds
        ]  # the base state of a round is the aggregated state of the previous one
        states = [(base, saved["trained"][i + 1], after) for i, (base, after) in enumerate(pairwise(first))]
        expected = replay(model, states, lr=0.05)
        assert [steps[0][1] for steps in rounds] == expected
        assert all(step[1] == steps[0][1] for steps in rounds for step in steps)
        aggregated.append(first[1])
    for name in aggregated[0]:  # both peers hold the same average
        torch.testing.assert_close(aggregated[0][name], aggregated[1][name])
