"""k ResNets at once match separate ResNets: outputs, gradients and running statistics, in float64 on a CPU."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from feda2l import data
from feda2l.engines.batched_forward import covers
from feda2l.engines.batched_resnet import resnet_forward
from feda2l.engines.running_statistics import RunningStatistics
from feda2l.models.resnet import ResNet, resnet18_gn, resnet34
from feda2l.round.population import Population
from feda2l.runs.assemble import assemble
from feda2l.runs.choose_engine import why_not_batched
from feda2l.runs.datasets import Loaded
from feda2l.spec.spec import Spec

NORMS = {"batch": nn.BatchNorm2d, "group": partial(nn.GroupNorm, 32)}
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def small(norm: str) -> ResNet:
    """One block that keeps the shape and one that halves it: every kind of convolution of ResNet-18 and -34."""
    return ResNet((1, 1), classes=5, channels=3, norm=NORMS[norm]).double()


@pytest.fixture
def pictures() -> Tensor:
    """Images for five steps of three rows. Their 7 pixels are not divisible by the stride of 2."""
    return torch.randn(5, 3, 4, 3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def nodes_of(norm: str) -> list[ResNet]:
    torch.manual_seed(1)
    nodes = [small(norm) for _ in range(3)]
    for node in nodes:
        for parameter in node.parameters():
            nn.init.normal_(parameter, std=0.1)  # also parameters that start at 0 or 1
    return nodes


def stacked(nodes: list[list[Tensor]]) -> list[Tensor]:
    """Return parameters [k, *shape], with kernels as [k, outputs, row x column x channel]."""
    rows = [torch.stack(values) for values in zip(*nodes, strict=True)]
    return [row.permute(0, 1, 3, 4, 2).flatten(2) if row.dim() == 5 else row for row in rows]


@pytest.mark.parametrize("norm", NORMS)
def test_each_node_has_its_own_outputs_and_gradients(norm: str, pictures: Tensor) -> None:
    nodes, x = nodes_of(norm), pictures[0]
    assert covers(nodes[0])
    parameters = [p.detach().requires_grad_() for p in stacked([list(node.parameters()) for node in nodes])]
    found, _ = resnet_forward(nodes[0])(parameters, x.movedim(2, -1))
    alone = torch.stack([node(own) for node, own in zip(nodes, x, strict=True)])
    torch.testing.assert_close(found, alone, **EXACT)
    weights = torch.randn_like(alone)
    (alone * weights).sum().backward()
    (found * weights).sum().backward()
    expected = stacked([[parameter.grad for parameter in node.parameters()] for node in nodes])
    for parameter, there in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, there, **EXACT)


def test_running_statistics_match_torch_until_a_row_is_finished(pictures: Tensor) -> None:
    nodes, lengths = nodes_of("batch"), [5, 2, 0]
    population = Population(nodes[0], 3, 1, "sgd", dtype=torch.float64)
    for row, node in enumerate(nodes):
        population.place(row, node)
    places, order = torch.arange(3), torch.tensor([2, 0, 1])  # rows train in a different order than they are stored
    parameters = [p[order] for p in stacked([list(node.parameters()) for node in nodes])]
    statistics, forward = RunningStatistics(nodes[0], population, len(population.base)), resnet_forward(nodes[0])
    steps = torch.tensor(lengths)[order]
    statistics.take(places, order)
    with torch.no_grad():
        for step, x in enumerate(pictures):
            _, seen = forward(parameters, x[order].movedim(2, -1))
            assert seen is not None
            for some in (slice(0, 1), slice(1, 3)):
                statistics.learn(some, seen[some], (step < steps[some]).unsqueeze(1))
            for node, own, length in zip(nodes, x, lengths, strict=True):
                if step < length:
                    node(own)
    statistics.give(places, order, steps)
    for row, node in enumerate(nodes):
        for name, buffer in node.named_buffers():
            torch.testing.assert_close(population.buffers[name][row], buffer, **EXACT)


def test_a_finished_row_keeps_its_statistics() -> None:
    population = Population(nn.BatchNorm2d(2), 1, 1, "sgd")
    statistics = RunningStatistics(nn.BatchNorm2d(2), population, len(population.base))
    statistics.learn(slice(0, 1), torch.full((1, 4), torch.nan), torch.tensor([[False]]))
    assert statistics.values.eq(0).all()


def test_covers_the_released_networks_only() -> None:
    assert covers(resnet34())
    assert covers(resnet18_gn(classes=200, input=(1, 28, 28)))

    class Other(ResNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    frozen, hooked, biased, cumulative = (small("batch") for _ in range(4))
    frozen.conv1.weight.requires_grad_(False)
    hooked.layer1.register_forward_hook(lambda *_: None)
    biased.conv1 = nn.Conv2d(3, 64, 3, padding=1)
    cumulative.bn1.momentum = None
    other = Other((1,), classes=5, channels=3, norm=nn.BatchNorm2d)
    unnormalised = ResNet((1,), classes=5, channels=3, norm=lambda _: nn.Identity())
    for model in (other, unnormalised, frozen, hooked, biased, cumulative):
        assert not covers(model)


def test_smaller_last_batches_use_captured_steps() -> None:
    loaded = Loaded.of(data.load("digits"), torch.device("cpu"))
    for drop_last, why in ((True, ""), (False, "training.drop_last = false gives batches of different sizes")):
        spec = {"data": {"nodes": 3}, "model": {"name": "resnet18"}, "training": {"drop_last": drop_last}}
        assert why_not_batched([assemble(Spec.parse(spec), loaded)]) == why
