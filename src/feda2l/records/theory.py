"""The quantities of the paper's convergence bounds in a run's records, and the terms of Theorem 1."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypedDict

Record = Mapping[str, object]


class TheoryQuantities(TypedDict, total=False):
    """Estimates on the training data at the start of a round, in the rounds that `evaluation.theory_every` selects.

    theta is the mean of the models with which the nodes begin the round, f_i the mean training loss of node i and f
    the plain mean of all f_i.
    """

    objective: float  # f(theta)
    squared_gradient: float  # ||grad f(theta)||^2
    heterogeneity: float  # B^2 of A4: (1/N) sum_i ||grad f_i(theta) - grad f(theta)||^2
    gradient_variance: float  # of A2: (1/N) sum_i E ||grad f_i(theta; batch) - grad f_i(theta)||^2
    start_disagreement: float  # D^r = (1/N) sum_i ||theta_i^r - theta^r||^2, with the paper's r


THEORY = tuple(TheoryQuantities.__annotations__)


class Terms(NamedTuple):
    """Both sides of Theorem 1 after R rounds, in its standard form and without its constants."""

    rounds: int  # R
    gradient: float  # the mean of ||grad f||^2 over the rounds in which it was estimated: what is bounded
    start: float  # times C1: (f(theta^1) - f*) / (eta0 R), with f* = 0, which no loss is below
    noise: float  # times C2: eta0 s^2 / N, s^2 the mean of the estimates
    disagreement: float  # times C3: (D^1 + ... + D^R) / R


def theorem_terms(records: Sequence[Record], base_rate: float, nodes: int) -> list[Terms]:
    """Compute the terms for every R in which there is an estimate; a value that is not known makes its term NaN."""
    # the paper's D^(r + 1) is the disagreement after mixing in round r
    disagreements = [_number(record, "disagreement") for record in records[:-1]]
    sums = list(accumulate([_number(record, "start_disagreement") for record in records[:1]] + disagreements))
    due = [(count, record) for count, record in enumerate(records, start=1) if "objective" in record]
    gradients = list(accumulate(_number(record, "squared_gradient") for _, record in due))
    variances = list(accumulate(_number(record, "gradient_variance") for _, record in due))
    return [
        Terms(
            rounds=count,
            gradient=gradients[place] / (place + 1),
            start=_number(due[0][1], "objective") / (base_rate * count),
            noise=base_rate * variances[place] / (place + 1) / nodes,
            disagreement=sums[count - 1] / count,
        )
        for place, (count, _) in enumerate(due)
    ]


def theory_summary(
    records: Sequence[Record], base_rate: float, nodes: int, mixing_norm: float | None
) -> dict[str, object]:
    """Summarise the constants of the assumptions, each the largest estimate, and the terms at the last one."""
    terms = theorem_terms(records, base_rate, nodes)
    if not terms:
        return {}
    last = {key: value if math.isfinite(value) else None for key, value in terms[-1]._asdict().items()}
    return {
        "theory": {
            "eta0": base_rate,
            "nodes": nodes,
            "phi": None if mixing_norm is None else 1 - mixing_norm,
            "rho_squared": None if mixing_norm is None else mixing_norm**2,
            "heterogeneity": _largest(records, "heterogeneity"),
            "gradient_variance": _largest(records, "gradient_variance"),
            "delta_m": _largest(records, "multiplier_change"),
            "terms": last,
        }
    }


def _number(record: Record, key: str) -> float:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) else math.nan


def _largest(records: Sequence[Record], key: str) -> float | None:
    values = [_number(record, key) for record in records]
    return max((value for value in values if math.isfinite(value)), default=None)
