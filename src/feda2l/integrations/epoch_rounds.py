"""Rounds in a trainer that counts epochs: make FedA2L's three calls at the start and end of epochs."""

from collections.abc import Callable
from typing import Any

from torch import nn

from feda2l.errors import FedA2LError
from feda2l.scheduler import FedA2L


class EpochRounds:
    """Round r consists of n epochs, from epoch (r - 1) n (counted from 0), and ends with the user's averaging."""

    def __init__(self, average: Callable[[Any], object], epochs: int) -> None:
        if epochs < 1:
            raise FedA2LError(f"epochs = {epochs}: a round takes at least one local epoch")
        self.average, self.epochs = average, epochs

    def begin(self, rates: FedA2L, model: nn.Module, epoch: int) -> None:
        """Begin a round if epoch number `epoch` is its first. Call it before the epoch."""
        # a checkpoint that was saved after the last batch and before the averaging: the averaging comes first
        self.end(rates, model, epoch)
        if rates.next_call == "begin_round":
            rates.begin_round()

    def end(self, rates: FedA2L, model: nn.Module, done: int) -> None:
        """Average if `done` epochs complete the open round. Call it after an epoch."""
        if rates.next_call == "begin_round" or done < rates.round * self.epochs:
            return
        if rates.next_call == "end_training":
            rates.end_training()
        if self.average(model) is False:
            rates.skip_round()
        else:
            rates.step()
