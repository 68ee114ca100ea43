"""A network in eval mode with a factor and an offset a channel in place of each BatchNorm."""

import copy

import torch
from torch import Tensor, nn

from feda2l.round.population import CPU


class FoldedNorms:
    """`template` is a model with its BatchNorms folded; `tensors` gives what it computes with for a model's own values.

    y = (x - mean) / sqrt(variance + eps) * weight + bias = x * factor + offset: taken once for a model and not once for
    each number, which took half of the passes over what the convolutions wrote.
    """

    def __init__(self, model: nn.Module, device: torch.device = CPU) -> None:
        self.template = copy.deepcopy(model).eval()
        self.norms = {name: part for name, part in model.named_modules() if type(part) is nn.BatchNorm2d}
        for name, part in self.norms.items():
            owner, _, last = name.rpartition(".")
            setattr(self.template.get_submodule(owner), last, _Folded(part.num_features))
        self.widths = [part.num_features for part in self.norms.values()]
        eps = [part.eps for part in self.norms.values()]
        self.eps = torch.tensor(eps, dtype=torch.float64).repeat_interleave(torch.tensor(self.widths).long()).to(device)

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The template's tensors for a model of the same kind, by name."""
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        found = {name: own[name].detach() for name, _ in self.template.named_parameters() if name in own}
        if not self.norms:
            return found
        weight, bias, mean, variance = (
            torch.cat([own[f"{name}.{which}"].detach() for name in self.norms])
            for which in ("weight", "bias", "running_mean", "running_var")
        )
        factor = weight * (variance + self.eps.to(variance.dtype)).rsqrt()
        offset = bias - mean * factor
        for which, values in (("factor", factor), ("offset", offset)):
            parts = values.split(self.widths)
            found |= {f"{name}.{which}": part for name, part in zip(self.norms, parts, strict=True)}
        return found


class _Folded(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor, self.offset = (nn.Parameter(torch.zeros(channels), requires_grad=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        factor, offset = (values.view(-1, 1, 1) for values in (self.factor, self.offset))
        return (x.to(factor.dtype) * factor + offset).to(x.dtype)
