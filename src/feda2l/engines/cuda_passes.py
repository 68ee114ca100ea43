"""`timer_passes` as Triton kernels with one pass forward and one backward, as opaque custom operators.

The compiled version is limited by arithmetic (an error function and a hash per number, forward and backward) and reads
the gradients again for every bias. Here the backward pass multiplies by stored slopes and sums for the biases in the
same pass. Imported on a GPU only.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from feda2l.engines.cuda_timer_kernels import (
    activate,
    activate_back,
    add_parts,
    attend,
    attend_back,
    normalise,
    normalise_back,
)
from feda2l.engines.timer_passes import DropoutMask
from feda2l.plain_values import PlainDict

SIZE = 1024  # numbers per program of `activated`
ROWS = 4  # tokens that a program of `normed` handles at a time
WARPS = 8  # warps of the backward pass of `normed`, which keeps most values in registers
LINE = 1024  # numbers of a token that attention handles at a time
REGISTERS = 168  # registers per thread of the backward pass of attention
AT_ONCE = 3  # backward programs that fit into the registers of a multiprocessor


# --- the same functions as in `timer_passes` -------------------------------------------------------------------


def attended(
    projected: Sequence[Tensor], biases: Sequence[Tensor], tokens: int, heads: int, dropout: DropoutMask
) -> Tensor:
    """Return attention of queries, keys and values, without the matrix products of the projections."""
    mixed: Tensor = _attended(*projected, *biases, tokens, heads, *_drawn(dropout))[0]
    return mixed


def activated(x: Tensor, bias: Tensor, dropout: DropoutMask) -> Tensor:
    """Return dropout(gelu(x + bias))."""
    out: Tensor = _activated(x, bias, *_drawn(dropout), x.requires_grad)[0]
    return out


def normed(x: Tensor, update: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, dropout: DropoutMask) -> Tensor:
    """Return norm(x + dropout(update + bias)) * weight + shift."""
    out: Tensor = _normed(x, update, bias, weight, shift, *_drawn(dropout))[0]
    return out


def _drawn(dropout: DropoutMask) -> tuple[Tensor | None, float]:
    """Return a dropout as operator arguments."""
    if dropout.idle:
        return None, 0.0
    assert dropout.draws is not None
    return dropout.draws[:, dropout.site], dropout.chance


def _dropping(draws: Tensor | None, chance: float, like: Tensor) -> tuple[Tensor, int, PlainDict]:
    """Return a dropout as kernel arguments: the draws, the stride between rows, and compile-time constants."""
    constants = {"THRESHOLD": DropoutMask(draws, 0, chance).threshold, "DROPS": draws is not None}
    return (like, 0, constants) if draws is None else (draws, draws.stride(0), constants)


# --- operators and their gradients -----------------------------------------------------------------------------


@torch.library.custom_op("feda2l::activated", mutates_args=())
def _activated(x: Tensor, bias: Tensor, draws: Tensor | None, chance: float, learns: bool) -> tuple[Tensor, Tensor]:
    x, (rows, places, width) = x.contiguous(), x.shape
    out, slope = torch.empty_like(x), torch.empty_like(x) if learns else x.new_empty(0)
    drawn, apart, constants = _dropping(draws, chance, x)
    activate[triton.cdiv(places * width, SIZE), rows](
        x, bias, bias.stride(0), drawn, apart, out, slope, places * width, 1 / (1 - chance),
        WIDTH=width, LEARNS=learns, SIZE=SIZE, **constants,
    )  # fmt: skip
    return out, slope


@torch.library.custom_op("feda2l::activated_back", mutates_args=())
def _activated_back(gradient: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    gradient, (rows, places, width) = gradient.contiguous(), gradient.shape
    out, columns = torch.empty_like(gradient), min(width, 256)
    parts, each = _parts(gradient, places, 8)
    sums = gradient.new_empty(rows, parts, width, dtype=torch.float32)
    activate_back[parts, width // columns, rows](
        gradient, slope, out, sums, places, each, WIDTH=width, ROWS=8, COLUMNS=columns
    )
    return out, _added(sums, gradient)


@torch.library.custom_op("feda2l::normed", mutates_args=())
def _normed(
    x: Tensor, update: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, draws: Tensor | None, chance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, update, (rows, places, width) = x.contiguous(), update.contiguous(), x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    centre, spread = (x.new_empty(rows, places, dtype=torch.float32) for _ in range(2))
    drawn, apart, constants = _dropping(draws, chance, x)
    normalise[triton.cdiv(places, ROWS), rows](
        x, update, bias, bias.stride(0), weight, weight.stride(0), shift, shift.stride(0), drawn, apart,
        out, total, centre, spread, places, 1 / (1 - chance), WIDTH=width, ROWS=ROWS, **constants,
    )  # fmt: skip
    return out, total, centre, spread


@torch.library.custom_op("feda2l::normed_back", mutates_args=())
def _normed_back(
    gradient: Tensor,
    total: Tensor,
    centre: Tensor,
    spread: Tensor,
    weight: Tensor,
    draws: Tensor | None,
    chance: float,
) -> tuple[Tensor, Tensor, Tensor]:
    gradient, (rows, places, width) = gradient.contiguous(), gradient.shape
    to_x, to_update = torch.empty_like(gradient), torch.empty_like(gradient)
    parts, each = _parts(gradient, places, ROWS)
    sums = gradient.new_empty(3, rows, parts, width, dtype=torch.float32)
    drawn, apart, constants = _dropping(draws, chance, gradient)
    normalise_back[parts, rows](
        gradient, total, centre, spread, weight, weight.stride(0), drawn, apart,
        to_x, to_update, sums, places, each, 1 / (1 - chance),
        WIDTH=width, ROWS=ROWS, num_warps=WARPS, **constants,
    )  # fmt: skip
    return to_x, to_update, _added(sums, gradient)


@torch.library.custom_op("feda2l::attended", mutates_args=())
def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    of_query: Tensor,
    of_key: Tensor,
    of_value: Tensor,
    tokens: int,
    heads: int,
    draws: Tensor | None,
    chance: float,
) -> tuple[Tensor, Tensor]:
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    biases, (rows, places, width) = _equal_strides(of_query, of_key, of_value), query.shape
    out, level = torch.empty_like(query), query.new_empty(rows, places, heads, dtype=torch.float32)
    drawn, apart, constants = _dropping(draws, chance, query)
    together = _windows(width)
    attend[triton.cdiv(places, tokens * together), rows](
        query, key, value, *biases, biases[0].stride(0), drawn, apart, out, level, places, tokens, 1 / (1 - chance),
        TOKENS=tokens, HEADS=heads, DEPTH=width // heads, LINES=heads * together, **constants,
    )  # fmt: skip
    return out, level


@torch.library.custom_op("feda2l::attended_back", mutates_args=())
def _attended_back(
    projected: Sequence[Tensor],
    biases: Sequence[Tensor],
    tokens: int,
    heads: int,
    draws: Tensor | None,
    chance: float,
    mixed: Tensor,
    level: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value, gradient = (part.contiguous() for part in (*projected, gradient))
    biases, (rows, places, width) = _equal_strides(*biases), query.shape
    for_query, for_key, for_value = (torch.empty_like(query) for _ in range(3))
    together = _windows(width)
    parts, each = _parts(query, places // tokens, together)
    sums = query.new_empty(3, rows, parts, width, dtype=torch.float32)
    drawn, apart, constants = _dropping(draws, chance, query)
    attend_back[parts, rows](
        query, key, value, *biases, biases[0].stride(0), drawn, apart, mixed, level, gradient,
        for_query, for_key, for_value, sums, places, tokens, each, 1 / (1 - chance),
        TOKENS=tokens, HEADS=heads, DEPTH=width // heads, LINES=heads * together,
        num_warps=max(4, tokens), maxnreg=REGISTERS if tokens <= 4 else None, **constants,
    )  # fmt: skip
    return for_query, for_key, for_value, _added(sums, query)


def _windows(width: int) -> int:
    """Return the number of windows that attention handles at a time."""
    return max(1, LINE // width)


def _equal_strides(*biases: Tensor) -> tuple[Tensor, ...]:
    """Return biases [rows, width] with equal strides between rows, as in one population."""
    same = len({bias.stride(0) for bias in biases}) == 1
    return biases if same else tuple(bias.contiguous() for bias in biases)


def _parts(like: Tensor, count: int, step: int) -> tuple[int, int]:
    """Split the sum over a row's `count` places into parts that fill the GPU once. Return (parts, places per part)."""
    parts = max(1, AT_ONCE * _processors(like.device) // len(like))
    each = triton.cdiv(count, parts * step) * step
    return triton.cdiv(count, each), each


@cache
def _processors(device: torch.device) -> int:
    on_card = device.type == "cuda"  # on a CPU the kernels are interpreted
    return torch.cuda.get_device_properties(device).multi_processor_count if on_card else 4


def _added(sums: Tensor, like: Tensor) -> Tensor:
    """Return the sum [..., width] of parts [..., parts, width] in the dtype of `like`."""
    *kinds, parts, width = sums.shape
    out, columns = like.new_empty(*kinds, width), min(width, 128)
    add_parts[width // columns, sums.numel() // (parts * width)](
        sums, out, parts, WIDTH=width, ROWS=16, COLUMNS=columns
    )
    return out


@_activated.register_fake
def _(x: Tensor, bias: Tensor, draws: Tensor | None, chance: float, learns: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape if learns else 0)


@_activated_back.register_fake
def _(gradient: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    return gradient.new_empty(gradient.shape), gradient.new_empty(len(gradient), gradient.shape[-1])


@_normed.register_fake
def _(x: Tensor, *others: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    centre, spread = (x.new_empty(x.shape[:2], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), x.new_empty(x.shape), centre, spread


@_normed_back.register_fake
def _(gradient: Tensor, *others: object) -> tuple[Tensor, Tensor, Tensor]:
    sums = gradient.new_empty(3, len(gradient), gradient.shape[-1])
    return gradient.new_empty(gradient.shape), gradient.new_empty(gradient.shape), sums


@_attended.register_fake
def _(query: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    heads = others[6]
    return query.new_empty(query.shape), query.new_empty(*query.shape[:2], heads, dtype=torch.float32)


@_attended_back.register_fake
def _(projected: Sequence[Tensor], *others: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query = projected[0]
    for_query, for_key, for_value = (query.new_empty(query.shape) for _ in range(3))
    return for_query, for_key, for_value, query.new_empty(3, len(query), query.shape[-1])


def _keep_slope(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _through_activated(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
    return *_activated_back(gradient, *ctx.saved_tensors), None, None, None


def _keep_total(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *_, weight, _, draws, ctx.chance = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], weight, draws)


def _through_normed(ctx: Any, gradient: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    to_x, to_update, sums = _normed_back(gradient, *ctx.saved_tensors, ctx.chance)
    return to_x, to_update, *sums.unbind(), None, None


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.tokens, ctx.heads, draws, ctx.chance = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, draws, *output)


def _through_attended(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
    *tensors, draws, mixed, level = ctx.saved_tensors
    *gradients, sums = _attended_back(
        tensors[:3], tensors[3:], ctx.tokens, ctx.heads, draws, ctx.chance, mixed, level, gradient
    )
    return *gradients, *sums.unbind(), None, None, None, None


_activated.register_autograd(_through_activated, setup_context=_keep_slope)
_normed.register_autograd(_through_normed, setup_context=_keep_total)
_attended.register_autograd(_through_attended, setup_context=_keep_attention)
