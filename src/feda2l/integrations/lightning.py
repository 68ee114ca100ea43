"""FedA2L in PyTorch Lightning: the module trains for some epochs, is averaged with its neighbours, and so on.

    from feda2l.integrations.lightning import FedA2LCallback

    class Net(LightningModule):
        def configure_optimizers(self):
            return torch.optim.SGD(feda2l.layer_groups(self), lr=0.01, momentum=0.9)

    rates = FedA2LCallback(average_with_neighbours, warmup_rounds=5)
    Trainer(callbacks=[rates], max_epochs=50).fit(Net(), data)

When the three states exist: the base state at the start of a training epoch, the trained state at its end, the
aggregated state when your `average(module)` returns, still within the callback.

What you must do: return one optimizer, built with `layer_groups`, and no scheduler from `configure_optimizers`; and
write `average(module)`, which exchanges the parameters with your neighbours and puts the average into the module, in
place. If it returns False nobody was heard, and the round is skipped.

Lightning validates and, by default, saves within the training epoch, so before the averaging: the validated model is
the trained one. Checkpoints hold FedA2L's state, an open round included, and `fit(..., ckpt_path=...)` goes on to the
last bit; an averaging that was still due is then done first. Sharded parameters (FSDP, DeepSpeed) are not supported.

Works with both packages, `lightning` and `pytorch_lightning`.
"""

from collections.abc import Callable
from typing import Any

from feda2l.errors import FedA2LError
from feda2l.integrations.epoch_rounds import EpochRounds
from feda2l.scheduler import FedA2L

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise FedA2LError(
            "Lightning's callback needs Lightning: pip install 'feda2l[lightning]'", see="missing-extra"
        ) from error


class FedA2LCallback(Callback):
    """A round is `epochs` local epochs and an averaging; the other keyword arguments are those of `feda2l.FedA2L`."""

    rates: FedA2L  # from the start of the training on

    def __init__(self, average: Callable[[Any], object], *, epochs: int = 1, **knobs: Any) -> None:
        self._rounds, self._knobs = EpochRounds(average, epochs), knobs
        self._saved: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) != 1 or trainer.lr_scheduler_configs:
            counts = f"{len(trainer.optimizers)} optimizers and {len(trainer.lr_scheduler_configs)} schedulers"
            raise FedA2LError(f"configure_optimizers gave {counts}: FedA2L sets the rates of one optimizer, alone")
        self.rates = FedA2L(trainer.optimizers[0], **self._knobs)
        if self._saved:  # Lightning restores a callback before there is an optimizer
            self.rates.load_state_dict(self._saved)
            self._saved = {}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._rounds.begin(self.rates, pl_module, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._rounds.end(self.rates, pl_module, trainer.current_epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        return self.rates.state_dict() if "rates" in vars(self) else self._saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict
