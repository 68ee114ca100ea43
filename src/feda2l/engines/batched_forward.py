"""The forward pass of k small convolutional networks at once.

At batch size 10 a single node leaves most of a GPU idle. Here a convolution of k nodes is one gather of patches and one
batched matrix product.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.engines.batched_product import product
from feda2l.engines.batched_resnet import covers_resnet
from feda2l.engines.batched_timer import covers_timer
from feda2l.engines.stacked import ELEMENTWISE, Forward, flattens_samples, trains_as_written
from feda2l.models.resnet import ResNet
from feda2l.models.timer import Timer

LANES = 16  # inner sizes of products are padded to a multiple of this; unaligned products are several times slower


def covers(model: nn.Module) -> bool:
    """True if node-batched kernels exist for every part of this model."""
    if isinstance(model, Timer):
        return covers_timer(model)
    if isinstance(model, ResNet):
        return covers_resnet(model)
    return type(model) is nn.Sequential and all(_covered(part) for part in model) and not list(model.buffers())


def _covers_convolution(part: nn.Conv2d) -> bool:
    plain = (part.stride, part.dilation, part.groups) == ((1, 1), (1, 1), 1)
    return plain and isinstance(part.padding, tuple) and part.padding_mode == "zeros"


def _covers_pooling(part: nn.MaxPool2d) -> bool:
    sizes = {part.kernel_size, part.stride}
    return sizes in ({2}, {(2, 2)}) and part.padding == 0 and part.dilation == 1 and not part.ceil_mode


COVERS: dict[type[nn.Module], Callable[[Any], bool]] = {
    nn.Conv2d: _covers_convolution,
    nn.MaxPool2d: _covers_pooling,
    nn.Flatten: flattens_samples,
    **dict.fromkeys((nn.Linear, *ELEMENTWISE), lambda part: True),
}


def _covered(part: nn.Module) -> bool:
    return type(part) in COVERS and COVERS[type(part)](part) and trains_as_written(part)


def batched_forward(model: nn.Sequential) -> Forward:
    """Return the forward pass of k nodes.

    It takes parameters [k, *shape] (kernels as [k, channels, inner]) and channels-last inputs [k, batch, ...]. Inputs
    [1, batch, ...] are allowed if all nodes share them and no gradient is needed.
    """

    def forward(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        remaining = iter(parameters)
        for part in model:
            if isinstance(part, nn.Conv2d):
                x = _convolution(x, next(remaining), part)
            elif isinstance(part, nn.Linear):
                x = product(x, next(remaining))
            if isinstance(part, nn.Conv2d | nn.Linear) and part.bias is not None:
                # added outside the product, where it would first fill the whole output; here it fuses with the next op
                x = x + next(remaining).view(len(x), *(1,) * (x.dim() - 2), -1)
            if isinstance(part, nn.MaxPool2d):
                height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
                quarters = [x[:, :, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
                x = torch.maximum(torch.maximum(*quarters[:2]), torch.maximum(*quarters[2:]))
            elif isinstance(part, nn.Flatten):
                x = x.permute(0, 1, 4, 2, 3).flatten(2)  # features in the order of [channels, height, width]
            elif not isinstance(part, nn.Conv2d | nn.Linear):
                x = part(x)
        return x

    return forward


def _convolution(x: Tensor, kernels: Tensor, part: nn.Conv2d) -> Tensor:
    """Multiply patches [k, places, inner] by kernels [k, channels, inner]; inner is (row, column, channel)."""
    assert not isinstance(part.padding, str)
    vertical, horizontal = part.padding
    if vertical or horizontal:
        x = F.pad(x, (0, 0, horizontal, horizontal, vertical, vertical))
    down, across = part.kernel_size
    places = x.shape[1], x.shape[2] - down + 1, x.shape[3] - across + 1
    patches = _Patches.apply(x, down, across)  # type: ignore[no-untyped-call]
    missing = patches.shape[-1] - kernels.shape[-1]
    weight = F.pad(kernels, (0, missing)) if missing else kernels
    return product(patches, weight).view(-1, *places, len(weight[0]))


class _Patches(torch.autograd.Function):
    """Map [k, batch, height, width, channels] to patches [k, batch * places, inner]; inner is padded to whole lanes.

    A row of a patch is contiguous in memory, so all patches are one strided copy. The backward pass sums, for each
    pixel, the gradients of the patches that contain it, with shifted slices and without a scatter.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, down: int, across: int) -> Tensor:
        rows, batch, high, wide, channels = ctx.shape = x.shape
        ctx.kernel = down, across
        height, width, inner = high - down + 1, wide - across + 1, down * across * channels
        line = wide * channels
        shape = rows, batch, height, width, down, across * channels
        steps = batch * high * line, high * line, line, channels, line, 1
        patches = x.contiguous().as_strided(shape, steps).reshape(rows, batch * height * width, inner)
        return F.pad(patches, (0, -inner % LANES)) if inner % LANES else patches

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        rows, batch, high, wide, channels = ctx.shape
        down, across = ctx.kernel
        height, width = high - down + 1, wide - across + 1
        parts = gradient.view(rows, batch, height, width, -1)
        total = gradient.new_zeros(())
        for i in range(down):
            for j in range(across):
                start = (i * across + j) * channels
                edges = 0, 0, j, across - 1 - j, i, down - 1 - i
                total = total + F.pad(parts[..., start : start + channels], edges)
        return total, None, None
