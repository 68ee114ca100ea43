"""What a pack of runs asks of the processes that share it. `Alone`: there is one, and it has all nodes."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple, TypeVar

from torch import Tensor

from feda2l.runs.assemble import Assembled
from feda2l.spec.spec import Spec
from feda2l.simulate.checkpoint import restore, tensors
from feda2l.engines.engine import Engine
from feda2l.simulate.simulation import Simulation
from feda2l.simulate.simulator import Simulator

T = TypeVar("T")


class OutOfTime(Exception):
    """The caller of a pack had it stop after a round; it is saved and can go on."""


class Decision(NamedTuple):
    """What comes after a round."""

    stop: bool  # somebody asked for it
    over: bool  # the time is
    save: bool


class Alone:
    """One process. `distributed/crew.py` is the same for the ranks of a job."""

    leads = True  # does this process write the run folders and talk to the user?
    ranks = 1

    def begin(self, specs: Sequence[Spec], members: Sequence[Assembled]) -> list[Assembled]:
        """The part of each run whose nodes are here."""
        return list(members)

    def at_work(self) -> AbstractContextManager[None]:
        """While a pack runs: what fails in one process alone is the end of all."""
        return nullcontext()

    def together(self, do: Callable[[], T]) -> T:
        """Do something in every process; where it fails in one it fails in all."""
        return do()

    def workers(self, asked: int | None) -> int | None:
        """How many worker processes an engine here may have; None: one a core."""
        return asked

    def simulator(self, engine: Engine, simulations: Sequence[Simulation]) -> Simulator:
        return Simulator(engine, simulations)

    def restore(self, simulation: Simulation, path: Path) -> bool:
        """Bring a run to the state of its checkpoint; False if there is none."""
        if not path.exists():
            return False
        restore(simulation, path)
        return True

    def state(self, simulation: Simulation) -> dict[str, Tensor] | None:
        """What a checkpoint holds; None where another process writes it."""
        return tensors(simulation)

    def decide(self, decision: Decision) -> Decision:
        """What all processes do after a round."""
        return decision

    def whole(self, run: Assembled) -> Assembled:
        """A run with what its records say of all nodes, for its summary."""
        return run
