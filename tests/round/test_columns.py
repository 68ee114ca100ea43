"""sigma, zeta and the disagreement, reduced over columns, equal the equations tensor by tensor."""

import pytest
import torch
from torch import Tensor, nn

from feda2l.equations import aggregation_stability, weight_divergence
from feda2l.layers import Layer, find_layers
from feda2l.models import build
from feda2l.rates import RULES
from feda2l.rates.base import SignalSettings
from feda2l.round import signals
from feda2l.round.layout import Layout
from feda2l.round.signals import LayerReductions

ROWS = 10


class Odd(nn.Module):
    """Layers of irregular sizes. The tensors of layer `outer` are not adjacent."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(7)
        self.tail = nn.Linear(65, 63)


ODD_LAYERS = [
    Layer("scale", ("scale",)),
    Layer("outer", ("conv.weight", "conv.bias", "tail.bias")),
    Layer("norm", ("norm.weight", "norm.bias")),
    Layer("tail", ("tail.weight",)),
]
MEASURES = {
    "all": SignalSettings(),
    "weight": SignalSettings(tensors="weight"),
    "eps in norm": SignalSettings(eps_in_norm=True, eps=1e-3),
    "pooled": SignalSettings(pooled=True),
    "pooled weights, eps in norm": SignalSettings(
        pooled=True, tensors="weight", eps_in_norm=True, eps=1e-3, threshold=2e-3
    ),
    "large eps": SignalSettings(eps=0.5, threshold=1e-4),
}


pytestmark = pytest.mark.usefixtures("one_thread_each")


def states(layout: Layout, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Random B, T and A with zero padding: movements of several sizes, unchanged coordinates, one layer at 0."""
    generator = torch.Generator().manual_seed(4)
    base, trained, aggregated = (torch.zeros(ROWS, layout.width, dtype=dtype) for _ in range(3))
    for number, (b, t, a) in enumerate(zip(*map(layout.views, (base, trained, aggregated)), strict=True)):

        def draw(shape: torch.Size = b.shape) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        b.copy_(draw() * (number > 0))
        t.copy_(b + draw() * 10.0 ** -(number % 4))
        a.copy_(t + draw().mul(2e-3) * (draw() > 0))
    return [base, trained, aggregated]


def measured(layout: Layout, layers: list[Layer], measure: SignalSettings, rows: Tensor) -> list[Tensor]:
    """The measured parameters of each layer, [rows, parameters], without padding, in float64."""
    slots = {slot.name: slot for slot in layout.slots}
    tensors = []
    for layer in layers:
        names = [name for name in layer.tensors if measure.tensors == "all" or name.endswith("weight")]
        names = names if len(names) == 1 or measure.tensors == "all" else list(layer.tensors)
        tensors.append(torch.cat([slots[name].view(rows).flatten(1) for name in names], dim=1).double())
    return [torch.cat(tensors, dim=1)] * len(layers) if measure.pooled else tensors


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("block", [1 << 20, 200])
def test_signals_equal_the_equations_layer_by_layer(measure, dtype, rel, block, monkeypatch):
    monkeypatch.setattr(signals, "BLOCK", block)
    layout = Layout.of(Odd())
    base, trained, aggregated = states(layout, dtype)
    columns = LayerReductions(layout, ODD_LAYERS, measure)
    sigma, zeta = columns.divergence(base, trained), columns.stability(trained, aggregated)
    assert sigma.dtype == zeta.dtype == torch.float64
    b, t, a = (measured(layout, ODD_LAYERS, measure, rows) for rows in (base, trained, aggregated))
    for layer in range(len(ODD_LAYERS)):
        expected = weight_divergence(b[layer], t[layer], measure.eps, eps_in_norm=measure.eps_in_norm)
        torch.testing.assert_close(sigma[:, layer], expected, rtol=rel, atol=0)
        tolerance = (aggregated.dtype == torch.float32) * 1e-9  # float32 rows compare in float32
        expected = aggregation_stability(t[layer], a[layer], measure.threshold)
        torch.testing.assert_close(zeta[:, layer], expected, rtol=1e-12, atol=tolerance)
    assert 0 < float(zeta[:, 3].mean()) < 1  # some coordinates lie on each side of the threshold


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_movement_is_the_norm_of_the_change_by_training(measure, dtype, rel):
    layout = Layout.of(Odd())
    base, trained, _ = states(layout, dtype)
    columns = LayerReductions(layout, ODD_LAYERS, measure)
    movement = columns.movement(base, trained)
    assert movement.dtype == torch.float64
    b, t = (measured(layout, ODD_LAYERS, measure, rows) for rows in (base, trained))
    for layer in range(len(ODD_LAYERS)):
        torch.testing.assert_close(movement[:, layer], (t[layer] - b[layer]).norm(dim=1), rtol=rel, atol=0)
    for row in (0, ROWS - 1):
        assert torch.equal(columns.movement(base[[row]], trained[[row]]), movement[[row]])
    assert not columns.movement(base, base).any()


def test_disagreement_is_the_mean_squared_distance_to_the_mean_model():
    layout = Layout.of(Odd())
    rows = states(layout)[1]
    columns = LayerReductions(layout, ODD_LAYERS, SignalSettings())
    actual = columns.distances(rows, rows.mean(dim=0)).mean(dim=0)
    for layer, values in enumerate(measured(layout, ODD_LAYERS, SignalSettings(), rows)):
        expected = sum(float((row - values.mean(dim=0)).square().sum()) for row in values) / ROWS
        assert float(actual[layer]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["cnn", "mlp", "odd"])
@pytest.mark.parametrize(
    "measure", [SignalSettings(), SignalSettings(tensors="weight", eps_in_norm=True)], ids=["paper", "reference"]
)
def test_a_row_is_reduced_to_the_same_bits_with_any_number_of_rows(name, measure):
    model = Odd() if name == "odd" else build(name)
    layout = Layout.of(model)
    columns = LayerReductions(layout, ODD_LAYERS if name == "odd" else find_layers(model), measure)
    base = torch.randn(ROWS, layout.width)
    trained, aggregated = base + 0.1 * torch.randn(layout.width), base + 0.101 * torch.randn(layout.width)
    sigma, zeta = columns.divergence(base, trained), columns.stability(trained, aggregated)
    for count in (1, 2, 4, 7):
        for start in (0, ROWS - count):
            part = slice(start, start + count)
            assert torch.equal(columns.divergence(base[part], trained[part]), sigma[part])
            assert torch.equal(columns.stability(trained[part], aggregated[part]), zeta[part])


def golden(values: list[float]) -> Tensor:
    row = torch.zeros(1, 64, dtype=torch.float64)
    row[0, : len(values)] = torch.tensor(values, dtype=torch.float64)
    return row


@pytest.mark.parametrize("rule", ["paper", "reference"])
def test_golden_vectors_of_the_specification(rule):
    """Spec A.7: sigma 0.1 and zeta 2/3, also with the released code's eps; 61 columns are padding."""
    model = nn.Linear(3, 1, bias=False)
    measure = RULES["feda2l"](preset=rule).measure
    columns = LayerReductions(Layout.of(model), find_layers(model), measure)
    base, trained, aggregated = golden([1, 2, 2]), golden([1, 2, 2.3]), golden([1.0005, 2, 2.2])
    assert float(columns.divergence(base, trained)) == pytest.approx(0.1, abs=1e-8)
    assert float(columns.stability(trained, aggregated)) == pytest.approx(2 / 3, abs=1e-15)


def test_the_presets_measure_what_the_specification_says():
    assert RULES["feda2l"]().measure == SignalSettings(threshold=1e-3, tensors="all", eps=1e-8, eps_in_norm=False)
    reference = RULES["feda2l"](preset="reference").measure
    assert reference == SignalSettings(threshold=1e-3, tensors="weight", eps=1e-8, eps_in_norm=True)
    assert RULES["model_level"]().measure == SignalSettings(pooled=True)


def test_nan_is_never_stable_and_makes_sigma_non_finite():
    model = nn.Linear(3, 1, bias=False)
    columns = LayerReductions(Layout.of(model), find_layers(model), SignalSettings())
    base, with_nan = golden([1, 2, 2]), golden([1, float("nan"), 2])
    assert not columns.divergence(base, with_nan).isfinite()
    assert float(columns.stability(base, with_nan)) == pytest.approx(2 / 3, abs=1e-15)
