"""FedAWA without a server: every node learns the weights of its neighbours.

Shi, Zhao, Zhang, Zhou, Guo, Chang: "FedAWA: Adaptive Optimization of Aggregation Weights in Federated Learning Using
Client Vectors", CVPR 2025.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, Neighbourhood, NodeStates

CHUNK = 1 << 20  # columns converted to float64 at a time
PIECE = 1 << 9  # columns per partial product
NOTHING = 1e-30  # used as the squared norm of a zero state, so that every cosine with it is 0
KEPT = ("weights", "first", "second")


@dataclass(frozen=True, kw_only=True)
class FedAWA(Algorithm):
    """A_i = scale sum_k p_k theta_k with p = softmax(w), where w is learned from the models that node i receives.

    With g = B_i, the node's own base state, and client vectors tau_k = theta_k - g, each round takes `steps` gradient
    steps on

        loss(w) = sum_k p_k || tau_k - sum_j p_j tau_j || + R,   R = sum_k p_k (1 - cos(g, theta_k))

    w is kept per neighbour id. No message is added. The defaults are those of the authors' code.

    Adapted: the global model of the original is the node's own base state here; on a full graph the two are equal. So
    the client vectors of neighbours with another base state are measured from this node's base state.

    Args:
        regulariser: `weighted` is R as above; `mean` is R = 1 - cos(sum_k p_k theta_k, g), as in the paper.
        init: w starts as the sample `shares`, which makes the first weights nearly uniform, or as their logarithms
            (`log_shares`), which makes the first weights the shares.
        optimizer, rate: the optimizer of w and its rate; None means 0.001 for `adam` and 0.01 for `sgd`.
        optimizer_state: `fresh` resets the optimizer of w every round, `kept` keeps its moments.
        steps: gradient steps on w per round.
        use: average with the weights `before` the last step of the round (the authors' code) or `after` it.
        scale: a factor on the aggregated model.
    """

    summary = "each node learns its neighbours' weights from their update vectors"
    citation = "Shi et al. 2025"

    regulariser: Literal["weighted", "mean"] = "weighted"
    init: Literal["shares", "log_shares"] = "shares"
    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float | None = None
    optimizer_state: Literal["fresh", "kept"] = "fresh"
    steps: int = 1
    use: Literal["before", "after"] = "before"
    scale: float = 1.0

    def __post_init__(self) -> None:
        for key, choices in (
            ("regulariser", ("weighted", "mean")),
            ("init", ("shares", "log_shares")),
            ("optimizer", ("adam", "sgd")),
            ("optimizer_state", ("fresh", "kept")),
            ("use", ("before", "after")),
        ):
            self.demand(getattr(self, key) in choices, key, f"must be one of {', '.join(choices)}")
        self.demand(self.rate is None or 0 < self.rate < float("inf"), "rate", "must be above 0")
        self.demand(self.steps >= 1, "steps", "must be at least 1 step per round")
        self.demand(0 < self.scale < float("inf"), "scale", "must be above 0")

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        """Return w and its optimizer's moments by neighbour id (NaN: not received yet), and the number of steps."""
        unknown = torch.full((len(shares), nodes), torch.nan, dtype=torch.float64)
        return {name: unknown.clone() for name in KEPT} | {"count": torch.zeros(len(shares), dtype=torch.float64)}

    def weigh(self, neighbourhood: Neighbourhood) -> Tensor:
        ids = list(neighbourhood.ids)
        share = neighbourhood.samples / neighbourhood.samples.sum()
        start = share if self.init == "shares" else share.log()
        known = {name: neighbourhood.small_state[name][ids] for name in KEPT}
        w = torch.where(known["weights"].isnan(), start, known["weights"])
        first, second = (known[name].nan_to_num(nan=0.0) for name in KEPT[1:])
        if self.optimizer_state == "fresh":
            first, second = torch.zeros_like(w), torch.zeros_like(w)
            neighbourhood.small_state["count"].zero_()
        before = w
        vectors = _Vectors.of(neighbourhood, crossed=self.regulariser == "mean")
        for _ in range(self.steps):
            neighbourhood.small_state["count"].add_(1)
            before = w
            w, first, second = self._step(w, vectors.gradient(w), first, second, neighbourhood.small_state["count"])
        for name, values in zip(KEPT, (w, first, second), strict=True):
            neighbourhood.small_state[name][ids] = values
        return torch.softmax(before if self.use == "before" else w, dim=0)

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        """Scale the model; statistics and momentum that are sent with it stay plain averages."""
        return mixed["model"].mul_(self.scale)

    @property
    def averages_plainly(self) -> bool:
        return self.scale == 1

    def _step(
        self, w: Tensor, gradient: Tensor, first: Tensor, second: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Take a step of Adam (betas 0.5, 0.999) or SGD (momentum 0.9, weight decay 5e-4) as in the authors' code."""
        if self.optimizer == "sgd":
            first = 0.9 * first + gradient + 5e-4 * w
            return w - (0.01 if self.rate is None else self.rate) * first, first, second
        first, second = 0.5 * first + 0.5 * gradient, 0.999 * second + 0.001 * gradient.square()
        size = (second / (1 - 0.999**count)).sqrt() + 1e-8
        rate = 1e-3 if self.rate is None else self.rate
        return w - rate * first / (1 - 0.5**count) / size, first, second


def _sums(models: Tensor, base: Tensor, *, crossed: bool) -> Tensor:
    """Return tau_j . tau_k, theta_j . theta_k (only theta_k . theta_k unless `crossed`), theta_k . g and g . g."""
    total = None
    for start in range(0, len(base), CHUNK):
        theta, g = models[:, start : start + CHUNK].double(), base[start : start + CHUNK].double()
        states = _inner(theta) if crossed else theta.square().sum(dim=1)
        sums = torch.cat([_inner(theta - g).flatten(), states.flatten(), theta @ g, (g @ g).view(1)])
        total = sums if total is None else total + sums
    assert total is not None
    return total


def _sums_on_gpu(models: Tensor, base: Tensor, *, crossed: bool) -> Tensor:
    """Return the same from three passes, with 2 theta_k . g = ||theta_k||^2 + ||g||^2 - ||tau_k||^2."""
    from feda2l.algorithms.cuda_products import MOST, inner_products

    if len(models) > MOST:
        return _sums(models, base, crossed=crossed)
    apart, states, size = inner_products(models, base), inner_products(models), inner_products(base.unsqueeze(0))[0]
    along = (states.diagonal() + size - apart.diagonal()) / 2
    return torch.cat([apart.flatten(), (states if crossed else states.diagonal()).flatten(), along, size])


def _inner(vectors: Tensor) -> Tensor:
    """Return all inner products of some long vectors, summed over pieces that fit into the cache."""
    whole = vectors.shape[1] // PIECE * PIECE
    pieces, rest = vectors[:, :whole].reshape(len(vectors), -1, PIECE).transpose(0, 1), vectors[:, whole:]
    return (pieces @ pieces.mT).sum(dim=0) + rest @ rest.T


@dataclass(frozen=True)
class _Vectors:
    """The inner products that the loss depends on; with them its gradient is cheap."""

    gram: Tensor  # tau_j . tau_k
    along: Tensor  # theta_k . g
    products: Tensor  # theta_j . theta_k, or only theta_k . theta_k
    size: Tensor  # ||g||^2

    @classmethod
    def of(cls, neighbourhood: Neighbourhood, *, crossed: bool) -> "_Vectors":
        models, base = neighbourhood.receive("model"), neighbourhood.base
        sums = _sums_on_gpu if base.is_cuda else _sums
        count, total = len(models), sums(models, base, crossed=crossed).cpu()  # one transfer: each waits for the GPU
        gram, products, along, size = total.split([count * count, len(total) - count * count - count - 1, count, 1])
        return cls(gram.view(count, count), along, products.view(count, count) if crossed else products, size[0])

    def gradient(self, w: Tensor) -> Tensor:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            p = torch.softmax(w, dim=0)
            apart = self.gram.diagonal() - 2 * self.gram @ p + p @ self.gram @ p
            # the norm has no gradient at 0, where a model equals the mean: use 0, as for a node alone
            there = apart > 1e-12 * self.gram.diagonal().max()
            distance = torch.where(there, apart, 1.0).sqrt() * there
            size = self.size.clamp_min(NOTHING)
            if self.products.dim() == 1:
                cosine = self.along / (self.products.clamp_min(NOTHING) * size).sqrt()
                loss = (p * distance).sum() + (p * (1 - cosine)).sum()
            else:
                mean = (p @ self.products @ p).clamp_min(NOTHING)
                loss = (p * distance).sum() + 1 - p @ self.along / (mean * size).sqrt()
            (gradient,) = torch.autograd.grad(loss, w)
        return gradient
