"""FedA2L in the Trainer of transformers, with a tiny model built from a config, and in Accelerate."""

import copy
from pathlib import Path

import pytest
import torch
from replay import SETTINGS, Neighbour, replay
from torch import nn

import feda2l
from feda2l.errors import FedA2LError

for package in ("transformers", "accelerate"):
    pytest.importorskip(package, reason=f"{package} is not installed: make test-integrations")

import accelerate
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from feda2l.integrations.trainer import FedA2LCallback

TEXTS = torch.randint(0, 20, (12, 5), generator=torch.Generator().manual_seed(1))
DATA = [{"input_ids": text, "labels": torch.tensor(i % 2)} for i, text in enumerate(TEXTS)]


def bert() -> nn.Module:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=8,
        )
    )


class RateRecorder(TrainerCallback):
    """Records the rates of the optimizer at every step."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_pre_optimizer_step(self, args, state, control, optimizer, **kwargs):
        self.seen.append([group["lr"] for group in optimizer.param_groups])


class Bench:
    """A model, its neighbour, its callback and a trainer for it."""

    def __init__(self, folder: Path, epochs: int, save: str = "no", **more) -> None:
        self.model, self.watch = bert(), RateRecorder()
        self.neighbour = Neighbour(self.model)
        optimizer = torch.optim.SGD(feda2l.layer_groups(self.model), lr=0.05, momentum=0.9)
        self.callback = FedA2LCallback(optimizer, self.neighbour.average, **SETTINGS, **more)
        args = TrainingArguments(
            str(folder),
            num_train_epochs=epochs,
            per_device_train_batch_size=4,
            save_strategy=save,
            save_steps=1,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=True,
        )
        self.trainer = Trainer(
            self.model,
            args,
            train_dataset=DATA,
            optimizers=self.callback.optimizers,
            callbacks=[self.callback, self.watch],
        )


def test_every_step_trains_with_the_rates_of_the_three_states(tmp_path):
    bench = Bench(tmp_path, epochs=5)
    start = copy.deepcopy(bench.model)
    bench.trainer.train()
    expected = replay(start, bench.neighbour.rounds, lr=0.05)
    assert len(bench.neighbour.rounds) == 5
    assert bench.watch.seen == [rates for rates in expected[:-1] for _ in range(3)]
    assert bench.callback.rates.get_last_lr() == expected[-1]
    assert len(expected[0]) == len(feda2l.layer_groups(start))
    assert len({tuple(rates) for rates in expected}) > 3


@pytest.mark.parametrize("step", [6, 7])
def test_resuming_gives_the_same_bits(tmp_path, step):
    """Resume from within an epoch, and from between its last batch and the averaging."""
    whole = Bench(tmp_path, 6, "steps")
    whole.trainer.train()
    rest = Bench(tmp_path, 6)
    rest.trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert rest.watch.seen == whole.watch.seen[step:]
    assert rest.callback.rates.last == whole.callback.rates.last
    for expected, actual in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
        assert torch.equal(expected, actual)


def test_a_schedule_of_the_trainer_is_rejected(tmp_path):
    bench = Bench(tmp_path, 1)
    trainer = Trainer(bench.model, bench.trainer.args, train_dataset=DATA, callbacks=[bench.callback])
    with pytest.raises(FedA2LError, match=r"optimizers=callback.optimizers"):
        trainer.train()


def test_accelerate_saves_and_restores_it(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)

    def play(rounds: int, rates: feda2l.FedA2L, model: nn.Module, optimizer, neighbour: Neighbour) -> None:
        for _ in range(rounds):
            rates.begin_round()
            for batch in TEXTS.split(4):
                optimizer.zero_grad()
                accelerator.backward(model(input_ids=batch, labels=batch[:, 0] % 2).loss)
                optimizer.step()
            rates.end_training()
            neighbour.average(accelerator.unwrap_model(model))
            rates.step()

    def prepare():
        model = bert().eval()
        neighbour = Neighbour(model)
        optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.05)
        model, optimizer = accelerator.prepare(model, optimizer)
        rates = feda2l.FedA2L(optimizer, **SETTINGS)
        accelerator.register_for_checkpointing(rates)
        return rates, model, optimizer, neighbour

    whole = prepare()
    play(3, *whole)
    accelerator.save_state(str(tmp_path))
    play(3, *whole)
    accelerator.free_memory()
    accelerator._custom_objects.clear()
    rest = prepare()
    accelerator.load_state(str(tmp_path))
    play(3, *rest)
    assert whole[0].last == rest[0].last
    assert all(torch.equal(a, b) for a, b in zip(whole[1].parameters(), rest[1].parameters(), strict=True))
