"""What a pack of runs asks of the processes that share it. `SingleProcess`: one process has all nodes."""

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
    """The caller of a pack stopped it after a round; it is saved and can resume."""


class Decision(NamedTuple):
    """What comes after a round."""

    stop: bool  # somebody asked for it
    over: bool  # the time is
    save: bool


class ProcessGroup(Protocol):
    """The processes that share a pack of runs. `SingleProcess` is one; `RankGroup` is the ranks of torchrun."""

    @property
    def leads(self) -> bool:
        """Does this process write the run folders and talk to the user?"""

    @property
    def ranks(self) -> int:
        """How many processes there are."""

    def begin(self, specs: Sequence[Spec], members: Sequence[Assembled]) -> list[Assembled]:
        """The part of each run whose nodes are here."""

    def at_work(self) -> AbstractContextManager[None]:
        """While a pack runs: a failure in one process alone ends all."""

    def together(self, do: Callable[[], T]) -> T:
        """Do something in every process; where it fails in one it fails in all."""

    def workers(self, asked: int | None) -> int | None:
        """How many worker processes an engine here may have; None: one per core."""

    def loop(self, engine: Engine, runs: Sequence[LiveRun]) -> RoundLoop:
        """The round loop of the nodes here."""

    def restore(self, run: LiveRun, path: Path) -> bool:
        """Bring a run to the state of its checkpoint; False if there is none."""

    def state(self, run: LiveRun) -> dict[str, Tensor] | None:
        """What a checkpoint holds; None where another process writes it."""

    def decide(self, decision: Decision) -> Decision:
        """What all processes do after a round."""


@final
class SingleProcess:
    """One process, which has all nodes."""

    leads = True
    ranks = 1

    def begin(self, specs: Sequence[Spec], members: Sequence[Assembled]) -> list[Assembled]:
        return list(members)

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext()

    def together(self, do: Callable[[], T]) -> T:
        return do()

    def workers(self, asked: int | None) -> int | None:
        return asked

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
