"""Convolution of k nodes and its gradients, as custom operators that torch.compile treats as opaque.

The compiler would turn a convolution of k nodes into a grouped convolution, which is several times slower on a GPU than
k separate ones. On a CPU and in float64, used by tests only, a grouped convolution is used.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

LANES = 16  # channels are padded to a multiple of this, the size of one load of a kernel


def convolution(x: Tensor, weight: Tensor, side: int, stride: int) -> Tensor:
    """Convolve images [k, batch, height, width, channels] with weights [k, outputs, inner].

    out[p, o] = sum_(i, j, c) x[p * stride + (i, j) - side // 2, c] * weight[o, (i, j, c)]

    The images are padded with zeros. `inner` is (row, column, channel), the memory order of the kernels. The result is
    [k, batch, high, wide, outputs].
    """
    missing = -x.shape[-1] % LANES
    if missing:
        x = F.pad(x, (0, missing))
        weight = F.pad(weight.unflatten(2, (side * side, -1)), (0, missing)).flatten(2)
    out: Tensor = _convolution(x, weight, side, stride)
    return out


@torch.library.custom_op("feda2l::convolution", mutates_args=())
def _convolution(x: Tensor, weight: Tensor, side: int, stride: int) -> Tensor:
    x, weight = x.contiguous(), _packed(weight)
    if _has_kernels(x):
        from feda2l.engines.cuda_convolution import convolve

        return convolve(x, weight, side, stride)
    out = F.conv2d(_grouped(x), _kernels(weight, side), stride=stride, padding=side // 2, groups=len(x))
    return _ungrouped(out, len(x))


@torch.library.custom_op("feda2l::convolution_input_gradient", mutates_args=())
def _input_gradient(gradient: Tensor, weight: Tensor, pictures: Sequence[int], side: int, stride: int) -> Tensor:
    gradient, weight = gradient.contiguous(), _packed(weight)
    if _has_kernels(gradient):
        from feda2l.engines.cuda_convolution import input_gradient

        return input_gradient(gradient, weight, pictures, side, stride)
    rows, batch, height, width, channels = pictures
    grouped_shape = batch, rows * channels, height, width
    grouped = conv2d_input(
        grouped_shape, _kernels(weight, side), _grouped(gradient), stride=stride, padding=side // 2, groups=rows
    )
    return _ungrouped(grouped, rows)


@torch.library.custom_op("feda2l::convolution_weight_gradient", mutates_args=())
def _weight_gradient(x: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
    x, gradient = x.contiguous(), gradient.contiguous()
    if _has_kernels(x):
        from feda2l.engines.cuda_convolution import weight_gradient

        return weight_gradient(x, gradient, side, stride)
    rows, channels, outputs = len(x), x.shape[-1], gradient.shape[-1]
    grouped = conv2d_weight(
        _grouped(x),
        (rows * outputs, channels, side, side),
        _grouped(gradient),
        stride=stride,
        padding=side // 2,
        groups=rows,
    )
    in_order: Tensor = grouped.unflatten(0, (rows, outputs)).movedim(2, -1)
    return in_order.flatten(2).contiguous()


@_convolution.register_fake
def _(x: Tensor, weight: Tensor, side: int, stride: int) -> Tensor:
    high, wide = ((length - 1) // stride + 1 for length in x.shape[2:4])
    return x.new_empty(*x.shape[:2], high, wide, weight.shape[1])


@_input_gradient.register_fake
def _(gradient: Tensor, weight: Tensor, pictures: Sequence[int], side: int, stride: int) -> Tensor:
    return gradient.new_empty(pictures)


@_weight_gradient.register_fake
def _(x: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
    return x.new_empty(len(x), gradient.shape[-1], side * side * x.shape[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *ctx.how = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, weight = ctx.saved_tensors
    for_x, for_weight = ctx.needs_input_grad[:2]
    return (
        _input_gradient(gradient, weight, x.shape, *ctx.how) if for_x else None,
        _weight_gradient(x, gradient, *ctx.how) if for_weight else None,
        None,
        None,
    )


_convolution.register_autograd(_backward, setup_context=_keep)


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float32)


def _packed(weight: Tensor) -> Tensor:
    """Return the weights with each row contiguous. The rows may have gaps between them, as in the population."""
    return weight if weight.stride()[1:] == (weight.shape[2], 1) else weight.contiguous()


def _grouped(x: Tensor) -> Tensor:
    """Reshape [k, batch, height, width, channels] to [batch, k x channels, height, width], one group per node."""
    return x.permute(1, 0, 4, 2, 3).flatten(1, 2)


def _ungrouped(x: Tensor, rows: int) -> Tensor:
    by_row: Tensor = x.unflatten(1, (rows, -1))
    return by_row.permute(1, 0, 3, 4, 2).contiguous()


def _kernels(weight: Tensor, side: int) -> Tensor:
    """Reshape [k, outputs, (row, column, channel)] to [k x outputs, channels, row, column]."""
    kernels: Tensor = weight.unflatten(2, (side, side, -1))
    return kernels.movedim(-1, 2).flatten(0, 1)
