"""The rules of the related-work table, calculated by hand from their equations: FLARE, AutoLR, Fed-LAMB, FLAYER."""

import math

import pytest
import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates import RULES, Rates, Setting

BASE = 0.1
RELATED = ["flare", "autolr", "fed_lamb", "flayer"]


def start(name: str, *, layers: int = 5, nodes: int = 1, setting: dict | None = None, base=BASE, **settings) -> Rates:
    setting = {"steps": (4,) * nodes, "neighbour_steps": ((4, 4),) * nodes, "sizes": (1,) * layers} | (setting or {})
    names = tuple(f"layer{i}" for i in range(layers))
    return RULES[name](**settings).start(Setting(base=base, layers=names, nodes=tuple(range(nodes)), **setting))


def f64(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def movement_only(*rows: list[float]) -> Signals:
    """Signals with only a movement; sigma and zeta are NaN."""
    movement = f64(*rows)
    return Signals(torch.full_like(movement, torch.nan), torch.full_like(movement, torch.nan), movement)


def divergence_only(*rows: list[float]) -> Signals:
    return Signals(f64(*rows), torch.full_like(f64(*rows), torch.nan))


def expect(rates: Rates, *multipliers: list[float]) -> None:
    torch.testing.assert_close(rates.multiplier, f64(*multipliers), rtol=1e-12, atol=0)
    torch.testing.assert_close(rates.rates, rates.base * f64(*multipliers), rtol=1e-12, atol=0)


# FLARE


def test_flare_shares_rate_times_steps_among_neighbours():
    # a path 0 - 1 - 2 with 2, 4 and 9 steps: means 3, 5 and 6.5
    setting = {"steps": (2, 4, 9), "neighbour_steps": ((2, 4), (4, 2, 9), (9, 4))}
    rates = start("flare", nodes=3, layers=2, setting=setting)
    for round in range(1, 4):
        expect(rates, [1.5] * 2, [1.25] * 2, [6.5 / 9] * 2)
        rates.step(round, movement_only([1.0, 2.0]))


def test_flare_on_a_full_graph_makes_rate_times_steps_equal():
    steps = (3, 5, 7, 9)
    rates = start("flare", nodes=4, layers=1, setting={"steps": steps, "neighbour_steps": (steps,) * 4})
    assert (rates.rates[:, 0] * torch.tensor(steps)).tolist() == pytest.approx([BASE * 6] * 4)


def test_flare_with_equal_steps_is_constant():
    rates, constant = start("flare", nodes=3), start("constant", nodes=3)
    assert torch.equal(rates.rates, constant.rates)
    assert torch.equal(rates.multiplier, constant.multiplier)


def test_flare_keeps_base_rates_of_layers():
    rates = start("flare", layers=2, base=(0.1, 0.2), setting={"steps": (2,), "neighbour_steps": ((2, 6),)})
    assert rates.rates.tolist() == [[0.2, 0.4]]


# AutoLR: layer 0 is the stem, the last layer is the head, the blocks lie between


def test_autolr_first_target_is_linear_in_depth():
    rates = start("autolr", layers=6, setting={"sizes": (7, 1, 2, 5, 10, 3)})
    # v of the blocks is 1, 4, 20 and 2; the target goes from 3 * 1 to .4 * 20
    rates.step(1, movement_only([9.0, 1.0, 8.0, 100.0, 20.0, 9.0]))
    gap = 5 / 3
    expect(rates, [1.5, 3.0, (3 + gap) / 4, (3 + 2 * gap) / 20, 8 / 2, 1.0])


def test_autolr_later_changes_only_layers_out_of_order():
    rates = start("autolr", layers=7)
    # blocks 2, 9, 5, 7, 6: the middle is 5, the gap 7 / 4; 9 -> 5 - 1.75 and 6 -> 7 + 1.75
    rates.step(2, movement_only([1.0, 2.0, 9.0, 5.0, 7.0, 6.0, 1.0]))
    expect(rates, [0.5, 1.0, 3.25 / 9, 1.0, 1.0, 8.75 / 6, 1.0])
    # then, with the new rates: blocks 2, 3, 5, 8, 4: gap 6 / 4, 4 -> 8 + 1.5
    rates.step(3, movement_only([1.0, 2.0, 3.0, 5.0, 8.0, 4.0, 1.0]))
    expect(rates, [0.5, 1.0, 3.25 / 9, 1.0, 1.0, 8.75 / 6 * 9.5 / 4, 1.0])


def test_autolr_proceeds_outward_from_changed_blocks():
    rates = start("autolr", layers=5, clip=(0.01, 10.0))
    # blocks 8, 7, 6: the middle is 7, the gap 1: 6 .. 7 .. 8
    rates.step(2, movement_only([1.0, 8.0, 7.0, 6.0, 1.0]))
    expect(rates, [0.375, 0.75, 1.0, 8 / 6, 1.0])
    rates = start("autolr", layers=7)
    # blocks 7, 6, 5, 4, 3: gap 1; 5 stays, then 4 and 3 below it, 6 and 7 above
    rates.step(2, movement_only([1.0, 7.0, 6.0, 5.0, 4.0, 3.0, 1.0]))
    expect(rates, [1.5 / 7, 3 / 7, 4 / 6, 1.0, 6 / 4, 7 / 3, 1.0])


def test_autolr_starts_at_the_later_middle_of_an_even_number_of_blocks():
    rates = start("autolr", layers=4)
    rates.step(2, movement_only([1.0, 6.0, 4.0, 1.0]))  # the gap is 2 and 4 stays: 6 -> 2
    expect(rates, [1 / 6, 1 / 3, 1.0, 1.0])


@pytest.mark.parametrize("round", [1, 2, 9])
@pytest.mark.parametrize("blocks", [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
def test_autolr_keeps_the_rates_of_blocks_in_order(round, blocks):
    rates = start("autolr")
    rates.step(round, movement_only([9.0, *blocks, 0.5]))
    expect(rates, [1.0] * 5)


def test_autolr_keeps_the_rates_if_the_order_is_good_enough():
    # two neighbours of 9 blocks swapped: 1 - 2 * 2 / 81 = .951
    blocks = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0, 8.0]
    default, strict = start("autolr", layers=11), start("autolr", layers=11, order=1.0)
    for rates in (default, strict):
        rates.step(2, movement_only([1.0, *blocks, 1.0]))
    expect(default, [1.0] * 11)
    expect(strict, [0.5, *[1.0] * 8, 10 / 8, 1.0])
    # 8 blocks: 1 - 4 / 64 = .9375, so the default requires all blocks in order
    eight = start("autolr", layers=10)
    eight.step(2, movement_only([1.0, *blocks[1:], 1.0]))
    expect(eight, [0.5, *[1.0] * 7, 10 / 8, 1.0])


def test_autolr_sorts_layers_whose_movement_is_proportional_to_the_rate():
    """With movement = response * rate, as the rule assumes, the order is reached and kept."""
    response = f64([1.0, 9.0, 2.0, 5.0, 1.5, 7.0, 1.0]) / BASE
    rates = start("autolr", layers=7)
    for round in range(1, 10):
        movement = response * rates.rates
        rates.step(round, Signals(movement, movement, movement))
    final = (response * rates.rates)[0, 1:-1]
    assert (final.diff() > 0).all()


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_autolr_of_a_small_model_is_constant(layers):
    rates = start("autolr", layers=layers)
    for round in range(1, 5):
        rates.step(round, movement_only([3.0, 2.0, 1.0][:layers]))
        expect(rates, [1.0] * layers)


def test_autolr_is_bounded_if_a_layer_does_not_move_or_a_target_is_negative():
    rates = start("autolr", layers=6, clip=(0.25, 4.0))
    for round in range(1, 40):
        # the last block never moves: it is first in v and last in depth
        rates.step(round, movement_only([1.0, 8.0, 3.0, 1.0, 0.0, 1.0]))
        assert rates.multiplier[0, 4] == 1
        assert ((rates.multiplier[0, 1:-1] >= 0.25) & (rates.multiplier[0, 1:-1] <= 4)).all()
    # blocks 9, 8, 1, 0: gap 3 around 1: the targets of the first two are below 0
    rates = start("autolr", layers=6, clip=(0.25, 4.0))
    rates.step(2, movement_only([1.0, 9.0, 8.0, 1.0, 0.0, 1.0]))
    expect(rates, [0.125, 0.25, 0.25, 1.0, 1.0, 1.0])


def test_autolr_stem_follows_the_rate_of_the_first_block():
    rates = start("autolr", layers=4, base=(0.4, 0.1, 0.2, 0.3))
    rates.step(2, movement_only([1.0, 6.0, 4.0, 1.0]))
    assert rates.rates[0].tolist() == pytest.approx([0.1 / 6, 0.1 / 3, 0.2, 0.3])
    assert rates.multiplier[0].tolist() == pytest.approx([1 / 24, 1 / 3, 1, 1])


# Fed-LAMB


def test_fed_lamb_by_hand():
    rates = start("fed_lamb", layers=3, nodes=2, trust=0.5, setting={"steps": (4, 8)})
    rates.step(1, divergence_only([0.1, 0.2, 0.8], [0.1, 0.2, 0.8]))
    # .5 * .1 * 4 / sigma, and twice that with twice the steps
    expect(rates, [2.0, 1.0, 0.25], [4.0, 2.0, 0.5])
    rates.step(2, divergence_only([0.1, 0.2, 0.8], [0.4, 0.4, 0.4]))
    expect(rates, [4.0, 1.0, 0.1], [4.0, 2.0, 0.5])  # .0625 is clipped


def test_fed_lamb_multipliers_have_mean_one_by_default():
    rates = start("fed_lamb", layers=4, setting={"steps": ()})
    rates.step(1, divergence_only([0.1, 0.2, 0.4, 0.4]))  # ratios 4, 2, 1, 1 have mean 2
    expect(rates, [2.0, 1.0, 0.5, 0.5])
    rates.step(2, divergence_only([0.3, 0.3, 0.3, 0.3]))  # equal sigma: the multipliers stay
    expect(rates, [2.0, 1.0, 0.5, 0.5])


def test_fed_lamb_does_not_depend_on_the_rate_it_was_measured_with():
    """sigma is proportional to the rate, so the ratio of norms does not depend on it and there is no feedback."""
    rates, update = start("fed_lamb", layers=3), f64([3.0, 1.0, 2.0])
    history = []
    for round in range(1, 4):
        rates.step(round, Signals(rates.rates * update, update))
        history.append(rates.rates)
    assert history[0][0].tolist() == pytest.approx([BASE * r * 18 / 11 for r in (1 / 3, 1, 1 / 2)])
    torch.testing.assert_close(history[2], history[0], rtol=1e-14, atol=0)


def test_fed_lamb_equal_layers_have_the_base_rate():
    rates = start("fed_lamb", layers=4)
    rates.step(1, divergence_only([0.25] * 4))
    expect(rates, [1.0] * 4)


@pytest.mark.parametrize("trust", [None, 0.5])
def test_fed_lamb_ignores_a_layer_that_does_not_move(trust):
    rates = start("fed_lamb", layers=3, nodes=2, trust=trust)
    rates.step(1, divergence_only([0.0, 0.1, 0.3], [0.0, 0.0, 0.0]))
    expect(rates, [1.0, 1.5, 0.5] if trust is None else [1.0, 2.0, 2 / 3], [1.0, 1.0, 1.0])


def test_fed_lamb_clips():
    rates = start("fed_lamb", layers=3, clip=(0.5, 1.25))
    rates.step(1, divergence_only([1e-9, 1.0, 1e9]))
    expect(rates, [1.25, 0.5, 0.5])


# FLAYER


def test_flayer_by_hand():
    rates = start("flayer", layers=4, setting={"steps": (5,)})
    expect(rates, [1.0] * 4)
    # g = movement / (.1 * 5) = 1, 2, .5, 3
    rates.step(1, movement_only([0.5, 1.0, 0.25, 1.5]))
    expect(rates, [1.0, 1 + math.log(1.5) / 3, 1 + 2 * math.log(3) / 3, 0.2])
    # the same gradients at the new rates move each layer in proportion
    gradient = f64([1.0, 2.0, 0.5, 3.0])
    before = rates.rates.clone()
    rates.step(2, Signals(gradient, gradient, gradient * before * 5))
    torch.testing.assert_close(rates.rates, before, rtol=1e-12, atol=0)


def test_flayer_counts_the_steps_of_each_node():
    rates = start("flayer", layers=3, nodes=2, setting={"steps": (2, 10)})
    rates.step(1, movement_only([1.0, 0.2, 1.0], [1.0, 1.0, 1.0]))  # g = 1 in the middle of both
    expect(rates, *[[1.0, 1 + math.log(2) / 2, 0.2]] * 2)


def test_flayer_with_a_huge_gradient_keeps_the_rates_of_the_body():
    rates = start("flayer", layers=3)
    rates.step(1, movement_only([1e300] * 3))
    expect(rates, [1.0, 1.0, 0.2])


def test_flayer_is_bounded_if_a_layer_does_not_move():
    rates = start("flayer", layers=3, eps=1e-3)
    rates.step(1, movement_only([0.0] * 3))
    expect(rates, [1.0, 1 + math.log(1001) / 2, 0.2])


def test_flayer_small_models():
    one, two = start("flayer", layers=1), start("flayer", layers=2)
    one.step(1, movement_only([0.3]))
    two.step(1, movement_only([0.3, 0.3]))
    expect(one, [1.0])
    expect(two, [1.0, 0.2])


# all rules


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("autolr", {"order": 0.0}, "rates.order = 0.0: must"),
        ("autolr", {"order": 1.1}, "rates.order = 1.1: must"),
        ("autolr", {"order": math.nan}, "rates.order = nan: must"),
        ("autolr", {"clip": (0.0, 1.0)}, "rates.clip = .*: must"),
        ("autolr", {"clip": (2.0, 1.0)}, "rates.clip = .*: must"),
        ("fed_lamb", {"clip": (0.1, math.inf)}, "rates.clip = .*: must"),
        ("fed_lamb", {"clip": (0.1,)}, "rates.clip = .*: must"),
        ("fed_lamb", {"trust": 0.0}, "rates.trust = 0.0: must"),
        ("fed_lamb", {"trust": math.inf}, "rates.trust = inf: must"),
        ("flayer", {"eps": 0.0}, "rates.eps = 0.0: must"),
        ("flayer", {"eps": math.nan}, "rates.eps = nan: must"),
    ],
)
def test_invalid_parameters_are_reported(name, settings, words):
    with pytest.raises(FedA2LError, match=words):
        RULES[name](**settings)


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("flare", {"steps": ()}, "flare needs `steps`"),
        ("flare", {"neighbour_steps": ()}, "flare needs `neighbour_steps`"),
        ("flare", {"neighbour_steps": ((4,), ())}, "neighbour_steps = .*at least 1"),
        ("flare", {"steps": (4, 0)}, "steps = 0 .*at least 1"),
        ("flare", {"steps": (4,)}, "1 steps for 2 nodes"),
        ("autolr", {"sizes": ()}, "autolr needs `sizes`"),
        ("autolr", {"sizes": (1, 2)}, "2 sizes for 5 layers"),
        ("flayer", {"steps": ()}, "flayer needs `steps`"),
        ("fed_lamb", {"steps": ()}, "fed_lamb with rates.trust needs `steps`"),
    ],
)
def test_missing_values_of_the_setting_are_reported(name, setting, words):
    with pytest.raises(FedA2LError, match=words):
        start(name, nodes=2, setting=setting, **({"trust": 1.0} if name == "fed_lamb" else {}))


@pytest.mark.parametrize("name", ["autolr", "flayer"])
def test_movement_is_required(name):
    assert RULES[name]().measure.movement
    with pytest.raises(FedA2LError, match=f"{name} needs .*movement"):
        start(name).step(1, divergence_only([0.1] * 5))


def test_no_other_rule_requires_movement():
    requiring = {name for name, rule in RULES.items() if name != "decay_only_matched" and rule().measure.movement}
    assert requiring == {"autolr", "flayer"}


@pytest.mark.parametrize("name", ["feda2l", "shuffled", "random_multiplier", "decay_only", "constant"])
def test_other_rules_do_not_use_movement(name):
    with_it, without = start(name, nodes=2), start(name, nodes=2)
    for round in range(1, 15):
        sigma, zeta, movement = torch.rand(3, 2, 5, generator=torch.Generator().manual_seed(round))
        with_it.step(round, Signals(sigma, zeta, movement))
        without.step(round, Signals(sigma, zeta))
        assert torch.equal(with_it.rates, without.rates)
    states = with_it.state_dict(), without.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def random_signals(round: int, nodes: int) -> Signals:
    generator = torch.Generator().manual_seed(round)
    return Signals(*(0.5 + torch.rand(3, nodes, 9, dtype=torch.float64, generator=generator)))


@pytest.mark.parametrize("name", RELATED)
def test_nodes_are_independent(name):
    together = start(name, layers=9, nodes=6)
    alone = [start(name, layers=9) for _ in range(6)]
    rates_used: set[float] = set()
    for round in range(1, 20):
        signals = random_signals(round, 6)
        together.step(round, signals)
        for node, rates in enumerate(alone):
            rates.step(round, Signals(*(signal[[node]] for signal in signals)))
            assert torch.equal(rates.rates[0], together.rates[node])
            assert torch.equal(rates.multiplier[0], together.multiplier[node])
        rates_used.update(together.rates.flatten().tolist())
    assert name == "flare" or len(rates_used) > 100  # the rates did adapt


@pytest.mark.parametrize("name", RELATED)
@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_resumed_rule_gives_the_same_bits(name, stop):
    uninterrupted, stopped, restored = (start(name, layers=9, nodes=3) for _ in range(3))
    for round in range(1, 15):
        uninterrupted.step(round, random_signals(round, 3))
        if round <= stop:
            stopped.step(round, random_signals(round, 3))
    restored.load_state_dict(stopped.state_dict())
    for round in range(stop + 1, 15):
        restored.step(round, random_signals(round, 3))
    assert torch.equal(restored.rates, uninterrupted.rates)
    assert torch.equal(restored.multiplier, uninterrupted.multiplier)


@pytest.mark.parametrize("name", RELATED)
def test_rates_stay_positive_and_finite_at_the_extremes(name):
    rates, generator = start(name, layers=9, nodes=3), torch.Generator().manual_seed(1)
    for round in range(1, 60):
        spread = 10 ** (20 * torch.rand(3, 3, 9, dtype=torch.float64, generator=generator) - 15)
        spread[:, round % 3, round % 9] = 0
        rates.step(round, Signals(*spread))
        assert rates.rates.isfinite().all()
        assert (rates.rates > 0).all()
        torch.testing.assert_close(rates.multiplier, rates.rates / rates.base, rtol=1e-14, atol=0)
