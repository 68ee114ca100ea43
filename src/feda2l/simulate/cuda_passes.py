"""`timer_passes` as Triton kernels, one pass each way: operators that the compiler calls and does not look into.

What the compiler makes of them is bound by arithmetic (an error function and a hash for every number, forward and back)
and passes over gradients once more for every bias. Here the way back multiplies by slopes that were kept, and each
program adds up what it sees of a bias; nothing is added up by atomics, so results repeat. Only imported on a GPU.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from feda2l.simulate import timer_passes
from feda2l.simulate.timer_passes import Dropout

ONE, OTHER = tl.constexpr(timer_passes.ONE), tl.constexpr(timer_passes.OTHER)
SPREAD = tl.constexpr(timer_passes.SPREAD)
SIZE = 1024  # numbers of a program of `activated`
ROWS = 4  # tokens that a program of `normed` takes at a time
PARTS = 32  # of the sum over a row's places, and so of the programs that make it
WARPS = 8  # of `normed`'s way back, which keeps most in registers
LINE = 1024  # numbers of a token that attention takes at a time


@triton.jit  # type: ignore[untyped-decorator]
def _factor(place, draws, scale, THRESHOLD: tl.constexpr, DROPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """What a number is multiplied by: 0 or 1 / (1 - chance); `kept` of timer_passes."""
    factor = tl.where(place >= 0, 1.0, 0.0)
    if DROPS:
        x = (place + tl.load(draws)) * SPREAD ^ tl.load(draws + 1)
        x = (x ^ ((x >> 16) & 0xFFFF)) * ONE
        x = (x ^ ((x >> 13) & 0x7FFFF)) * OTHER
        factor = tl.where(x >= THRESHOLD, scale, 0.0)
    return factor


@triton.jit  # type: ignore[untyped-decorator]
def _activate(  # type: ignore[no-untyped-def]
    x, bias, bias_stride, draws, draws_stride, out, slope, size, scale,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr, LEARNS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < size
    v = tl.load(x + row * size + place, mask=inside, other=0.0).to(tl.float32)
    v += tl.load(bias + row * bias_stride + place % WIDTH).to(tl.float32)
    # the normal distribution's tail by Abramowitz and Stegun 7.1.26, to 1e-7; its density is in it already
    z = tl.abs(v) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    density = tl.exp(-z * z)
    tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail *= 0.5 * density
    share = tl.where(v < 0, tail, 1.0 - tail)
    factor = _factor(place, draws + row * draws_stride, scale, THRESHOLD, DROPS)
    tl.store(out + row * size + place, (v * share * factor).to(out.dtype.element_ty), mask=inside)
    if LEARNS:
        steep = (share + v * density * 0.3989422804014327) * factor
        tl.store(slope + row * size + place, steep.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _activate_back(  # type: ignore[no-untyped-def]
    gradient, slope, out, sums, places, each,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    part, row = tl.program_id(0), tl.program_id(2).to(tl.int64)
    column, start = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS), row * places * WIDTH
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range(0, each, ROWS):
        place = part * each + step + tl.arange(0, ROWS)
        inside = (place < places)[:, None]
        inner = place[:, None] * WIDTH + column[None, :]
        g = tl.load(gradient + start + inner, mask=inside, other=0.0).to(tl.float32)
        g *= tl.load(slope + start + inner, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + start + inner, g.to(out.dtype.element_ty), mask=inside)
        total += g
    tl.store(sums + (row * PARTS + part) * WIDTH + column, tl.sum(total, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    x, update, bias, bias_stride, weight, weight_stride, shift, shift_stride, draws, draws_stride,
    out, total, centre, spread, places, scale,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    place, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    there, inner = place < places, place[:, None] * WIDTH + column[None, :]
    inside, start = there[:, None], row * places * WIDTH
    u = tl.load(update + start + inner, mask=inside, other=0.0).to(tl.float32)
    u += tl.load(bias + row * bias_stride + column).to(tl.float32)[None, :]
    s = tl.load(x + start + inner, mask=inside, other=0.0).to(tl.float32)
    s += u * _factor(inner, draws + row * draws_stride, scale, THRESHOLD, DROPS)
    tl.store(total + start + inner, s.to(total.dtype.element_ty), mask=inside)
    mean = tl.sum(s, axis=1) / WIDTH
    s -= mean[:, None]
    inverse = tl.rsqrt(tl.sum(s * s, axis=1) / WIDTH + 1e-5)
    tl.store(centre + row * places + place, mean, mask=there)
    tl.store(spread + row * places + place, inverse, mask=there)
    s *= inverse[:, None] * tl.load(weight + row * weight_stride + column).to(tl.float32)[None, :]
    s += tl.load(shift + row * shift_stride + column).to(tl.float32)[None, :]
    tl.store(out + start + inner, s.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _normalise_back(  # type: ignore[no-untyped-def]
    gradient, total, centre, spread, weight, weight_stride, draws, draws_stride,
    to_x, to_update, sums, places, each, scale,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column, start = tl.arange(0, WIDTH), row * places * WIDTH
    w = tl.load(weight + row * weight_stride + column).to(tl.float32)[None, :]
    of_bias = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    of_weight = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    of_shift = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for step in range(0, each, ROWS):
        place = part * each + step + tl.arange(0, ROWS)
        there, inner = place < places, place[:, None] * WIDTH + column[None, :]
        inside = there[:, None]
        g = tl.load(gradient + start + inner, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(total + start + inner, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(centre + row * places + place, mask=there, other=0.0)
        inverse = tl.load(spread + row * places + place, mask=there, other=0.0)
        s = (s - mean[:, None]) * inverse[:, None]
        of_shift += g
        of_weight += g * s
        g *= w
        along, across = tl.sum(g * s, axis=1) / WIDTH, tl.sum(g, axis=1) / WIDTH
        g = (g - across[:, None] - s * along[:, None]) * inverse[:, None]
        tl.store(to_x + start + inner, g.to(to_x.dtype.element_ty), mask=inside)
        g *= _factor(inner, draws + row * draws_stride, scale, THRESHOLD, DROPS)
        tl.store(to_update + start + inner, g.to(to_update.dtype.element_ty), mask=inside)
        of_bias += g
    target, kind = sums + (row * PARTS + part) * WIDTH + column, tl.num_programs(1).to(tl.int64) * PARTS * WIDTH
    tl.store(target, tl.sum(of_bias, axis=0))
    tl.store(target + kind, tl.sum(of_weight, axis=0))
    tl.store(target + 2 * kind, tl.sum(of_shift, axis=0))


@triton.jit
def _biased(values, biases, place, inside):  # type: ignore[no-untyped-def]
    """A token's queries, keys or values of some windows and heads."""
    return tl.load(values + place, mask=inside, other=0.0).to(tl.float32) + biases


# In both: a line is a head of a window, and a program takes LINES of them, token by token. What it reads again is in
# the cache, and all sums but those over windows are made within a warp. `tokens` is TOKENS: loops that the compiler
# can count it unrolls, and runs out of registers.


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query, key, value, of_query, of_key, of_value, bias_stride, draws, draws_stride, out, level, places, tokens, scale,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr,
    LINES: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = HEADS * DEPTH
    row, depth = tl.program_id(1).to(tl.int64), tl.arange(0, DEPTH)
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    window, head, start = line // HEADS, line % HEADS, row * places * WIDTH
    there, draws = window * TOKENS < places, draws + row * draws_stride
    inside, column = there[:, None], head[:, None] * DEPTH + depth[None, :]
    first = window[:, None] * (TOKENS * WIDTH) + column
    bias_q = tl.load(of_query + row * bias_stride + column).to(tl.float32)
    bias_k = tl.load(of_key + row * bias_stride + column).to(tl.float32)
    bias_v = tl.load(of_value + row * bias_stride + column).to(tl.float32)
    for i in range(tokens):
        q = _biased(query + start, bias_q, first + i * WIDTH, inside) * (1.0 / tl.sqrt(DEPTH * 1.0))
        highest = tl.full((LINES,), float("-inf"), dtype=tl.float32)
        norm = tl.zeros((LINES,), dtype=tl.float32)
        mixed = tl.zeros((LINES, DEPTH), dtype=tl.float32)
        for j in range(i + 1):
            scores = tl.sum(q * _biased(key + start, bias_k, first + j * WIDTH, inside), axis=1)
            higher = tl.maximum(highest, scores)
            before, weights = tl.exp(highest - higher), tl.exp(scores - higher)
            highest, norm = higher, norm * before + weights
            weights *= _factor(((window * TOKENS + i) * TOKENS + j) * HEADS + head, draws, scale, THRESHOLD, DROPS)
            v = _biased(value + start, bias_v, first + j * WIDTH, inside)
            mixed = mixed * before[:, None] + weights[:, None] * v
        mixed /= norm[:, None]
        tl.store(out + start + first + i * WIDTH, mixed.to(out.dtype.element_ty), mask=inside)
        tl.store(
            level + row * places * HEADS + (window * TOKENS + i) * HEADS + head, highest + tl.log(norm), mask=there
        )


@triton.jit  # type: ignore[untyped-decorator]
def _attend_back(  # type: ignore[no-untyped-def]
    query, key, value, of_query, of_key, of_value, bias_stride, draws, draws_stride, mixed, level, gradient,
    to_query, to_key, to_value, sums, places, tokens, each, scale,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr,
    LINES: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = HEADS * DEPTH
    part, row, depth = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.arange(0, DEPTH)
    start, draws, small = row * places * WIDTH, draws + row * draws_stride, 1.0 / tl.sqrt(DEPTH * 1.0)
    head = tl.arange(0, LINES) % HEADS
    column = head[:, None] * DEPTH + depth[None, :]
    bias_q = tl.load(of_query + row * bias_stride + column).to(tl.float32)
    bias_k = tl.load(of_key + row * bias_stride + column).to(tl.float32)
    bias_v = tl.load(of_value + row * bias_stride + column).to(tl.float32)
    sum_q = tl.zeros((LINES, DEPTH), dtype=tl.float32)
    sum_k = tl.zeros((LINES, DEPTH), dtype=tl.float32)
    sum_v = tl.zeros((LINES, DEPTH), dtype=tl.float32)
    for step in range(0, each, LINES // HEADS):
        window = part * each + step + tl.arange(0, LINES) // HEADS
        there, first = window * TOKENS < places, window[:, None] * (TOKENS * WIDTH) + column
        inside, at = there[:, None], row * places * HEADS + window * TOKENS * HEADS + head
        for i in range(tokens):  # by query
            q = _biased(query + start, bias_q, first + i * WIDTH, inside) * small
            g = _biased(gradient + start, 0.0, first + i * WIDTH, inside)
            met = tl.sum(g * _biased(mixed + start, 0.0, first + i * WIDTH, inside), axis=1)
            top = tl.load(level + at + i * HEADS, mask=there, other=0.0)
            total = tl.zeros((LINES, DEPTH), dtype=tl.float32)
            for j in range(i + 1):
                k = _biased(key + start, bias_k, first + j * WIDTH, inside)
                v = _biased(value + start, bias_v, first + j * WIDTH, inside)
                place = ((window * TOKENS + i) * TOKENS + j) * HEADS + head
                factor = _factor(place, draws, scale, THRESHOLD, DROPS)
                total += (tl.exp(tl.sum(q * k, axis=1) - top) * (tl.sum(g * v, axis=1) * factor - met))[:, None] * k
            total = tl.where(inside, total * small, 0.0)
            tl.store(to_query + start + first + i * WIDTH, total.to(to_query.dtype.element_ty), mask=inside)
            sum_q += total
        for j in range(tokens):  # by key and value
            k = _biased(key + start, bias_k, first + j * WIDTH, inside)
            v = _biased(value + start, bias_v, first + j * WIDTH, inside)
            for_k = tl.zeros((LINES, DEPTH), dtype=tl.float32)
            for_v = tl.zeros((LINES, DEPTH), dtype=tl.float32)
            for i in range(j, tokens):
                q = _biased(query + start, bias_q, first + i * WIDTH, inside) * small
                g = _biased(gradient + start, 0.0, first + i * WIDTH, inside)
                met = tl.sum(g * _biased(mixed + start, 0.0, first + i * WIDTH, inside), axis=1)
                top = tl.load(level + at + i * HEADS, mask=there, other=0.0)
                place = ((window * TOKENS + i) * TOKENS + j) * HEADS + head
                factor = _factor(place, draws, scale, THRESHOLD, DROPS)
                weights = tl.exp(tl.sum(q * k, axis=1) - top)
                for_k += (weights * (tl.sum(g * v, axis=1) * factor - met))[:, None] * q
                for_v += (weights * factor)[:, None] * g
            for_k, for_v = tl.where(inside, for_k, 0.0), tl.where(inside, for_v, 0.0)
            tl.store(to_key + start + first + j * WIDTH, for_k.to(to_key.dtype.element_ty), mask=inside)
            tl.store(to_value + start + first + j * WIDTH, for_v.to(to_value.dtype.element_ty), mask=inside)
            sum_k += for_k
            sum_v += for_v
    target, kind = sums + (row * PARTS + part) * WIDTH, tl.num_programs(1).to(tl.int64) * PARTS * WIDTH
    target += tl.arange(0, HEADS)[:, None] * DEPTH + depth[None, :]
    tl.store(target, tl.sum(tl.reshape(sum_q, (LINES // HEADS, HEADS, DEPTH)), axis=0))
    tl.store(target + kind, tl.sum(tl.reshape(sum_k, (LINES // HEADS, HEADS, DEPTH)), axis=0))
    tl.store(target + 2 * kind, tl.sum(tl.reshape(sum_v, (LINES // HEADS, HEADS, DEPTH)), axis=0))


# --- the passes, as `timer_passes` has them --------------------------------------------------------------------


def attended(
    projected: Sequence[Tensor], biases: Sequence[Tensor], tokens: int, heads: int, dropout: Dropout
) -> Tensor:
    """Attention of queries, keys and values without its products."""
    mixed: Tensor = _attended(*projected, *biases, tokens, heads, *_drawn(dropout))[0]
    return mixed


def activated(x: Tensor, bias: Tensor, dropout: Dropout) -> Tensor:
    """dropout(gelu(x + bias))."""
    out: Tensor = _activated(x, bias, *_drawn(dropout), x.requires_grad)[0]
    return out


def normed(x: Tensor, update: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, dropout: Dropout) -> Tensor:
    """norm(x + dropout(update + bias)) times weight plus shift."""
    out: Tensor = _normed(x, update, bias, weight, shift, *_drawn(dropout))[0]
    return out


def _drawn(dropout: Dropout) -> tuple[Tensor | None, float]:
    """What the operators take of a dropout."""
    if dropout.draws is None or not dropout.chance:
        return None, 0.0
    return dropout.draws[:, dropout.site], dropout.chance


def _dropping(draws: Tensor | None, chance: float, like: Tensor) -> tuple[Tensor, int, dict[str, Any]]:
    """What the kernels take of it: the draws and how far apart the rows' are, and what they are compiled for."""
    constants = {"THRESHOLD": Dropout(draws, 0, chance).threshold, "DROPS": draws is not None}
    return (like, 0, constants) if draws is None else (draws, draws.stride(0), constants)


# --- operators and their gradients -----------------------------------------------------------------------------


@torch.library.custom_op("feda2l::activated", mutates_args=())
def _activated(x: Tensor, bias: Tensor, draws: Tensor | None, chance: float, learns: bool) -> tuple[Tensor, Tensor]:
    x, (rows, places, width) = x.contiguous(), x.shape
    out, slope = torch.empty_like(x), torch.empty_like(x) if learns else x.new_empty(0)
    drawn, apart, constants = _dropping(draws, chance, x)
    _activate[triton.cdiv(places * width, SIZE), rows](
        x, bias, bias.stride(0), drawn, apart, out, slope, places * width, 1 / (1 - chance),
        WIDTH=width, LEARNS=learns, SIZE=SIZE, **constants,
    )  # fmt: skip
    return out, slope


@torch.library.custom_op("feda2l::activated_back", mutates_args=())
def _activated_back(gradient: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    gradient, (rows, places, width) = gradient.contiguous(), gradient.shape
    out, columns = torch.empty_like(gradient), min(width, 256)
    sums = gradient.new_empty(rows, PARTS, width, dtype=torch.float32)
    _activate_back[PARTS, width // columns, rows](
        gradient, slope, out, sums, places, _each(places, 8), WIDTH=width, PARTS=PARTS, ROWS=8, COLUMNS=columns
    )
    return out, sums.sum(dim=1).to(gradient.dtype)


@torch.library.custom_op("feda2l::normed", mutates_args=())
def _normed(
    x: Tensor, update: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, draws: Tensor | None, chance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, update, (rows, places, width) = x.contiguous(), update.contiguous(), x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    centre, spread = (x.new_empty(rows, places, dtype=torch.float32) for _ in range(2))
    drawn, apart, constants = _dropping(draws, chance, x)
    _normalise[triton.cdiv(places, ROWS), rows](
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
    sums = gradient.new_empty(3, rows, PARTS, width, dtype=torch.float32)
    drawn, apart, constants = _dropping(draws, chance, gradient)
    _normalise_back[PARTS, rows](
        gradient, total, centre, spread, weight, weight.stride(0), drawn, apart,
        to_x, to_update, sums, places, _each(places, ROWS), 1 / (1 - chance),
        WIDTH=width, PARTS=PARTS, ROWS=ROWS, num_warps=WARPS, **constants,
    )  # fmt: skip
    return to_x, to_update, sums.sum(dim=2).to(gradient.dtype)


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
    biases, (rows, places, width) = _alike(of_query, of_key, of_value), query.shape
    out, level = torch.empty_like(query), query.new_empty(rows, places, heads, dtype=torch.float32)
    drawn, apart, constants = _dropping(draws, chance, query)
    together = _windows(width)
    _attend[triton.cdiv(places, tokens * together), rows](
        query, key, value, *biases, biases[0].stride(0), drawn, apart, out, level, places, tokens, 1 / (1 - chance),
        TOKENS=tokens, HEADS=heads, DEPTH=width // heads, LINES=heads * together, **constants,
    )  # fmt: skip
    return out, level


@torch.library.custom_op("feda2l::attended_back", mutates_args=())
def _attended_back(
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
    mixed: Tensor,
    level: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value, gradient = (part.contiguous() for part in (query, key, value, gradient))
    biases, (rows, places, width) = _alike(of_query, of_key, of_value), query.shape
    for_query, for_key, for_value = (torch.empty_like(query) for _ in range(3))
    sums = query.new_empty(3, rows, PARTS, width, dtype=torch.float32)
    drawn, apart, constants = _dropping(draws, chance, query)
    together = _windows(width)
    _attend_back[PARTS, rows](
        query, key, value, *biases, biases[0].stride(0), drawn, apart, mixed, level, gradient,
        for_query, for_key, for_value, sums, places, tokens,
        _each(places // tokens, together), 1 / (1 - chance),
        TOKENS=tokens, HEADS=heads, DEPTH=width // heads, LINES=heads * together, PARTS=PARTS, **constants,
    )  # fmt: skip
    return for_query, for_key, for_value, sums.sum(dim=2).to(query.dtype)


def _windows(width: int) -> int:
    """How many windows attention takes at a time."""
    return max(1, LINE // width)


def _alike(*biases: Tensor) -> tuple[Tensor, ...]:
    """Biases [rows, width] whose rows lie equally far apart, as those of one population do."""
    same = len({bias.stride(0) for bias in biases}) == 1
    return biases if same else tuple(bias.contiguous() for bias in biases)


def _each(count: int, step: int) -> int:
    """How many of `count` places a part has: whole steps."""
    return -(-count // (PARTS * step)) * step


@_activated.register_fake
def _(x: Tensor, bias: Tensor, draws: Tensor | None, chance: float, learns: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape if learns else 0)


@_activated_back.register_fake
def _(gradient: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    return gradient.new_empty(gradient.shape), gradient.new_empty(len(gradient), gradient.shape[-1])


@_normed.register_fake
def _(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    centre, spread = (x.new_empty(x.shape[:2], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), x.new_empty(x.shape), centre, spread


@_normed_back.register_fake
def _(gradient: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    sums = gradient.new_empty(3, len(gradient), gradient.shape[-1])
    return gradient.new_empty(gradient.shape), gradient.new_empty(gradient.shape), sums


@_attended.register_fake
def _(query: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    heads = others[6]
    return query.new_empty(query.shape), query.new_empty(*query.shape[:2], heads, dtype=torch.float32)


@_attended_back.register_fake
def _(query: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    *found, sums = _attended_back(*tensors, ctx.tokens, ctx.heads, draws, ctx.chance, mixed, level, gradient)
    return *found, *sums.unbind(), None, None, None, None


_activated.register_autograd(_through_activated, setup_context=_keep_slope)
_normed.register_autograd(_through_normed, setup_context=_keep_total)
_attended.register_autograd(_through_attended, setup_context=_keep_attention)
