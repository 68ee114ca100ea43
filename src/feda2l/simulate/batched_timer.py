"""The forward pass of k Timers at once, with dropout that a row draws alike whoever trains beside it."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from feda2l.models.timer import Block, Timer, positions
from feda2l.simulate.batched_product import product

TOKENS = 16  # of a window at most: attention is written out, which costs tokens x tokens x width
ONE, OTHER = -2048144789, -1028477387  # 0x85ebca6b and 0xc2b2ae35 as int32: the finaliser of MurmurHash3
SITE, OTHERS = 40503, 0x632BE5AB  # any odd numbers
SPREAD = -1640531535  # 0x9e3779b1 as int32: odd, and near the golden section of its range

Draws = Tensor  # int32 [k, sites, 2]: what each of a row's dropouts is drawn from in this step


def covers_timer(model: Timer) -> bool:
    """Is it a Timer as it stands, with a head over all of its few tokens, that trains as a whole?"""
    written = all(getattr(type(model), name) is getattr(Timer, name) for name in ("forward", "encode", "_rescaled"))
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    few = not model.rolls and model.head.in_features <= TOKENS * model.embed.out_features
    plain = all(type(block) is Block for block in model.blocks) and all(p.requires_grad for p in model.parameters())
    return written and few and plain and not hooked


def timer_forward(
    model: Timer, device: torch.device, dtype: torch.dtype
) -> Callable[[Sequence[Tensor], Tensor, Draws | None], Tensor]:
    """Forecasts [k, batch, horizon, channels] from windows [k, batch, length, channels]; without draws, no dropout."""
    names = [name for name, _ in model.named_parameters()]
    tokens = model.head.in_features // model.embed.out_features
    table = positions(tokens, model.embed.out_features, device, dtype)  # here: a captured step must not make it
    chance, heads_of = model.dropout.p, [block.heads for block in model.blocks if isinstance(block, Block)]

    def forward(parameters: Sequence[Tensor], x: Tensor, draws: Draws | None) -> Tensor:
        own = dict(zip(names, parameters, strict=True))

        def linear(x: Tensor, name: str) -> Tensor:
            return product(x, own[f"{name}.weight"], own[f"{name}.bias"])

        def norm(x: Tensor, name: str) -> Tensor:
            plain = F.layer_norm(x, x.shape[-1:])
            return plain * own[f"{name}.weight"].unsqueeze(1) + own[f"{name}.bias"].unsqueeze(1)

        def drop(x: Tensor, site: int) -> Tensor:
            return x if draws is None or not chance else x * kept(draws, site, x.shape[1:], chance) / (1 - chance)

        def attend(x: Tensor, name: str, heads: int, site: int) -> Tensor:
            """As `Block.attend`; products of a few tokens are sums, which the compiler joins with what is around."""
            query, key, value = (
                linear(x, f"{name}.{part}").view(len(x), -1, tokens, heads, x.shape[-1] // heads).to(exact)
                for part in ("query", "key", "value")
            )
            scores = (query.unsqueeze(3) * key.unsqueeze(2)).sum(-1) / query.shape[-1] ** 0.5
            ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1).unsqueeze(-1)
            weights = drop(scores.masked_fill(ahead, -torch.inf).softmax(dim=3), site)
            mixed = (weights.unsqueeze(-1) * value.unsqueeze(2)).sum(3)
            return linear(mixed.to(x.dtype).flatten(3).flatten(1, 2), f"{name}.output")

        exact = x.dtype  # of levels, scales and attention, in which half precision would be felt
        mean = x.mean(dim=2, keepdim=True)
        scale = (x.var(dim=2, keepdim=True, correction=0) + 1e-5).sqrt()
        sequences = ((x - mean) / scale).transpose(2, 3)  # [k, batch, channels, length]
        values = sequences.reshape(len(x), -1, model.patch).to(own["embed.weight"].dtype)
        values = product(values, own["embed.weight"]).unflatten(1, (-1, tokens))
        values = drop(values + table, 0).flatten(1, 2)
        for number, heads in enumerate(heads_of):
            name, site = f"blocks.{number}", 4 * number
            values = norm(values + drop(attend(values, name, heads, site + 1), site + 2), f"{name}.norm1")
            hidden = drop(F.gelu(linear(values, f"{name}.expand")), site + 3)
            values = norm(values + drop(linear(hidden, f"{name}.contract"), site + 4), f"{name}.norm2")
        values = norm(values, "norm").unflatten(1, (-1, tokens)).flatten(2)
        forecast: Tensor = linear(values, "head").unflatten(1, sequences.shape[1:3]).transpose(2, 3) * scale + mean
        return forecast

    return forward


def dropouts(model: Timer) -> int:
    """How many dropouts a forward pass has: one behind the embedding, four a block."""
    return 1 + 4 * len(model.blocks)


def draws_of(seeds: Tensor, step: Tensor, sites: int) -> Draws:
    """Hashes of a round's seeds, int32 [k], the step's number [k] and the site: all of a draw but the place.

    Made once a step: a compiler would make them anew for every number that is dropped or kept.
    """
    own = _mixed(seeds + _mixed(step.int() * SITE + OTHERS)).unsqueeze(1)
    first = _mixed(own + torch.arange(sites, dtype=torch.int32, device=seeds.device) * SITE)
    return torch.stack([first, _mixed(first ^ OTHERS)], dim=-1)


def kept(draws: Draws, site: int, shape: Sequence[int], chance: float) -> Tensor:
    """Which numbers of each row a dropout keeps, [k, *shape]: a hash of the row's draws, the site and the place.

    No generator: a row drops the same whoever trains beside it, in whatever order, and a captured step can be replayed.
    The hash is that of `_mixed` without its last line, which changes the lower bits alone: here the highest decide.
    """
    start, other = (draws[:, site, i].view(-1, *(1,) * len(shape)) for i in (0, 1))
    place = torch.arange(torch.Size(shape).numel(), dtype=torch.int32, device=draws.device).view(1, *shape)
    # the sum before the product: the compiler would take a product of places for an address, which may not overflow
    bits = _shaken((place + start) * SPREAD ^ other)
    return bits >= int(chance * (1 << 32)) - (1 << 31)


def _shaken(x: Tensor) -> Tensor:
    """All but the last line of MurmurHash3's finaliser, on int32, whose products wrap; `>>` copies the sign."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * ONE
    return (x ^ ((x >> 13) & 0x7FFFF)) * OTHER


def _mixed(x: Tensor) -> Tensor:
    """The finaliser of MurmurHash3."""
    x = _shaken(x)
    return x ^ ((x >> 16) & 0xFFFF)
