"""Small Triton kernels against the CPU. Skipped without a GPU."""

import pytest
import torch
from rounds_on_devices import difference

from feda2l.engines.batched_timer import count_dropout_layers, timer_forward
from feda2l.engines.timer_passes import draws_of
from feda2l.layers import find_layers
from feda2l.models.timer import Timer
from feda2l.rates.base import SignalSettings
from feda2l.round.layout import Layout
from feda2l.round.signals import LayerReductions
from feda2l.topology import build, build_mixing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


@pytest.mark.parametrize("rows", [1, 3])
def test_signals_of_few_rows_match_the_cpu(rows: int) -> None:
    """One row is the case of a single node per machine. Triton treats a size of 1 as a constant."""
    model = torch.nn.Sequential(torch.nn.Linear(70, 30), torch.nn.Linear(30, 5))
    layout = Layout.of(model)
    base, trained = torch.randn(2, rows, layout.width) * 1e-3
    found = []
    for device in ("cpu", "cuda"):
        columns = LayerReductions(layout, find_layers(model), SignalSettings(), torch.device(device))
        states = base.to(device), trained.to(device)
        found.append(torch.stack([columns.divergence(*states), columns.movement(*states), columns.stability(*states)]))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "nodes"), [("full", 1), ("full", 12), ("ring", 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixing_has_the_same_bits_as_on_the_cpu(name: str, nodes: int, dtype: torch.dtype) -> None:
    mixing = build_mixing(build(name, nodes), "samples", samples=[7 * node + 3 for node in range(nodes)])
    own = [torch.rand(len(mixing.row(node)[0])) for node in range(nodes)]  # all rows differ, as with FedAWA
    rows = torch.randn(nodes, 5000, dtype=dtype)
    for weights in (mixing, mixing.reweighed(own, 1)):
        expected, found = torch.empty_like(rows), torch.empty_like(rows).cuda()
        weights.apply(rows, 1, expected)
        weights.apply(rows.cuda(), 1, found)
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize(("precision", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 0.04)])
def test_timer_kernels_match_the_pytorch_operations(precision: torch.dtype, near: float) -> None:
    """Compare forecasts and gradients of three Timers with dropout to float64 on the CPU."""
    model = Timer(input=(96, 2), dropout=0.3)
    torch.manual_seed(1)
    parameters = [torch.stack([torch.randn_like(p) * 0.03 + p for _ in range(3)]) for p in model.parameters()]
    exact = [p.detach().to(precision).double().requires_grad_() for p in parameters]
    half = [p.detach().to(precision).cuda().requires_grad_() for p in parameters]
    x, seeds = torch.randn(3, 5, 96, 2), torch.arange(3, dtype=torch.int32)
    found = []
    for leaves, device, dtype in ((exact, "cpu", torch.float64), (half, "cuda", precision)):
        forward = timer_forward(model, torch.device(device), dtype)
        draws = draws_of(seeds.to(device), torch.zeros(3, device=device), count_dropout_layers(model))
        forecast = forward(leaves, x.to(device, torch.float64 if device == "cpu" else torch.float32), draws)
        found.append([forecast, *torch.autograd.grad(forecast.square().sum(), leaves)])
    names = ["forecast", *(name for name, _ in model.named_parameters())]
    for name, one, other in zip(names, *found, strict=True):
        if not name.endswith("key.bias"):  # its gradient is 0, because softmax ignores a common shift of all keys
            assert difference(one, other) < near, name
