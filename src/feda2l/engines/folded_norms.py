"""A network in eval mode in which each BatchNorm is replaced by one factor and one offset per channel."""

import copy

import torch
from torch import Tensor, nn

from feda2l.round.population import CPU


class FoldedNorms:
    """A model with folded BatchNorms: y = (x - mean) / sqrt(variance + eps) * weight + bias = x * factor + offset.

    `template` is the model with folded modules, and `tensors` computes its tensors from the values of a model. Factor
    and offset are computed once per model and not once per number, which took half of the time between convolutions.
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
        """Return the template's tensors, by name, for a model of the same architecture."""
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        tensors = {name: state[name].detach() for name, _ in self.template.named_parameters() if name in state}
        if not self.norms:
            return tensors
        weight, bias, mean, variance = (
            torch.cat([state[f"{name}.{which}"].detach() for name in self.norms])
            for which in ("weight", "bias", "running_mean", "running_var")
        )
        factor = weight * (variance + self.eps.to(variance.dtype)).rsqrt()
        offset = bias - mean * factor
        for which, values in (("factor", factor), ("offset", offset)):
            parts = values.split(self.widths)
            tensors |= {f"{name}.{which}": part for name, part in zip(self.norms, parts, strict=True)}
        return tensors


class _Folded(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor, self.offset = (nn.Parameter(torch.zeros(channels), requires_grad=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        factor, offset = (values.view(-1, 1, 1) for values in (self.factor, self.offset))
        return (x.to(factor.dtype) * factor + offset).to(x.dtype)
