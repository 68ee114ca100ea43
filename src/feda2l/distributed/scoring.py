"""Score a network whose nodes are on several ranks. Rank 0 receives all scores."""

from collections.abc import Sequence
from functools import reduce
from operator import add

from feda2l.distributed.ranks import Ranks
from feda2l.engines.engine import Engine, Score, ScoreJob
from feda2l.round.run import LiveRun
from feda2l.simulate.scoring import ScoreHere, Scores


class ScoreOverRanks:
    """Each rank scores its own nodes. The batches of a model that all ranks hold are divided among the ranks."""

    def __init__(self, here: ScoreHere, engine: Engine, ranks: Ranks) -> None:
        self.here, self.engine, self.ranks = here, engine, ranks

    def scores(self, runs: Sequence[LiveRun]) -> dict[int, Scores]:
        # if all nodes hold the same model, it is also the mean model
        shared = {run.number for run in runs if run.compared.agreed and run.plan.on == "global" and not _tests(run)}
        local_scores = self.here.scores([run for run in runs if run.number not in shared], mean_model=False)
        return {run.number: self._of_run(run, local_scores.get(run.number, {})) for run in runs}

    def _of_run(self, run: LiveRun, local_scores: Scores) -> Scores:
        shared = run.plan.on != "local" and not _tests(run)  # one test set, so the mean model has one score
        parts = [part for part in local_scores if part != "mean" or not shared]
        gathered = run.collectives.at_leader(
            [[local_scores[part][node] for part in parts] for node in range(run.plan.nodes)]
        )
        mean = self._mean_model(run) if shared else None
        if gathered is None:
            return {}
        scores: Scores = {part: [row[place] for row in gathered] for place, part in enumerate(parts)}
        if mean is not None:
            scores["mean"] = [mean]
            scores.setdefault("global", [mean] * run.plan.network)
        return scores

    def _mean_model(self, run: LiveRun) -> Score | None:
        """Return the score of the mean model, or of the model that all nodes share, at the leader; None elsewhere."""
        count = -(-len(run.plan.member.test) // self.engine.evaluation_batch)
        batches = range(self.ranks.rank, count, self.ranks.world)
        row, node = (run.start, 0) if run.compared.agreed else (run.number, None)
        jobs = [ScoreJob(row, run.number, node, local=False, batch=batch) for batch in batches]
        parts = self.ranks.gather(list(zip(batches, self.engine.score(jobs), strict=True)))
        if parts is None:
            return None
        return reduce(add, [score for _, score in sorted(item for part in parts for item in part)])


def _tests(run: LiveRun) -> bool:
    return run.plan.member.tests is not None
