"""Algorithm 1 line by line in plain Python numbers: the slow reference that the tests compare every other version with.

It shares nothing with the rest of the package. It uses no tensors and keeps no state between calls, and it computes
each quantity by its definition. `preset` is `paper` or `reference` (the released code).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Vector = Sequence[float]


class States(NamedTuple):
    """The measured parameters of one layer at three moments of a round."""

    base: Vector
    trained: Vector
    aggregated: Vector


def algorithm_1(
    rounds: Sequence[Mapping[str, States]],
    *,
    base_lr: float,
    warmup_rounds: int,
    window: int,
    decay: float,
    balance: float = 0.6,
    threshold: float = 1e-3,
    eps_norm: float = 1e-8,
    eps_std: float = 1e-6,
    preset: str = "paper",
) -> list[dict[str, float]]:
    """Return the rates that one node trains with in rounds 1, 2, ... and in the round after the last given one."""
    released = preset == "reference"
    layers = list(rounds[0])
    deep = released and len(layers) > 10
    rates = dict.fromkeys(layers, base_lr)
    if deep:
        rates = {layer: base_lr * decay * (0.5 if "bn" in layer else 1) for layer in layers}
    divergences: dict[str, list[float]] = {layer: [] for layer in layers}
    stabilities: dict[str, list[float]] = {layer: [] for layer in layers}
    adaptations = 0
    used = [rates]

    for r, states in enumerate(rounds, start=1):  # train, exchange, aggregate: the three states of round r
        adapting = r > warmup_rounds + (1 if released else 0)
        following = dict(rates)
        for layer in layers:
            base, trained, aggregated = states[layer]
            # Eq. 3: sigma = ||T - B|| / (||B|| + eps)
            moved = math.sqrt(sum((t - b) ** 2 for b, t in zip(base, trained, strict=True)))
            size = math.sqrt(sum(b**2 for b in base)) + eps_norm
            if released:
                size = math.sqrt(sum((b + eps_norm) ** 2 for b in base))
            sigma = moved / size
            # Eq. 4: zeta = mean(|A - T| < tau)
            still = [abs(a - t) < threshold for t, a in zip(trained, aggregated, strict=True)]
            zeta = sum(still) / len(still)
            if released:  # softsign
                sigma, zeta = sigma / (1 + sigma), zeta / (1 + zeta)
            if not released:
                divergences[layer].append(sigma)
                stabilities[layer].append(zeta)
            if adapting:
                # Eqs. 5 and 6: the newest value against the last rho
                omega = z_score(divergences[layer][-window:], eps_std)
                delta = z_score(stabilities[layer][-window:], eps_std)
                # Eq. 7: lambda
                fused = balance * math.exp(omega) + (1 - balance) * math.exp(delta)
                # Eq. 8: eta = eta0 (1 + tanh(log lambda)) gamma
                gamma = 1 / math.sqrt(1 + decay * (adaptations if released else r))
                rate = base_lr * (1 + math.tanh(math.log(fused))) * gamma
                following[layer] = min(max(rate, 1e-4), 0.02) if released else rate
            if released:  # stored after adapting: its z-scores lag by one round
                divergences[layer].append(sigma)
                stabilities[layer].append(zeta)
        adaptations += adapting
        rates = following
        used.append(rates)
    return used


def z_score(values: Vector, eps: float) -> float:
    """Return (newest - mean) / (sample standard deviation + eps); 0 for fewer than two values."""
    n = len(values)
    if n < 2:
        return 0.0
    mean = math.fsum(values) / n
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return (values[-1] - mean) / (spread + eps)
