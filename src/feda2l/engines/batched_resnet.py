"""The forward pass of k residual networks at once; each row is normalised over its own batch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feda2l.engines.batched_convolution import convolution
from feda2l.engines.batched_product import product
from feda2l.engines.running_statistics import MOMENTUM
from feda2l.models.resnet import BasicBlock, ResNet

OUTPUTS = 64  # channels that a convolution makes come in multiples of this: whole tiles of a kernel

Forward = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor | None]]


def covers_resnet(model: ResNet) -> bool:
    """Is it a ResNet as it stands, of convolutions and normalisations known here, that trains as a whole?"""
    parts = [part for part in model.modules() if not list(part.children())]
    blocks = [block for group in model.children() if isinstance(group, nn.Sequential) for block in group]
    written = type(model) is ResNet and all(type(block) is BasicBlock for block in blocks)
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    return written and not hooked and all(map(_covered, parts)) and all(p.requires_grad for p in model.parameters())


def _covered(part: nn.Module) -> bool:
    if type(part) is nn.Conv2d:
        (side, stride), plain = (part.kernel_size[0], part.stride[0]), (part.dilation, part.groups) == ((1, 1), 1)
        square = (part.kernel_size, part.stride, part.padding) == ((side,) * 2, (stride,) * 2, (side // 2,) * 2)
        known = square and side in (1, 3) and stride in (1, 2) and part.out_channels % OUTPUTS == 0
        return known and plain and part.bias is None and part.padding_mode == "zeros"
    if type(part) is nn.BatchNorm2d:
        return part.affine and part.track_running_stats and part.momentum == MOMENTUM
    if type(part) is nn.GroupNorm:
        return part.affine
    if type(part) is nn.AdaptiveAvgPool2d:
        return part.output_size == 1
    return type(part) in (nn.ReLU, nn.Flatten, nn.Linear, nn.Sequential)  # an empty row is a plain shortcut


def resnet_forward(model: ResNet) -> Forward:
    """Outputs [k, batch, classes] from parameters [k, *shape] and pictures [k, batch, height, width, channels].

    Beside them what every BatchNorm saw, [k, columns]: its mean and unbiased variance in the order of the model's
    buffers; None where there is no BatchNorm.
    """
    names = [name for name, _ in model.named_parameters()]
    norms = [name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)]

    def forward(parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor | None]:
        own = dict(zip(names, parameters, strict=True))
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        kind, exact = x.dtype, torch.promote_types(x.dtype, torch.float32)  # statistics and residuals: never in half

        def convolved(x: Tensor, name: str) -> Tensor:
            part = model.get_submodule(name)
            assert isinstance(part, nn.Conv2d)
            return convolution(x, own[f"{name}.weight"], part.kernel_size[0], part.stride[0])

        def normalised(x: Tensor, name: str) -> Tensor:
            part = model.get_submodule(name)
            if isinstance(part, nn.GroupNorm):
                groups = x.unflatten(-1, (part.num_groups, -1))
                plain = _standardised(groups, (2, 3, 5), part.eps)[0].flatten(-2)
            else:
                assert isinstance(part, nn.BatchNorm2d)
                plain, mean, variance = _standardised(x, (1, 2, 3), part.eps)
                count = x.shape[1:4].numel()
                seen[name] = mean.flatten(1), variance.flatten(1) * (count / (count - 1))
            weight, bias = (own[f"{name}.{which}"].to(exact).view(len(x), 1, 1, 1, -1) for which in ("weight", "bias"))
            return plain * weight + bias

        def rectified(x: Tensor) -> Tensor:
            return torch.relu(x.to(kind))  # in this order: backward then asks the next convolution's input, kept anyway

        def block(x: Tensor, name: str) -> Tensor:
            """relu(norm(conv(relu(norm(conv(x))))) + x), with x projected where the shape changes."""
            inside = rectified(normalised(convolved(x, f"{name}.conv1"), f"{name}.bn1"))
            out = normalised(convolved(inside, f"{name}.conv2"), f"{name}.bn2")
            projected = f"{name}.shortcut.0.weight" in own
            beside = normalised(convolved(x, f"{name}.shortcut.0"), f"{name}.shortcut.1") if projected else x
            return rectified(out + beside)

        for name, part in model.named_children():
            if isinstance(part, nn.Conv2d):
                x = convolved(x, name)
            elif isinstance(part, nn.BatchNorm2d | nn.GroupNorm):
                x = normalised(x, name)
            elif isinstance(part, nn.ReLU):
                x = rectified(x)
            elif isinstance(part, nn.Sequential):
                for number in range(len(part)):
                    x = block(x, f"{name}.{number}")
            elif isinstance(part, nn.AdaptiveAvgPool2d):
                x = x.to(exact).mean(dim=(2, 3)).to(kind)
            elif isinstance(part, nn.Linear):
                x = product(x, own[f"{name}.weight"], own[f"{name}.bias"])
        return x, torch.cat([part for name in norms for part in seen[name]], dim=1) if norms else None

    return forward


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + eps), and mean and variance over some axes: float32 where x is less."""
    found: tuple[Tensor, Tensor, Tensor] = _Standardised.apply(x, axes, eps)  # type: ignore[no-untyped-call]
    return found


class _Standardised(torch.autograd.Function):
    """z = (x - mean) / sqrt(variance + eps); backward (g - mean(g) - z mean(g z)) / sqrt(variance + eps).

    Written out, so that backward is one pass for both means and one for the gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        variance, mean = torch.var_mean(exact, dim=axes, correction=0, keepdim=True)
        scale = (variance + eps).rsqrt()
        ctx.axes = axes
        ctx.save_for_backward(x, mean, scale)
        ctx.mark_non_differentiable(mean, variance)
        return (exact - mean) * scale, mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        x, mean, scale = ctx.saved_tensors
        z = (x.to(mean.dtype) - mean) * scale
        level = gradient.mean(dim=ctx.axes, keepdim=True)
        slope = (gradient * z).mean(dim=ctx.axes, keepdim=True)
        return ((gradient - level - z * slope) * scale).to(x.dtype), None, None
