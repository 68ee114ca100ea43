"""Dropout with fast random numbers on a CPU."""

import torch
from torch import Tensor, nn

DRAWS = 1 << 16  # number of values of an int16


class Dropout(nn.Dropout):
    """y = x k / (1 - p), where k is 0 with probability p and else 1. On a CPU p is rounded to a multiple of 2^-16.

    On a CPU torch draws each number separately, which takes a fifth of a bf16 step of Timer. It also uses another
    generator on Intel processors. This module takes four draws from each 64 random bits, equal on all processors.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or not self.training or self.p in (0.0, 1.0):
            return super().forward(input)
        return input * keep_mask(input, self.p) * (1 / (1 - self.p))


def keep_mask(x: Tensor, chance: float) -> Tensor:
    """Return a mask with the shape and dtype of x: 1 where a value is kept, 0 where it is dropped."""
    size = x.numel()
    # created from x, so that each row has its own draws under vmap
    bits = x.new_empty(-(-size // 4), dtype=torch.int64).random_(-(1 << 63), None)
    draws = bits.view(torch.int16)[:size].view(x.shape)
    first = min(max(round(chance * DRAWS), 1), DRAWS - 1) - DRAWS // 2  # the lowest draw that is kept
    # clamping uses vector instructions; a comparison and a product with its result take three times as long
    return (draws.clamp(first - 1, first) - (first - 1)).to(x.dtype)
