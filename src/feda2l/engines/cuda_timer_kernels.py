"""Triton kernels for the operations of k Timers between matrix products, forward and backward. Imported on a GPU only.

Arrays are [k, places, WIDTH], where a place is a token. Biases and weights are [k, WIDTH] with any stride between rows.
`draws` are the dropout seeds of each row, THRESHOLD is the first draw that is kept, `scale` is 1 / (1 - chance).

In the backward pass each program sums the gradient of a bias over `each` places, and `add_parts` adds these parts.
There are no atomics, so results are reproducible. The draws of every second site are not aligned, so the kernels are
not specialised on alignment and one compilation serves all sites.
"""

import triton
import triton.language as tl

from feda2l.engines import timer_passes

ONE, OTHER = tl.constexpr(timer_passes.ONE), tl.constexpr(timer_passes.OTHER)
SPREAD = tl.constexpr(timer_passes.SPREAD)


@triton.jit  # type: ignore[untyped-decorator]
def _factor(place, draws, scale, THRESHOLD: tl.constexpr, DROPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the dropout factor of each number: 0 or 1 / (1 - chance); the same as `kept` of timer_passes."""
    factor = tl.where(place >= 0, 1.0, 0.0)
    if DROPS:
        x = (place + tl.load(draws)) * SPREAD ^ tl.load(draws + 1)
        x = (x ^ ((x >> 16) & 0xFFFF)) * ONE
        x = (x ^ ((x >> 13) & 0x7FFFF)) * OTHER
        factor = tl.where(x >= THRESHOLD, scale, 0.0)
    return factor


@triton.jit(do_not_specialize_on_alignment=["draws"])  # type: ignore[untyped-decorator]
def activate(  # type: ignore[no-untyped-def]
    x, bias, bias_stride, draws, draws_stride, out, slope, size, scale,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr, LEARNS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < size
    v = tl.load(x + row * size + place, mask=inside, other=0.0).to(tl.float32)
    v += tl.load(bias + row * bias_stride + place % WIDTH).to(tl.float32)
    # normal distribution function by Abramowitz and Stegun 7.1.26, accurate to 1e-7; it also gives the density
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
def activate_back(  # type: ignore[no-untyped-def]
    gradient, slope, out, sums, places, each, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
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
    tl.store(sums + (row * tl.num_programs(0) + part) * WIDTH + column, tl.sum(total, axis=0))


@triton.jit(do_not_specialize_on_alignment=["draws"])  # type: ignore[untyped-decorator]
def normalise(  # type: ignore[no-untyped-def]
    x, update, bias, bias_stride, weight, weight_stride, shift, shift_stride, draws, draws_stride,
    out, total, centre, spread, places, scale,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    place, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    valid, inner = place < places, place[:, None] * WIDTH + column[None, :]
    inside, start = valid[:, None], row * places * WIDTH
    u = tl.load(update + start + inner, mask=inside, other=0.0).to(tl.float32)
    u += tl.load(bias + row * bias_stride + column).to(tl.float32)[None, :]
    s = tl.load(x + start + inner, mask=inside, other=0.0).to(tl.float32)
    s += u * _factor(inner, draws + row * draws_stride, scale, THRESHOLD, DROPS)
    tl.store(total + start + inner, s.to(total.dtype.element_ty), mask=inside)
    mean = tl.sum(s, axis=1) / WIDTH
    s -= mean[:, None]
    inverse = tl.rsqrt(tl.sum(s * s, axis=1) / WIDTH + 1e-5)
    tl.store(centre + row * places + place, mean, mask=valid)
    tl.store(spread + row * places + place, inverse, mask=valid)
    s *= inverse[:, None] * tl.load(weight + row * weight_stride + column).to(tl.float32)[None, :]
    s += tl.load(shift + row * shift_stride + column).to(tl.float32)[None, :]
    tl.store(out + start + inner, s.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["draws"])  # type: ignore[untyped-decorator]
def normalise_back(  # type: ignore[no-untyped-def]
    gradient, total, centre, spread, weight, weight_stride, draws, draws_stride,
    to_x, to_update, sums, places, each, scale,
    WIDTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column, start = tl.arange(0, WIDTH), row * places * WIDTH
    w = tl.load(weight + row * weight_stride + column).to(tl.float32)[None, :]
    of_bias = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    of_weight = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    of_shift = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for step in range(0, each, ROWS):
        place = part * each + step + tl.arange(0, ROWS)
        valid, inner = place < places, place[:, None] * WIDTH + column[None, :]
        inside = valid[:, None]
        g = tl.load(gradient + start + inner, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(total + start + inner, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(centre + row * places + place, mask=valid, other=0.0)
        inverse = tl.load(spread + row * places + place, mask=valid, other=0.0)
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
    parts = tl.num_programs(0).to(tl.int64)
    target, kind = sums + (row * parts + part) * WIDTH + column, tl.num_programs(1) * parts * WIDTH
    tl.store(target, tl.sum(of_bias, axis=0))
    tl.store(target + kind, tl.sum(of_weight, axis=0))
    tl.store(target + 2 * kind, tl.sum(of_shift, axis=0))


@triton.jit
def _read(values, place, inside):  # type: ignore[no-untyped-def]
    """Load the values of one token for some windows and heads."""
    return tl.load(values + place, mask=inside, other=0.0).to(tl.float32)


# In both kernels a line is one head of one window, and a program handles LINES of them. So all sums except those over
# windows stay within a warp. `tokens` equals TOKENS: it is not a constant, because the compiler would unroll the loops
# and run out of registers.


@triton.jit(do_not_specialize_on_alignment=["draws"])  # type: ignore[untyped-decorator]
def attend(  # type: ignore[no-untyped-def]
    query, key, value, of_query, of_key, of_value, bias_stride, draws, draws_stride, out, level, places, tokens, scale,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr,
    LINES: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = HEADS * DEPTH
    row, depth = tl.program_id(1).to(tl.int64), tl.arange(0, DEPTH)
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    window, head, start = line // HEADS, line % HEADS, row * places * WIDTH
    valid, draws = window * TOKENS < places, draws + row * draws_stride
    inside, column = valid[:, None], head[:, None] * DEPTH + depth[None, :]
    first = window[:, None] * (TOKENS * WIDTH) + column
    bias_q = tl.load(of_query + row * bias_stride + column).to(tl.float32)
    bias_k = tl.load(of_key + row * bias_stride + column).to(tl.float32)
    bias_v = tl.load(of_value + row * bias_stride + column).to(tl.float32)
    for i in range(tokens):
        q = (_read(query + start, first + i * WIDTH, inside) + bias_q) * (1.0 / tl.sqrt(DEPTH * 1.0))
        highest = tl.full((LINES,), float("-inf"), dtype=tl.float32)
        norm = tl.zeros((LINES,), dtype=tl.float32)
        mixed = tl.zeros((LINES, DEPTH), dtype=tl.float32)
        for j in range(i + 1):
            scores = tl.sum(q * (_read(key + start, first + j * WIDTH, inside) + bias_k), axis=1)
            higher = tl.maximum(highest, scores)
            before, weights = tl.exp(highest - higher), tl.exp(scores - higher)
            highest, norm = higher, norm * before + weights
            weights *= _factor(((window * TOKENS + i) * TOKENS + j) * HEADS + head, draws, scale, THRESHOLD, DROPS)
            v = _read(value + start, first + j * WIDTH, inside) + bias_v
            mixed = mixed * before[:, None] + weights[:, None] * v
        mixed /= norm[:, None]
        tl.store(out + start + first + i * WIDTH, mixed.to(out.dtype.element_ty), mask=inside)
        target = level + row * places * HEADS + (window * TOKENS + i) * HEADS + head
        tl.store(target, highest + tl.log(norm), mask=valid)


@triton.jit(do_not_specialize_on_alignment=["draws"])  # type: ignore[untyped-decorator]
def attend_back(  # type: ignore[no-untyped-def]
    query, key, value, of_query, of_key, of_value, bias_stride, draws, draws_stride, mixed, level, gradient,
    to_query, to_key, to_value, sums, places, tokens, each, scale,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr, THRESHOLD: tl.constexpr, DROPS: tl.constexpr,
    LINES: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = HEADS * DEPTH
    part, row, depth = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.arange(0, DEPTH)
    start, draws, small = row * places * WIDTH, draws + row * draws_stride, 1.0 / tl.sqrt(DEPTH * 1.0)
    head, token = tl.arange(0, LINES) % HEADS, tl.arange(0, TOKENS)
    column = head[:, None] * DEPTH + depth[None, :]
    bias_q = tl.load(of_query + row * bias_stride + column).to(tl.float32)
    bias_k = tl.load(of_key + row * bias_stride + column).to(tl.float32)
    bias_v = tl.load(of_value + row * bias_stride + column).to(tl.float32)
    sum_q = tl.zeros((LINES, DEPTH), dtype=tl.float32)
    sum_k = tl.zeros((LINES, DEPTH), dtype=tl.float32)
    sum_v = tl.zeros((LINES, DEPTH), dtype=tl.float32)
    for step in range(0, each, LINES // HEADS):
        window = part * each + step + tl.arange(0, LINES) // HEADS
        valid, first = window * TOKENS < places, window[:, None] * (TOKENS * WIDTH) + column
        # all queries at once, [LINES, TOKENS, DEPTH], where a thread holds all tokens; then one key at a time
        inside, every = valid[:, None, None], first[:, None, :] + token[None, :, None] * WIDTH
        place = window[:, None] * TOKENS + token[None, :]
        q = (_read(query + start, every, inside) + bias_q[:, None, :]) * small
        g = _read(gradient + start, every, inside)
        met = tl.sum(g * _read(mixed + start, every, inside), axis=2)
        top = tl.load(level + row * places * HEADS + place * HEADS + head[:, None], mask=valid[:, None], other=0.0)
        for_q = tl.zeros((LINES, TOKENS, DEPTH), dtype=tl.float32)
        for j in range(tokens):
            target, known = first + j * WIDTH, valid[:, None]
            k = _read(key + start, target, known) + bias_k
            v = _read(value + start, target, known) + bias_v
            factor = _factor((place * TOKENS + j) * HEADS + head[:, None], draws, scale, THRESHOLD, DROPS)
            weights = tl.exp(tl.sum(q * k[:, None, :], axis=2) - top)
            weights = tl.where((token[None, :] >= j) & known, weights, 0.0)
            steep = weights * (tl.sum(g * v[:, None, :], axis=2) * factor - met)
            for_q += steep[:, :, None] * k[:, None, :]
            for_k = tl.sum(steep[:, :, None] * q, axis=1)
            for_v = tl.sum((weights * factor)[:, :, None] * g, axis=1)
            tl.store(to_key + start + target, for_k.to(to_key.dtype.element_ty), mask=known)
            tl.store(to_value + start + target, for_v.to(to_value.dtype.element_ty), mask=known)
            sum_k += for_k
            sum_v += for_v
        for_q *= small
        tl.store(to_query + start + every, for_q.to(to_query.dtype.element_ty), mask=inside)
        sum_q += tl.sum(for_q, axis=1)
    parts = tl.num_programs(0).to(tl.int64)
    target, kind = sums + (row * parts + part) * WIDTH, tl.num_programs(1) * parts * WIDTH
    target += tl.arange(0, HEADS)[:, None] * DEPTH + depth[None, :]
    tl.store(target, tl.sum(tl.reshape(sum_q, (LINES // HEADS, HEADS, DEPTH)), axis=0))
    tl.store(target + kind, tl.sum(tl.reshape(sum_k, (LINES // HEADS, HEADS, DEPTH)), axis=0))
    tl.store(target + 2 * kind, tl.sum(tl.reshape(sum_v, (LINES // HEADS, HEADS, DEPTH)), axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def add_parts(  # type: ignore[no-untyped-def]
    sums, out, parts, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row, column = tl.program_id(1).to(tl.int64), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range(0, parts, ROWS):
        part = step + tl.arange(0, ROWS)
        inner = (row * parts + part)[:, None] * WIDTH + column[None, :]
        total += tl.load(sums + inner, mask=(part < parts)[:, None], other=0.0)
    tl.store(out + row * WIDTH + column, tl.sum(total, axis=0).to(out.dtype.element_ty))
