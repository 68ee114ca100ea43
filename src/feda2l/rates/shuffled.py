"""A control for the layers: FedA2L's multipliers, assigned to random layers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.randomness import torch_generator
from feda2l.rates.base import Setting
from feda2l.rates.feda2l import FedA2LRates, FedA2LRule


@dataclass(frozen=True, kw_only=True)
class Shuffled(FedA2LRule):
    """FedA2L with the multipliers of each round permuted over a node's layers: same values, no layer information."""

    summary = "control: FedA2L's multipliers permuted over the layers of each node"
    role = "control"

    def start(self, setting: Setting) -> FedA2LRates:
        return _ShuffledRates(self.resolved(len(setting.layers)), setting)


class _ShuffledRates(FedA2LRates):
    def multiplied(self, round: int, history: Signals) -> Tensor:
        multipliers = super().multiplied(round, history)
        order = [
            torch.randperm(
                multipliers.shape[1],
                generator=torch_generator(self.setting.seed, node=node, round=round, purpose="shuffled"),
            )
            for node in self.setting.nodes
        ]
        return multipliers.gather(1, torch.stack(order))
