"""Schedules equal those of torch value by value, and the table of the specification."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates import RULES, Rates, Setting

NO_SIGNALS = Signals(torch.zeros(1, 1), torch.zeros(1, 1))


def start(
    name: str, *, horizon: int = 500, momentum: float = 0.9, layers: int = 1, base: float = 0.01, **settings
) -> Rates:
    names = tuple(f"layer{i}" for i in range(layers))
    setting = Setting(base=base, layers=names, horizon=horizon, momentum=momentum)
    return RULES[name](**settings).start(setting)


def trace(rates: Rates, rounds: int) -> tuple[list[float], list[float | None]]:
    """The rate and the momentum used in rounds 0, 1, ... (counted from 0)."""
    values, momenta = [], []
    for round in range(1, rounds + 1):
        values.append(float(rates.rates[0, 0]))
        momenta.append(rates.momentum)
        rates.step(round, NO_SIGNALS)
    return values, momenta


def torch_trace(rounds: int, make) -> tuple[list[float], list[float]]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01, momentum=0.9)
    scheduler = make(optimizer)
    values, momenta = [], []
    for i in range(rounds):
        values.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
        optimizer.step()
        if i + 1 < rounds:
            scheduler.step()
    return values, momenta


SAME_AS_TORCH = {
    "step": ({}, lambda o: lr_scheduler.StepLR(o, 100, 0.5)),
    "cawr": ({}, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 50)),
    "cawr growing": ({"period": 7, "growth": 2}, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7, 2)),
    "cosine": ({}, lambda o: lr_scheduler.CosineAnnealingLR(o, 500)),
    "exponential": ({}, lambda o: lr_scheduler.ExponentialLR(o, 0.998)),
    "exponential .99": ({"gamma": 0.99}, lambda o: lr_scheduler.ExponentialLR(o, 0.99)),
    "constant": ({}, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    "inverse_sqrt": ({"decay": 0.1}, lambda o: lr_scheduler.LambdaLR(o, lambda t: (1 + 0.1 * t) ** -0.5)),
    "one_cycle": ({}, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=500)),
}


@pytest.mark.parametrize("case", SAME_AS_TORCH)
def test_same_as_torch(case):
    settings, make = SAME_AS_TORCH[case]
    rates, momenta = trace(start(case.split()[0], **settings), 500)
    torch_rates, torch_momenta = torch_trace(500, make)
    assert rates == pytest.approx(torch_rates, rel=1e-9, abs=1e-14)
    if case == "one_cycle":
        assert momenta == pytest.approx(torch_momenta, rel=1e-12)
    else:
        assert set(momenta) == {None}


@pytest.mark.parametrize("horizon", [2, 3, 7, 40])
def test_one_cycle_over_other_horizons(horizon):
    rates, momenta = trace(start("one_cycle", horizon=horizon), horizon)
    torch_rates, torch_momenta = torch_trace(
        horizon, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=horizon)
    )
    assert rates == pytest.approx(torch_rates, rel=1e-9)
    assert momenta == pytest.approx(torch_momenta)


def test_one_cycle_sets_no_momentum_for_an_optimizer_without_it():
    assert set(trace(start("one_cycle", momentum=0.0), 20)[1]) == {None}
    assert set(trace(start("one_cycle", cycle_momentum=False), 20)[1]) == {None}
    with pytest.raises(FedA2LError, match="cycle_momentum"):
        start("one_cycle", momentum=0.0, cycle_momentum=True)


def test_cosine_with_warm_up_rises_then_falls():
    values, _ = trace(start("cosine", horizon=24, warmup_rounds=4), 25)
    assert values[:5] == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.01])
    assert values[14] == pytest.approx(0.005)  # half-way between rounds 4 and 24
    assert values[24] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "settings", "value"),
    [
        ("hyperbolic", {}, 0.00693),
        ("hyperbolic", {"upper_bound": 1000}, 0.00693),
        ("hyperbolic", {"upper_bound": 5000}, 0.00868),
        ("hyperbolic_reference", {}, 0.00707),
    ],
)
def test_hyperbolic_half_way(name, settings, value):
    assert trace(start(name, **settings), 251)[0][250] == pytest.approx(value, abs=5.1e-6)


def test_hyperbolic_ends():
    assert trace(start("hyperbolic"), 501)[0][500] == pytest.approx(0.134 * 0.01, abs=5e-6)
    assert trace(start("hyperbolic_reference"), 501)[0][500] == pytest.approx(1e-6)
    values, _ = trace(start("exp_hyperbolic", upper_bound=500), 501)
    assert values[0] == 0.01
    assert values[500] == pytest.approx(1e-6)  # U = N: h falls from 1 to 0


def test_exp_hyperbolic_by_hand():
    """N = 100, U = 200, x = 50: h = sqrt(.25 * 1.25), h(0) = sqrt(.5 * 1.5)."""
    exponent = math.sqrt(0.3125) - math.sqrt(0.75)
    assert trace(start("exp_hyperbolic", horizon=100), 51)[0][50] == pytest.approx(0.01 * 1e4**exponent)


def test_hyperbolic_warm_up_starts_at_the_low_end():
    values, _ = trace(start("hyperbolic", horizon=100, warmup_rounds=10), 11)
    assert values[0] == pytest.approx(1e-6)
    assert values[5] == pytest.approx((0.01 + 1e-6) / 2)
    assert values[10] == 0.01


def test_schedules_stay_at_their_end_value():
    for name in ("one_cycle", "cosine", "hyperbolic", "exp_hyperbolic", "hyperbolic_reference"):
        values, _ = trace(start(name, horizon=10), 16)
        assert len(set(values[11:])) == 1, name


# effective rates of the released code's ResNet setting at 0-based rounds: 500 rounds, decay .1, all multipliers 1
ROUNDS = [0, 41, 42, 60, 100, 149, 200, 300, 400, 499]
TABLE = {
    "step": [0.1000, 0.1000, 0.1000, 0.1000, 0.0500, 0.0500, 0.0250, 0.0125, 0.0062, 0.0062],
    "cawr": [0.1000, 0.0078, 0.0062, 0.0905, 0.1000, 0.0001, 0.1000, 0.1000, 0.1000, 0.0001],
    "one_cycle": [0.0080, 0.0309, 0.0316, 0.0442, 0.0610, 0.0667, 0.0655, 0.0548, 0.0270, 0.0000],
    "hyperbolic_reference": [0.1000, 0.0958, 0.0957, 0.0938, 0.0894, 0.0838, 0.0775, 0.0632, 0.0447, 0.0045],
    "hidden_schedule": [0.0010, 0.0010, 0.0100, 0.0060, 0.0038, 0.0029, 0.0024, 0.0019, 0.0016, 0.0015],
    "decay_only": [0.0100, 0.0044, 0.0044, 0.0038, 0.0030, 0.0025, 0.0022, 0.0018, 0.0016, 0.0014],
}


@pytest.mark.parametrize("name", TABLE)
def test_effective_rates_of_the_released_setting(name):
    adapted = name in ("hidden_schedule", "decay_only")
    values, momenta = trace(start(name, layers=41 if adapted else 1), 500)
    effective = [
        values[t] if adapted else values[t] / (1 - (0.9 if momenta[t] is None else momenta[t])) for t in ROUNDS
    ]
    assert effective == pytest.approx(TABLE[name], abs=0.51e-4)


BAD = [
    ("step", "step_size", 0),
    ("step", "gamma", 0.0),
    ("step", "gamma", math.nan),
    ("cawr", "period", 0),
    ("cawr", "growth", 0),
    ("cosine", "warmup_rounds", -1),
    ("exponential", "gamma", -0.5),
    ("exponential", "gamma", math.inf),
    ("inverse_sqrt", "decay", -0.1),
    ("inverse_sqrt", "decay", math.nan),
    ("hyperbolic", "low", 0.0),
    ("hyperbolic", "warmup_rounds", -1),
    ("hyperbolic_reference", "low", -1e-6),
    ("one_cycle", "rise", 0.0),
    ("one_cycle", "rise", 1.0),
    ("one_cycle", "start_divisor", 0.0),
    ("one_cycle", "end_divisor", -1.0),
    ("one_cycle", "low_momentum", 0.99),
    ("one_cycle", "high_momentum", 1.0),
]


@pytest.mark.parametrize(("name", "setting", "value"), BAD)
def test_invalid_values_are_reported(name, setting, value):
    with pytest.raises(FedA2LError, match=rf"rates\.{setting} = "):
        RULES[name](**{setting: value})


def test_an_upper_bound_below_the_horizon_is_rejected():
    with pytest.raises(FedA2LError, match="upper_bound"):
        start("hyperbolic", horizon=100, upper_bound=99)


@pytest.mark.parametrize("name", ["hyperbolic", "exp_hyperbolic", "hyperbolic_reference"])
def test_a_low_end_above_the_base_rate_is_rejected(name):
    with pytest.raises(FedA2LError, match=r"rates\.low = 0\.02: must be at most the base rate, 0\.01"):
        start(name, low=0.02)
    assert trace(start(name, low=0.01), 3)[0] == pytest.approx([0.01] * 3)
