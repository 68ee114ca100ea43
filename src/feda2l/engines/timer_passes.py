"""What k Timers do between their products, written out; `cuda_passes` does the same in one kernel each.

All take what a product gave, [k, places, width], with its bias [k, width] still to be added; a place is a token.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ONE, OTHER = -2048144789, -1028477387  # 0x85ebca6b and 0xc2b2ae35 as int32: the finaliser of MurmurHash3
SITE, OTHERS = 40503, 0x632BE5AB  # any odd numbers
SPREAD = -1640531535  # 0x9e3779b1 as int32: odd, and near the golden section of its range


class DropoutMask(NamedTuple):
    """One dropout of all rows in one step: its chance, and what it draws from, int32 [k, sites, 2], at its site."""

    draws: Tensor | None  # nothing is dropped without
    site: int
    chance: float

    @property
    def idle(self) -> bool:
        """Does it let all through?"""
        return self.draws is None or not self.chance

    @property
    def threshold(self) -> int:
        """A draw, any int32, below this is dropped."""
        return int(self.chance * (1 << 32)) - (1 << 31)

    def of(self, x: Tensor) -> Tensor:
        """x / (1 - chance) where it is kept, else 0."""
        if self.idle:
            return x
        return x * kept(self, x.shape[1:]) / (1 - self.chance)


def attended(
    projected: Sequence[Tensor], biases: Sequence[Tensor], tokens: int, heads: int, dropout: DropoutMask
) -> Tensor:
    """As `Block.attend` without its products: of queries, keys and values, in float32 where they are in half.

    Products of a few tokens are sums, which a compiler joins with what is around.
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
    """dropout(gelu(x + bias))."""
    return dropout.of(F.gelu(x + bias.unsqueeze(1)))


def normed(x: Tensor, update: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, dropout: DropoutMask) -> Tensor:
    """norm(x + dropout(update + bias)), normalised over the width, times weight [k, width] plus shift."""
    total = x + dropout.of(update + bias.unsqueeze(1))
    return F.layer_norm(total, total.shape[-1:]) * weight.unsqueeze(1) + shift.unsqueeze(1)


def draws_of(seeds: Tensor, step: Tensor, sites: int) -> Tensor:
    """Hashes of a round's seeds, int32 [k], the step's number [k] and the site: all of a draw but the place.

    Made once a step: a compiler would make them anew for every number that is dropped or kept.
    """
    own = _mixed(seeds + _mixed(step.int() * SITE + OTHERS)).unsqueeze(1)
    first = _mixed(own + torch.arange(sites, dtype=torch.int32, device=seeds.device) * SITE)
    return torch.stack([first, _mixed(first ^ OTHERS)], dim=-1)


def kept(dropout: DropoutMask, shape: Sequence[int]) -> Tensor:
    """Which numbers of each row a dropout keeps, [k, *shape]: a hash of the row's draws, the site and the place.

    No generator: a row drops the same whoever trains beside it, in whatever order, and a captured step can be replayed.
    The hash is that of `_mixed` without its last line, which changes the lower bits alone: here the highest decide.
    """
    assert dropout.draws is not None
    start, other = (dropout.draws[:, dropout.site, i].view(-1, *(1,) * len(shape)) for i in (0, 1))
    place = torch.arange(torch.Size(shape).numel(), dtype=torch.int32, device=start.device).view(1, *shape)
    # the sum before the product: the compiler would take a product of places for an address, which may not overflow
    return _shaken((place + start) * SPREAD ^ other) >= dropout.threshold


def _shaken(x: Tensor) -> Tensor:
    """All but the last line of MurmurHash3's finaliser, on int32, whose products wrap; `>>` copies the sign."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * ONE
    return (x ^ ((x >> 13) & 0x7FFFF)) * OTHER


def _mixed(x: Tensor) -> Tensor:
    """The finaliser of MurmurHash3."""
    x = _shaken(x)
    return x ^ ((x >> 16) & 0xFFFF)
