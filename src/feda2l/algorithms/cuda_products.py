"""All inner products of a few long vectors in one Triton kernel that reads them once. Imported only on a GPU.

Plain torch would copy each vector to float64, copy it again for the difference to the shift, and read it twice more.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 64  # vectors; for more of them matrix products should keep a GPU busy (not timed)
SIZE = 64  # columns that a program reads at a time
PROGRAMS = 1056  # eight per multiprocessor of an H200


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
    """Return (v_j - s) . (v_k - s) of all pairs, [count, count] in float64, summed in a fixed order."""
    count, width = vectors.shape
    rows = max(16, triton.next_power_of_2(count))
    each = triton.cdiv(width, PROGRAMS * SIZE) * SIZE
    sums = torch.empty(triton.cdiv(width, each), rows, rows, dtype=torch.float64, device=vectors.device)
    _products[(len(sums),)](
        vectors, vectors.stride(0), vectors if shift is None else shift, sums, width, each,
        COUNT=count, SHIFTED=shift is not None, ROWS=rows, SIZE=SIZE,
    )  # fmt: skip
    return sums.sum(dim=0)[:count, :count]
