"""DFedHPO: the nodes agree on a learning rate before the first round, then train with FedAvg.

Khan, Khan, Rizwan, Ahmad, Kim: "Consensus-Driven Hyperparameter Optimization for Accelerated Model Convergence in
Decentralized Federated Learning", Internet of Things 30:101476, 2025. The full text was not available. The procedure
follows the paper's abstract and an implementation by FedA2L's authors.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, Trial
from feda2l.errors import FedA2LError
from feda2l.randomness import derive_seed, numpy_generator

GRID = 200  # rates that the forest scores
TREES = 50


@dataclass(frozen=True, kw_only=True)
class DFedHPO(Algorithm):
    """FedAvg with a base rate that a search before round 1 finds; the rate rule then uses it as `rates.base`.

    1. Each node draws `trials` rates log-uniformly from `rate_range`. It trains with each for `eval_epochs` epochs from
       the common start and computes the loss on samples that it does not train on (never on the test set).
    2. Neighbours exchange their (rate, loss) pairs once.
    3. Each node decides by `aggregator`. "CA" takes the rate with the smallest loss among its own and the received
       trials. "FA" tries the neighbours' rates too and takes the mean of its `top_k` best. "MA" fits a random forest
       from log rate to loss, tries the `top_k` best of 200 rates on it and takes the best.
    4. With `consensus`, nodes average their log rates with the neighbours until all are within 1 %.

    The search costs trials x eval_epochs local epochs (for "FA" up to that times the size of the closed neighbourhood)
    and a few bytes. The summary reports the epochs as rounds.
    """

    summary = "a search for the base rate before round 1, then FedAvg"
    citation = "Khan et al. 2025"

    trials: int = 10
    eval_epochs: int = 3
    top_k: int = 3
    rate_range: tuple[float, float] = (1e-5, 1e-1)
    aggregator: Literal["CA", "FA", "MA"] = "FA"
    consensus: bool = True

    def __post_init__(self) -> None:
        for key, what in (("trials", "trial"), ("eval_epochs", "epoch"), ("top_k", "rate")):
            self.demand(getattr(self, key) >= 1, key, f"must be at least 1 {what}")
        low_to_high = len(self.rate_range) == 2 and 0 < self.rate_range[0] < self.rate_range[1] < float("inf")
        self.demand(
            low_to_high, "rate_range", "must be [low, high] with 0 < low < high < infinity: this range is empty"
        )
        self.demand(self.aggregator in ("CA", "FA", "MA"), "aggregator", "must be one of CA, FA, MA")

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        """Return each node's rate from the search (0 before the search) and the epochs that the search took."""
        zeros = torch.zeros(len(shares), dtype=torch.float64)
        return {"found": zeros, "epochs": zeros.clone()}

    @property
    def rate_search(self) -> "DFedHPO":
        return self

    def epochs(self, nodes: int) -> int:
        return self.trials * self.eval_epochs * (nodes if self.aggregator == "FA" else 1)

    def draw(self, seed: int, node: int) -> list[float]:
        """Return a node's own candidates."""
        low, high = map(math.log, self.rate_range)
        draws = numpy_generator(seed, node=node, purpose="dfedhpo").uniform(low, high, self.trials)
        return [math.exp(value) for value in draws.tolist()]

    def shortlist(self, own_trials: list[Trial], received: list[Trial], seed: int, node: int) -> list[float]:
        """Return the rates that a node tries after it has received its neighbours' trials."""
        match self.aggregator:
            case "CA":
                return []
            case "FA":
                known = {trial.rate for trial in own_trials}
                return [trial.rate for trial in received if trial.rate not in known]
        return self._promising([*own_trials, *received], derive_seed(seed, node=node, purpose="forest"))

    def decide(self, own_trials: list[Trial], received: list[Trial], tried: list[Trial]) -> float:
        """Return the rate that a node takes; `tried` are the trials of its shortlist."""
        match self.aggregator:
            case "CA":
                return _best([*own_trials, *received]).rate
            case "FA":
                sound = [trial for trial in (*own_trials, *tried) if math.isfinite(trial.loss)]
                # a non-finite trial must not enter the mean; if all are non-finite the smallest rate is the best guess
                best = sorted(sound, key=_order)[: self.top_k] or [_best([*own_trials, *tried])]
                return math.fsum(trial.rate for trial in best) / len(best)
        # a forest knows little about rates that were never tried: if all of its rates fail, use the node's own trials
        sound = [trial for trial in tried if math.isfinite(trial.loss)]
        return _best(sound or own_trials).rate

    def _promising(self, trials: list[Trial], seed: int) -> list[float]:
        """Return the `top_k` rates of a grid with the smallest loss by a random forest from log rate to loss."""
        try:
            from sklearn.ensemble import RandomForestRegressor
        except ImportError as error:
            raise FedA2LError('algorithm.aggregator = "MA" needs scikit-learn: pip install scikit-learn') from error
        worst = max((trial.loss for trial in trials if math.isfinite(trial.loss)), default=1.0)
        x = [[math.log(trial.rate)] for trial in trials]
        y = [trial.loss if math.isfinite(trial.loss) else worst + abs(worst) for trial in trials]
        low, high = map(math.log, self.rate_range)
        grid = [low + (high - low) * i / (GRID - 1) for i in range(GRID)]
        forest = RandomForestRegressor(n_estimators=TREES, random_state=seed % 2**32).fit(x, y)
        ranked = sorted(zip(forest.predict([[value] for value in grid]).tolist(), grid, strict=True))
        return [math.exp(value) for _, value in ranked[: self.top_k]]


def _best(trials: list[Trial]) -> Trial:
    return min(trials, key=_order)


def _order(trial: Trial) -> tuple[float, float]:
    return trial.loss, trial.rate
