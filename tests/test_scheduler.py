"""The drop-in in a user's loop: call order, errors, resuming, devices and unusual models."""

import copy
import io
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from feda2l import FedA2L, layer_groups
from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates import Setting
from feda2l.rates.feda2l import FedA2LRule

SETTINGS = {"warmup_rounds": 2, "window": 4, "decay": 0.3}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(12)))


def sgd(model: nn.Module, **settings) -> torch.optim.Optimizer:
    return torch.optim.SGD(layer_groups(model), lr=0.01, momentum=0.9, **settings)


@torch.no_grad()
def move(model: nn.Module, scale: float, *seed: int) -> None:
    """Stand in for training or averaging: add noise to each parameter that depends only on `seed`."""
    generator = torch.Generator().manual_seed(hash(seed) % 2**31)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator) * scale * torch.rand((), generator=generator)
        parameter.add_(noise.to(parameter.device, parameter.dtype))


def play(model: nn.Module, rates: FedA2L, calls: range) -> list[list[float]]:
    """Make the numbered calls of the loop (0 begin_round, 1 end_training, 2 step, 3 begin_round, ...)."""
    history = []
    for call in calls:
        if call % 3:
            move(model, 0.1 if call % 3 == 1 else 0.003, call)
        (rates.begin_round, rates.end_training, rates.step)[call % 3]()
        history.append(rates.get_last_lr())
    return history


def snapshot(rates: FedA2L) -> bytes:
    file = io.BytesIO()
    torch.save((rates.state_dict(), [dict(group, params=None) for group in rates.optimizer.param_groups]), file)
    return file.getvalue()


def all_leaves(value) -> list:
    if isinstance(value, dict | list | tuple):
        return [leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in all_leaves(item)]
    return [value]


# rates


def test_rates_of_a_round_by_hand():
    """Two rounds of a layer with one tensor: sigma .1, .2; zeta 2/3, 1/3; m follows from z = +-1/sqrt(2)."""
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(layer_groups(model), lr=0.01)
    rates = FedA2L(optimizer, warmup_rounds=1, window=5, decay=0.3)
    rounds = [((1, 2, 2), (1, 2, 2.3), (1.0005, 2, 2.2)), ((1, 2, 2), (1, 2, 2.6), (1.5, 2.1, 2.6))]
    for states in rounds:
        for state, call in zip(states, (rates.begin_round, rates.end_training, rates.step), strict=True):
            model.weight.data = torch.tensor([state], dtype=torch.float64)
            assert rates.get_last_lr() == [0.01]
            call()
    fused = 0.6 * math.exp(0.5**0.5) + 0.4 * math.exp(-(0.5**0.5))
    m = 1 + math.tanh(math.log(fused))
    (last,) = rates.last.values()
    assert last.divergence == pytest.approx(0.2)
    assert last.stability == pytest.approx(1 / 3)
    assert last.multiplier == pytest.approx(m, rel=1e-4)  # eps_std is small but not zero next to a deviation of .07
    assert last.rate == rates.get_last_lr()[0] == pytest.approx(0.01 * m / math.sqrt(1.6), rel=1e-4)


def test_rates_equal_the_rule_of_the_simulator():
    model = small().double()
    rates = FedA2L(sgd(model), **SETTINGS)
    rule = FedA2LRule(**SETTINGS).start(Setting(base=(0.01,) * 3, layers=("0", "1", "3")))
    for round in range(1, 15):
        play(model, rates, range(3 * round - 3, 3 * round))
        signals = [[getattr(layer, name) for layer in rates.last.values()] for name in ("divergence", "stability")]
        rule.step(round, Signals(*torch.tensor(signals, dtype=torch.float64).unsqueeze(1)))
        assert rates.get_last_lr() == rule.rates[0].tolist()
        assert [layer.multiplier for layer in rates.last.values()] == rule.multiplier[0].tolist()
    assert list(rates.last) == ["0", "1", "3"]
    assert len(set(rates.get_last_lr())) == 3


def test_each_group_keeps_its_base_rate():
    model = small()
    groups = layer_groups(model)
    groups[0]["lr"] = 0.5
    rates = FedA2L(torch.optim.SGD(groups, lr=0.01), **SETTINGS)
    play(model, rates, range(6))
    assert rates.get_last_lr() == [0.5, 0.01, 0.01]
    play(model, rates, range(6, 9))
    multipliers = [layer.multiplier for layer in rates.last.values()]
    expected = [base * m * (1 + 0.3 * 3) ** -0.5 for base, m in zip([0.5, 0.01, 0.01], multipliers, strict=True)]
    assert rates.get_last_lr() == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    "make",
    [
        lambda g: torch.optim.SGD(g, lr=0.01, momentum=0.9, nesterov=True),
        lambda g: torch.optim.SGD(g, lr=0.01, fused=True),
        lambda g: torch.optim.Adam(g, lr=0.01),
        lambda g: torch.optim.Adam(g, lr=torch.tensor(0.01), fused=True),
        lambda g: torch.optim.AdamW(g, lr=0.01, foreach=True),
        lambda g: torch.optim.AdamW(g, lr=0.01, fused=True),
        lambda g: torch.optim.RMSprop(g, lr=0.01),
    ],
)
def test_real_training_with_any_optimizer(make):
    model = small()
    optimizer = make(layer_groups(model))
    rates = FedA2L(optimizer, **SETTINGS)
    fixed = [{k: v for k, v in group.items() if k not in ("lr", "params")} for group in optimizer.param_groups]
    for round in range(6):
        rates.begin_round()
        for step in range(2):
            optimizer.zero_grad()
            inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * round + step))
            model(inputs).square().mean().backward()
            optimizer.step()
        rates.end_training()
        move(model, 0.003, round)
        rates.step()
    assert len(set(rates.get_last_lr())) == 3
    assert all(0 < rate < 0.02 for rate in rates.get_last_lr())
    assert fixed == [{k: v for k, v in group.items() if k not in ("lr", "params")} for group in optimizer.param_groups]


def test_step_changes_no_parameter_buffer_or_momentum():
    model = small()
    optimizer = sgd(model)
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    rates = FedA2L(optimizer, **SETTINGS)
    play(model, rates, range(11))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    rates.step()
    after = (model.state_dict(), optimizer.state_dict()["state"])
    for old, new in zip(all_leaves(before), all_leaves(after), strict=True):
        assert torch.equal(old, new)
    assert [group["momentum"] for group in optimizer.param_groups] == [0.9] * 3


@pytest.mark.parametrize("fused", [True, False])
def test_tensor_rates_are_updated_in_place_and_not_shared(fused):
    model, plain = small(), small()
    shared = torch.tensor(0.01, dtype=torch.float64)
    optimizer = torch.optim.Adam(layer_groups(model), lr=shared, fused=fused, capturable=False, foreach=False)
    rates = FedA2L(optimizer, **SETTINGS)
    tensors = [group["lr"] for group in optimizer.param_groups]
    assert len({id(tensor) for tensor in tensors}) == 3  # torch gave all groups the same tensor
    actual = play(model, rates, range(12))
    assert actual == play(plain, FedA2L(sgd(plain), **SETTINGS), range(12))
    assert all(group["lr"] is tensor for group, tensor in zip(optimizer.param_groups, tensors, strict=True))


def test_last_is_empty_before_the_first_step():
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    assert rates.last == {}
    play(model, rates, range(2))
    assert rates.last == {}
    play(model, rates, range(2, 3))
    assert {layer.multiplier for layer in rates.last.values()} == {1.0}


# presets


def test_reference_warns_about_momentum_on_deep_models_only():
    with pytest.warns(UserWarning, match="no momentum"):
        rates = FedA2L(sgd(deep()), preset="reference", decay=0.2)
    assert rates.get_last_lr() == pytest.approx([0.002] * 12)
    assert {group["momentum"] for group in rates.optimizer.param_groups} == {0.9}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FedA2L(sgd(small()), preset="reference").get_last_lr() == [0.01] * 3
        assert FedA2L(sgd(deep())).get_last_lr() == [0.01] * 12


def test_warm_up_factors_apply_at_construction():
    model = nn.ModuleDict({"conv": nn.Linear(2, 2), "bn": nn.Linear(2, 2)})
    assert FedA2L(sgd(model), warmup_factor=0.1, bn_warmup_factor=0.5).get_last_lr() == pytest.approx([0.001, 0.0005])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("window", 1), ("balance", 2.0), ("newest", "last"), ("preset", "papre"), ("lr_clip", (1, 0))],
)
def test_invalid_settings_leave_the_optimizer_unchanged(setting, value):
    optimizer = sgd(small())
    with pytest.raises(FedA2LError, match=setting):
        FedA2L(optimizer, warmup_factor=0.5, **{setting: value})
    assert [group["lr"] for group in optimizer.param_groups] == [0.01] * 3


WRONG = {
    "warmup_rounds": ["ten", 2.5, True],
    "window": ["5", 5.0, True],
    "decay": ["none", True, math.nan, -1],
    "balance": [None, "half", True],
    "threshold": [None, [1e-3], math.nan],
    "consensus_sign": ["+", 1.0, 0],
    "eps_norm": [None, "tiny"],
    "eps_std": [None, {}],
    "preset": [None, 1, ["paper"]],
    "transform": [0, ["none"]],
    "newest": [True],
    "decay_index": [1],
    "warmup_factor": ["half", True],
    "bn_warmup_factor": [[0.5]],
    "lr_clip": [0.1, "low", (None, 1), (0.1,), ("a", "b")],
    "measured": [all],
}


@pytest.mark.parametrize(
    ("setting", "value"), [(setting, value) for setting, values in WRONG.items() for value in values]
)
def test_settings_of_a_wrong_type_are_rejected(setting, value):
    with pytest.raises(FedA2LError, match=rf"rates\.{setting} = "):
        FedA2L(sgd(small()), **{setting: value})


def test_numpy_numbers_are_accepted():
    settings = {"window": np.int64(4), "decay": np.float32(0.5), "balance": 1, "lr_clip": [0, 1]}
    FedA2L(sgd(small()), **settings)


def test_only_the_weight_is_measured_with_preset_reference():
    model, other = small(), small()
    rates, others = FedA2L(sgd(model), preset="reference"), FedA2L(sgd(other), preset="reference")
    with torch.no_grad():
        other[0].bias.add_(100)
    play(model, rates, range(3))
    play(other, others, range(3))
    assert rates.last["0"][2:] == others.last["0"][2:]
    full, shifted = FedA2L(sgd(model)), FedA2L(sgd(other))
    play(model, full, range(3))
    play(other, shifted, range(3))
    assert full.last["0"].divergence > 2 * shifted.last["0"].divergence


# unusual models


@pytest.mark.parametrize(("preset", "sigma"), [("paper", 3 / 1e-8), ("reference", 3 / 2e-8)])
def test_divergence_from_zero(preset, sigma):
    """||T|| = 3 and B = 0 with four entries: eps is added to the norm, or to each of the four entries."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    rates = FedA2L(sgd(model), preset=preset)
    rates.begin_round()
    model.weight.data = torch.tensor([[1.0, 2.0, 2.0, 0.0]])
    rates.end_training()
    rates.step()
    assert rates.last["model"].divergence == pytest.approx(sigma)


def test_zero_initialised_layers_stay_finite():
    model = small()
    nn.init.zeros_(model[3].weight)
    nn.init.zeros_(model[3].bias)
    for preset in ("paper", "reference"):
        rates = FedA2L(sgd(model), preset=preset, **SETTINGS)
        actual = play(model, rates, range(30))
        assert all(0 < rate <= 0.02 for row in actual for rate in row)


def test_tied_weights_are_one_layer():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(6))
    assert list(rates.last) == ["a"]


def test_attention_bare_parameters_and_compiled_parts():
    model = nn.TransformerEncoderLayer(8, 2, 16)
    plain = copy.deepcopy(model)
    compiled = torch.compile(model)
    rates = FedA2L(torch.optim.AdamW(layer_groups(compiled), lr=0.01), **SETTINGS)
    expected = FedA2L(torch.optim.AdamW(layer_groups(plain), lr=0.01), **SETTINGS)
    assert play(model, rates, range(12)) == play(plain, expected, range(12))
    assert list(rates.last) == ["self_attn", "linear1", "linear2", "norm1", "norm2"]
    assert not any("_orig_mod" in name for name in rates.last)
    rates.load_state_dict(expected.state_dict())  # a compiled model resumes from the state of a plain one


def test_groups_without_layers_are_left_unchanged():
    model, extra = small(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([{"params": [extra], "lr": 7.0}, *layer_groups(model)], lr=0.01)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 8.0})
    rates = FedA2L(optimizer, **SETTINGS)
    extra.data.fill_(torch.nan)
    actual = play(model, rates, range(12))
    plain = small()
    assert [row[1:4] for row in actual] == play(plain, FedA2L(sgd(plain), **SETTINGS), range(12))
    assert [(row[0], row[4]) for row in actual] == [(7.0, 8.0)] * 12
    assert list(rates.last) == ["0", "1", "3"]


def test_frozen_layers_keep_their_rate():
    model, plain = small(), small()
    model[1].requires_grad_(False)
    rates = FedA2L(sgd(model), **SETTINGS)
    assert len(rates.get_last_lr()) == 2
    model = small()
    rates, plain_rates = FedA2L(sgd(model), **SETTINGS), FedA2L(sgd(plain), **SETTINGS)
    play(model, rates, range(12))
    play(plain, plain_rates, range(12))
    before = rates.last["0"]
    model[0].requires_grad_(False)
    actual, expected = play(model, rates, range(12, 21)), play(plain, plain_rates, range(12, 21))
    assert {row[0] for row in actual} == {before.rate}
    assert rates.last["0"] == before
    assert [row[1:] for row in actual] == [row[1:] for row in expected]
    model[0].requires_grad_(True)
    play(model, rates, range(21, 24))
    assert rates.last["0"].rate != before.rate


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_an_unfrozen_layer_starts_with_a_fresh_history(preset):
    """Its multipliers equal those of a FedA2L that saw only the rounds after the layer was unfrozen."""
    model, fresh = small(), small()
    rates, fresh_rates = (FedA2L(sgd(m), preset=preset, **SETTINGS) for m in (model, fresh))
    fresh_rates.round = 7
    play(model, rates, range(12))
    model[0].requires_grad_(False)
    play(model, rates, range(12, 18))
    model[0].requires_grad_(True)
    fresh.load_state_dict(model.state_dict())
    for round in range(7, 16):
        calls = range(3 * round - 3, 3 * round)
        play(model, rates, calls)
        play(fresh, fresh_rates, calls)
        assert rates.last["0"][1:] == fresh_rates.last["0"][1:], round
        if round == 7:
            assert rates.last["0"].multiplier == 1  # one value has no deviation
            restored = FedA2L(sgd(small()), preset=preset, **SETTINGS)
            restored.load_state_dict(rates.state_dict())
            assert snapshot(restored) == snapshot(rates)
    assert rates.last["0"].multiplier != 1


def test_empty_parameters_are_ignored():
    model, plain = small(), small()
    model[3].empty = nn.Parameter(torch.empty(0, 3))
    model.append(nn.ParameterList([torch.empty(0)]))  # the mean over no entries would be NaN
    rates = FedA2L(sgd(model), **SETTINGS)
    assert play(model, rates, range(12)) == play(plain, FedA2L(sgd(plain), **SETTINGS), range(12))
    assert list(rates.last) == ["0", "1", "3"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_is_measured_in_float32(dtype, device):
    model = nn.Linear(64, 64, bias=False).to(device, dtype)
    nn.init.constant_(model.weight, 60.0)  # the sum of squares exceeds the range of float16
    rates = FedA2L(sgd(model), threshold=0.3)
    rates.begin_round()
    with torch.no_grad():
        model.weight[0] += 1
    rates.end_training()
    with torch.no_grad():
        model.weight[:2] += 0.5
    rates.step()
    (last,) = rates.last.values()
    assert last.divergence == pytest.approx(8 / (64 * 60), rel=1e-6)  # 1/480 is not exact in float16 or bfloat16
    assert last.stability == 62 / 64


def test_mixed_types_within_a_layer():
    model = nn.Linear(4, 4).to(torch.bfloat16)
    model.bias.data = model.bias.data.float()
    actual = play(model, FedA2L(sgd(model), **SETTINGS), range(15))
    assert all(math.isfinite(rate) for row in actual for rate in row)


@pytest.mark.parametrize("device", DEVICES)
def test_memory_of_an_open_round(device):
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100)).to(device)
    rates = FedA2L(sgd(model), **SETTINGS)
    size = sum(parameter.numel() for parameter in model.parameters())
    for calls, copies in [(range(1), 1), (range(1, 2), 1), (range(2, 3), 0)]:
        play(model, rates, calls)
        assert sum(tensor.numel() for tensor in rates.state_dict()["kept"]) == copies * size


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_each_call_synchronises_with_the_device_at_most_once():
    model = deep().cuda()
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(3))
    for call in (rates.begin_round, rates.end_training, rates.step):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            call()
            torch.cuda.set_sync_debug_mode("default")
        assert len([warning for warning in caught if "called a synchronizing" in str(warning.message)]) <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_rates_are_equal_on_a_gpu():
    model, other = small().double(), small().double().cuda()
    rates, others = FedA2L(sgd(model), **SETTINGS), FedA2L(sgd(other), **SETTINGS)
    for on_cpu, on_gpu in zip(play(model, rates, range(30)), play(other, others, range(30)), strict=True):
        assert on_cpu == pytest.approx(on_gpu, rel=1e-9)
    others.load_state_dict(rates.state_dict())


# call order and errors


@pytest.mark.parametrize("done", range(3))
def test_calls_out_of_order_change_nothing(done):
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(9 + done))
    before = snapshot(rates)
    expected = ("begin_round", "end_training", "step")[done]
    for call in {"begin_round", "end_training", "step"} - {expected}:
        with pytest.raises(FedA2LError, match=rf"{call}\(\) in round 4, where {expected}\(\) comes next"):
            getattr(rates, call)()
    assert snapshot(rates) == before
    play(model, rates, range(9 + done, 15))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tensor", ["weight", "bias"])
@pytest.mark.parametrize("preset", ["paper", "reference"])
@pytest.mark.parametrize("done", range(3))
def test_a_non_finite_state_changes_nothing(done, bad, tensor, preset):
    model, plain = small(), small()
    rates, plain_rates = (FedA2L(sgd(m), preset=preset, **SETTINGS) for m in (model, plain))
    play(model, rates, range(9 + done))
    play(plain, plain_rates, range(9 + done))
    before = snapshot(rates)
    entry = getattr(model[3], tensor).data.view(-1)[1]
    kept = entry.clone()
    entry.fill_(bad)
    state, call = (("base", rates.begin_round), ("trained", rates.end_training), ("aggregated", rates.step))[done]
    for _ in range(2):
        with pytest.raises(FedA2LError, match=f"layer 3: .* in its {state} state in round 4"):
            call()
        assert snapshot(rates) == before
    entry.copy_(kept)
    assert play(model, rates, range(9 + done, 18)) == play(plain, plain_rates, range(9 + done, 18))


def test_an_overflow_is_reported():
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    rates.begin_round()
    model[0].weight.data.fill_(1e30)
    with pytest.raises(FedA2LError, match="layer 0"):
        rates.end_training()


@pytest.mark.parametrize("done", range(3))
def test_a_changed_shape_changes_nothing(done):
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(9 + done))
    before, weight = snapshot(rates), model[0].weight.data
    model[0].weight.data = weight.T.contiguous()  # the number of entries stays the same
    with pytest.raises(FedA2LError, match=r"layer 0: .*'0.weight': \[5, 6\].*'0.weight': \[6, 5\]"):
        (rates.begin_round, rates.end_training, rates.step)[done]()
    assert snapshot(rates) == before
    model[0].weight.data = weight
    play(model, rates, range(9 + done, 15))


def test_an_optimizer_without_layer_groups():
    model = small()
    with pytest.raises(FedA2LError, match=r"SGD has no layer groups: .*layer_groups"):
        FedA2L(torch.optim.SGD(model.parameters(), lr=0.01))
    with pytest.raises(FedA2LError, match="no layer groups"):
        FedA2L(model)
    with pytest.raises(FedA2LError, match='2 layer groups are named "0"'):
        FedA2L(torch.optim.SGD([*layer_groups(small()), *layer_groups(small())], lr=0.01))
    groups = layer_groups(model)
    groups[0]["tensors"].pop()
    with pytest.raises(FedA2LError, match="layer 0: 1 tensor names for 2 parameters"):
        FedA2L(torch.optim.SGD(groups, lr=0.01))


def test_layer_groups_added_later_are_rejected():
    model = small()
    optimizer = sgd(model)
    rates = FedA2L(optimizer, **SETTINGS)
    optimizer.add_param_group(layer_groups(nn.ModuleDict({"late": nn.Linear(2, 2)}))[0])
    with pytest.raises(FedA2LError, match="differ in late"):
        rates.begin_round()


@pytest.mark.parametrize("done", range(3))
def test_a_replaced_parameter_is_detected(done):
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(9 + done))
    before, weight = snapshot(rates), model[0].weight
    model[0].weight = nn.Parameter(weight.detach().clone())
    with pytest.raises(FedA2LError, match=r"layer 0: the model no longer uses the parameter 0\.weight"):
        (rates.begin_round, rates.end_training, rates.step)[done]()
    assert snapshot(rates) == before
    model[0].weight = weight
    play(model, rates, range(9 + done, 15))


def test_a_parameter_moved_to_another_model_does_not_count_as_replaced():
    model = small()
    optimizer = sgd(model)
    rates = FedA2L(optimizer, **SETTINGS)
    del model  # as in a loop that keeps only the parameters
    rates.begin_round()
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    layer_groups(first)
    second.weight, first.weight = first.weight, second.weight
    FedA2L(sgd(second)).begin_round()


def test_a_weight_norm_added_later_is_detected():
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(FedA2LError, match="build the optimizer and FedA2L again"):
        rates.begin_round()


def test_a_second_feda2l_on_the_same_optimizer_is_rejected():
    optimizer = sgd(small())
    rates = FedA2L(optimizer, **SETTINGS)
    with pytest.raises(FedA2LError, match="another FedA2L already sets this optimizer's rates"):
        FedA2L(optimizer, warmup_factor=0.5)
    assert rates.get_last_lr() == [0.01] * 3
    del rates
    FedA2L(optimizer, **SETTINGS)


def test_another_scheduler_on_the_same_groups_is_detected():
    optimizer = sgd(small())
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    with pytest.warns(UserWarning, match="another learning rate scheduler") as caught:
        FedA2L(optimizer, **SETTINGS)
    assert caught[0].filename == __file__
    optimizer = sgd(small())
    rates = FedA2L(optimizer, **SETTINGS)
    torch.optim.lr_scheduler.LinearLR(optimizer)  # immediately sets a third of the rate
    with pytest.warns(UserWarning, match=r"layer 0: its lr was changed from 0\.01 to 0\.00333"):
        rates.begin_round()


@pytest.mark.parametrize("tensor", [False, True])
def test_a_manually_changed_rate_is_reported_once(tensor):
    model = small()
    lr = torch.tensor(0.01) if tensor else 0.01
    optimizer = torch.optim.Adam(layer_groups(model), lr=lr, foreach=False)
    rates = FedA2L(optimizer, **SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(model, rates, range(12))
        previous = rates.get_last_lr()
        if tensor:
            optimizer.param_groups[1]["lr"].fill_(0.5)
        else:
            optimizer.param_groups[1]["lr"] = 0.5
        with pytest.warns(UserWarning, match=r"layer 1: its lr was changed from 0\.0\d+ to 0\.5 after") as caught:
            rates.begin_round()
        assert caught[0].filename == __file__
        assert rates.get_last_lr() == [previous[0], 0.5, previous[2]]
        play(model, rates, range(13, 18))  # no second warning; the next step sets the rate again
        assert rates.get_last_lr()[1] < 0.02


def test_unsupported_optimizers_are_rejected():
    model = small()
    with pytest.raises(FedA2LError, match=r"rates of LBFGS: it accepts one parameter group"):
        FedA2L(torch.optim.LBFGS(layer_groups(model, granularity="model"), lr=0.01))
    with pytest.raises(FedA2LError, match=r"rates of Rprop: it reads `lr` only for its first step"):
        FedA2L(torch.optim.Rprop(layer_groups(model), lr=0.01))
    # without layer groups too: they would not help
    with pytest.raises(FedA2LError, match=r"rates of LBFGS: .* Use SGD"):
        FedA2L(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(FedA2LError, match=r"rates of Rprop: .* Use SGD"):
        FedA2L(torch.optim.Rprop(model.parameters()))


def test_next_call_and_mixed_describe_the_current_round():
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    with pytest.raises(FedA2LError, match=r"step\(\) in round 1, where begin_round\(\) comes next"):
        rates.mixed()
    next_calls = []
    for call in range(3):
        next_calls.append(rates.next_call)
        play(model, rates, range(call, call + 1))
        if call == 1:
            assert not rates.mixed()
            before = model[0].bias.data.clone()
            model[0].bias.data[0] += 1e-6
            assert rates.mixed()
            model[0].bias.data = before
    assert next_calls == ["begin_round", "end_training", "step"]
    assert rates.next_call == "begin_round"


# skipped rounds


@pytest.mark.parametrize("done", range(3))
def test_a_skipped_round_stores_nothing_but_advances_the_decay(done):
    model, plain = small(), small()
    rates, expected = FedA2L(sgd(model), **SETTINGS), FedA2L(sgd(plain), **SETTINGS)
    play(model, rates, range(12))
    play(plain, expected, range(12))
    before = rates.get_last_lr(), rates.last, rates.state_dict()["rates"]
    base = copy.deepcopy(model.state_dict())
    play(model, rates, range(12, 12 + done))
    rates.skip_round()
    model.load_state_dict(base)
    assert (rates.get_last_lr(), rates.last) == before[:2]
    assert all(torch.equal(a, b) for a, b in zip(rates.state_dict()["rates"].values(), before[2].values(), strict=True))
    assert rates.state_dict()["kept"] == []
    with_skip, without_skip = play(model, rates, range(12, 15))[-1], play(plain, expected, range(12, 15))[-1]
    factor = (1 + 0.3 * 6) ** -0.5 / (1 + 0.3 * 5) ** -0.5  # the decay of round 6 over that of round 5
    assert with_skip == pytest.approx([rate * factor for rate in without_skip], rel=1e-14)


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_a_node_that_was_offline_from_the_start(preset):
    model = small()
    rates = FedA2L(sgd(model), preset=preset, **SETTINGS)
    for _ in range(20):
        rates.skip_round()
    actual = play(model, rates, range(3))
    decay = (1 + 0.3 * 21) ** -0.5 if preset == "paper" else 1
    assert actual[-1] == pytest.approx([0.01 * decay] * 3)  # without a history m = 1


# resuming


@pytest.mark.parametrize("stop", range(1, 16))
@pytest.mark.parametrize("preset", ["paper", "reference"])
@pytest.mark.parametrize("order", ["rates last", "rates first", "built on a loaded optimizer"])
def test_resuming_after_any_call_gives_the_same_rates(stop, preset, order):
    model = small()
    rates = FedA2L(sgd(model), preset=preset, warmup_factor=0.5, **SETTINGS)
    expected = play(model, rates, range(24))

    model = small()
    rates = FedA2L(sgd(model), preset=preset, warmup_factor=0.5, **SETTINGS)
    play(model, rates, range(stop))
    last = rates.last
    file = io.BytesIO()
    torch.save([model.state_dict(), rates.optimizer.state_dict(), rates.state_dict()], file)
    play(model, rates, range(stop, stop + 4))  # later calls are not in the file

    file.seek(0)
    model_state, optimizer_state, rates_state = torch.load(file, weights_only=True)
    assert all(isinstance(leaf, torch.Tensor | int | float) for leaf in all_leaves(rates_state))
    model = small()
    move(model, 1.0, 99)
    optimizer = sgd(model)
    if order == "built on a loaded optimizer":
        optimizer.load_state_dict(optimizer_state)
    rates = FedA2L(optimizer, preset=preset, warmup_factor=0.5, **SETTINGS)
    if order == "rates first":
        rates.load_state_dict(rates_state)
    model.load_state_dict(model_state)
    optimizer.load_state_dict(optimizer_state)
    if order != "rates first":
        rates.load_state_dict(rates_state)
    assert rates.get_last_lr() == expected[stop - 1]
    assert rates.last == last
    assert play(model, rates, range(stop, 24)) == expected[stop:]


def test_loading_writes_the_rates():
    model, fresh = small(), small()
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(12))
    restored = FedA2L(sgd(fresh), **SETTINGS)
    restored.load_state_dict(rates.state_dict())
    assert restored.get_last_lr() == rates.get_last_lr() != [0.01] * 3
    assert snapshot(restored) == snapshot(rates)


WRAPPINGS = {
    "bare": lambda model: model,
    "data parallel": nn.DataParallel,
    "compiled": torch.compile,
    "compiled data parallel": lambda model: torch.compile(nn.DataParallel(model)),
    "data parallel compiled": lambda model: nn.DataParallel(torch.compile(model)),
}


@pytest.mark.parametrize("loaded", WRAPPINGS)
@pytest.mark.parametrize("saved", WRAPPINGS)
def test_a_state_loads_for_every_wrapper_of_the_model(saved, loaded):
    for make in (small, lambda: nn.Linear(3, 2)):
        model, other = make(), make()
        rates = FedA2L(sgd(WRAPPINGS[saved](model)), **SETTINGS)
        play(model, rates, range(13))
        others = FedA2L(sgd(WRAPPINGS[loaded](other)), **SETTINGS)
        others.load_state_dict(rates.state_dict())
        other.load_state_dict(model.state_dict())
        assert play(other, others, range(13, 18)) == play(model, rates, range(13, 18))


def test_a_state_loads_under_distributed_data_parallel(tmp_path):
    model, other = small(), small()
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(13))
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        others = FedA2L(sgd(nn.parallel.DistributedDataParallel(other)), **SETTINGS)
        others.load_state_dict(rates.state_dict())
        rates.load_state_dict(others.state_dict())
        assert list(others.last) == list(rates.last) == ["0", "1", "3"]
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_a_state_with_the_prefix_of_a_wrapper_loads(prefix):
    """Such a state was edited by hand, or written by a version that kept the prefix."""
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(12))
    state = rates.state_dict()
    state["shapes"] = {
        prefix + layer: {prefix + tensor: shape for tensor, shape in tensors.items()}
        for layer, tensors in state["shapes"].items()
    }
    others = FedA2L(sgd(small()), **SETTINGS)
    others.load_state_dict(state)
    assert snapshot(others) == snapshot(rates)


@pytest.mark.parametrize("calls", [12, 13])
def test_a_state_of_another_model_changes_nothing(calls):
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(8))
    before = snapshot(rates)

    def state_of(other: nn.Module, **settings) -> dict:
        others = FedA2L(sgd(other), **SETTINGS, **settings)
        play(other, others, range(calls))
        return others.state_dict()

    wider = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    bad = {
        "differ in": state_of(deep()),
        "layer 0: ": state_of(wider),
        "not a state of FedA2L": {},
        r"KeyError: 'adaptations'": (broken := state_of(small())),
        "not a state": {**state_of(small()), "round": "three"},
    }
    del broken["rates"]["adaptations"]
    if calls == 13:
        bad["`measured`"] = state_of(small(), measured="weight")
    for message, state in bad.items():
        with pytest.raises(FedA2LError, match=message):
            rates.load_state_dict(state)
        assert snapshot(rates) == before
    rates.load_state_dict(state_of(small()))


def test_a_saved_state_does_not_change_later():
    model = small()
    rates = FedA2L(sgd(model), **SETTINGS)
    play(model, rates, range(13))
    state = rates.state_dict()
    frozen = copy.deepcopy(state)
    play(model, rates, range(13, 20))
    other = FedA2L(sgd(small()), **SETTINGS)
    other.load_state_dict(state)
    other.skip_round()
    for old, new in zip(all_leaves(frozen), all_leaves(state), strict=True):
        assert torch.equal(torch.as_tensor(old), torch.as_tensor(new))
