"""The simulator's round at every rank, and the record of all nodes at the one that leads."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from feda2l.distributed.ranks import Ranks
from feda2l.distributed.sharded import Sharded, in_order
from feda2l.engines.engine import Engine, Score, ScoreJob, TrainJob
from feda2l.records.round_record import Evaluation, LayerRows, RoundRecord, missed_round
from feda2l.simulate.make_record import Scores, accuracy_by_class, make_record, put_scores
from feda2l.simulate.simulation import Simulation
from feda2l.simulate.simulator import Simulator


class _Part(NamedTuple):
    """What a rank knows of a round."""

    losses: list[float]
    layers: Mapping[str, LayerRows]
    distances: Tensor
    multipliers: tuple[float, float, float]  # least, largest, largest change


class ShardedSimulator(Simulator):
    """Records, as the leader makes them, are those of one process: the same functions over the same values.

    At the other ranks a record is empty but for its round.
    """

    def __init__(self, engine: Engine, simulations: Sequence[Simulation], ranks: Ranks) -> None:
        super().__init__(engine, simulations)
        self.ranks = ranks

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        return self.ranks.together(lambda: self.engine.train(jobs))

    def record(self, simulation: Simulation, losses: list[float], layers: Mapping[str, LayerRows]) -> RoundRecord:
        assert isinstance(simulation, Sharded)
        own = _Part(
            losses, layers, simulation.distances(), (*simulation.multiplier_range, simulation.multiplier_change)
        )
        parts, whole = self.ranks.gather(own), simulation.whole
        whole.round = simulation.round
        if parts is None:
            return missed_round(simulation.round)
        placement = simulation.placement
        least, largest, change = zip(*(part.multipliers for part in parts), strict=True)
        whole.multiplier_range, whole.multiplier_change = (min(least), max(largest)), max(change)
        distances = torch.stack(in_order(placement, [list(part.distances) for part in parts]))
        return make_record(
            whole,
            in_order(placement, [part.losses for part in parts]),
            {name: in_order(placement, [part.layers[name] for part in parts]) for name in layers},
            distances.mean(dim=0),
            simulation.bytes_sent(),
        )

    def asks_mean(self, simulation: Simulation) -> bool:
        return simulation.member.tests is not None

    def scores(self, simulations: list[Simulation]) -> dict[int, Scores]:
        """Every rank scores its own nodes; a model that all ranks have is scored in batches that are dealt to them."""
        # all nodes hold one model: it is theirs and the mean
        alike = [s for s in simulations if s.agreed and s.on == "global" and not s.member.tests]
        own = super().scores([s for s in simulations if s not in alike])
        dealt = {s.number: self._batches(s) for s in simulations if s.on != "local" and not s.member.tests}
        parts = self.ranks.gather((own, dealt))
        if parts is None:
            return {simulation.number: {} for simulation in simulations}
        found: dict[int, Scores] = {}
        for simulation in simulations:
            assert isinstance(simulation, Sharded)
            number, placement, scores = simulation.number, simulation.placement, Scores()
            if number in own:
                # the mean model of nodes with test samples of their own has a score for each
                parts_of_it = [key for key in own[number] if key != "mean" or simulation.member.tests]
                scores = {key: in_order(placement, [one[number][key] for one, _ in parts]) for key in parts_of_it}
            if number in dealt:
                batches = [score for _, score in sorted(item for _, one in parts for item in one[number].items())]
                scores["mean"] = [reduce(add, batches)]
                scores.setdefault("global", scores["mean"] * simulation.network)
            found[number] = scores
        return found

    def add_scores(self, simulation: Simulation, record: RoundRecord | Evaluation, scores: Scores) -> None:
        assert isinstance(simulation, Sharded)
        if scores:
            put_scores(simulation.whole, record, scores)

    def class_accuracy(self, simulation: Simulation, scores: Scores) -> list[float | None] | None:
        assert isinstance(simulation, Sharded)
        if not scores:  # the leader has them; that there are some is known here too
            return [] if simulation.on != "local" and simulation.member.classes is not None else None
        return accuracy_by_class(simulation.whole.member, scores, simulation.population.device)

    def _batches(self, simulation: Simulation) -> dict[int, Score]:
        """Our part of the batches of the test set, scored with the mean model or the one that all nodes hold."""
        count = -(-len(simulation.member.test) // self.engine.evaluation_batch)
        own = range(self.ranks.rank, count, self.ranks.world)
        row, node = (simulation.start, 0) if simulation.agreed else (simulation.number, None)
        jobs = [ScoreJob(row, simulation.number, node, local=False, batch=batch) for batch in own]
        return dict(zip(own, self.engine.score(jobs), strict=True))
