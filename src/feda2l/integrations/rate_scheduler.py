"""FedA2L where one of torch's learning rate schedulers is asked for."""

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from feda2l.scheduler import FedA2L


class RateScheduler(LRScheduler):
    """Carries FedA2L's state to where a trainer keeps its scheduler's; its `step` leaves the rates as they are.

    For trainers that step a scheduler more often than once a round: who holds `rates` calls them.
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

    def state_dict(self) -> dict[str, Any]:
        return {"rates": self.rates.state_dict(), "step_count": self._step_count, "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's own state first."""
        self.rates.load_state_dict(state_dict["rates"])
        self._step_count, self.last_epoch = state_dict["step_count"], state_dict["last_epoch"]
