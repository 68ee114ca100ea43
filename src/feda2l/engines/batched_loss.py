"""The loss of k nodes' batches, of which some may be smaller than the others."""

import torch.nn.functional as F
from torch import Tensor

from feda2l.engines.stacked import stacked_loss
from feda2l.round.train import Loss

BY_SAMPLE = (F.mse_loss, F.l1_loss)  # those that can be had sample by sample, of numbers: in the order of `ERRORS`


def batch_losses(loss: Loss, outputs: Tensor, targets: Tensor, there: Tensor | None) -> Tensor:
    """The mean loss of each row, [k], over the samples of its batch that are `there` [k, batch]; None: all are.

    What only fills a smaller batch's place has no part in the loss, and so none in the gradient.
    """
    if there is None:
        return stacked_loss(loss)(outputs, targets)
    assert loss in BY_SAMPLE
    each = loss(outputs, targets, reduction="none").flatten(2).mean(dim=2)
    return (each * there).sum(dim=1) / there.sum(dim=1)
