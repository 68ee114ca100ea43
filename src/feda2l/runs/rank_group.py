"""The process group of a pack that several torchrun ranks train together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, final

import torch
from torch import Tensor

from feda2l.distributed.collectives import NodesOnRanks, plan_of_rank
from feda2l.distributed.exchange import NodesOfRank
from feda2l.distributed.full_state import gather_state, restore_part
from feda2l.distributed.halo import Halo
from feda2l.distributed.placement import Placement, place
from feda2l.distributed.ranks import Call, Ranks, RanksLost, demand_device
from feda2l.distributed.scoring import ScoreOverRanks
from feda2l.engines.engine import Engine
from feda2l.errors import FedA2LError
from feda2l.round.run import LiveRun
from feda2l.runs.assemble import Assembled
from feda2l.runs.process_group import Decision, OutOfTime
from feda2l.simulate.loop import RoundLoop
from feda2l.spec.spec import Spec
from feda2l.worker_pool import default_processes

T = TypeVar("T")


@final
class RankGroup:
    """The ranks of a job. Each rank trains some nodes of each run, in step with the leader."""

    def __init__(self, ranks: Ranks) -> None:
        self.members, self.leads, self.ranks = ranks, ranks.leads, ranks.world

    def begin(self, specs: Sequence[Spec], members: Sequence[Assembled]) -> list[Assembled]:
        """Announce these runs to the other ranks, which wait in `follow`. Then each rank takes its nodes."""
        if self.leads:
            self.members.share(Call(list(specs), []))
        placed = self.together(lambda: [(run, self._placed(run)) for run in members])
        demand_device(self.members, members[0].device)
        return [replace(run, live=self._part(run.live, where)) for run, where in placed]

    def _part(self, run: LiveRun, placement: Placement) -> LiveRun:
        """Return the part of a run that has the nodes of this rank."""
        network_plan = run.plan
        halo = Halo(network_plan.mixing, self.members, placement.ids[self.members.rank], placement.owner)
        return LiveRun(
            plan_of_rank(network_plan, self.members, placement),
            NodesOfRank(halo, network_plan.samples, run.exchange.clock),
            network_plan=network_plan,
            collectives=NodesOnRanks(self.members, placement),
        )

    def give_up(self, error: Exception) -> None:
        """Report at the start of a pack that this rank cannot take part, so that no rank starts."""

        def fail() -> None:
            raise error

        self.together(fail)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.members.busy = True
        try:
            yield
        except OutOfTime:  # all ranks decided this together
            self.members.busy = False
            raise
        except Exception as error:
            if error is not self.members.agreed:
                raise error if isinstance(error, RanksLost) else RanksLost(str(error)) from error
            self.members.busy = False
            raise
        self.members.busy = False

    def together(self, do: Callable[[], T]) -> T:
        return self.members.together(do)

    def workers(self, requested: int | None) -> int | None:
        return self.members.processes(default_processes()) if requested is None else requested

    def loop(self, engine: Engine, runs: Sequence[LiveRun]) -> RoundLoop:
        return RoundLoop(
            engine, runs, together=self.together, scorer=lambda here: ScoreOverRanks(here, engine, self.members)
        )

    def restore(self, run: LiveRun, path: Path) -> bool:
        return restore_part(run, path)

    def state(self, run: LiveRun) -> dict[str, Tensor] | None:
        return gather_state(run)

    def decide(self, decision: Decision) -> Decision:
        """Stop if any rank asks to stop. Only the leader's clock decides whether the time is used up."""
        vote = decision if self.leads else Decision(decision.stop, over=False, save=decision.stop)
        return Decision(*map(bool, self.members.largest(torch.tensor(vote, dtype=torch.int64)).tolist()))

    def _placed(self, run: Assembled) -> Placement:
        if run.faults:
            raise FedA2LError(
                "faults: a fault plan needs a single process; start without torchrun or remove faults", see="torchrun"
            )
        if run.participation:
            raise FedA2LError(
                "network.participation below 1 needs a single process; start without torchrun, or set "
                "network.participation = 1",
                see="torchrun",
            )
        return place(run.live.plan.mixing.topology, run.live.plan.setting.steps, self.ranks)
