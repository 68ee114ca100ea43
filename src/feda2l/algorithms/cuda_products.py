"""All inner products of a few long vectors as one Triton kernel: a pass over them. Only imported on a GPU.

Written out in torch each vector is first copied to float64, then to its distance from the shift, and read twice more.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 64  # vectors: more of them should keep a card busy as matrix products (not timed)
TILE = 2048  # numbers of a program


@triton.jit  # type: ignore[untyped-decorator]
def _products(  # type: ignore[no-untyped-def]
    vectors, stride, shift, sums, width,
    COUNT: tl.constexpr, SHIFTED: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    part, rows = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS)
    place = part * SIZE + tl.arange(0, SIZE)
    inside = place < width
    both = (rows < COUNT)[:, None] & inside[None, :]
    away = tl.zeros((SIZE,), dtype=tl.float64)
    if SHIFTED:
        away = tl.load(shift + place, mask=inside, other=0.0).to(tl.float64)
    x = tl.load(vectors + rows.to(tl.int64)[:, None] * stride + place[None, :], mask=both, other=0.0).to(tl.float64)
    x -= away[None, :]
    one, target = vectors + place, sums + part * COUNT * COUNT + rows
    for _ in range(COUNT):  # what it reads is in the cache
        y = tl.load(one, mask=inside, other=0.0).to(tl.float64) - away
        tl.store(target, tl.sum(x * y[None, :], axis=1), mask=rows < COUNT)
        one += stride
        target += COUNT


@triton.jit  # type: ignore[untyped-decorator]
def _squares(vectors, stride, sums, width, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    part, row = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    place = part * SIZE + tl.arange(0, SIZE)
    x = tl.load(vectors + row * stride + place, mask=place < width, other=0.0).to(tl.float64)
    tl.store(sums + row * tl.num_programs(0) + part, tl.sum(x * x, axis=0))


def squared_norms(vectors: Tensor) -> Tensor:
    """v_k . v_k of each, [count] in float64."""
    count, width = vectors.shape
    sums = torch.empty(count, triton.cdiv(width, TILE), dtype=torch.float64, device=vectors.device)
    _squares[sums.shape[1], count](vectors, vectors.stride(0), sums, width, SIZE=TILE)
    return sums.sum(dim=1)


def inner_products(vectors: Tensor, shift: Tensor | None = None) -> Tensor:
    """(v_j - s) . (v_k - s) of all pairs, [count, count] in float64; each part's sums are added in one order."""
    count, width = vectors.shape
    rows = triton.next_power_of_2(count)
    size = max(TILE // rows, 32)
    sums = torch.empty(triton.cdiv(width, size), count, count, dtype=torch.float64, device=vectors.device)
    _products[(len(sums),)](
        vectors, vectors.stride(0), vectors if shift is None else shift, sums, width,
        COUNT=count, SHIFTED=shift is not None, ROWS=rows, SIZE=size,
    )  # fmt: skip
    return sums.sum(dim=0)
