"""All inner products of a few long vectors as one Triton kernel: a pass over them. Only imported on a GPU.

Written out in torch each vector is first copied to float64, then to its distance from the shift, and read twice more.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 64  # vectors: more of them should keep a card busy as matrix products (not timed)
SIZE = 64  # columns that a program takes at a time
PROGRAMS = 1056  # eight for each of an H200's multiprocessors


@triton.jit  # type: ignore[untyped-decorator]
def _products(  # type: ignore[no-untyped-def]
    vectors, stride, shift, sums, width, each,
    COUNT: tl.constexpr, SHIFTED: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    part, rows = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS)
    total = tl.zeros((ROWS, ROWS), dtype=tl.float64)
    for step in range(0, each, SIZE):
        place = part * each + step + tl.arange(0, SIZE)
        inside = place < width
        at, there = rows.to(tl.int64)[:, None] * stride + place[None, :], (rows < COUNT)[:, None] & inside[None, :]
        x = tl.load(vectors + at, mask=there, other=0.0).to(tl.float64)
        if SHIFTED:
            x -= tl.load(shift + place, mask=inside, other=0.0).to(tl.float64)[None, :]
        total = tl.dot(x, tl.trans(x), total, out_dtype=tl.float64)
    tl.store(sums + part * (ROWS * ROWS) + rows[:, None] * ROWS + rows[None, :], total)


def inner_products(vectors: Tensor, shift: Tensor | None = None) -> Tensor:
    """(v_j - s) . (v_k - s) of all pairs, [count, count] in float64; each part's sums are added in one order."""
    count, width = vectors.shape
    rows = max(16, triton.next_power_of_2(count))
    each = triton.cdiv(width, PROGRAMS * SIZE) * SIZE
    sums = torch.empty(triton.cdiv(width, each), rows, rows, dtype=torch.float64, device=vectors.device)
    _products[(len(sums),)](
        vectors, vectors.stride(0), vectors if shift is None else shift, sums, width, each,
        COUNT=count, SHIFTED=shift is not None, ROWS=rows, SIZE=SIZE,
    )  # fmt: skip
    return sums.sum(dim=0)[:count, :count]
