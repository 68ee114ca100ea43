"""The operations of k Timers between matrix products, in PyTorch. `cuda_passes` has one Triton kernel for each.

Each function takes the result of a product, [k, places, width], and adds its bias [k, width]. A place is a token.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ONE, OTHER = -2048144789, -1028477387  # 0x85ebca6b and 0xc2b2ae35 as int32: the finaliser of MurmurHash3
SITE, OTHERS = 40503, 0x632BE5AB  # arbitrary odd numbers
SPREAD = -1640531535  # 0x9e3779b1 as int32: odd, and close to 2^32 divided by the golden ratio


class DropoutMask(NamedTuple):
    """One dropout layer of all rows in one step: its probability, its seeds int32 [k, sites, 2], and its site."""

    draws: Tensor | None  # None: no dropout
    site: int
    chance: float

    @property
    def idle(self) -> bool:
        """True if nothing is dropped."""
        return self.draws is None or not self.chance

    @property
    def threshold(self) -> int:
        """Values with an int32 draw below this threshold are dropped."""
        return int(self.chance * (1 << 32)) - (1 << 31)

    def of(self, x: Tensor) -> Tensor:
        """Return x / (1 - chance) where a value is kept, else 0."""
        if self.idle:
            return x
        return x * keep_mask(self, x.shape[1:]) / (1 - self.chance)


def attended(
    projected: Sequence[Tensor], biases: Sequence[Tensor], tokens: int, heads: int, dropout: DropoutMask
) -> Tensor:
    """Return `Block.attend` of projected queries, keys and values, computed in at least float32.

    With few tokens the products are written as sums, which the compiler fuses with the surrounding operations.
    """
    width = projected[0].shape[-1]
    exact = projected[0].dtype if projected[0].dtype == torch.float64 else torch.float32
    query, key, value = (
        (part + bias.unsqueeze(1)).view(len(part), -1, tokens, heads, width // heads).to(exact)
        for part, bias in zip(projected, biases, strict=True)
    )
    scores = (query.unsqueeze(3) * key.unsqueeze(2)).sum(-1) / query.shape[-1] ** 0.5
    ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).triu(1).unsqueeze(-1)
    weights = dropout.of(scores.masked_fill(ahead, -torch.inf).softmax(dim=3))
    mixed: Tensor = (weights.unsqueeze(-1) * value.unsqueeze(2)).sum(3)
    return mixed.to(projected[0].dtype).flatten(3).flatten(1, 2)


def activated(x: Tensor, bias: Tensor, dropout: DropoutMask) -> Tensor:
    """Return dropout(gelu(x + bias))."""
    return dropout.of(F.gelu(x + bias.unsqueeze(1)))


def normed(x: Tensor, update: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, dropout: DropoutMask) -> Tensor:
    """Return norm(x + dropout(update + bias)) * weight + shift, normalised over the width; weight is [k, width]."""
    total = x + dropout.of(update + bias.unsqueeze(1))
    return F.layer_norm(total, total.shape[-1:]) * weight.unsqueeze(1) + shift.unsqueeze(1)


def draws_of(seeds: Tensor, step: Tensor, sites: int) -> Tensor:
    """Return hashes of the round's seeds, int32 [k], the step number [k] and the site, for all draws of a step.

    They are computed once per step, because the compiler would compute them again for every number.
    """
    per_step = _mixed(seeds + _mixed(step.int() * SITE + OTHERS)).unsqueeze(1)
    first = _mixed(per_step + torch.arange(sites, dtype=torch.int32, device=seeds.device) * SITE)
    return torch.stack([first, _mixed(first ^ OTHERS)], dim=-1)


def keep_mask(dropout: DropoutMask, shape: Sequence[int]) -> Tensor:
    """Return the mask [k, *shape] of the numbers that a dropout keeps: a hash of the row's draws, site and place.

    There is no generator, so a row's mask does not depend on other rows or their order, and a captured step can be
    replayed. The hash is `_mixed` without its last line, which changes the lower bits only; the highest bits decide.
    """
    assert dropout.draws is not None
    start, other = (dropout.draws[:, dropout.site, i].view(-1, *(1,) * len(shape)) for i in (0, 1))
    place = torch.arange(torch.Size(shape).numel(), dtype=torch.int32, device=start.device).view(1, *shape)
    # add before multiplying: the compiler would treat a product of places as an address, which must not overflow
    return _shaken((place + start) * SPREAD ^ other) >= dropout.threshold


def _shaken(x: Tensor) -> Tensor:
    """Return MurmurHash3's finaliser without its last line, on int32. Products wrap, and `>>` copies the sign."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * ONE
    return (x ^ ((x >> 13) & 0x7FFFF)) * OTHER


def _mixed(x: Tensor) -> Tensor:
    """Return the finaliser of MurmurHash3."""
    x = _shaken(x)
    return x ^ ((x >> 16) & 0xFFFF)
