"""Run real nodes under random faults for minutes: `python tools/soak.py --minutes 20`.

The script kills, stops, ends and restarts all nodes but the first at random times. It records the memory, the file
descriptors and the threads of the first node, which gets no faults and must not lose a round or grow.
"""

import argparse
import json
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from feda2l.errors import RunFailed
from feda2l.spec.spec import Spec
from feda2l.swarm.swarm_folder import SwarmFolder
from feda2l.swarm.swarm_process import NodeProcess
from feda2l.toml_files import read_toml
from feda2l.topology import build

SPEC = {
    "name": "soak",
    "rounds": 1_000_000,
    "data": {"nodes": 5, "alpha": 1.0},
    "training": {"epochs": 3},
    "evaluation": {"every": 20},
}
QUICK = {
    "deadline": {"least": 2.0, "most": 30.0, "factor": 6.0},
    "log": {"megabytes": 1.0, "files": 2},
    "checkpoint_rounds": 5,
}
FAULTS = ("kill", "stop", "leave", "reload")
EVERY = (4.0, 12.0)  # seconds between faults
AWAY = (0.5, 10.0)  # seconds that a node is absent
LOOK = 5.0  # seconds between two measurements of the first node
SETTLED = 60.0  # seconds: memory is compared after this time


class Look(NamedTuple):
    """The resources that the first node uses at one moment."""

    seconds: float
    memory: int  # bytes
    descriptors: int
    threads: int


def soak(minutes: float, seed: int, folder: Path) -> dict[str, Any]:
    """Run the soak test; raise RunFailed if a node fails without a fault or the first node loses a round."""
    spec = Spec.parse(SPEC)
    nodes = spec.data.nodes
    swarm = SwarmFolder(folder, nodes)
    swarm.prepare(spec, build("full", nodes), None, insecure=False, wire="fp32")
    for member in swarm.members:
        member.config.write_text(tomli_w.dumps(read_toml(member.config) | QUICK))
    processes = [NodeProcess(member, ()) for member in swarm.members]
    draw, looks, faults = random.Random(seed), list[Look](), Counter[str]()
    began = time.monotonic()
    due: dict[int, tuple[float, str]] = {}  # node -> when it comes back, and from which fault
    try:
        for process in processes:
            process.start()
        next_fault, next_look = began + 20.0, began
        while (now := time.monotonic()) < began + 60 * minutes:
            time.sleep(0.2)
            for process in processes:
                if (code := process.poll()) is not None and process.id not in due:
                    raise RunFailed(f"{process} ended by itself with {code}:\n{process.last_lines()}")
            for id, (when, kind) in list(due.items()):
                if now >= when and _bring_back(processes[id], kind):
                    del due[id]
            if now >= next_look:
                looks.append(_look(processes[0], now - began))
                next_look = now + LOOK
            if now >= next_fault:
                next_fault = now + draw.uniform(*EVERY)
                victims = [process.id for process in processes[1:] if process.id not in due]
                if len(victims) > 2:  # at most two of five at a time
                    kind, id = draw.choice(FAULTS), draw.choice(victims)
                    faults[kind] += 1
                    _strike(processes[id], kind)
                    if kind != "reload":
                        due[id] = now + draw.uniform(*AWAY), kind
        for id, (_, kind) in due.items():
            while not _bring_back(processes[id], kind):
                time.sleep(0.2)
        for process in processes:
            process.signal(signal.SIGTERM)
        for process in processes:
            assert process.process is not None
            process.process.wait(120)
    finally:
        for process in processes:
            process.end()
    return _figures(swarm, looks, faults, minutes)


def _strike(process: NodeProcess, kind: str) -> None:
    number = {
        "kill": signal.SIGKILL,
        "stop": signal.SIGSTOP,
        "leave": signal.SIGTERM,
        "reload": signal.SIGHUP,
    }[kind]
    process.signal(number)


def _bring_back(process: NodeProcess, kind: str) -> bool:
    """Resume or restart a node; return False while it has not ended yet."""
    if kind == "stop":
        process.signal(signal.SIGCONT)
        return True
    process.poll()
    if process.running:
        return False
    process.start()
    return True


def _look(process: NodeProcess, seconds: float) -> Look:
    assert process.process is not None
    proc = Path(f"/proc/{process.process.pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    memory = 1024 * int(status.get("VmRSS", "0").split()[0])
    return Look(seconds, memory, len(list((proc / "fd").iterdir())), int(status["Threads"]))


def _figures(swarm: SwarmFolder, looks: list[Look], faults: Counter[str], minutes: float) -> dict[str, Any]:
    spared, *others = (member.state.read() for member in swarm.members)
    if [record["round"] for record in spared] != list(range(1, len(spared) + 1)):
        raise RunFailed("the first node, which gets no faults, lost a round")
    if missed := [record["round"] for record in spared if record["train_loss"] is None]:
        raise RunFailed(f"the first node, which gets no faults, missed rounds {missed[:10]}")
    settled = [look for look in looks if look.seconds > min(SETTLED, 30 * minutes)]
    third = max(1, len(settled) // 3)
    scores = [record["accuracy"] for record in spared if "accuracy" in record]
    parts = {"first": settled[:third], "last": settled[-third:]}
    return {
        "minutes": minutes,
        "faults": dict(faults),
        "rounds": len(spared),
        "rounds of the others": [len(records) for records in others],
        "neighbours received, mean": statistics.mean(len(record["received"]) for record in spared),
        "accuracy": scores[-1] if scores else None,
        **{
            f"{name}, {part} third": statistics.median(getattr(look, name) for look in chosen)
            for name in Look._fields[1:]
            for part, chosen in parts.items()
        },
        "log bytes": sum(path.stat().st_size for path in swarm.members[0].state.path.glob("log*")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feda2l-soak-") as folder:
        print(json.dumps(soak(given.minutes, given.seed, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
