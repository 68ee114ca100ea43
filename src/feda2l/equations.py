"""The paper's equations as pure functions of tensors.

Vo, Nguyen, Kim: "FedA2L: Adaptive Layer-wise Learning Rate Adjustment in Decentralized Federated Learning",
Future Generation Computer Systems, 2026. Equation numbers count the paper's displayed equations in order.

Every function accepts any leading axes, so the same code serves one layer, one node or a whole network. The result has
the dtype of the inputs; sums over parameters are computed in float32 or wider.
"""

from functools import reduce
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Signals",
    "WindowForm",
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


WindowForm = Literal["sample", "printed"]


class Signals(NamedTuple):
    """The signals of a round that a rate rule reads, per layer; FedA2L reads the first two."""

    divergence: Tensor  # sigma, [..., layers]
    stability: Tensor  # zeta, [..., layers]
    movement: Tensor | None = None  # ||T - B||, [..., layers], for rules whose `measure` asks for it


def weight_divergence(base: Tensor, trained: Tensor, eps: float, *, eps_in_norm: bool = False) -> Tensor:
    """Return how far training moved a layer relative to its norm (Eq. 3): sigma = ||T - B|| / (||B|| + eps).

    0 means that training changed nothing. The last axis holds the layer's parameters and is reduced. With `eps_in_norm`
    the denominator is ||B + eps||, with eps added to each coordinate, as in the released code.

    >>> weight_divergence(torch.tensor([1., 2., 2.]), torch.tensor([1., 2., 2.3]), eps=1e-8)
    tensor(0.1000)
    """
    base, trained, dtype = _at_least_float32(base, trained)
    moved: Tensor = torch.linalg.vector_norm(trained - base, dim=-1)
    size: Tensor = torch.linalg.vector_norm(base + eps if eps_in_norm else base, dim=-1)
    size = size if eps_in_norm else size + eps
    return (moved / size).to(dtype)


def aggregation_stability(trained: Tensor, aggregated: Tensor, threshold: float) -> Tensor:
    """Return the share of a layer's parameters that aggregation moved by less than `threshold` (Eq. 4, zeta).

    1 means that the neighbours already agree; 0 means that aggregation changed every parameter. The last axis holds the
    layer's parameters and is averaged over.

    >>> aggregation_stability(torch.tensor([0., 0.]), torch.tensor([0., 1.]), threshold=0.5)
    tensor(0.5000)
    """
    trained, aggregated, dtype = _at_least_float32(trained, aggregated)
    still = (aggregated - trained).abs() < threshold
    return still.to(trained.dtype).mean(dim=-1).to(dtype)


def zscore(history: Tensor, eps: float, *, form: WindowForm = "sample") -> Tensor:
    """Compare the newest value with its window (Eqs. 5 and 6): z = (h_n - mean(h)) / (std(h) + eps).

    The first axis is rounds, newest last; the standard deviation is the sample's (n - 1). It is computed from
    differences to the newest value, so a constant window gives exactly 0; fewer than two values give 0.
    `form = "printed"` divides the sum of the n = rho + 1 values by n - 1 = rho in place of n, as the paper prints
    it. The result is lower than the z-score by mean(h) / ((n - 1) (std(h) + eps)), for a constant window very low.

    >>> zscore(torch.tensor([1., 2., 3.]), eps=0.0)
    tensor(1.)
    >>> zscore(torch.tensor([1., 2., 3.]), eps=0.0, form="printed")
    tensor(0.)
    """
    if len(history) < 2:
        return history.new_zeros(history.shape[1:])
    wide = history.to(torch.promote_types(history.dtype, torch.float32))
    lead = wide[-1] - wide
    # sum in the order of the rounds: the order in torch's mean and std, and so the last bits, depends on how many
    # nodes and layers are computed together
    mean: Tensor = reduce(torch.add, lead) / len(lead)
    variance: Tensor = reduce(torch.add, (lead - mean).square()) / (len(lead) - 1)
    if form == "printed":  # h_n - sum(h) / (n - 1), from the same differences
        mean = mean - (wide[-1] - mean) / (len(lead) - 1)
    return (mean / (variance.sqrt() + eps)).to(history.dtype)


def fusion_score(intensity: Tensor, consensus: Tensor, balance: float) -> Tensor:
    """Combine both z-scores into one positive number (Eq. 7): lambda = beta exp(omega) + (1 - beta) exp(delta).

    `balance` 1 uses the update intensity only, 0 the consensus only. At (0, 0) the score is 1.

    >>> fusion_score(torch.tensor(0.), torch.tensor(0.), balance=0.6)
    tensor(1.)
    """
    intensity, consensus = intensity.exp(), consensus.exp()
    # interpolate from the nearer end to avoid cancellation: exact at (0, 0), at balance 0 and at balance 1
    if balance < 0.5:
        return consensus + balance * (intensity - consensus)
    return intensity + (1 - balance) * (consensus - intensity)


def multiplier(fusion: Tensor) -> Tensor:
    """Return the bounded factor on the base rate (in Eq. 8): m = 1 + tanh(log lambda) = 2 lambda^2 / (1 + lambda^2).

    m lies in (0, 2), and m = 1 if lambda = 1. The form used does not overflow for a very large or a very small lambda.

    >>> multiplier(torch.tensor([0.5, 1., 2.]))
    tensor([0.4000, 1.0000, 1.6000])
    """
    return 2 / (1 + fusion.pow(-2))


def decay_factor(round: int, decay: float) -> float:
    """Return the global decay (gamma in Eq. 8): (1 + xi r)^(-1/2). `decay` 0 disables it.

    >>> decay_factor(10, 0.3)
    0.5
    """
    return float((1 + decay * round) ** -0.5)


def window_multiplier(
    divergence: Tensor,
    stability: Tensor,
    *,
    balance: float,
    eps: float,
    consensus_sign: int = 1,
    form: WindowForm = "sample",
) -> Tensor:
    """Compute m from the windows of both signals, [rounds, ...], newest last (Eqs. 5 to 7, and m of Eq. 8)."""
    intensity, consensus = zscore(divergence, eps, form=form), zscore(stability, eps, form=form)
    return multiplier(fusion_score(intensity, consensus * consensus_sign, balance))


def next_rates(multiplier: Tensor, *, round: int, base_lr: float | Tensor, decay: float) -> Tensor:
    """Return the rates of round r + 1 from the multipliers (Eq. 8): eta = eta0 m gamma^r.

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
    """Return the rates of round r + 1 (Eq. 8): eta = eta0 (1 + tanh(log lambda)) gamma^r, within (0, 2 eta0 gamma).

    `divergence` and `stability` are the windows of both signals, [rounds, ...], round r last.

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
