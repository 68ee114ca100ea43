"""One batched matrix product for k nodes, and its gradients."""

from typing import Any

import torch
from torch import Tensor


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight' + bias [k, places, outer]: x [k, places, inner], weight [k, outer, inner], bias [k, outer]."""
    if len(x) < len(weight):  # x is shared by all nodes: one product with the concatenated weights reads it once
        shared = (x[0] @ weight.flatten(0, 1).T).view(x.shape[1], *weight.shape[:2]).transpose(0, 1)
        return shared if bias is None else shared + bias.unsqueeze(1)
    out: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Product(torch.autograd.Function):
    """x weight' + bias as in `product`. The gradient of the weight has the memory layout of the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        out = torch.bmm(x, weight.transpose(1, 2))
        return out if bias is None else out + bias.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        products = torch.bmm(gradient, weight), torch.bmm(gradient.transpose(1, 2), x)
        # sum for the bias after the products, so that the compiler does not also write the gradient in fp32
        return *products, gradient.sum(dim=1) if ctx.needs_input_grad[2] else None
