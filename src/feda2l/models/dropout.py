"""Dropout whose draws cost little on a CPU."""

import torch
from torch import Tensor, nn

DRAWS = 1 << 16  # as many values has an int16


class Dropout(nn.Dropout):
    """y = x k / (1 - p), where k is 0 with chance p and else 1. On a CPU p is a multiple of 2^-16.

    There torch draws number by number, a fifth of a step of Timer in bf16, and by another generator on processors of
    one maker. Here each 64 bits that its generator gives are four draws, the same on all processors.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or not self.training or self.p in (0.0, 1.0):
            return super().forward(input)
        return input * kept(input, self.p) * (1 / (1 - self.p))


def kept(x: Tensor, chance: float) -> Tensor:
    """1 for what of x is kept and 0 for what is dropped, in its shape and type."""
    size = x.numel()
    # made from x, so that under vmap every row has draws of its own
    words = x.new_empty(-(-size // 4), dtype=torch.int64).random_(-(1 << 63), None)
    draws = words.view(torch.int16)[:size].view(x.shape)
    first = min(max(round(chance * DRAWS), 1), DRAWS - 1) - DRAWS // 2  # the lowest draw that is kept
    # clamping has vector instructions; a comparison, and a product with what it gives, take three times as long
    return (draws.clamp(first - 1, first) - (first - 1)).to(x.dtype)
