"""A run folder that a test lets grow, round by round, as a run does."""

from pathlib import Path
from typing import Any

import tomli_w

from feda2l.records.round_record import RoundRecord
from feda2l.records.round_timings import round_timings
from feda2l.records.run_folder import RunFolder

NODES = 3
LAYERS = ("a", "b")


def spec(rounds: int, **more: Any) -> bytes:
    values: dict[str, Any] = {
        "name": "grown",
        "seed": 1,
        "rounds": rounds,
        "data": {"name": "digits", "nodes": NODES},
        "model": {"name": "mlp"},
        "topology": {"name": "ring"},
    }
    return tomli_w.dumps(values | more).encode()


def begin(path: Path, rounds: int = 100, **more: Any) -> RunFolder:
    """Take a folder as a run does: locked, with its spec."""
    folder = RunFolder(path)
    folder.open()
    folder.write(folder.spec, spec(rounds, **more))
    folder.write_json(folder.environment, {"engine": "rows"})
    return folder


def record(round: int, score: float, nodes: int = NODES, **more: Any) -> RoundRecord:
    """Every node's score is `score`; its rate 0.01 / round, its sigma its number, its zeta half."""
    return {
        "round": round,
        "train_loss": 1 / round,
        "disagreement": 2.0**-round,
        "bytes_sent": 1000 * nodes,
        "nodes": {"train_loss": [1 / round] * nodes, "accuracy": [score] * nodes, "bytes_sent": [1000] * nodes},
        "layers": {
            "name": list(LAYERS),
            "rate": [[0.01 / round] * len(LAYERS)] * nodes,
            "multiplier": [[1.0] * len(LAYERS)] * nodes,
            "divergence": [[float(node)] * len(LAYERS) for node in range(nodes)],
            "stability": [[0.5] * len(LAYERS)] * nodes,
        },
        "accuracy": score,
        **more,
    }


def grow(folder: RunFolder, rounds: range, *, add: float = 0.0, seconds: float = 2.0) -> None:
    """Rounds whose score is a hundredth of their number, plus `add`."""
    for round in rounds:
        timing = round_timings(round, {"train": seconds / 2, "mix": seconds / 2}, pack=1)
        folder.append(record(round, round / 100 + add), timing)


def end(folder: RunFolder, rounds: int, status: str = "finished") -> None:
    """As a run ends: tables, summary, and the folder is free again."""
    folder.write_tables()
    summary = {"name": "grown", "status": status, "rounds": rounds, "metric": "accuracy"}
    folder.write_json(folder.summary, summary)
    folder.close()


def cut_back(folder: RunFolder, round: int) -> None:
    """To a checkpoint, as `--resume` does."""
    folder.cut_back(round, lambda _: True)
