"""Controls without adaptation: FedA2L with every multiplier set to 1."""

from dataclasses import dataclass

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates.base import Setting
from feda2l.rates.feda2l import FedA2LRates, FedA2LRule


@dataclass(frozen=True, kw_only=True)
class DecayOnly(FedA2LRule):
    """FedA2L with m = 1 and the same preset, warm-up, decay index and clip."""

    summary = "control: FedA2L with every multiplier set to 1"
    role = "control"

    def start(self, setting: Setting) -> FedA2LRates:
        return _DecayOnlyRates(self.resolved(len(setting.layers)), setting)


@dataclass(frozen=True, kw_only=True)
class HiddenSchedule(DecayOnly):
    """The schedule within the released code: preset `reference` with m = 1."""

    summary = "control: decay_only with the released code's warm-up, decay index and clip"

    preset: str = "reference"  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.preset != "reference":
            raise FedA2LError(
                f'rates.preset = "{self.preset}": hidden_schedule is the schedule of preset "reference"; '
                "use decay_only for another preset"
            )
        super().__post_init__()


class _DecayOnlyRates(FedA2LRates):
    def multiplied(self, round: int, history: Signals) -> Tensor:
        return torch.ones_like(self.rates)
