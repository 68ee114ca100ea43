"""FedA2L in Hugging Face's Trainer: the model trains for some epochs, is averaged with its neighbours, and so on.

    from feda2l.integrations.trainer import FedA2LCallback

    optimizer = torch.optim.AdamW(feda2l.layer_groups(model), lr=1e-4)
    rates = FedA2LCallback(optimizer, average_with_neighbours, warmup_rounds=5)
    Trainer(model, args, optimizers=rates.optimizers, callbacks=[rates], ...).train()

When the three states exist: the base state before an epoch, the trained state after it, the aggregated state when your
`average(model)` returns, still within the callback and before the Trainer evaluates or saves for the epoch.

What you must do: build the optimizer with `layer_groups`; hand over both `optimizers`, since the Trainer would else
step a schedule of its own on the same groups; and write `average(model)`, which exchanges the parameters with your
neighbours and puts the average into the model, in place. If it returns False nobody was heard, and the round is
skipped.

The Trainer's checkpoints hold FedA2L's state in `scheduler.pt`, an open round included: `resume_from_checkpoint` goes
on to the last bit. Sharded parameters (FSDP, DeepSpeed) are not supported: a layer's signals need all of it.

Accelerate without a Trainer needs no module: prepare model and optimizer, build `feda2l.FedA2L(optimizer)` and let
`accelerator.register_for_checkpointing(rates)` save it.
"""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from feda2l.errors import FedA2LError
from feda2l.integrations.epoch_rounds import EpochRounds
from feda2l.integrations.rate_scheduler import RateScheduler
from feda2l.scheduler import FedA2L

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise FedA2LError(
        "the Trainer's callback needs transformers: pip install 'feda2l[transformers]'", see="missing-extra"
    ) from error


class FedA2LCallback(TrainerCallback):
    """A round is `epochs` local epochs and an averaging; the other keyword arguments are those of `feda2l.FedA2L`."""

    def __init__(
        self, optimizer: Optimizer, average: Callable[[Any], object], *, epochs: int = 1, **knobs: Any
    ) -> None:
        self.rates = FedA2L(optimizer, **knobs)
        self.optimizers = optimizer, RateScheduler(self.rates)
        self._rounds = EpochRounds(average, epochs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if kwargs["lr_scheduler"] is not self.optimizers[1]:
            raise FedA2LError(
                "the Trainer steps a schedule of its own, which would overwrite FedA2L's rates: give it "
                "optimizers=callback.optimizers"
            )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._rounds.begin(self.rates, kwargs["model"], int(state.epoch))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._rounds.end(self.rates, kwargs["model"], int(state.epoch))
