"""FedA2L in the Hugging Face Trainer: a round is some epochs of training and one averaging with the neighbours.

    from feda2l.integrations.trainer import FedA2LCallback

    optimizer = torch.optim.AdamW(feda2l.layer_groups(model), lr=1e-4)
    rates = FedA2LCallback(optimizer, average_with_neighbours, warmup_rounds=5)
    Trainer(model, args, optimizers=rates.optimizers, callbacks=[rates], ...).train()

When the three states exist: the base state before an epoch, the trained state after it, and the aggregated state when
your `average(model)` returns, inside the callback and before the Trainer evaluates or saves for the epoch.

What you must do:
    - Build the optimizer with `layer_groups`.
    - Pass both `optimizers`; otherwise the Trainer steps its own schedule on the same groups.
    - Write `average(model)`. It exchanges the parameters with your neighbours and writes the average into the model, in
      place. If it received nothing it returns False, and the round is skipped.

The Trainer's checkpoints hold FedA2L's state in `scheduler.pt`, an open round included: `resume_from_checkpoint`
resumes to the last bit. Sharded parameters (FSDP, DeepSpeed) are not supported: the signals need whole layers.

Accelerate without a Trainer needs no module: prepare the model and the optimizer, build `feda2l.FedA2L(optimizer)` and
let `accelerator.register_for_checkpointing(rates)` save it.
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
        "the Trainer callback needs transformers: pip install 'feda2l[transformers]'", see="missing-extra"
    ) from error


class FedA2LCallback(TrainerCallback):
    """A callback that makes each round `epochs` local epochs and one averaging.

    Args:
        optimizer: an optimizer whose groups come from `layer_groups`.
        average: your function, see above.
        epochs: the local epochs per round.
        knobs: the arguments of `feda2l.FedA2L`.
    """

    def __init__(
        self, optimizer: Optimizer, average: Callable[[Any], object], *, epochs: int = 1, **knobs: Any
    ) -> None:
        self.rates = FedA2L(optimizer, **knobs)
        self.optimizers = optimizer, RateScheduler(self.rates)
        self._rounds = EpochRounds(average, epochs)

    def on_train_begin(self, args: object, state: Any, control: object, **kwargs: Any) -> None:
        if kwargs["lr_scheduler"] is not self.optimizers[1]:
            raise FedA2LError(
                "the Trainer steps its own schedule, which would overwrite FedA2L's rates: pass it "
                "optimizers=callback.optimizers"
            )

    def on_epoch_begin(self, args: object, state: Any, control: object, **kwargs: Any) -> None:
        self._rounds.begin(self.rates, kwargs["model"], int(state.epoch))

    def on_epoch_end(self, args: object, state: Any, control: object, **kwargs: Any) -> None:
        self._rounds.end(self.rates, kwargs["model"], int(state.epoch))
