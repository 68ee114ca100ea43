"""The work of all ranks except the leader: wait for runs, train the assigned nodes, write no files."""

from collections.abc import Callable, Hashable
from pathlib import Path

from feda2l.distributed.ranks import Call, Ranks
from feda2l.records.round_record import RoundRecord
from feda2l.records.round_timings import RoundTimings
from feda2l.records.run_folder import RunFolder
from feda2l.runs.datasets import Loaded, data_key, load_data
from feda2l.runs.device import find_device
from feda2l.runs.pack import Pack, RunCallbacks
from feda2l.runs.process_group import OutOfTime
from feda2l.runs.rank_group import RankGroup
from feda2l.spec.spec import Spec


class NoFolder(RunFolder):
    """The run folder of a rank that writes no files. Only the leader writes."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))

    def open(self) -> None: ...
    def sync(self) -> None: ...
    def write(self, path: Path, content: bytes) -> None: ...
    def append(self, record: RoundRecord, timing: RoundTimings) -> None: ...
    def cut_back(self, round: int, due: Callable[[int], bool]) -> None: ...
    def write_tables(self) -> bool:
        return False


def follow(ranks: Ranks, data: str | Path | None) -> list[Path]:
    """Take part in every pack that the leader starts until it has no more. Return the results that it sends."""
    loaded: dict[Hashable, Loaded] = {}

    def load(spec: Spec) -> Loaded:
        device = find_device(spec.runtime)
        key = data_key(spec.data), device
        if key not in loaded:
            loaded.clear()  # two large datasets may not fit into memory together
            loaded[key] = Loaded.of(load_data(spec.data, data), device)
        return loaded[key]

    while (call := ranks.share(Call([], []))).specs:
        try:
            _pack(call.specs, load, RankGroup(ranks)).run()
        except OutOfTime:
            pass
        except Exception as error:
            if error is not ranks.agreed:
                raise
    return call.result


def _pack(specs: list[Spec], load: Callable[[Spec], Loaded], group: RankGroup) -> Pack:
    try:
        return Pack([(spec, NoFolder()) for spec in specs], load(specs[0]), False, RunCallbacks(progress=False), group)
    except Exception as error:
        group.give_up(error)
        raise
