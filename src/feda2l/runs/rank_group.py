"""What a pack of runs asks of the ranks that share it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from feda2l.distributed.placement import Placement, place
from feda2l.distributed.ranks import Call, Ranks, RanksLost, demand_device
from feda2l.distributed.sharded import Sharded
from feda2l.distributed.sharded_simulator import ShardedSimulator
from feda2l.distributed.whole_state import gather_state, restore_part
from feda2l.errors import FedA2LError
from feda2l.runs.single_process import Alone, Decision, OutOfTime
from feda2l.runs.assemble import Assembled
from feda2l.spec.spec import Spec
from feda2l.engines.engine import Engine
from feda2l.simulate.faulty import PartialSimulation
from feda2l.worker_pool import default_processes
from feda2l.simulate.simulation import Simulation
from feda2l.simulate.simulator import Simulator

T = TypeVar("T")


class Crew(Alone):
    """The ranks of a job: every one has a part of each run's nodes, and does what the leader's pack does."""

    def __init__(self, ranks: Ranks) -> None:
        self.crew, self.leads, self.ranks = ranks, ranks.leads, ranks.world

    def begin(self, specs: Sequence[Spec], members: Sequence[Assembled]) -> list[Assembled]:
        """The leader calls the others to these runs (they are in `follow`), then all take their part."""
        if self.leads:
            self.crew.share(Call(list(specs), []))
        placed = self.together(lambda: [(run, self._placed(run)) for run in members])
        demand_device(self.crew, members[0].device)
        return [replace(run, simulation=Sharded.of(run.simulation, self.crew, where)) for run, where in placed]

    def give_up(self, error: Exception) -> None:
        """A rank that cannot take its part says so where the others begin; nobody does."""

        def fail() -> None:
            raise error

        self.together(fail)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.crew.busy = True
        try:
            yield
        except OutOfTime:  # decided together
            self.crew.busy = False
            raise
        except Exception as error:
            if error is not self.crew.agreed:
                raise error if isinstance(error, RanksLost) else RanksLost(str(error)) from error
            self.crew.busy = False
            raise
        self.crew.busy = False

    def together(self, do: Callable[[], T]) -> T:
        return self.crew.together(do)

    def workers(self, asked: int | None) -> int | None:
        return self.crew.processes(default_processes()) if asked is None else asked

    def simulator(self, engine: Engine, simulations: Sequence[Simulation]) -> Simulator:
        return ShardedSimulator(engine, simulations, self.crew)

    def restore(self, simulation: Simulation, path: Path) -> bool:
        assert isinstance(simulation, Sharded)
        return restore_part(simulation, path)

    def state(self, simulation: Simulation) -> dict[str, Tensor] | None:
        assert isinstance(simulation, Sharded)
        return gather_state(simulation)

    def decide(self, decision: Decision) -> Decision:
        """Anybody may ask to stop; the clock is the leader's."""
        own = decision if self.leads else Decision(decision.stop, over=False, save=decision.stop)
        return Decision(*map(bool, self.crew.largest(torch.tensor(own, dtype=torch.int64)).tolist()))

    def whole(self, run: Assembled) -> Assembled:
        simulation = run.simulation
        assert isinstance(simulation, Sharded)
        whole = simulation.whole
        whole.rates, whole.round = simulation.rates, simulation.round
        if whole.algorithm.searches:
            names = simulation.notes
            whole.notes = {name: torch.stack(simulation.of_all(list(names[name]))) for name in ("found", "epochs")}
        return replace(run, simulation=whole)

    def _placed(self, run: Assembled) -> Placement:
        if run.faults:
            raise FedA2LError(
                "faults: a fault plan is for one process; start without torchrun, or without faults", see="torchrun"
            )
        if isinstance(run.simulation, PartialSimulation):
            raise FedA2LError(
                "network.participation: rounds in which some nodes rest are for one process; start without torchrun, "
                "or set network.participation = 1",
                see="torchrun",
            )
        return place(run.simulation.mixing.topology, run.simulation.setting.steps, self.ranks)
