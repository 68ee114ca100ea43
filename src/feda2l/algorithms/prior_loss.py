"""Prior-corrected loss: cross-entropy on outputs that are shifted by the node's own label shares.

Menon et al.: "Long-tail learning via logit adjustment", ICLR 2021; Zhang et al.: "Federated Learning with Label
Distribution Skew via Logits Calibration" (FedLC), ICML 2022.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, Task
from feda2l.errors import FedA2LError

RARE = 1e-4  # added to each share, so that a class that a node has never seen has a finite logarithm


@dataclass(frozen=True, kw_only=True)
class PriorLoss(Algorithm):
    """The loss of z + tau log(pi_i + 1e-4) in place of z. pi_i are the label shares of node i's training samples.

    The model need not learn which classes a node has, so unequal nodes drift apart less. Outputs are shifted in
    training only: a score uses z. tau = 0 is FedAvg.

    Args:
        tau: the strength. 1 is the balanced softmax; smaller values correct a part of the skew.
    """

    summary = "shifts the outputs by the node's label shares before the loss"
    citation = "Menon et al. 2021; Zhang et al. 2022"

    tau: float = 0.5

    def __post_init__(self) -> None:
        self.demand(0 <= self.tau < float("inf"), "tau", "must be 0 (FedAvg) or more; usual values are 0.25 to 1")

    def check(self, task: Task) -> None:
        if task.classes < 2:
            found = "these data have one class" if task.classes else "the targets of these data are numbers"
            raise FedA2LError(
                f'algorithm.name = "prior_loss" corrects for label shares, but {found}: at least two classes are '
                "needed; choose another algorithm"
            )

    def logit_offset(self, shares: Tensor) -> Tensor:
        return self.tau * torch.log(shares + RARE)
