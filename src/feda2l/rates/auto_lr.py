"""AutoLR: rates under which deeper layers move more.

Ro, Choi: "AutoLR: Layer-wise Pruning and Auto-tuning of Learning Rates in Fine-tuning of Deep Networks", AAAI 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates.base import Rates, Rule, Setting, SignalSettings, demand_clip

FIRST, LAST = 3.0, 0.4  # ends of the first target, as factors on the smallest and the largest variation
STEM = 0.5  # rate of the first layer, as a factor on that of the first block


@dataclass(frozen=True, kw_only=True)
class AutoLr(Rule):
    """LR_l <- LR_l * desired_l / v_l, where v_l = ||T_l - B_l|| / (number of weights of l) should rise with depth.

    The first layer is the stem, the last is the head, the layers between them are the blocks. For the blocks:

    - Round 1: desired is linear in depth, from 3 min(v) at the first block to 0.4 max(v) at the last.
    - Later rounds go from the middle block outward. A block that is out of order with the one visited before is placed
      next to it: desired_{l-1} = desired_l - gap or desired_{l+1} = desired_l + gap, with
      gap = (max(v) - min(v)) / (blocks - 1). The other blocks have desired_l = v_l and keep their rate.

    The stem's rate is half of the first block's; the head keeps the base rate. A node adapts only while its blocks are
    out of order: score = 1 - 2 sum_l |rank_l - l| / blocks^2 < `order`.

    Adapted: AutoLR tunes one pretrained model, prunes layers, and repeats an epoch with new rates until the score is
    reached. Here a round replaces an epoch, nothing is pruned or repeated, and the rates apply to the next round.
    `order` is constant (the released code lowers it slowly). The rule sends no message.

    Where the description is ambiguous: the middle of an even number of blocks is the later one of the two. Fewer than
    two blocks (up to three layers) have no order, so the rates stay at the base. A layer that did not move (v = 0)
    keeps its rate. If 3 min(v) > 0.4 max(v) the first target falls with depth, as the equation says; later rounds
    correct it. `rates.granularity` defines a layer; the authors' residual blocks are "block".

    Args:
        order: how well the blocks must be sorted for the rates to stay. 1 requires a perfect order, and so does the
            default with up to eight blocks. Lower it if many layers keep changing places.
        clip: (low, high) bounds of rate / base of a block. Rates are multiplied in every round and a target may be
            negative, so without bounds they could grow without limit. Wider bounds trust the rule more.
    """

    summary = "rates under which a layer's movement per weight rises with depth (AutoLR)"

    order: float = 0.94
    clip: tuple[float, float] = (0.1, 10.0)

    def __post_init__(self) -> None:
        if not 0 < self.order <= 1:
            raise FedA2LError(f"rates.order = {self.order}: must be above 0 and at most 1 (perfectly sorted)")
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
    """Return the target of round 1, linear in depth from 3 min(v) to 0.4 max(v): [..., blocks] -> the same shape.

    >>> first_target(torch.tensor([10., 1., 4.]))
    tensor([3.0000, 3.5000, 4.0000])
    """
    low, high = FIRST * variation.amin(-1, keepdim=True), LAST * variation.amax(-1, keepdim=True)
    blocks = variation.shape[-1]
    return low + torch.arange(blocks, dtype=variation.dtype) * (high - low) / (blocks - 1)


def sorted_target(variation: Tensor) -> Tensor:
    """Return the variations, with each block out of order one gap from its inner neighbour: [..., blocks].

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
    """Return how well the variations rise with depth, 1 - 2 sum_l |rank_l - l| / blocks^2: [..., blocks] -> [..., 1].

    1 means sorted, about 0 means reversed. Equal values count as sorted.

    >>> order_score(torch.tensor([[1., 2., 3., 4.], [2., 1., 3., 4.], [4., 3., 2., 1.]])).flatten()
    tensor([1.0000, 0.7500, 0.0000], dtype=torch.float64)
    """
    blocks = variation.shape[-1]
    # a permutation and its inverse have the same sum of distances: the order replaces the ranks
    order = variation.argsort(dim=-1, stable=True)
    distance = (order - torch.arange(blocks)).abs().sum(-1, keepdim=True)
    return 1 - 2 * distance.to(torch.float64) / blocks**2
