"""Rounds in a trainer that counts epochs: which of FedA2L's three calls is due at an epoch's start and end."""

from collections.abc import Callable
from typing import Any

from feda2l.errors import FedA2LError
from feda2l.scheduler import FedA2L


class EpochRounds:
    """Round r is epochs (r - 1) n to r n, counted from 0, and ends with the user's averaging."""

    def __init__(self, average: Callable[[Any], object], epochs: int) -> None:
        if epochs < 1:
            raise FedA2LError(f"epochs = {epochs}: a round takes at least one local epoch")
        self.average, self.epochs = average, epochs

    def begin(self, rates: FedA2L, model: Any, epoch: int) -> None:
        """Before epoch number `epoch`."""
        # a checkpoint from between the last batch and the averaging is resumed after it: the averaging is still due
        self.end(rates, model, epoch)
        if rates.next_call == "begin_round":
            rates.begin_round()

    def end(self, rates: FedA2L, model: Any, done: int) -> None:
        """After `done` epochs: average where these complete the open round."""
        if rates.next_call == "begin_round" or done < rates.round * self.epochs:
            return
        if rates.next_call == "end_training":
            rates.end_training()
        if self.average(model) is False:
            rates.skip_round()
        else:
            rates.step()
