"""DFedHPO: the nodes agree on a learning rate before the first round, then train with FedAvg.

Khan, Khan, Rizwan, Ahmad, Kim: "Consensus-Driven Hyperparameter Optimization for Accelerated Model Convergence in
Decentralized Federated Learning", Internet of Things 30:101476, 2025. The full text was not at hand: the procedure is
that of the paper's abstract and of an implementation by FedA2L's authors.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, Trial
from feda2l.errors import FedA2LError
from feda2l.randomness import derive_seed, numpy_generator

GRID = 200  # rates that the forest is asked about
TREES = 50


@dataclass(frozen=True, kw_only=True)
class DFedHPO(Algorithm):
    """FedAvg with the rate that a search before round 1 finds: it becomes `rates.base` of whatever rule follows.

    1. Every node draws `trials` rates log-uniformly from `rate_range`, trains each for `eval_epochs` epochs from the
       common start and takes the loss on the samples that it does not train on (never on the test set).
    2. One exchange of (rate, loss) pairs with the neighbours.
    3. Over its own and its neighbours' trials each node takes, by `aggregator`: "CA" the rate with the least loss;
       "FA" tries the neighbours' rates too and takes the mean of its `top_k` best; "MA" fits a random forest
       log rate -> loss, tries the `top_k` best of 200 rates on it and takes the best.
    4. With `consensus`, log rates are averaged with the neighbours until they are within 1 %.

    The search costs trials x eval_epochs local epochs ("FA": up to that times the closed neighbourhood), reported in
    rounds, and a few bytes.
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
        self.demand(low_to_high, "rate_range", "must be [low, high] with 0 < low < high: this range is empty")
        self.demand(self.aggregator in ("CA", "FA", "MA"), "aggregator", "must be one of CA, FA, MA")

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        """What the search finds: a rate a node (0: not searched yet), and the epochs that it took."""
        zeros = torch.zeros(len(shares), dtype=torch.float64)
        return {"found": zeros, "epochs": zeros.clone()}

    @property
    def rate_search(self) -> "DFedHPO":
        return self

    def epochs(self, nodes: int) -> int:
        return self.trials * self.eval_epochs * (nodes if self.aggregator == "FA" else 1)

    def draw(self, seed: int, node: int) -> list[float]:
        """A node's own candidates."""
        low, high = map(math.log, self.rate_range)
        draws = numpy_generator(seed, node=node, purpose="dfedhpo").uniform(low, high, self.trials)
        return [math.exp(value) for value in draws.tolist()]

    def shortlist(self, own_trials: list[Trial], received: list[Trial], seed: int, node: int) -> list[float]:
        """What a node tries itself once it has heard its neighbours' trials."""
        match self.aggregator:
            case "CA":
                return []
            case "FA":
                known = {trial.rate for trial in own_trials}
                return [trial.rate for trial in received if trial.rate not in known]
        return self._promising([*own_trials, *received], derive_seed(seed, node=node, purpose="forest"))

    def decide(self, own_trials: list[Trial], received: list[Trial], tried: list[Trial]) -> float:
        """The rate that a node takes; `tried` are the trials of its shortlist."""
        match self.aggregator:
            case "CA":
                return _best([*own_trials, *received]).rate
            case "FA":
                sound = [trial for trial in (*own_trials, *tried) if math.isfinite(trial.loss)]
                # one rate that diverges would spoil the mean; where all do, the smallest is the best guess
                best = sorted(sound, key=_order)[: self.top_k] or [_best([*own_trials, *tried])]
                return math.fsum(trial.rate for trial in best) / len(best)
        # a forest knows little of rates that were never tried: where all of its own diverge, a trial will do
        sound = [trial for trial in tried if math.isfinite(trial.loss)]
        return _best(sound or own_trials).rate

    def _promising(self, trials: list[Trial], seed: int) -> list[float]:
        """The `top_k` rates of a grid that a random forest, fitted to log rate -> loss, likes best."""
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
