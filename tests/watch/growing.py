"""A run folder that a test extends round by round, as a run does."""

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
    """Start a run folder: lock it and write its spec."""
    folder = RunFolder(path)
    folder.open()
    folder.write(folder.spec, spec(rounds, **more))
    folder.write_json(folder.environment, {"engine": "rows"})
    return folder


def record(round: int, score: float, nodes: int = NODES, **more: Any) -> RoundRecord:
    """A record in which every node has this score, rate 0.01 / round, its number as sigma and zeta 0.5."""
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
    """Append rounds with score round / 100 + `add`."""
    for round in rounds:
        timing = round_timings(round, {"train": seconds / 2, "mix": seconds / 2}, pack=1)
        folder.append(record(round, round / 100 + add), timing)


def end(folder: RunFolder, rounds: int, status: str = "finished") -> None:
    """Finish a run: write tables and summary, and unlock the folder."""
    folder.write_tables()
    summary = {"name": "grown", "status": status, "rounds": rounds, "metric": "accuracy"}
    folder.write_json(folder.summary, summary)
    folder.close()


def cut_back(folder: RunFolder, round: int) -> None:
    """Cut the records back to a checkpoint, as `--resume` does."""
    folder.cut_back(round, lambda _: True)
