"""FedA2L in PyTorch Lightning: a round is some epochs of training and one averaging with the neighbours.

    from feda2l.integrations.lightning import FedA2LCallback

    class Net(LightningModule):
        def configure_optimizers(self):
            return torch.optim.SGD(feda2l.layer_groups(self), lr=0.01, momentum=0.9)

    rates = FedA2LCallback(average_with_neighbours, warmup_rounds=5)
    Trainer(callbacks=[rates], max_epochs=50).fit(Net(), data)

When the three states exist: the base state at the start of a training epoch, the trained state at its end, and the
aggregated state when your `average(module)` returns, inside the callback.

What you must do:
    - Return one optimizer, built with `layer_groups`, and no scheduler from `configure_optimizers`.
    - Write `average(module)`. It exchanges the parameters with your neighbours and writes the average into the module,
      in place. If it received nothing it returns False, and the round is skipped.

Lightning validates and, by default, saves inside the training epoch, which is before the averaging. So it validates the
trained model. Checkpoints hold FedA2L's state, an open round included, and `fit(..., ckpt_path=...)` resumes to the
last bit; an averaging that was still due comes first. Sharded parameters (FSDP, DeepSpeed) are not supported.

It works with both packages, `lightning` and `pytorch_lightning`.
"""

from collections.abc import Callable
from typing import Any

from feda2l.errors import FedA2LError
from feda2l.integrations.epoch_rounds import EpochRounds
from feda2l.plain_values import PlainDict
from feda2l.scheduler import FedA2L

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise FedA2LError(
            "the Lightning callback needs Lightning: pip install 'feda2l[lightning]'", see="missing-extra"
        ) from error


class FedA2LCallback(Callback):
    """A callback that makes each round `epochs` local epochs and one averaging.

    Args:
        average: your function, see above.
        epochs: the local epochs per round.
        knobs: the arguments of `feda2l.FedA2L`.
    """

    rates: FedA2L  # set when training starts

    def __init__(self, average: Callable[[Any], object], *, epochs: int = 1, **knobs: Any) -> None:
        self._rounds, self._knobs = EpochRounds(average, epochs), knobs
        self._saved: PlainDict = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) != 1 or trainer.lr_scheduler_configs:
            counts = f"{len(trainer.optimizers)} optimizers and {len(trainer.lr_scheduler_configs)} schedulers"
            raise FedA2LError(
                f"configure_optimizers returned {counts}: return one optimizer and no scheduler, "
                "since FedA2L sets the rates"
            )
        self.rates = FedA2L(trainer.optimizers[0], **self._knobs)
        if self._saved:  # Lightning restores a callback before it builds the optimizer
            self.rates.load_state_dict(self._saved)
            self._saved = {}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._rounds.begin(self.rates, pl_module, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._rounds.end(self.rates, pl_module, trainer.current_epoch + 1)

    def state_dict(self) -> PlainDict:
        return self.rates.state_dict() if "rates" in vars(self) else self._saved

    def load_state_dict(self, state_dict: PlainDict) -> None:
        self._saved = state_dict
