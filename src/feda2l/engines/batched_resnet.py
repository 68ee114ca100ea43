"""The forward pass of k residual networks at once; each row is normalised over its own batch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feda2l.engines.batched_convolution import convolution
from feda2l.engines.batched_product import product
from feda2l.engines.running_statistics import MOMENTUM
from feda2l.engines.stacked import trains_as_written
from feda2l.models.resnet import BasicBlock, ResNet

OUTPUTS = 64  # channels that a convolution makes come in multiples of this: whole tiles of a kernel

Forward = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor | None]]


def covers_resnet(model: ResNet) -> bool:
    """Is it a ResNet as it stands, of convolutions and normalisations known here, that trains as a whole?"""
    parts = [part for part in model.modules() if not list(part.children())]
    blocks = [block for group in model.children() if isinstance(group, nn.Sequential) for block in group]
    written = type(model) is ResNet and all(type(block) is BasicBlock for block in blocks)
    return written and all(map(_covered, parts)) and trains_as_written(model)


def _covered(part: nn.Module) -> bool:
    return type(part) in COVERS and COVERS[type(part)](part)


def _covers_convolution(part: nn.Conv2d) -> bool:
    side, stride = part.kernel_size[0], part.stride[0]
    square = (part.kernel_size, part.stride, part.padding) == ((side,) * 2, (stride,) * 2, (side // 2,) * 2)
    plain = (part.dilation, part.groups, part.bias, part.padding_mode) == ((1, 1), 1, None, "zeros")
    return square and plain and side in (1, 3) and stride in (1, 2) and part.out_channels % OUTPUTS == 0


COVERS: dict[type[nn.Module], Callable[[Any], bool]] = {
    nn.Conv2d: _covers_convolution,
    nn.BatchNorm2d: lambda part: part.affine and part.track_running_stats and part.momentum == MOMENTUM,
    nn.GroupNorm: lambda part: part.affine,
    nn.AdaptiveAvgPool2d: lambda part: part.output_size == 1,
    **dict.fromkeys((nn.ReLU, nn.Flatten, nn.Linear, nn.Sequential), lambda part: True),  # empty: a plain shortcut
}


def resnet_forward(model: ResNet) -> Forward:
    """Outputs [k, batch, classes] from parameters [k, *shape] and pictures [k, batch, height, width, channels].

    The second result is what every BatchNorm saw, [k, columns]: its mean and unbiased variance in the order of the
    model's buffers; None if there is no BatchNorm.
    """
    names = [name for name, _ in model.named_parameters()]
    norms = [name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)]
    steps = [
        (name, next(step for kind, step in STEPS.items() if isinstance(part, kind)))
        for name, part in model.named_children()
    ]

    def forward(parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor | None]:
        run = _Pass(model, dict(zip(names, parameters, strict=True)), x.dtype)
        for name, step in steps:
            x = step(run, x, name)
        return x, torch.cat([part for name in norms for part in run.seen[name]], dim=1) if norms else None

    return forward


class _Pass:
    """One forward pass: the parameters by name, and the mean and variance that each BatchNorm saw."""

    def __init__(self, model: ResNet, own: dict[str, Tensor], kind: torch.dtype) -> None:
        self.model, self.own, self.kind = model, own, kind
        self.exact = torch.promote_types(kind, torch.float32)  # of statistics and residuals: never half precision
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}

    def convolve(self, x: Tensor, name: str) -> Tensor:
        part = self.model.get_submodule(name)
        assert isinstance(part, nn.Conv2d)
        return convolution(x, self.own[f"{name}.weight"], part.kernel_size[0], part.stride[0])

    def normalise(self, x: Tensor, name: str) -> Tensor:
        part = self.model.get_submodule(name)
        if isinstance(part, nn.GroupNorm):
            groups = x.unflatten(-1, (part.num_groups, -1))
            plain = _standardised(groups, (2, 3, 5), part.eps)[0].flatten(-2)
        else:
            assert isinstance(part, nn.BatchNorm2d)
            plain, mean, variance = _standardised(x, (1, 2, 3), part.eps)
            count = x.shape[1:4].numel()
            self.seen[name] = mean.flatten(1), variance.flatten(1) * (count / (count - 1))
        weight, bias = (
            self.own[f"{name}.{which}"].to(self.exact).view(len(x), 1, 1, 1, -1) for which in ("weight", "bias")
        )
        return plain * weight + bias

    def rectify(self, x: Tensor, name: str = "") -> Tensor:
        # cast first: backward then needs the input of the next convolution, which is kept anyway
        return torch.relu(x.to(self.kind))

    def block(self, x: Tensor, name: str) -> Tensor:
        """relu(norm(conv(relu(norm(conv(x))))) + x), with x projected where the shape changes."""
        inside = self.rectify(self.normalise(self.convolve(x, f"{name}.conv1"), f"{name}.bn1"))
        out = self.normalise(self.convolve(inside, f"{name}.conv2"), f"{name}.bn2")
        projected = f"{name}.shortcut.0.weight" in self.own
        beside = self.normalise(self.convolve(x, f"{name}.shortcut.0"), f"{name}.shortcut.1") if projected else x
        return self.rectify(out + beside)

    def blocks(self, x: Tensor, name: str) -> Tensor:
        group = self.model.get_submodule(name)
        assert isinstance(group, nn.Sequential)
        for number in range(len(group)):
            x = self.block(x, f"{name}.{number}")
        return x

    def pool(self, x: Tensor, name: str) -> Tensor:
        return x.to(self.exact).mean(dim=(2, 3)).to(self.kind)

    def classify(self, x: Tensor, name: str) -> Tensor:
        return product(x, self.own[f"{name}.weight"], self.own[f"{name}.bias"])


STEPS: dict[type[nn.Module], Callable[[_Pass, Tensor, str], Tensor]] = {
    nn.Conv2d: _Pass.convolve,
    nn.BatchNorm2d: _Pass.normalise,
    nn.GroupNorm: _Pass.normalise,
    nn.ReLU: _Pass.rectify,
    nn.Sequential: _Pass.blocks,
    nn.AdaptiveAvgPool2d: _Pass.pool,
    nn.Flatten: lambda run, x, name: x,  # pooling left one number per channel
    nn.Linear: _Pass.classify,
}


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
