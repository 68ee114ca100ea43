"""Multiply rows of W with a matrix in one Triton kernel. Only imported on a GPU.

The CPU's slot-by-slot order would read the models of twelve fully connected nodes eighty times. Here programs that work
on the same columns run side by side and find them in the cache, so the models are read once.
"""

import triton
import triton.language as tl
from torch import Tensor

SIZE = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _mix(  # type: ignore[no-untyped-def]
    source, source_stride, out, out_stride, offsets, ids, weights, places, rows, width, SIZE: tl.constexpr
):  # fmt: skip
    row, tile = tl.program_id(0) % rows, tl.program_id(0) // rows
    column = tile.to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = column < width
    at, stop = tl.load(offsets + row), tl.load(offsets + row + 1)
    total = tl.load(source + tl.load(ids + at) * source_stride + column, mask=inside, other=0.0) * tl.load(weights + at)
    for slot in range(at + 1, stop):
        term = tl.load(source + tl.load(ids + slot) * source_stride + column, mask=inside, other=0.0)
        total += term * tl.load(weights + slot)
    tl.store(out + tl.load(places + row) * out_stride + column, total, mask=inside)


def mix_rows(source: Tensor, out: Tensor, offsets: Tensor, ids: Tensor, weights: Tensor, places: Tensor) -> None:
    """Write the sum over row i's ids, in their order, of weight x source row to `out[places[i]]`; no row may be empty.

    Every product and every sum is rounded: there are no fused multiply-adds.
    """
    rows, width = len(places), source.shape[1]
    _mix[(rows * triton.cdiv(width, SIZE),)](
        source, source.stride(0), out, out.stride(0), offsets, ids, weights, places, rows, width,
        SIZE=SIZE, enable_fp_fusion=False,
    )  # fmt: skip
