"""k Timers at once match separate Timers. Dropout keeps its share and does not depend on other nodes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.engines.batched_forward import covers
from feda2l.engines.batched_loss import batch_losses
from feda2l.engines.batched_timer import timer_forward
from feda2l.engines.timer_passes import DropoutMask, draws_of, keep_mask
from feda2l.models.timer import Timer, timer_next_patch

CPU = torch.device("cpu")
SEEDS = torch.tensor([5, 99, -1234567], dtype=torch.int32)
DRAWS = draws_of(SEEDS, torch.zeros(3), 9)


def small(dropout: float = 0.0) -> Timer:
    return Timer(input=(32, 2), horizon=8, patch=8, width=32, heads=4, hidden=64, dropout=dropout).double()


def stacked(nodes: list[Timer]) -> list[Tensor]:
    rows = zip(*(node.parameters() for node in nodes), strict=True)
    return [torch.stack(row).detach().requires_grad_() for row in rows]


@pytest.fixture
def nodes() -> list[Timer]:
    torch.manual_seed(1)
    return [small() for _ in range(3)]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 5, 32, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_each_node_has_its_own_forecasts_and_gradients(nodes: list[Timer], x: Tensor) -> None:
    parameters = stacked(nodes)
    found = timer_forward(nodes[0], CPU, torch.float64)(parameters, x, DRAWS)  # a probability of 0 draws nothing
    alone = torch.stack([node(own) for node, own in zip(nodes, x, strict=True)])
    torch.testing.assert_close(found, alone)
    weights = torch.randn_like(alone)
    (alone * weights).sum().backward()
    (found * weights).sum().backward()
    for number, parameter in enumerate(parameters):
        expected = torch.stack([list(node.parameters())[number].grad for node in nodes])
        torch.testing.assert_close(parameter.grad, expected)


def test_dropout_of_a_node_does_not_depend_on_other_nodes(nodes: list[Timer], x: Tensor) -> None:
    parameters = stacked(nodes)
    forward = timer_forward(small(0.3), CPU, torch.float64)
    together = forward(parameters, x, DRAWS)
    alone = forward([parameter[1:2] for parameter in parameters], x[1:2], DRAWS[1:2])
    torch.testing.assert_close(together[1:2], alone)
    assert not torch.allclose(together, forward(parameters, x, None))
    assert not torch.allclose(together, forward(parameters, x, DRAWS + 1))


def test_dropout_keeps_its_share_without_correlations() -> None:
    """Share and correlations between rows, sites, steps and neighbouring places: 128,000 numbers each, to 5 sigma."""
    size = 128_000
    steps = [draws_of(SEEDS, torch.full((3,), step), 9) for step in (0, 1)]
    masks = [
        keep_mask(DropoutMask(draws, site, 0.3), (size,))[row]
        for draws in steps
        for site in (0, 1, 7)
        for row in range(3)
    ]
    lines = torch.stack([*masks, *(masks[0].roll(far) for far in (1, 2, 3, 64, 512, 2048, 65536))]).double()
    assert (lines.mean(dim=1) - 0.7).abs().max() < 5 * (0.21 / size) ** 0.5
    apart = torch.corrcoef(lines) - torch.eye(len(lines))
    assert apart.abs().max() < 5 / size**0.5


def test_the_mean_over_dropout_masks_is_the_input(nodes: list[Timer]) -> None:
    """The mask is divided by 1 - chance, so E[mask x] = x, within 5 sigma of 4,000 draws."""
    draws = draws_of(torch.arange(4000, dtype=torch.int32), torch.zeros(4000), 3)
    found = keep_mask(DropoutMask(draws, 2, 0.3), (8,)).double() / 0.7
    assert (found.mean(dim=0) - 1).abs().max() < 5 * (0.3 / 0.7 / 4000) ** 0.5


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss])
def test_padding_of_a_smaller_batch_has_no_effect(loss: nn.Module) -> None:
    torch.manual_seed(3)
    outputs, targets = torch.randn(2, 4, 3, 2, requires_grad=True), torch.randn(2, 4, 3, 2)
    there = torch.tensor([[True] * 4, [True, True, False, False]])
    found = batch_losses(loss, outputs, targets, there)
    torch.testing.assert_close(found[0], loss(outputs[0], targets[0]))
    torch.testing.assert_close(found[1], loss(outputs[1, :2], targets[1, :2]))
    found.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad[1, 2:].eq(0).all()
    assert outputs.grad[1, :2].ne(0).all()


def test_unsupported_models_are_not_covered() -> None:
    class Other(Timer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    frozen = small()
    frozen.embed.weight.requires_grad_(False)
    hooked = small()
    hooked.blocks[0].register_forward_hook(lambda *_: None)
    assert covers(small())
    long = Timer(input=(96, 1), patch=4)  # 24 tokens
    for model in (Other(input=(32, 1), patch=8), timer_next_patch(), frozen, hooked, long):
        assert not covers(model)
