"""One matrix product for k nodes, and its gradients."""

from typing import Any

import torch
from torch import Tensor


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [k, places, inner] times weights [k, outer, inner] -> [k, places, outer]."""
    if len(x) < len(weight):  # the same x for all: one product with the weights of all side by side reads it once
        return (x[0] @ weight.flatten(0, 1).T).view(x.shape[1], *weight.shape[:2]).transpose(0, 1)
    out: Tensor = _Product.apply(x, weight)  # type: ignore[no-untyped-call]
    return out


class _Product(torch.autograd.Function):
    """x [k, places, inner] times weights [k, outer, inner]; a weight's gradient lies in memory as the weight does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        return torch.bmm(gradient, weight), torch.bmm(gradient.transpose(1, 2), x)
