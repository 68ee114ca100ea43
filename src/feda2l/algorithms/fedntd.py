"""FedNTD without a server: distil the base model's outputs for the classes that are not the true one.

Lee, Jeong, Shin, Bae, Yun: "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning",
NeurIPS 2022.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from feda2l.algorithms.base import Algorithm, Task
from feda2l.errors import FedA2LError


@dataclass(frozen=True, kw_only=True)
class FedNTD(Algorithm):
    """The task loss plus beta tau^2 KL(softmax(z_g / tau) || softmax(z / tau)) over the not-true classes.

    z_g are the outputs of the node's base model of the round, which is fixed and in eval mode. The true class is
    removed from both before the softmax. KL is summed over classes and averaged over the batch. beta = 0 is FedAvg.

    Adapted: the teacher is the node's own base state in place of the server's model, and it is always in eval mode.
    """

    summary = "distils the base model's outputs for the classes that are not the true one"
    citation = "Lee et al. 2022"
    uses_base_outputs = True

    beta: float = 1.0
    tau: float = 1.0

    def __post_init__(self) -> None:
        self.demand(0 <= self.beta < float("inf"), "beta", "must be 0 (FedAvg) or more")
        self.demand(0 < self.tau < float("inf"), "tau", "must be above 0: outputs are divided by it")

    def check(self, task: Task) -> None:
        if not task.classes:
            raise FedA2LError(
                'algorithm.name = "fedntd" distils the classes that are not the true one, but this task has no classes '
                "(its targets are numbers): choose another algorithm"
            )

    def loss(self, task: Tensor, outputs: Tensor, targets: Tensor, base_outputs: Tensor | None) -> Tensor:
        assert base_outputs is not None
        true = F.one_hot(targets, outputs.shape[-1]).bool()
        # far below every other output but finite: its softmax is exactly 0, and 0 x finite is 0
        nothing = torch.finfo(outputs.dtype).min / 4
        student, teacher = ((z / self.tau).masked_fill(true, nothing) for z in (outputs, base_outputs))
        gap = F.log_softmax(teacher, dim=-1) - F.log_softmax(student, dim=-1)
        divergence = (F.softmax(teacher, dim=-1) * gap).sum(dim=-1).mean(dim=-1)
        return task + self.beta * self.tau**2 * divergence
