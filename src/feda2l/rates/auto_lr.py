"""AutoLR, rates that make deeper layers move more.

Ro, Choi: "AutoLR: Layer-wise Pruning and Auto-tuning of Learning Rates in Fine-tuning of Deep Networks", AAAI 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates.base import Rates, Rule, Setting, SignalSettings, demand_clip

FIRST, LAST = 3.0, 0.4  # ends of the first target, in the smallest and the largest variation
STEM = 0.5  # rate of the first layer, in that of the first block


@dataclass(frozen=True, kw_only=True)
class AutoLr(Rule):
    """LR_l <- LR_l * desired_l / v_l, where v_l = ||T_l - B_l|| / (number of weights of l) is to rise with depth.

    The first layer is the stem, the last the head, those between are the blocks. Over the blocks:
    round 1: desired is linear in depth, from 3 min(v) at the first block to .4 max(v) at the last;
    later:   from the middle block outward, a block out of order with the one just visited is placed beside it,
             desired_{l-1} = desired_l - gap or desired_{l+1} = desired_l + gap, gap = (max(v) - min(v)) / (blocks - 1);
             the others keep desired_l = v_l, and so their rate.
    The stem's rate is half of the first block's, the head keeps the base rate. A node adapts only while its blocks
    are out of order: score = 1 - 2 sum_l |rank_l - l| / blocks^2 < `order`.

    Adapted: AutoLR tunes one pretrained model, prunes layers, and repeats an epoch with new rates until the score is
    reached. Here a round takes the place of an epoch, nothing is pruned or repeated, and the rates found serve the next
    round; `order` stays as it is (the released code lowers it slowly). It sends no message.

    Where the description is open: the middle of an even number of blocks is the later one of the two; fewer than two
    blocks (up to three layers) have no order, so the rates stay at the base; a layer that did not move (v = 0) keeps
    its rate; if 3 min(v) > .4 max(v) the first target falls with depth, as the equation says, and later rounds mend it.
    A layer is what `rates.granularity` says; the authors' residual blocks are "block".

    order: how well the blocks must be sorted to be left alone. 1 demands all of them, and so does the default with
        up to eight blocks; lower it if many layers keep trading places.
    clip: (low, high) of rate / base of a block. Rates are multiplied round after round, and a target may even be
        negative: without bounds they would run away. Wider trusts the rule more.
    """

    summary = "rates that make a layer's movement a weight rise with depth (AutoLR)"

    order: float = 0.94
    clip: tuple[float, float] = (0.1, 10.0)

    def __post_init__(self) -> None:
        if not 0 < self.order <= 1:
            raise FedA2LError(f"rates.order = {self.order}: must be above 0 and at most 1 (sorted without exception)")
        demand_clip(self.clip)

    @property
    def measure(self) -> SignalSettings:
        return SignalSettings(movement=True)

    def start(self, setting: Setting) -> Rates:
        return _AutoLrRates(self, setting)


class _AutoLrRates(Rates):
    def __init__(self, rule: AutoLr, setting: Setting) -> None:
        super().__init__(setting)
        setting.demand("autolr", "sizes")
        self.rule = rule
        self.sizes = torch.tensor(setting.sizes, dtype=torch.float64)

    def step(self, round: int, signals: Signals) -> None:
        variation = (self.movement("autolr", signals) / self.sizes)[:, 1:-1]
        if variation.shape[1] < 2:
            return
        desired = first_target(variation) if round == 1 else sorted_target(variation)
        factor = torch.where(variation > 0, desired / variation, 1.0)
        blocks = (self.multiplier[:, 1:-1] * factor).clamp(*self.rule.clip)
        stem = STEM * blocks[:, :1] * self.base[:, 1:2] / self.base[:, :1]
        adapted = torch.cat([stem, blocks, self.multiplier[:, -1:]], dim=1)
        self.multiplier = torch.where(order_score(variation) < self.rule.order, adapted, self.multiplier)
        self.rates = self.base * self.multiplier


def first_target(variation: Tensor) -> Tensor:
    """Linear in depth, from 3 min(v) to .4 max(v): [..., blocks] -> the same shape.

    >>> first_target(torch.tensor([10., 1., 4.]))
    tensor([3.0000, 3.5000, 4.0000])
    """
    low, high = FIRST * variation.amin(-1, keepdim=True), LAST * variation.amax(-1, keepdim=True)
    blocks = variation.shape[-1]
    return low + torch.arange(blocks, dtype=variation.dtype) * (high - low) / (blocks - 1)


def sorted_target(variation: Tensor) -> Tensor:
    """The variations, each one out of order a gap beside its inner neighbour: [..., blocks] -> the same shape.

    >>> sorted_target(torch.tensor([2., 9., 5., 7., 6.]))  # the gap is (9 - 2) / 4
    tensor([2.0000, 3.2500, 5.0000, 7.0000, 8.7500])
    """
    blocks = variation.shape[-1]
    gap = (variation.amax(-1) - variation.amin(-1)) / (blocks - 1)
    desired = list(variation.unbind(-1))
    for block in range(blocks // 2, 0, -1):
        inner, outer = desired[block], desired[block - 1]
        desired[block - 1] = torch.where(outer > inner, inner - gap, outer)
    for block in range(blocks // 2, blocks - 1):
        inner, outer = desired[block], desired[block + 1]
        desired[block + 1] = torch.where(outer < inner, inner + gap, outer)
    return torch.stack(desired, dim=-1)


def order_score(variation: Tensor) -> Tensor:
    """How well the variations rise with depth, 1 - 2 sum_l |rank_l - l| / blocks^2: [..., blocks] -> [..., 1].

    1 means sorted, about 0 reversed; equal values count as sorted.

    >>> order_score(torch.tensor([[1., 2., 3., 4.], [2., 1., 3., 4.], [4., 3., 2., 1.]])).flatten()
    tensor([1.0000, 0.7500, 0.0000], dtype=torch.float64)
    """
    blocks = variation.shape[-1]
    # the distances of a permutation and of its inverse add up alike: the order serves for the ranks
    order = variation.argsort(dim=-1, stable=True)
    distance = (order - torch.arange(blocks)).abs().sum(-1, keepdim=True)
    return 1 - 2 * distance.to(torch.float64) / blocks**2
