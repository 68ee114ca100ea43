"""The null model: FedA2L with noise in place of its signals."""

from dataclasses import dataclass

import torch

from feda2l.equations import Signals
from feda2l.randomness import torch_generator
from feda2l.rates.base import Setting
from feda2l.rates.feda2l import FedA2LRates, FedA2LRule


@dataclass(frozen=True, kw_only=True)
class RandomMultiplier(FedA2LRule):
    """FedA2L with independent N(0, 1) draws per node, layer, signal and round in place of the signals."""

    summary = "control: FedA2L with white noise in place of its signals"
    role = "control"

    def start(self, setting: Setting) -> FedA2LRates:
        return _RandomRates(self.resolved(len(setting.layers)), setting)


class _RandomRates(FedA2LRates):
    def observed(self, round: int, signals: Signals) -> Signals:
        draws = [
            torch.randn(
                2,
                self.rates.shape[1],
                dtype=torch.float64,
                generator=torch_generator(self.setting.seed, node=node, round=round, purpose="random_multiplier"),
            )
            for node in self.setting.nodes
        ]
        return Signals(*torch.stack(draws, dim=1))
