"""Compare a folder collected from nodes with the folder of the simulator."""

from pathlib import Path
from typing import Any

import torch

from feda2l.records.round_record import MEAN_MODEL, RoundRecord
from feda2l.records.run_folder import RunFolder
from feda2l.simulate.checkpoint import read_checkpoint


def demand_same(collected: Path, simulated: Path) -> None:
    """Compare checkpoint, spec, records and tables, except values that are unknown before the last round."""
    ours, theirs = RunFolder(collected), RunFolder(simulated)
    demand_same_state(collected, simulated)
    assert ours.spec.read_text() == theirs.spec.read_text()
    records = ours.read()
    wanted = theirs.read()
    assert len(records) == len(wanted)
    assert records[-1] == wanted[-1]
    for record, other in zip(records[:-1], wanted[:-1], strict=True):
        assert record["disagreement"] is None
        assert _known(record) == _known(other)
    assert [timing["round"] for timing in ours.read_timings()] == list(range(1, len(records) + 1))
    assert ours.rounds_table.exists()
    assert ours.layers_table.exists()


def demand_same_state(collected: Path, simulated: Path) -> None:
    """Compare all keys of the checkpoints and the bits of their values."""
    own, other = (read_checkpoint(RunFolder(path).checkpoint) for path in (collected, simulated))
    assert own.keys() == other.keys()
    for name, values in own.items():
        torch.testing.assert_close(values, other[name], rtol=0, atol=0, equal_nan=True, msg=name)


def _known(record: RoundRecord) -> dict[str, Any]:
    known = {key: value for key, value in record.items() if key not in ("disagreement", *MEAN_MODEL)}
    return known | {"layers": {key: value for key, value in record["layers"].items() if key != "disagreement"}}
