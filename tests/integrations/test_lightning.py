"""FedA2L in real Lightning trainers."""

import warnings

import pytest
import torch
from replay import SETTINGS, Neighbour, replay
from torch import nn

import feda2l
from feda2l.errors import FedA2LError

for package in ("pytorch_lightning", "lightning.pytorch"):
    pytest.importorskip(package, reason=f"{package} is not installed: make test-integrations")

import lightning.pytorch
import pytorch_lightning

from feda2l.integrations.lightning import FedA2LCallback

X, Y = torch.randn(24, 6, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3
DATA = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)


def net(library=pytorch_lightning, optimizers=lambda self: torch.optim.SGD(feda2l.layer_groups(self), lr=0.05)):
    class Net(library.LightningModule):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
            self.seen = []  # the optimizer's rates at every step

        def training_step(self, batch, _):
            self.seen.append([group["lr"] for group in self.optimizers().param_groups])
            return nn.functional.cross_entropy(self.head(self.body(batch[0]).tanh()), batch[1])

        def validation_step(self, batch, _):
            pass

        def configure_optimizers(self):
            return optimizers(self)

    torch.manual_seed(0)
    return Net()


def fit(model, epochs, *callbacks, library=pytorch_lightning, folder=None, validate=False, resume=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = library.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            enable_checkpointing=any(isinstance(c, library.callbacks.ModelCheckpoint) for c in callbacks),
            default_root_dir=folder,
            callbacks=list(callbacks),
        )
        trainer.fit(model, DATA, DATA if validate else None, ckpt_path=resume)


@pytest.mark.parametrize("library", [pytorch_lightning, lightning.pytorch])
@pytest.mark.parametrize("epochs", [1, 2])
def test_every_step_trains_with_the_rates_of_the_three_states(library, epochs):
    model = net(library)
    neighbour, start = Neighbour(model), net(library)
    callback = FedA2LCallback(neighbour.average, epochs=epochs, **SETTINGS)
    fit(model, 6 * epochs, callback, library=library)
    expected = replay(start, neighbour.rounds, lr=0.05)
    assert len(neighbour.rounds) == 6
    assert model.seen == [rates for rates in expected[:-1] for _ in range(3 * epochs)]
    assert callback.rates.get_last_lr() == expected[-1]
    assert len({tuple(rates) for rates in expected}) > 3


def test_a_round_without_received_models_is_skipped():
    model = net()
    callback = FedA2LCallback(lambda module: False, **SETTINGS)
    fit(model, 3, callback)
    assert (callback.rates.round, callback.rates.last) == (4, {})
    assert model.seen == [[0.05, 0.05]] * 9


@pytest.mark.parametrize("stop", [3, 4])
@pytest.mark.parametrize("when", ["epoch end", "validation end"])
def test_resuming_gives_the_same_bits(tmp_path, when, stop):
    whole, neighbour = net(), Neighbour(net())
    callback = FedA2LCallback(neighbour.average, epochs=2, **SETTINGS)
    fit(whole, 12, callback, validate=True)

    def save():
        return pytorch_lightning.callbacks.ModelCheckpoint(
            tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=when == "epoch end"
        )

    part, neighbour = net(), Neighbour(net())
    fit(part, stop, FedA2LCallback(neighbour.average, epochs=2, **SETTINGS), save(), validate=True, folder=tmp_path)
    rest, neighbour = net(), Neighbour(net())
    resumed = FedA2LCallback(neighbour.average, epochs=2, **SETTINGS)
    fit(rest, 12, resumed, save(), validate=True, folder=tmp_path, resume=tmp_path / f"epoch={stop - 1}.ckpt")
    assert whole.seen == part.seen + rest.seen
    assert callback.rates.last == resumed.rates.last
    for expected, actual in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(expected, actual)


@pytest.mark.parametrize(
    ("optimizers", "words"),
    [
        (lambda self: torch.optim.SGD(self.parameters(), lr=0.1), "no layer groups"),
        (
            lambda self: (
                [sgd := torch.optim.SGD(feda2l.layer_groups(self), lr=0.1)],
                [torch.optim.lr_scheduler.StepLR(sgd, 1)],
            ),
            "1 optimizers and 1 schedulers",
        ),
    ],
)
def test_unsupported_optimizers_are_rejected(optimizers, words):
    with pytest.raises(FedA2LError, match=words):
        fit(net(optimizers=optimizers), 1, FedA2LCallback(lambda module: None))
