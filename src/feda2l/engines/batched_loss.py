"""The loss of batches of k nodes, where some batches may be smaller than others."""

import torch.nn.functional as F
from torch import Tensor

from feda2l.engines.stacked import stacked_loss
from feda2l.round.train import Loss

BY_SAMPLE = (F.mse_loss, F.l1_loss)  # regression losses that are available per sample, in the order of `ERRORS`


def batch_losses(loss: Loss, outputs: Tensor, targets: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean loss of each row, [k], over the valid samples of its batch.

    `valid` [k, batch] is 0 for samples that only pad a smaller batch, so that they do not affect loss and gradient.
    None means that all samples are valid.
    """
    if valid is None:
        return stacked_loss(loss)(outputs, targets)
    assert loss in BY_SAMPLE
    each = loss(outputs, targets, reduction="none").flatten(2).mean(dim=2)
    return (each * valid).sum(dim=1) / valid.sum(dim=1)
