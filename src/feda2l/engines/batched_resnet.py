"""The forward pass of k ResNets at once. Each node is normalised over its own batch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feda2l.engines.batched_convolution import convolution
from feda2l.engines.batched_product import product
from feda2l.engines.running_statistics import MOMENTUM
from feda2l.engines.stacked import trains_as_written
from feda2l.models.resnet import BasicBlock, ResNet

OUTPUTS = 64  # output channels must be a multiple of this, so that they fill whole tiles of a kernel

Forward = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor | None]]


def covers_resnet(model: ResNet) -> bool:
    """True if the model is an unmodified ResNet with supported layers, without hooks or frozen parameters."""
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
    **dict.fromkeys(
        (nn.ReLU, nn.Flatten, nn.Linear, nn.Sequential), lambda part: True
    ),  # an empty Sequential is an identity shortcut
}


def resnet_forward(model: ResNet) -> Forward:
    """Return the forward pass of k ResNets.

    It maps parameters [k, *shape] and images [k, batch, height, width, channels] to outputs [k, batch, classes]. The
    second result [k, columns] is the batch mean and unbiased variance of each BatchNorm, in the order of the model's
    buffers. It is None without BatchNorm.
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
    """One forward pass: the parameters by name, and the batch mean and variance of each BatchNorm."""

    def __init__(self, model: ResNet, tensors: dict[str, Tensor], kind: torch.dtype) -> None:
        self.model, self.tensors, self.kind = model, tensors, kind
        self.exact = torch.promote_types(kind, torch.float32)  # dtype of statistics and residuals, at least float32
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}

    def convolve(self, x: Tensor, name: str) -> Tensor:
        part = self.model.get_submodule(name)
        assert isinstance(part, nn.Conv2d)
        return convolution(x, self.tensors[f"{name}.weight"], part.kernel_size[0], part.stride[0])

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
            self.tensors[f"{name}.{which}"].to(self.exact).view(len(x), 1, 1, 1, -1) for which in ("weight", "bias")
        )
        return plain * weight + bias

    def rectify(self, x: Tensor, name: str = "") -> Tensor:
        # cast before relu: the backward pass then needs the next convolution's input, which is stored anyway
        return torch.relu(x.to(self.kind))

    def block(self, x: Tensor, name: str) -> Tensor:
        """Return relu(norm(conv(relu(norm(conv(x))))) + x), with x projected if the shape changes."""
        inside = self.rectify(self.normalise(self.convolve(x, f"{name}.conv1"), f"{name}.bn1"))
        out = self.normalise(self.convolve(inside, f"{name}.conv2"), f"{name}.bn2")
        projected = f"{name}.shortcut.0.weight" in self.tensors
        shortcut = self.normalise(self.convolve(x, f"{name}.shortcut.0"), f"{name}.shortcut.1") if projected else x
        return self.rectify(out + shortcut)

    def blocks(self, x: Tensor, name: str) -> Tensor:
        group = self.model.get_submodule(name)
        assert isinstance(group, nn.Sequential)
        for number in range(len(group)):
            x = self.block(x, f"{name}.{number}")
        return x

    def pool(self, x: Tensor, name: str) -> Tensor:
        return x.to(self.exact).mean(dim=(2, 3)).to(self.kind)

    def classify(self, x: Tensor, name: str) -> Tensor:
        return product(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])


STEPS: dict[type[nn.Module], Callable[[_Pass, Tensor, str], Tensor]] = {
    nn.Conv2d: _Pass.convolve,
    nn.BatchNorm2d: _Pass.normalise,
    nn.GroupNorm: _Pass.normalise,
    nn.ReLU: _Pass.rectify,
    nn.Sequential: _Pass.blocks,
    nn.AdaptiveAvgPool2d: _Pass.pool,
    nn.Flatten: lambda run, x, name: x,  # after pooling there is one number per channel
    nn.Linear: _Pass.classify,
}


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (x - mean) / sqrt(variance + eps) over the given axes, and mean and variance in at least float32."""
    result: tuple[Tensor, Tensor, Tensor] = _Standardised.apply(x, axes, eps)  # type: ignore[no-untyped-call]
    return result


class _Standardised(torch.autograd.Function):
    """Forward: z = (x - mean) / sqrt(variance + eps). Backward: (g - mean(g) - z mean(g z)) / sqrt(variance + eps).

    The explicit backward pass reads memory twice: once for both means and once for the gradient.
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
