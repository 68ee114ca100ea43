"""The paper's equations as pure tensor functions: no state, no input or output.

Vo, Nguyen, Kim: "FedA2L: Adaptive Layer-wise Learning Rate Adjustment in Decentralized Federated Learning",
Future Generation Computer Systems, 2026. Equation numbers count its displayed equations in order.
Every function takes any leading axes, so the same code serves one layer, one node or a whole network,
and returns its inputs' dtype; sums over parameters are never made in less than float32.
"""

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Signals",
    "aggregation_stability",
    "decay_factor",
    "fusion_score",
    "learning_rates",
    "multiplier",
    "next_rates",
    "weight_divergence",
    "window_multiplier",
    "zscore",
]


class Signals(NamedTuple):
    """What a rate rule reads from the three states of a round, per layer; FedA2L reads the first two."""

    divergence: Tensor  # sigma, [..., layers]
    stability: Tensor  # zeta, [..., layers]
    movement: Tensor | None = None  # ||T - B||, [..., layers], for the rules whose `measure` asks for it


def weight_divergence(base: Tensor, trained: Tensor, eps: float, *, eps_in_norm: bool = False) -> Tensor:
    """How far training moved a layer, relative to its size (Eq. 3): sigma = ||T - B|| / (||B|| + eps).

    0 means training changed nothing. The last axis is the layer's parameters; it is reduced away.
    With `eps_in_norm` the denominator is ||B + eps||, eps added to each coordinate, as in the released code.

    >>> weight_divergence(torch.tensor([1., 2., 2.]), torch.tensor([1., 2., 2.3]), eps=1e-8)
    tensor(0.1000)
    """
    base, trained, dtype = _at_least_float32(base, trained)
    moved: Tensor = torch.linalg.vector_norm(trained - base, dim=-1)
    size: Tensor = torch.linalg.vector_norm(base + eps if eps_in_norm else base, dim=-1)
    size = size if eps_in_norm else size + eps
    return (moved / size).to(dtype)


def aggregation_stability(trained: Tensor, aggregated: Tensor, threshold: float) -> Tensor:
    """Share of a layer's parameters that aggregation moved by less than `threshold` (Eq. 4, zeta).

    1 means the neighbours already agree; 0 means every parameter was corrected.
    The last axis is the layer's parameters; it is averaged away.

    >>> aggregation_stability(torch.tensor([0., 0.]), torch.tensor([0., 1.]), threshold=0.5)
    tensor(0.5000)
    """
    trained, aggregated, dtype = _at_least_float32(trained, aggregated)
    still = (aggregated - trained).abs() < threshold
    return still.to(trained.dtype).mean(dim=-1).to(dtype)


def zscore(history: Tensor, eps: float) -> Tensor:
    """The newest value against its window (Eqs. 5 and 6): z = (h_n - mean(h)) / (std(h) + eps).

    The first axis is rounds, newest last; the standard deviation is the sample's (n - 1). It is computed from
    differences to the newest value, so a constant window gives exactly 0; fewer than two values give 0.

    >>> zscore(torch.tensor([1., 2., 3.]), eps=0.0)
    tensor(1.)
    """
    if len(history) < 2:
        return history.new_zeros(history.shape[1:])
    wide = history.to(torch.promote_types(history.dtype, torch.float32))
    lead = wide[-1] - wide
    # sums in the order of the rounds: torch's own mean and std change their order, and so their bits, with the
    # number of nodes and layers that are computed together
    mean: Tensor = reduce(torch.add, lead) / len(lead)
    variance: Tensor = reduce(torch.add, (lead - mean).square()) / (len(lead) - 1)
    return (mean / (variance.sqrt() + eps)).to(history.dtype)


def fusion_score(intensity: Tensor, consensus: Tensor, balance: float) -> Tensor:
    """Both z-scores in one positive number (Eq. 7): lambda = beta exp(omega) + (1 - beta) exp(delta).

    `balance` 1 listens to the update intensity alone, 0 to the consensus alone; at (0, 0) the score is 1.

    >>> fusion_score(torch.tensor(0.), torch.tensor(0.), balance=0.6)
    tensor(1.)
    """
    intensity, consensus = intensity.exp(), consensus.exp()
    # from the nearer end, so that nothing cancels: positive, and exact at (0, 0), at balance 0 and at balance 1
    if balance < 0.5:
        return consensus + balance * (intensity - consensus)
    return intensity + (1 - balance) * (consensus - intensity)


def multiplier(fusion: Tensor) -> Tensor:
    """The bounded factor of the base rate (in Eq. 8): m = 1 + tanh(log lambda) = 2 lambda^2 / (1 + lambda^2).

    In (0, 2), and 1 where lambda is 1. Written so that neither a huge nor a tiny lambda overflows.

    >>> multiplier(torch.tensor([0.5, 1., 2.]))
    tensor([0.4000, 1.0000, 1.6000])
    """
    return 2 / (1 + fusion.pow(-2))


def decay_factor(round: int, decay: float) -> float:
    """The global decay (gamma in Eq. 8): (1 + xi r)^(-1/2); `decay` 0 switches it off.

    >>> decay_factor(10, 0.3)
    0.5
    """
    return float((1 + decay * round) ** -0.5)


def window_multiplier(
    divergence: Tensor, stability: Tensor, *, balance: float, eps: float, consensus_sign: int = 1
) -> Tensor:
    """The multiplier m from the windows of sigma and zeta, [rounds, ...], newest last (Eqs. 5 to 7, and m of Eq. 8)."""
    return multiplier(fusion_score(zscore(divergence, eps), zscore(stability, eps) * consensus_sign, balance))


def next_rates(multiplier: Tensor, *, round: int, base_lr: float | Tensor, decay: float) -> Tensor:
    """The rates of round r + 1 from the multipliers (Eq. 8): eta = eta0 m gamma^r.

    >>> next_rates(torch.tensor([0.5, 1.0]), round=10, base_lr=0.1, decay=0.3)
    tensor([0.0250, 0.0500])
    """
    return base_lr * multiplier * decay_factor(round, decay)


def learning_rates(
    divergence: Tensor,
    stability: Tensor,
    *,
    round: int,
    base_lr: float,
    balance: float,
    decay: float,
    eps: float,
) -> Tensor:
    """The rates of round r + 1 (Eq. 8): eta = eta0 (1 + tanh(log lambda)) gamma^r, strictly in (0, 2 eta0 gamma).

    `divergence` and `stability` are the windows of sigma and zeta, [rounds, ...], round r last.

    >>> sigma = torch.tensor([.10, .12, .11, .13, .15], dtype=torch.float64)
    >>> zeta = torch.tensor([.80, .82, .81, .79, .85], dtype=torch.float64)
    >>> learning_rates(sigma, zeta, round=11, base_lr=.01, balance=.6, decay=.3, eps=1e-6)
    tensor(0.0092, dtype=torch.float64)
    """
    return next_rates(
        window_multiplier(divergence, stability, balance=balance, eps=eps), round=round, base_lr=base_lr, decay=decay
    )


def _at_least_float32(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    dtype = torch.promote_types(first.dtype, second.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    return first.to(wide), second.to(wide), dtype
