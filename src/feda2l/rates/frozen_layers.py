"""FedA2L's rates for a model whose layers may be frozen and thawed during training."""

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.rates.feda2l import FedA2LRates


class FreezableRates(FedA2LRates):
    """Rates of the drop-in: NaN signals mean that a layer was frozen in the round.

    A frozen layer keeps its rate. A layer that is thawed starts with a fresh history: its z-scores see only the rounds
    since the last one in which it was frozen.
    """

    def step(self, round: int, signals: Signals) -> None:
        frozen = signals.divergence.isnan()
        rates, multiplier = self.rates, self.multiplier
        super().step(round, signals)
        self.rates = torch.where(frozen, rates, self.rates)
        self.multiplier = torch.where(frozen, multiplier, self.multiplier)

    def multiplied(self, round: int, history: Signals) -> Tensor:
        multiplier = super().multiplied(round, history)
        frozen = history.divergence[:, 0].isnan()  # [rounds, layers]: the drop-in is one node
        for layer in frozen.any(0).nonzero().flatten().tolist():
            thawed = int(frozen[:, layer].nonzero()[-1]) + 1
            recent = Signals(*(values[thawed:, :, layer] for values in history[:2]))
            multiplier[:, layer] = super().multiplied(round, recent)
        return multiplier
