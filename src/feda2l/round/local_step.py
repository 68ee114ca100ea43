"""An algorithm's part in a training step: the point at which the gradient is taken, and its direction."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm

Views = Callable[[Tensor], list[Tensor]]


class LocalStep:
    """An algorithm's part in the training steps of some rows, over their flat states [..., width].

    `views` splits such a state into the model's tensors. Results keep their place in memory, so that a step can be
    captured once and replayed.
    """

    def __init__(
        self, algorithm: Algorithm, values: Tensor, base: Tensor, state: Mapping[str, Tensor], views: Views
    ) -> None:
        self.algorithm, self.values, self.base, self.state = algorithm, values, base, state
        self.direction = torch.zeros_like(values)
        self.parts = views(self.direction)
        self.perturbed = torch.zeros_like(values) if algorithm.ascent else None
        self.modifies_gradient = algorithm.overrides("gradient")

    def modified_gradients(
        self, gradients: Sequence[Tensor], again: Callable[[], Sequence[Tensor]]
    ) -> Sequence[Tensor]:
        """Compute the optimizer's gradients from those at x; `again` returns the gradients at the `perturbed` point."""
        with torch.no_grad():
            if self.perturbed is not None:
                self._collect(gradients)
                norm = torch.linalg.vector_norm(self.direction, dim=-1, keepdim=True)
                step = self.direction.mul_(self.algorithm.ascent / (norm + 1e-12))
                torch.add(self.values, step, out=self.perturbed)
        if self.perturbed is not None:
            gradients = again()
        if not self.modifies_gradient:
            return gradients
        with torch.no_grad():
            self._collect(gradients)
            modified = self.algorithm.gradient(self.direction, self.values, self.base, self.state)
            if modified is not self.direction:
                self.direction.copy_(modified)
        return self.parts

    def _collect(self, gradients: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.parts, list(gradients))
