"""A control for layer-wise adaptation: the same rule with the whole model as one layer."""

from dataclasses import dataclass, replace

from feda2l.rates.base import SignalSettings
from feda2l.rates.feda2l import FedA2LRule


@dataclass(frozen=True, kw_only=True)
class ModelLevel(FedA2LRule):
    """FedA2L with both signals over all measured parameters as one layer: one multiplier per node."""

    summary = "control: FedA2L with one divergence, one stability and one multiplier per node"
    role = "control"

    @property
    def measure(self) -> SignalSettings:
        return replace(super().measure, pooled=True)
