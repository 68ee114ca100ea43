"""FedA2L as a torch learning rate scheduler, for trainers that require one."""

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from feda2l.plain_values import PlainDict
from feda2l.scheduler import FedA2L


class RateScheduler(LRScheduler):
    """Save and load FedA2L's state where a trainer does so for its scheduler; `step` does not change the rates.

    It is for trainers that step a scheduler more often than once per round. The owner of `rates` makes FedA2L's calls.
    """

    def __init__(self, rates: FedA2L) -> None:
        self.rates = rates
        super().__init__(rates.optimizer)

    def step(self, epoch: int | None = None) -> None:
        self._step_count += 1
        self.last_epoch += 1

    def get_lr(self) -> list[Any]:
        return list(self.rates.get_last_lr())

    def get_last_lr(self) -> list[Any]:
        return self.get_lr()

    def state_dict(self) -> PlainDict:
        return {"rates": self.rates.state_dict(), "step_count": self._step_count, "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: PlainDict) -> None:
        """Resume from a saved state. Load the optimizer's state first."""
        self.rates.load_state_dict(state_dict["rates"])
        self._step_count, self.last_epoch = state_dict["step_count"], state_dict["last_epoch"]
