"""Triton kernels for the convolutions of k nodes: the output, and the gradients of input and weight.

Each kernel is a matrix product whose left side is gathered from the images during the computation (implicit GEMM). A
program computes one tile of one node. Sums are in float32 without atomics, so results are reproducible. Images are
[k, batch, height, width, channels], weights [k, outputs, (row, column, channel)]. Imported on a GPU only.
"""

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 264  # two per multiprocessor of an H200; fewer programs leave some idle
ENOUGH = 100  # from this many programs on, the largest tile is faster than a smaller one
SHORTEST = 8  # minimum number of sum tiles per program


class Tile(NamedTuple):
    """The tile of a program: `places` x `outer` outputs, summed over `inner` at a time, with warps and load stages.

    For the gradient of a weight the tile is outputs x channels, summed over `places`.
    """

    places: int
    outer: int
    inner: int
    warps: int
    stages: int


class ConvolutionShape(NamedTuple):
    """The sizes of a convolution with padding side // 2 over `rows` x `batch` images."""

    rows: int
    batch: int
    height: int
    width: int
    channels: int
    outputs: int
    side: int
    stride: int

    @classmethod
    def of(cls, pictures: Sequence[int], outputs: int, side: int, stride: int) -> "ConvolutionShape":
        rows, batch, height, width, channels = pictures
        return cls(rows, batch, height, width, channels, outputs, side, stride)

    @property
    def high(self) -> int:
        return (self.height - 1) // self.stride + 1

    @property
    def wide(self) -> int:
        return (self.width - 1) // self.stride + 1

    @property
    def places(self) -> int:
        return self.batch * self.high * self.wide

    @property
    def sizes(self) -> dict[str, int]:
        """Return the constants that the kernels are compiled for."""
        return {
            "BATCH": self.batch,
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "HIGH": self.high,
            "WIDE": self.wide,
            "CHANNELS": self.channels,
            "OUTPUTS": self.outputs,
            "SIDE": self.side,
            "STRIDE": self.stride,
        }


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x, weight, weight_stride, out,
    BATCH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr,
    PLACES: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    place = tile // (OUTPUTS // OUTER) * PLACES + tl.arange(0, PLACES)
    output = tile % (OUTPUTS // OUTER) * OUTER + tl.arange(0, OUTER)
    inner = tl.arange(0, INNER)
    image, rest = place // (HIGH * WIDE), place % (HIGH * WIDE)
    inside = place < BATCH * HIGH * WIDE
    top, left = rest // WIDE * STRIDE - SIDE // 2, rest % WIDE * STRIDE - SIDE // 2
    start = (image * HEIGHT + top) * WIDTH + left
    x += row * (BATCH * HEIGHT * WIDTH * CHANNELS)
    kernels = weight + row * weight_stride + output[None, :] * (SIDE * SIDE * CHANNELS) + inner[:, None]
    total = tl.zeros((PLACES, OUTER), dtype=tl.float32)
    # one flat loop over (row, column, block of channels), so that loads are prefetched across all iterations
    for step in range(SIDE * SIDE * (CHANNELS // INNER)):
        tap, channel = step // (CHANNELS // INNER), step % (CHANNELS // INNER) * INNER + inner
        i, j = tap // SIDE, tap % SIDE
        valid = inside & (top + i >= 0) & (top + i < HEIGHT) & (left + j >= 0) & (left + j < WIDTH)
        pixel = (start + i * WIDTH + j) * CHANNELS
        pixels = tl.load(x + pixel[:, None] + channel[None, :], mask=valid[:, None], other=0.0)
        total = tl.dot(pixels, tl.load(kernels + step * INNER), total, input_precision=PRECISION)
    target = out + row * (BATCH * HIGH * WIDE * OUTPUTS) + place[:, None] * OUTPUTS + output[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _input_gradient(  # type: ignore[no-untyped-def]
    gradient, weight, weight_stride, out,
    BATCH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr,
    PLACES: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # pixel y contributes to output (y + pad - i) / stride through tap i if that is an integer: pixels that are equal
    # modulo the stride share their taps i = first, first + stride, ... and are computed together
    DOWN: tl.constexpr = (HEIGHT + STRIDE - 1) // STRIDE
    ACROSS: tl.constexpr = (WIDTH + STRIDE - 1) // STRIDE
    row, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    alike = STRIDE * STRIDE - 1 - tl.program_id(2)  # those with the most taps first
    down, across = alike // STRIDE, alike % STRIDE
    first_i, first_j = (down + SIDE // 2) % STRIDE, (across + SIDE // 2) % STRIDE
    taps_i, taps_j = (SIDE - first_i + STRIDE - 1) // STRIDE, (SIDE - first_j + STRIDE - 1) // STRIDE
    place = tile // (CHANNELS // OUTER) * PLACES + tl.arange(0, PLACES)
    channel = tile % (CHANNELS // OUTER) * OUTER + tl.arange(0, OUTER)
    inner = tl.arange(0, INNER)
    image, rest = place // (DOWN * ACROSS), place % (DOWN * ACROSS)
    y, x = rest // ACROSS * STRIDE + down, rest % ACROSS * STRIDE + across
    inside = (place < BATCH * DOWN * ACROSS) & (y < HEIGHT) & (x < WIDTH)
    bottom, right = (y + SIDE // 2 - first_i) // STRIDE, (x + SIDE // 2 - first_j) // STRIDE
    start = (image * HIGH + bottom) * WIDE + right
    gradient += row * (BATCH * HIGH * WIDE * OUTPUTS)
    kernels = weight + row * weight_stride + inner[:, None] * (SIDE * SIDE * CHANNELS) + channel[None, :]
    total = tl.zeros((PLACES, OUTER), dtype=tl.float32)
    for step in range(taps_i * taps_j * (OUTPUTS // INNER)):
        tap, output = step // (OUTPUTS // INNER), step % (OUTPUTS // INNER) * INNER
        up, back = tap // taps_j, tap % taps_j
        valid = inside & (bottom - up >= 0) & (bottom - up < HIGH) & (right - back >= 0) & (right - back < WIDE)
        pixel = (start - up * WIDE - back) * OUTPUTS
        pixels = tl.load(gradient + pixel[:, None] + (output + inner)[None, :], mask=valid[:, None], other=0.0)
        i, j = first_i + up * STRIDE, first_j + back * STRIDE
        kernel = tl.load(kernels + (output * (SIDE * SIDE) + i * SIDE + j) * CHANNELS)
        total = tl.dot(pixels, kernel, total, input_precision=PRECISION)
    pixel = (image * HEIGHT + y) * WIDTH + x
    target = out + row * (BATCH * HEIGHT * WIDTH * CHANNELS) + pixel[:, None] * CHANNELS + channel[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _weight_gradient(  # type: ignore[no-untyped-def]
    x, gradient, out, rows,
    BATCH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, PARTS: tl.constexpr,
    PLACES: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    EACH: tl.constexpr = (BATCH * HIGH * WIDE + INNER * PARTS - 1) // (INNER * PARTS)  # sum tiles per part
    row, part, tile = tl.program_id(1).to(tl.int64), tl.program_id(2), tl.program_id(0)
    # neighbouring programs have different taps and read the same images
    tap, tile = tile % (SIDE * SIDE), tile // (SIDE * SIDE)
    output = tile // (CHANNELS // OUTER) * PLACES + tl.arange(0, PLACES)
    channel = tile % (CHANNELS // OUTER) * OUTER + tl.arange(0, OUTER)
    i, j = tap // SIDE - SIDE // 2, tap % SIDE - SIDE // 2
    x += row * (BATCH * HEIGHT * WIDTH * CHANNELS)
    gradient += row * (BATCH * HIGH * WIDE * OUTPUTS)
    total = tl.zeros((PLACES, OUTER), dtype=tl.float32)
    for step in range(EACH):
        place = (part * EACH + step) * INNER + tl.arange(0, INNER)
        image, rest = place // (HIGH * WIDE), place % (HIGH * WIDE)
        y, z = rest // WIDE * STRIDE + i, rest % WIDE * STRIDE + j
        inside = place < BATCH * HIGH * WIDE
        valid = inside & (y >= 0) & (y < HEIGHT) & (z >= 0) & (z < WIDTH)
        pixel = ((image * HEIGHT + y) * WIDTH + z) * CHANNELS
        given = tl.load(gradient + place[:, None] * OUTPUTS + output[None, :], mask=inside[:, None], other=0.0)
        pixels = tl.load(x + pixel[:, None] + channel[None, :], mask=valid[:, None], other=0.0)
        total = tl.dot(tl.trans(given), pixels, total, input_precision=PRECISION)
    out += (part * rows + row) * (OUTPUTS * SIDE * SIDE * CHANNELS)
    target = out + output[:, None] * (SIDE * SIDE * CHANNELS) + (tap * CHANNELS + channel)[None, :]
    tl.store(target, total.to(out.dtype.element_ty))


def convolve(x: Tensor, weight: Tensor, side: int, stride: int, tile: Tile | None = None) -> Tensor:
    """Return out[p, o] = sum_(i, j, c) x[p * stride + (i, j) - side // 2, c] * weight[o, (i, j, c)] for each node."""
    shape = ConvolutionShape.of(x.shape, weight.shape[1], side, stride)
    chosen = tile or product_tile(shape, shape.places, shape.outputs, shape.channels, x.dtype)
    out = x.new_empty(shape.rows, shape.batch, shape.high, shape.wide, shape.outputs)
    _forward[-(-shape.places // chosen.places) * (shape.outputs // chosen.outer), shape.rows](
        x, weight, weight.stride(0), out, **shape.sizes, **_compiled_for(chosen, x.dtype)
    )
    return out


def input_gradient(
    gradient: Tensor, weight: Tensor, pictures: Sequence[int], side: int, stride: int, tile: Tile | None = None
) -> Tensor:
    """Return the gradient of `convolve` for its input [k, batch, height, width, channels], gathered per pixel."""
    shape = ConvolutionShape.of(pictures, weight.shape[1], side, stride)
    places = shape.batch * -(-shape.height // stride) * -(-shape.width // stride)
    chosen = tile or product_tile(shape, places, shape.channels, shape.outputs, gradient.dtype)
    out = gradient.new_empty(pictures)
    _input_gradient[-(-places // chosen.places) * (shape.channels // chosen.outer), shape.rows, stride * stride](
        gradient, weight, weight.stride(0), out, **shape.sizes, **_compiled_for(chosen, gradient.dtype)
    )
    return out


def weight_gradient(x: Tensor, gradient: Tensor, side: int, stride: int, tile: Tile | None = None) -> Tensor:
    """Return the gradient of `convolve` for its weight, [k, outputs, (row, column, channel)].

    If there are few tiles and the sum over places is long, several programs each compute a part of the sum.
    """
    shape = ConvolutionShape.of(x.shape, gradient.shape[-1], side, stride)
    chosen = tile or weight_tile(shape, x.dtype)
    tiles = _weight_tiles(shape, chosen)
    parts = parts_of_sum(tiles * shape.rows, -(-shape.places // chosen.inner))
    inner = side * side * shape.channels
    out = x.new_empty(
        parts, shape.rows, shape.outputs, inner, dtype=x.dtype if parts == 1 else torch.float32
    )  # the parts are summed in a fixed order below
    _weight_gradient[tiles, shape.rows, parts](
        x, gradient, out, shape.rows, **shape.sizes, PARTS=parts, **_compiled_for(chosen, x.dtype)
    )
    return out[0] if parts == 1 else out.sum(dim=0).to(x.dtype)


def product_tile(shape: ConvolutionShape, places: int, outer: int, inner: int, dtype: torch.dtype) -> Tile:
    """Choose the tile for an output or an input gradient: the largest that fills the GPU and wastes little padding.

    The order, the warps and the stages were the fastest on an H200 (ResNet-18, 10 and 40 nodes with 10 images).
    """
    if dtype == torch.float32:
        return Tile(64, gcd(outer, 64), gcd(inner, 16), 4, 2)
    deep = gcd(inner, 64)
    tiles = [Tile(128, 128, deep, 8, 3), Tile(64, 128, deep, 4, 4), Tile(128, 64, deep, 4, 3), Tile(64, 64, deep, 4, 3)]
    fitting = [tile for tile in tiles if outer % tile.outer == 0] or [Tile(128, gcd(outer, 64), deep, 4, 3)]
    wasteless = [
        candidate for candidate in fitting if -(-places // candidate.places) * candidate.places <= 1.25 * places
    ] or fitting[-1:]
    filling = [
        candidate
        for candidate in wasteless
        if -(-places // candidate.places) * (outer // candidate.outer) * shape.rows >= ENOUGH
    ]
    return (filling or wasteless[-1:])[0]


def weight_tile(shape: ConvolutionShape, dtype: torch.dtype) -> Tile:
    """Choose the tile for a weight gradient, which sums over places: the largest that needs no split of the sum.

    A split writes parts in float32 and reads them again, which costs more than small tiles.
    """
    if dtype == torch.float32:
        return Tile(gcd(shape.outputs, 64), gcd(shape.channels, 64), 16, 4, 2)
    deep = 32 if shape.places < 512 else 64
    for candidate in (Tile(128, 128, deep, 8, 3), Tile(128, 64, deep, 4, 3)):
        fits = shape.outputs % candidate.places == shape.channels % candidate.outer == 0
        if fits and _weight_tiles(shape, candidate) * shape.rows >= PROGRAMS:
            return candidate
    return Tile(gcd(shape.outputs, 64), gcd(shape.channels, 64), deep, 4, 4)


def _weight_tiles(shape: ConvolutionShape, tile: Tile) -> int:
    """Return the number of tiles of the weight gradient of one node."""
    return shape.side**2 * (shape.outputs // tile.places) * (shape.channels // tile.outer)


def parts_of_sum(programs: int, steps: int) -> int:
    """Return the number of parts of a sum of `steps` tiles, so that there is work for the whole GPU."""
    return max(1, min(-(-PROGRAMS // programs), steps // SHORTEST))


def _compiled_for(tile: Tile, dtype: torch.dtype) -> dict[str, int | str]:
    """Return a tile as kernel arguments. float32 is rounded to tf32 only if the run allows it."""
    exact = dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    return {
        "PLACES": tile.places,
        "OUTER": tile.outer,
        "INNER": tile.inner,
        "PRECISION": "ieee" if exact else "tf32",
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
