"""The interface between a pack of runs and the processes that train it. `SingleProcess` trains all nodes itself."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, final

from torch import Tensor

from feda2l.engines.engine import Engine
from feda2l.round.run import LiveRun
from feda2l.runs.assemble import Assembled
from feda2l.simulate.checkpoint import restore, tensors
from feda2l.simulate.loop import RoundLoop
from feda2l.spec.spec import Spec

T = TypeVar("T")


class OutOfTime(Exception):
    """Raised when the caller of a pack stops it after a round. Its state is saved, so it can resume."""


class Decision(NamedTuple):
    """The decision after a round: continue, stop on request, or stop because the time is used up."""

    stop: bool  # the user asked to stop
    over: bool  # the time is used up
    save: bool


class ProcessGroup(Protocol):
    """The processes that train a pack of runs: `SingleProcess`, or `RankGroup` for the ranks of torchrun."""

    @property
    def leads(self) -> bool:
        """True if this process writes the run folders and prints messages."""

    @property
    def ranks(self) -> int:
        """The number of processes."""

    def begin(self, specs: Sequence[Spec], members: Sequence[Assembled]) -> list[Assembled]:
        """Return the part of each run that this process trains."""

    def at_work(self) -> AbstractContextManager[None]:
        """Context of a running pack: a failure in one process ends all processes."""

    def together(self, do: Callable[[], T]) -> T:
        """Call a function in every process. If it fails in one process, it fails in all."""

    def workers(self, requested: int | None) -> int | None:
        """Return the number of worker processes that an engine may have here; None means one per core."""

    def loop(self, engine: Engine, runs: Sequence[LiveRun]) -> RoundLoop:
        """Return the round loop of the nodes in this process."""

    def restore(self, run: LiveRun, path: Path) -> bool:
        """Restore a run from its checkpoint. Return False if there is no checkpoint."""

    def state(self, run: LiveRun) -> dict[str, Tensor] | None:
        """Return the content of a checkpoint, or None if another process writes it."""

    def decide(self, decision: Decision) -> Decision:
        """Return the decision after a round that all processes follow."""


@final
class SingleProcess:
    """One process that trains all nodes."""

    leads = True
    ranks = 1

    def begin(self, specs: Sequence[Spec], members: Sequence[Assembled]) -> list[Assembled]:
        return list(members)

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext()

    def together(self, do: Callable[[], T]) -> T:
        return do()

    def workers(self, requested: int | None) -> int | None:
        return requested

    def loop(self, engine: Engine, runs: Sequence[LiveRun]) -> RoundLoop:
        return RoundLoop(engine, runs)

    def restore(self, run: LiveRun, path: Path) -> bool:
        if not path.exists():
            return False
        restore(run, path)
        return True

    def state(self, run: LiveRun) -> dict[str, Tensor] | None:
        return tensors(run)

    def decide(self, decision: Decision) -> Decision:
        return decision
