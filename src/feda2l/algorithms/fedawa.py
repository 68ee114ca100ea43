"""FedAWA without a server: every node learns how much to listen to whom.

Shi, Zhao, Zhang, Zhou, Guo, Chang: "FedAWA: Adaptive Optimization of Aggregation Weights in Federated Learning Using
Client Vectors", CVPR 2025.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, Neighbourhood, NodeStates

CHUNK = 1 << 20  # columns taken to float64 at a time
PIECE = 1 << 9  # columns of one partial product
NOTHING = 1e-30  # the squared norm of a state of zeros, to which every cosine is 0
KEPT = ("weights", "first", "second")


@dataclass(frozen=True, kw_only=True)
class FedAWA(Algorithm):
    """A_i = scale sum_k p_k theta_k with p = softmax(w), and w learned from the models that node i hears.

    With g = B_i, the node's own base state, and client vectors tau_k = theta_k - g, a round takes `steps` steps down

        loss(w) = sum_k p_k || tau_k - sum_j p_j tau_j || + R,   R = sum_k p_k (1 - cos(g, theta_k))

    (regulariser "weighted"; "mean" is R = 1 - cos(sum_k p_k theta_k, g)). `w` is kept by neighbour id. The defaults are
    the authors' code: w starts as the sample shares themselves, which makes the first weights nearly uniform; a fresh
    Adam every round; the weights of a round are those before its step. No message is added. Without a server the
    global model of the original is the node's own base state; on a full graph they are the same.
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
        self.demand(self.steps >= 1, "steps", "must be at least 1 step a round")
        self.demand(0 < self.scale < float("inf"), "scale", "must be above 0")

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        """w and its optimiser's moments by neighbour id (not a number: never met), and the number of steps."""
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
        """The scale is the model's alone: statistics and momentum that travel beside it are plain averages."""
        return mixed["model"].mul_(self.scale)

    @property
    def averages_plainly(self) -> bool:
        return self.scale == 1

    def _step(
        self, w: Tensor, gradient: Tensor, first: Tensor, second: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step of Adam (betas .5, .999) or of SGD (momentum .9, weight decay 5e-4), as in the authors' code."""
        if self.optimizer == "sgd":
            first = 0.9 * first + gradient + 5e-4 * w
            return w - (0.01 if self.rate is None else self.rate) * first, first, second
        first, second = 0.5 * first + 0.5 * gradient, 0.999 * second + 0.001 * gradient.square()
        size = (second / (1 - 0.999**count)).sqrt() + 1e-8
        rate = 1e-3 if self.rate is None else self.rate
        return w - rate * first / (1 - 0.5**count) / size, first, second


def _sums(models: Tensor, base: Tensor, *, crossed: bool) -> Tensor:
    """tau_j . tau_k; theta_j . theta_k, or of each with itself alone; theta_k . g; g . g: one after another."""
    total = None
    for start in range(0, len(base), CHUNK):
        theta, g = models[:, start : start + CHUNK].double(), base[start : start + CHUNK].double()
        states = _inner(theta) if crossed else theta.square().sum(dim=1)
        sums = torch.cat([_inner(theta - g).flatten(), states.flatten(), theta @ g, (g @ g).view(1)])
        total = sums if total is None else total + sums
    assert total is not None
    return total


def _sums_on_gpu(models: Tensor, base: Tensor, *, crossed: bool) -> Tensor:
    """The same from three passes; of theta_k . g what 2 theta_k . g = ||theta_k||^2 + ||g||^2 - ||tau_k||^2 says."""
    from feda2l.algorithms.cuda_products import MOST, inner_products

    if len(models) > MOST:
        return _sums(models, base, crossed=crossed)
    apart, states, size = inner_products(models, base), inner_products(models), inner_products(base.unsqueeze(0))[0]
    along = (states.diagonal() + size - apart.diagonal()) / 2
    return torch.cat([apart.flatten(), (states if crossed else states.diagonal()).flatten(), along, size])


def _inner(vectors: Tensor) -> Tensor:
    """All inner products of some long vectors, added up from pieces, which stay in the cache."""
    whole = vectors.shape[1] // PIECE * PIECE
    pieces, rest = vectors[:, :whole].reshape(len(vectors), -1, PIECE).transpose(0, 1), vectors[:, whole:]
    return (pieces @ pieces.mT).sum(dim=0) + rest @ rest.T


@dataclass(frozen=True)
class _Vectors:
    """All that the loss needs of the models: inner products, so that its gradient costs nothing."""

    gram: Tensor  # tau_j . tau_k
    along: Tensor  # theta_k . g
    products: Tensor  # theta_j . theta_k, or of each with itself alone
    size: Tensor  # ||g||^2

    @classmethod
    def of(cls, neighbourhood: Neighbourhood, *, crossed: bool) -> "_Vectors":
        models, base = neighbourhood.receive("model"), neighbourhood.base
        sums = _sums_on_gpu if base.is_cuda else _sums
        count, total = len(models), sums(models, base, crossed=crossed).cpu()  # all at once: a look waits for the card
        gram, products, along, size = total.split([count * count, len(total) - count * count - count - 1, count, 1])
        return cls(gram.view(count, count), along, products.view(count, count) if crossed else products, size[0])

    def gradient(self, w: Tensor) -> Tensor:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            p = torch.softmax(w, dim=0)
            apart = self.gram.diagonal() - 2 * self.gram @ p + p @ self.gram @ p
            # the norm has no gradient at 0, where a model is the mean itself: 0 there, as for a node alone
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
