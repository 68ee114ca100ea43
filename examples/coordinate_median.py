"""Coordinate-wise median of all received models: one malicious neighbour cannot shift it arbitrarily.

Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
"""

from dataclasses import dataclass

from torch import Tensor

from feda2l.algorithms import Algorithm, Neighbourhood


@dataclass(frozen=True, kw_only=True)
class CoordinateMedian(Algorithm):
    """A = the coordinate-wise median over the closed neighbourhood; for an even number, the mean of the middle two."""

    summary = "the coordinate-wise median of the closed neighbourhood"
    citation = "Yin et al. 2018"

    def combine(self, neighbourhood: Neighbourhood) -> Tensor:
        models = neighbourhood.receive("model").sort(dim=0).values  # [k, width]
        return (models[(len(models) - 1) // 2] + models[len(models) // 2]) / 2
