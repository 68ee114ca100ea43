"""A node's local epochs equal training with the optimizers of torch."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.data.samples import Labelled
from feda2l.layers import find_layers, layer_groups
from feda2l.models import build
from feda2l.round import train
from feda2l.round.layout import Layout
from feda2l.round.train import Hyperparameters, Training, train_node

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
SAMPLES = Labelled(
    torch.randint(0, 17, (120, 1, 8, 8), generator=torch.Generator().manual_seed(1), dtype=torch.uint8),
    torch.randint(0, 10, (120,), generator=torch.Generator().manual_seed(2)),
    lambda x: x.float() / 8 - 1,
)


pytestmark = pytest.mark.usefixtures("one_thread_each")


def training(optimizer: str = "sgd", **changed) -> Training:
    settings = {"weight_decay": 0.0, "batch_size": 10, "epochs": 1, "drop_last": True, "seed": 5} | changed
    return Training(SAMPLES, F.cross_entropy, optimizer, **settings)


class NodeTraining:
    """A model whose parameters are views of a row, with optimizer state in rows of the same layout."""

    def __init__(self, model: nn.Module, kinds: int) -> None:
        self.model, self.layout = deepcopy(model), Layout.of(model)
        self.row, self.steps = torch.zeros(self.layout.width), torch.zeros(())
        self.optimizer_state = [torch.zeros(self.layout.width) for _ in range(kinds)]
        self.parameters = list(self.model.parameters())
        for parameter, view in zip(self.parameters, self.layout.views(self.row), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    def train(self, training: Training, shard: Tensor, rates: list[float], momentum: float, round: int) -> float:
        layers = self.layout.layer_of_slots(find_layers(self.model))
        optimizer_state = [self.layout.views(optimizer_state) for optimizer_state in self.optimizer_state]
        return train_node(
            train.NodeTraining(self.model, self.parameters, optimizer_state, self.steps),
            training,
            training.batches(shard, 0, round),
            Hyperparameters([rates[layer] for layer in layers], momentum),
            node=0,
            round=round,
        )


def plain_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> float:
    total = 0.0
    model.train()
    for batch in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(SAMPLES.normalise(SAMPLES.x[batch])), SAMPLES.y[batch])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


@pytest.mark.parametrize("model", ["mlp", "small_cnn"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.9), ("sgd", 0.0), ("adam", 0.0), ("adamw", 0.0)])
def test_training_equals_a_torch_optimizer_with_one_rate_per_layer(model, optimizer, weight_decay, momentum):
    """Three rounds with different rates. The optimizer state carries over between rounds."""
    torch.manual_seed(3)
    start = build(model, input=(1, 8, 8))
    node = NodeTraining(start, kinds=1 if optimizer == "sgd" else 2)
    scale = 1.0 if optimizer == "sgd" else 0.1
    shard = torch.arange(7, 72)
    settings = training(optimizer, weight_decay=weight_decay)
    extra = {"momentum": momentum} if optimizer == "sgd" else {}
    plain = deepcopy(start)
    groups = layer_groups(plain)
    torch_optimizer = OPTIMIZERS[optimizer](groups, lr=0.1, weight_decay=weight_decay, **extra)
    for round in (1, 2, 3):
        rates = [scale * 0.02 / (1 + layer + round) for layer in range(len(groups))]
        for group, rate in zip(torch_optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        loss = node.train(settings, shard, rates, momentum, round)
        expected = plain_epoch(plain, torch_optimizer, settings.batches(shard, 0, round))
        assert loss == pytest.approx(expected, abs=1e-6)
        for actual, expected_parameter in zip(node.parameters, plain.parameters(), strict=True):
            torch.testing.assert_close(actual.detach(), expected_parameter.detach(), rtol=0, atol=1e-6)
    assert float(node.steps) == 3 * 6
    moved = torch.cat([(p - q).flatten() for p, q in zip(plain.parameters(), start.parameters(), strict=True)])
    assert moved.abs().max() > 1e-3  # the model did train


def test_layers_with_equal_rates_train_as_with_separate_updates():
    """Tensors with the same rate are updated in one call, which changes only the speed."""
    torch.manual_seed(3)
    start = build("mlp", input=(1, 8, 8))
    one, other = NodeTraining(start, 1), NodeTraining(start, 1)
    shard = torch.arange(60)
    one.train(training(), shard, [0.01, 0.01, 0.01], 0.9, round=1)
    other.train(training(), shard, [0.01, 0.01 * (1 + 1e-15), 0.01 * (1 - 1e-15)], 0.9, round=1)
    torch.testing.assert_close(one.row, other.row, rtol=0, atol=1e-7)


def test_an_unused_parameter_does_not_change():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(64, 10), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x.flatten(1))

    node = NodeTraining(Half(), 1)
    before = [parameter.detach().clone() for parameter in node.parameters]
    node.train(training(), torch.arange(60), [0.1, 0.1], 0.9, round=1)
    unchanged = [torch.equal(a, b) for a, b in zip(before, node.parameters, strict=True)]
    assert unchanged == [False, False, True, True]


def test_dropout_depends_on_the_seed_and_not_on_the_global_generator():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    rows = []
    for seed in (5, 5, 6):
        node = NodeTraining(model, 1)
        torch.manual_seed(len(rows))  # earlier draws do not matter
        # all samples form one batch, so that the seed changes only the dropout
        node.train(training(seed=seed, batch_size=60), torch.arange(60), [0.1], 0.9, round=1)
        rows.append(node.row.clone())
    assert torch.equal(rows[0], rows[1])
    assert not torch.allclose(rows[0], rows[2], atol=1e-4)


@pytest.mark.parametrize(
    ("size", "drop_last", "sizes"), [(25, True, [10, 10]), (25, False, [10, 10, 5]), (20, False, [10, 10])]
)
@pytest.mark.parametrize("epochs", [1, 3])
def test_every_epoch_is_a_fresh_permutation_of_the_shard(size, drop_last, sizes, epochs):
    shard = torch.arange(100, 100 + size)
    settings = training(epochs=epochs, drop_last=drop_last)
    steps = settings.batches(shard, node=2, round=9)
    assert [len(batch) for batch in steps] == sizes * epochs
    orders = [torch.cat(steps[start : start + len(sizes)]).tolist() for start in range(0, len(steps), len(sizes))]
    for order in orders:
        assert len(set(order)) == len(order) == sum(sizes)
        assert set(order) <= set(shard.tolist())
        assert order != sorted(order)
    assert len({tuple(order) for order in orders}) == epochs


def test_batches_depend_only_on_seed_node_and_round():
    shard = torch.arange(60)

    def order(seed: int = 1, node: int = 0, round: int = 1, epochs: int = 1) -> list[int]:
        return torch.cat(training(seed=seed, epochs=epochs).batches(shard, node, round)).tolist()

    first = order()
    torch.manual_seed(99)
    order(node=3, round=7)  # draws of other nodes and rounds change nothing
    assert order() == first
    assert order(epochs=2)[:60] == first  # nor does the number of epochs
    assert len({tuple(o) for o in (first, order(seed=2), order(node=1), order(round=2))}) == 4
