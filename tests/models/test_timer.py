"""Timer: its size by hand calculation, causality, invariances and the roll-out."""

import math

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from feda2l.errors import FedA2LError
from feda2l.layers import find_layers
from feda2l.models import build
from feda2l.models.timer import Timer, positions


def size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def block(width: int, hidden: int) -> int:
    """Return the parameters of a block: four projections, a perceptron and two LayerNorms, all with biases."""
    return 4 * (width * width + width) + (width * hidden + hidden) + (hidden * width + width) + 2 * 2 * width


@pytest.fixture
def small() -> Timer:
    torch.manual_seed(1)
    return Timer(width=32, hidden=64, heads=4).eval()


@pytest.fixture
def rolling() -> Timer:
    torch.manual_seed(1)
    return Timer(width=32, hidden=64, heads=4, horizon=60, head="next_patch").eval()


def test_the_size_matches_the_specification():
    model = build("timer")
    assert size(model) == 24 * 512 + 2 * block(512, 2048) + 2 * 512 + (4 * 512 * 96 + 96) == 6_514_784
    layers = find_layers(model)
    assert len(layers) == 2 * (4 + 2 + 2) + 3 == 19
    assert [layer.name for layer in layers if len(layer.tensors) == 1] == ["embed"]  # 18 layers with a bias
    assert model(torch.zeros(2, 96, 3)).shape == (2, 96, 3)


def test_next_patch_head_predicts_one_patch():
    model = Timer(head="next_patch")
    assert size(model) == 24 * 512 + 2 * block(512, 2048) + 2 * 512 + (512 * 24 + 24) == 6_330_392
    assert len(find_layers(model)) == 19
    large = Timer(input=(672, 1), patch=96, blocks=8, width=1024, head="next_patch")
    assert round(size(large) / 1e6, 1) == 67.4  # spec E: the authors' fine-tuning scripts


def test_lengths_follow_the_data_and_channels_do_not_matter():
    model = build("timer", classes=7, input=(48, 11), horizon=12)
    assert model(torch.zeros(2, 48, 11)).shape == (2, 12, 11)
    assert size(build("timer", input=(96, 11))) == size(build("timer"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input": (3, 32, 32)}, r"input \(length, channels\), got \(3, 32, 32\)"),
        ({"input": (100, 1)}, "a multiple of 24 time steps, got 100"),
        ({"input": (0, 1)}, "a multiple of 24 time steps, got 0"),
        ({"width": 500}, "even width that 8 heads divide, got 500"),
        ({"horizon": 0}, "horizon of at least 1, got 0"),
        ({"head": "linear"}, "head must be 'flatten' or 'next_patch', got 'linear'"),
    ],
)
def test_invalid_options_raise_an_error(options, words):
    with pytest.raises(FedA2LError, match=words):
        Timer(**options)


def test_a_token_does_not_depend_on_later_patches(small):
    x = torch.randn(3, 96)
    y = x.clone()
    y[:, 48:72] += 1.0
    before, after = small.encode(x), small.encode(y)
    assert torch.equal(before[:, :2], after[:, :2])
    assert (before[:, 2:] - after[:, 2:]).abs().amin(dim=(0, 2)).min() > 0


def test_a_token_depends_on_all_earlier_patches(small):
    x = torch.randn(1, 96, requires_grad=True)
    small.encode(x)[0, 3].square().sum().backward()
    assert (x.grad.reshape(4, 24).abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("kind", ["small", "rolling"])
def test_forecast_is_equivariant_to_shift_and_scale(kind, request):
    model = request.getfixturevalue(kind)
    x = 10 * torch.randn(2, 96, 3, dtype=torch.float64)  # large, so that the 1e-5 in the variance is negligible
    model.double()
    scale, shift = torch.tensor([0.5, 3.0, 20.0]), torch.tensor([-7.0, 0.0, 100.0])
    torch.testing.assert_close(model(x * scale + shift), model(x) * scale + shift, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["small", "rolling"])
def test_channels_are_independent(kind, request):
    model = request.getfixturevalue(kind)
    x = torch.randn(2, 96, 3)
    y = x.clone()
    y[:, :, 1] = torch.randn(2, 96)
    before, after = model(x), model(y)
    torch.testing.assert_close(before[:, :, [0, 2]], after[:, :, [0, 2]])
    assert not torch.allclose(before[:, :, 1], after[:, :, 1])
    torch.testing.assert_close(model(x[:, :, [2, 0]]), before[:, :, [2, 0]])


def test_forecast_of_a_constant_window_is_near_the_constant(small):
    forecast = small(torch.full((1, 96, 1), 5.0))
    assert (forecast - 5.0).abs().max() < 0.1  # s is sqrt(1e-5) and not 0, so the result is finite and small


def test_roll_out_appends_each_predicted_patch(rolling):
    x = torch.randn(2, 96, 3)
    first = rolling.next_patches(x)[:, 72:]
    second = rolling.next_patches(torch.cat([x[:, 24:], first], dim=1))[:, 72:]
    third = rolling.next_patches(torch.cat([x[:, 48:], first, second], dim=1))[:, 72:]
    expected = torch.cat([first, second, third], dim=1)[:, :60]  # 60 is two and a half patches
    torch.testing.assert_close(rolling(x), expected)


def test_each_token_predicts_the_next_patch(rolling):
    """With a fixed scale, the prediction after a patch does not depend on later patches."""
    x = torch.randn(1, 96, 1)
    y = x.clone()
    y[:, 72:] = x[:, 72:].flip(1)  # the same mean and variance
    torch.testing.assert_close(rolling.next_patches(x)[:, :72], rolling.next_patches(y)[:, :72])


def test_next_patches_needs_the_next_patch_head(small):
    with pytest.raises(FedA2LError, match="head = 'next_patch'"):
        small.next_patches(torch.zeros(1, 96, 1))


def test_attention_matches_its_formula(small):
    part = small.blocks[0]
    x = torch.randn(2, 4, 32)
    heads = [project(x).reshape(2, 4, 4, 8).permute(0, 2, 1, 3) for project in (part.query, part.key, part.value)]
    scores = heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
    mixed = (scores.softmax(dim=-1) @ heads[2]).permute(0, 2, 1, 3).reshape(2, 4, 32)
    torch.testing.assert_close(part.attend(x), part.output(mixed), rtol=1e-4, atol=1e-6)


def test_positions_are_sinusoidal_and_not_in_the_state_dict(small):
    found = positions(3, 4, torch.device("cpu"), torch.float64)
    expected = [[f(t * w) for w in (1.0, 0.01) for f in (math.sin, math.cos)] for t in range(3)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert list(small.named_buffers()) == []
    assert not any("position" in name for name in small.state_dict())


def test_positions_created_in_inference_mode_work_in_training(small):
    positions.cache_clear()
    with torch.inference_mode():
        small(torch.zeros(1, 96, 1))
    small.train()
    small(torch.randn(1, 96, 1)).sum().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())


def test_dropout_depends_on_the_torch_seed(small):
    x = torch.randn(2, 96, 1)
    small.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(small(x))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    small.eval()
    assert torch.equal(small(x), small(x))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # CPU attention has no batched kernel
def test_vmap_matches_separate_models():
    torch.manual_seed(3)
    models = [Timer(width=32, hidden=64, heads=4).eval() for _ in range(3)]
    parameters, _ = stack_module_state(models)
    x = torch.randn(3, 2, 96, 2)
    found = vmap(lambda state, windows: functional_call(models[0], state, (windows,)))(parameters, x)
    expected = torch.stack([model(windows) for model, windows in zip(models, x, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_few_training_steps_reduce_the_error():
    torch.manual_seed(0)
    model = Timer(input=(48, 1), horizon=24, width=32, hidden=64, heads=4)
    time = torch.arange(72) + torch.arange(64).unsqueeze(-1)
    wave = torch.sin(2 * math.pi * time / 24).unsqueeze(-1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(60):
        loss = (model(wave[:, :48]) - wave[:, 48:]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


FORECASTER = """
from torch import nn

class Mine(nn.Linear):
    def __init__(self, input=(12, 1), horizon=6):
        super().__init__(input[0], horizon)
"""


def test_a_user_forecaster_gets_lengths_and_no_classes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "forecaster_of_mine.py").write_text(FORECASTER)
    assert size(build("forecaster_of_mine:Mine")) == 12 * 6 + 6
    assert size(build("forecaster_of_mine:Mine", input=(5, 1), horizon=2)) == 5 * 2 + 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("head", ["flatten", "next_patch"])
def test_a_step_can_be_captured_in_a_cuda_graph(head):
    torch.manual_seed(0)
    model = Timer(width=64, hidden=128, dropout=0.0, head=head).cuda()
    x, y = torch.randn(8, 96, 2, device="cuda"), torch.randn(8, 96, 2, device="cuda")

    def step() -> torch.Tensor:
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    x.copy_(torch.randn_like(x))
    graph.replay()
    found = loss.item(), model.head.weight.grad.clone()
    model.zero_grad(set_to_none=True)
    assert step().item() == pytest.approx(found[0], rel=1e-4)
    torch.testing.assert_close(model.head.weight.grad, found[1], rtol=1e-3, atol=1e-5)
