"""k networks at once have the same outputs and gradients as separate networks, in float64 on a CPU."""

import pytest
import torch
from torch import Tensor, nn

from feda2l import models
from feda2l.engines.batched_forward import batched_forward, covers


def padded() -> nn.Sequential:
    """A network with odd sizes, padding and no bias, unlike the paper's CNN."""
    return nn.Sequential(
        nn.Conv2d(3, 5, (3, 2), padding=(1, 0), bias=False),
        nn.LeakyReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(5, 7, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(7 * 4 * 4, 6),
    )


NETWORKS = {
    "cnn": (lambda: models.build("cnn", classes=10), 32),
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 81, 8), nn.ReLU(), nn.Linear(8, 6)), 9),
    "padded": (padded, 9),
}


def stacked(nodes: list[nn.Module]) -> list[Tensor]:
    """Return parameters [k, *shape], with kernels as [k, channels, row x column x channel]."""
    rows = [torch.stack(values) for values in zip(*(node.parameters() for node in nodes), strict=True)]
    rows = [row.permute(0, 1, 3, 4, 2).flatten(2) if row.dim() == 5 else row for row in rows]
    return [row.detach().requires_grad_() for row in rows]


@pytest.mark.parametrize("name", NETWORKS)
def test_each_node_has_its_own_outputs_and_gradients(name: str) -> None:
    build, size = NETWORKS[name]
    torch.manual_seed(1)
    nodes = [build().double() for _ in range(3)]
    x = torch.randn(3, 4, 3, size, size, dtype=torch.float64)
    assert covers(nodes[0])
    parameters = stacked(nodes)
    found = batched_forward(nodes[0])(parameters, x.movedim(2, -1))
    alone = torch.stack([node(own) for node, own in zip(nodes, x, strict=True)])
    torch.testing.assert_close(found, alone)
    weights = torch.randn_like(alone)
    (alone * weights).sum().backward()
    (found * weights).sum().backward()
    expected = stacked([_gradients(node) for node in nodes])
    for parameter, there in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, there.detach())


@pytest.mark.parametrize("name", NETWORKS)
def test_shared_inputs_are_passed_once(name: str) -> None:
    build, size = NETWORKS[name]
    torch.manual_seed(2)
    nodes = [build().double() for _ in range(3)]
    x = torch.randn(4, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        found = batched_forward(nodes[0])(stacked(nodes), x.movedim(1, -1).unsqueeze(0))
        torch.testing.assert_close(found, torch.stack([node(x) for node in nodes]))


def _gradients(node: nn.Module) -> nn.Module:
    """The same network with its gradients as parameters."""
    for parameter in node.parameters():
        parameter.data = parameter.grad
    return node
