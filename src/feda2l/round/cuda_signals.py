"""The sums behind both signals as one Triton kernel each, in one pass over two states. Only imported on a GPU.

The same operations in torch take twenty kernel launches, more than a hundredth of a small model's round.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from feda2l.round.layout import ALIGNMENT

SIZE = 16 * ALIGNMENT


@triton.jit  # type: ignore[untyped-decorator]
def _divergence(base, trained, sums, width, stride, EPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = place < width
    b = tl.load(base + row * stride + place, mask=mask, other=0.0)
    moved = tl.load(trained + row * stride + place, mask=mask, other=0.0) - b
    size = b + EPS
    blocks: tl.constexpr = SIZE // BLOCK
    block = tl.program_id(0) * blocks + tl.arange(0, blocks)
    inside = block < width // BLOCK
    target = sums + row * (width // BLOCK) + block
    tl.store(target, tl.sum(tl.reshape((moved * moved).to(tl.float64), (blocks, BLOCK)), axis=1), mask=inside)
    target += tl.num_programs(1).to(tl.int64) * (width // BLOCK)
    tl.store(target, tl.sum(tl.reshape((size * size).to(tl.float64), (blocks, BLOCK)), axis=1), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _stability(trained, aggregated, sums, width, stride, TAU: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = place < width
    before = tl.load(trained + row * stride + place, mask=mask, other=0.0)
    after = tl.load(aggregated + row * stride + place, mask=mask, other=0.0)
    corrected = tl.where(tl.abs(after - before) < TAU, 0.0, 1.0)  # NaN counts as corrected
    blocks: tl.constexpr = SIZE // BLOCK
    block = tl.program_id(0) * blocks + tl.arange(0, blocks)
    target = sums + row * (width // BLOCK) + block
    total = tl.sum(tl.reshape(corrected.to(tl.float64), (blocks, BLOCK)), axis=1)
    tl.store(target, total, mask=block < width // BLOCK)


def divergence_blocks(base: Tensor, trained: Tensor, eps: float) -> Tensor:
    """Sum (T - B)^2 and (B + eps)^2 over every aligned block of columns: [2, rows, blocks], float64."""
    rows, width = base.shape
    sums = torch.empty(2, rows, width // ALIGNMENT, dtype=torch.float64, device=base.device)
    grid = (triton.cdiv(width, SIZE), rows)
    _divergence[grid](base, trained, sums, width, base.stride(0), EPS=eps, SIZE=SIZE, BLOCK=ALIGNMENT)
    return sums


def stability_blocks(trained: Tensor, aggregated: Tensor, threshold: float) -> Tensor:
    """Count the parameters that aggregation moved by `threshold` or more, per aligned block: [1, rows, blocks]."""
    rows, width = trained.shape
    sums = torch.empty(1, rows, width // ALIGNMENT, dtype=torch.float64, device=trained.device)
    grid = (triton.cdiv(width, SIZE), rows)
    _stability[grid](trained, aggregated, sums, width, trained.stride(0), TAU=threshold, SIZE=SIZE, BLOCK=ALIGNMENT)
    return sums
