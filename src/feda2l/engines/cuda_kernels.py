"""Triton kernels around a training step: take the batches, update the rows, count. Imported on a GPU only.

Kernel launches and passes over the parameters limit the speed of a step. Each kernel here does in one launch and one
pass what eager code does in seven launches and ten passes. `counter` is the index of a row's step in this round and
`lengths` the number of its steps. A row that has finished does not change.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from feda2l.round.layout import Layout

BLOCK = 1024
KINDS = {"sgd": 0, "adam": 1, "adamw": 2}


@triton.jit  # type: ignore[untyped-decorator]
def _take(  # type: ignore[no-untyped-def]
    order, order_stride, counter, lengths, steps, x, y, factor, offset, inputs, targets, batch, pixels,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    i, row = tl.program_id(0), tl.program_id(2)
    now, length = tl.load(counter + row), tl.load(lengths + row)
    step = tl.maximum(tl.minimum(now, length - 1), 0)
    index = tl.load(order + row * order_stride + step * batch + i).to(tl.int64)
    place = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = place < pixels
    sample = row.to(tl.int64) * batch + i
    for channel in tl.static_range(CHANNELS):
        value = tl.load(x + (index * CHANNELS + channel) * pixels + place, mask=inside, other=0).to(tl.float32)
        value = value * tl.load(factor + channel) + tl.load(offset + channel)
        target = inputs + (sample * pixels + place) * CHANNELS + channel
        tl.store(target, value.to(inputs.dtype.element_ty), mask=inside)
    if tl.program_id(1) == 0:
        tl.store(targets + sample, tl.load(y + index))
        if i == 0:
            tl.store(steps + row, tl.load(steps + row) + tl.where(now < length, 1.0, 0.0))


@triton.jit  # type: ignore[untyped-decorator]
def _update(  # type: ignore[no-untyped-def]
    parameters, first, second, half, width, gradients, table, rates, slots, momentum, steps, counter, lengths,
    weight_decays,
    KIND: tl.constexpr, HALF: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    block, row = tl.program_id(0), tl.program_id(1)
    if tl.load(counter + row) < tl.load(lengths + row):
        # this block's row of the table: slot, first element in the slot, start of the slot, its size, half precision?
        line = table + block * 5
        slot, size = tl.load(line), tl.load(line + 3)
        inside = tl.load(line + 1) + tl.arange(0, SIZE)
        mask = inside < size
        kind = parameters.dtype.element_ty
        address = tl.load(gradients + slot)
        element = row * size + inside
        if HALF:
            if tl.load(line + 4) != 0:
                g = tl.load(address.to(tl.pointer_type(tl.bfloat16)) + element, mask=mask, other=0.0).to(kind)
            else:
                g = tl.load(address.to(tl.pointer_type(kind)) + element, mask=mask, other=0.0)
        else:
            g = tl.load(address.to(tl.pointer_type(kind)) + element, mask=mask, other=0.0)
        place = row.to(tl.int64) * width + tl.load(line + 2) + inside
        p = tl.load(parameters + place, mask=mask, other=0.0)
        rate, weight_decay = tl.load(rates + row * slots + slot), tl.load(weight_decays + row)
        if KIND == 0:
            g += weight_decay * p
            share = tl.load(momentum + row)
            if share != 0.0:  # without momentum, skip its buffer: saves two passes
                g += share * tl.load(first + place, mask=mask, other=0.0)
                tl.store(first + place, g, mask=mask)
            p -= rate * g
        else:
            m = tl.load(first + place, mask=mask, other=0.0)
            v = tl.load(second + place, mask=mask, other=0.0)
            if KIND == 1:
                g += weight_decay * p
            else:
                p -= rate * weight_decay * p
            m += (g - m) * 0.1
            v = v * 0.999 + g * g * 0.001
            step = tl.load(steps + row).to(kind)
            one = 1.0 - tl.exp2(step * -0.15200309344504995)  # .9^t as 2^(t log2 .9)
            two = 1.0 - tl.exp2(step * -0.0014434168696687186)  # .999^t
            p -= rate / one * m / (tl.sqrt(v * (1.0 / two)) + 1e-8)  # one division per number instead of two
            tl.store(first + place, m, mask=mask)
            tl.store(second + place, v, mask=mask)
        tl.store(parameters + place, p, mask=mask)
        if HALF:
            tl.store(half + place, p.to(tl.bfloat16), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _count(counter, lengths, loss, total, rows, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.arange(0, SIZE)
    inside = row < rows
    now = tl.load(counter + row, mask=inside, other=0)
    active = inside & (now < tl.load(lengths + row, mask=inside, other=0))
    value = tl.load(total + row, mask=active, other=0.0) + tl.load(loss + row, mask=active, other=0.0).to(tl.float64)
    tl.store(total + row, value, mask=active)
    tl.store(counter + row, now + 1, mask=active)


def update_table(layout: Layout, half: list[bool], device: torch.device) -> Tensor:
    """Return the work of each program of the update kernel, [blocks, 5]."""
    lines = [
        (number, first, slot.start, slot.size, int(in_half))
        for number, (slot, in_half) in enumerate(zip(layout.slots, half, strict=True))
        for first in range(0, slot.size, BLOCK)
    ]
    return torch.tensor(lines, dtype=torch.int64, device=device)


def take_batches(
    order: Tensor,
    counter: Tensor,
    lengths: Tensor,
    steps: Tensor,
    x: Tensor,
    y: Tensor,
    affine: tuple[Tensor, Tensor],
    inputs: Tensor,
    targets: Tensor,
) -> None:
    """Write every row's batch number `counter` to `inputs` (normalised, channels last) and `targets`.

    `order` is [rows, samples], `targets` is [rows * batch]. The kernel also increments the optimizer steps.
    """
    rows, channels, pixels = len(order), x.shape[1], x.shape[2] * x.shape[3]
    batch = len(targets) // rows
    size = min(BLOCK, triton.next_power_of_2(pixels))
    _take[(batch, -(-pixels // size), rows)](
        order, order.stride(0), counter, lengths, steps, x, y, *affine, inputs, targets, batch, pixels,
        CHANNELS=channels, SIZE=size,
    )  # fmt: skip


def update_rows(
    kind: str,
    parameters: Tensor,
    optimizer_state: list[Tensor],
    half: Tensor | None,
    gradients: Tensor,
    table: Tensor,
    rates: Tensor,
    momentum: Tensor,
    steps: Tensor,
    counter: Tensor,
    lengths: Tensor,
    weight_decays: Tensor,
) -> None:
    """Apply the optimizer step to all rows [rows, width]. `gradients` has the address of each slot's [rows, *shape]."""
    _update[(len(table), len(parameters))](
        parameters, optimizer_state[0], optimizer_state[-1], parameters if half is None else half, parameters.stride(0),
        gradients, table, rates, rates.shape[1], momentum, steps, counter, lengths, weight_decays,
        KIND=KINDS[kind], HALF=half is not None, SIZE=BLOCK,
    )  # fmt: skip


def count_step(counter: Tensor, lengths: Tensor, loss: Tensor, total: Tensor) -> None:
    """Complete a step: each active row adds its loss to its total and advances to its next batch."""
    _count[(1,)](counter, lengths, loss, total, len(counter), SIZE=triton.next_power_of_2(len(counter)))
