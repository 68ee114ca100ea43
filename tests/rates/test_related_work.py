"""The rules of the related-work table: FLARE, AutoLR, Fed-LAMB and FLAYER, by hand from their equations."""

import math

import pytest
import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates import RULES, Rates, Setting

BASE = 0.1
RELATED = ["flare", "autolr", "fed_lamb", "flayer"]


def start(name: str, *, layers: int = 5, nodes: int = 1, told: dict | None = None, base=BASE, **knobs) -> Rates:
    told = {"steps": (4,) * nodes, "neighbour_steps": ((4, 4),) * nodes, "sizes": (1,) * layers} | (told or {})
    names = tuple(f"layer{i}" for i in range(layers))
    return RULES[name](**knobs).start(Setting(base=base, layers=names, nodes=tuple(range(nodes)), **told))


def f64(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def moved(*rows: list[float]) -> Signals:
    """Signals whose sigma and zeta say nothing."""
    movement = f64(*rows)
    return Signals(torch.full_like(movement, torch.nan), torch.full_like(movement, torch.nan), movement)


def non_finite(*rows: list[float]) -> Signals:
    return Signals(f64(*rows), torch.full_like(f64(*rows), torch.nan))


def expect(rates: Rates, *multipliers: list[float]) -> None:
    torch.testing.assert_close(rates.multiplier, f64(*multipliers), rtol=1e-12, atol=0)
    torch.testing.assert_close(rates.rates, rates.base * f64(*multipliers), rtol=1e-12, atol=0)


# FLARE


def test_flare_shares_rate_times_steps_among_neighbours():
    # a path 0 - 1 - 2 with 2, 4 and 9 steps: means 3, 5 and 6.5
    told = {"steps": (2, 4, 9), "neighbour_steps": ((2, 4), (4, 2, 9), (9, 4))}
    rates = start("flare", nodes=3, layers=2, told=told)
    for round in range(1, 4):
        expect(rates, [1.5] * 2, [1.25] * 2, [6.5 / 9] * 2)
        rates.step(round, moved([1.0, 2.0]))


def test_flare_on_a_full_graph_makes_rate_times_steps_equal():
    steps = (3, 5, 7, 9)
    rates = start("flare", nodes=4, layers=1, told={"steps": steps, "neighbour_steps": (steps,) * 4})
    assert (rates.rates[:, 0] * torch.tensor(steps)).tolist() == pytest.approx([BASE * 6] * 4)


def test_flare_with_equal_steps_is_constant():
    rates, constant = start("flare", nodes=3), start("constant", nodes=3)
    assert torch.equal(rates.rates, constant.rates)
    assert torch.equal(rates.multiplier, constant.multiplier)


def test_flare_keeps_base_rates_of_layers():
    rates = start("flare", layers=2, base=(0.1, 0.2), told={"steps": (2,), "neighbour_steps": ((2, 6),)})
    assert rates.rates.tolist() == [[0.2, 0.4]]


# AutoLR: layer 0 is the stem, the last one the head, the blocks are between


def test_autolr_first_target_is_linear_in_depth():
    rates = start("autolr", layers=6, told={"sizes": (7, 1, 2, 5, 10, 3)})
    # v of the blocks is 1, 4, 20 and 2; the target goes from 3 * 1 to .4 * 20
    rates.step(1, moved([9.0, 1.0, 8.0, 100.0, 20.0, 9.0]))
    gap = 5 / 3
    expect(rates, [1.5, 3.0, (3 + gap) / 4, (3 + 2 * gap) / 20, 8 / 2, 1.0])


def test_autolr_later_moves_only_what_is_out_of_order():
    rates = start("autolr", layers=7)
    # blocks 2, 9, 5, 7, 6: the middle is 5, the gap 7 / 4; 9 -> 5 - 1.75 and 6 -> 7 + 1.75
    rates.step(2, moved([1.0, 2.0, 9.0, 5.0, 7.0, 6.0, 1.0]))
    expect(rates, [0.5, 1.0, 3.25 / 9, 1.0, 1.0, 8.75 / 6, 1.0])
    # and on top of that: blocks 2, 3, 5, 8, 4: gap 6 / 4, 4 -> 8 + 1.5
    rates.step(3, moved([1.0, 2.0, 3.0, 5.0, 8.0, 4.0, 1.0]))
    expect(rates, [0.5, 1.0, 3.25 / 9, 1.0, 1.0, 8.75 / 6 * 9.5 / 4, 1.0])


def test_autolr_goes_outward_from_what_it_has_moved():
    rates = start("autolr", layers=5, clip=(0.01, 10.0))
    # blocks 8, 7, 6: the middle is 7, the gap 1: 6 .. 7 .. 8
    rates.step(2, moved([1.0, 8.0, 7.0, 6.0, 1.0]))
    expect(rates, [0.375, 0.75, 1.0, 8 / 6, 1.0])
    rates = start("autolr", layers=7)
    # blocks 7, 6, 5, 4, 3: gap 1; 5 stays, then 4 and 3 below it, 6 and 7 above
    rates.step(2, moved([1.0, 7.0, 6.0, 5.0, 4.0, 3.0, 1.0]))
    expect(rates, [1.5 / 7, 3 / 7, 4 / 6, 1.0, 6 / 4, 7 / 3, 1.0])


def test_autolr_the_middle_of_an_even_number_is_the_later():
    rates = start("autolr", layers=4)
    rates.step(2, moved([1.0, 6.0, 4.0, 1.0]))  # the gap is 2 and 4 stays: 6 -> 2
    expect(rates, [1 / 6, 1 / 3, 1.0, 1.0])


@pytest.mark.parametrize("round", [1, 2, 9])
@pytest.mark.parametrize("blocks", [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
def test_autolr_in_order_leaves_the_rates(round, blocks):
    rates = start("autolr")
    rates.step(round, moved([9.0, *blocks, 0.5]))
    expect(rates, [1.0] * 5)


def test_autolr_leaves_what_is_sorted_well_enough():
    # two neighbours of 9 blocks swapped: 1 - 2 * 2 / 81 = .951
    blocks = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0, 8.0]
    content, strict = start("autolr", layers=11), start("autolr", layers=11, order=1.0)
    for rates in (content, strict):
        rates.step(2, moved([1.0, *blocks, 1.0]))
    expect(content, [1.0] * 11)
    expect(strict, [0.5, *[1.0] * 8, 10 / 8, 1.0])
    # 8 blocks: 1 - 4 / 64 = .9375, so the default demands them all
    eight = start("autolr", layers=10)
    eight.step(2, moved([1.0, *blocks[1:], 1.0]))
    expect(eight, [0.5, *[1.0] * 7, 10 / 8, 1.0])


def test_autolr_sorts_what_responds_in_proportion_to_its_rate():
    """Movement = response * rate: the rule's own model of training; the order is reached and kept."""
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
        rates.step(round, moved([3.0, 2.0, 1.0][:layers]))
        expect(rates, [1.0] * layers)


def test_autolr_is_bounded_where_a_layer_stands_still_or_a_target_is_negative():
    rates = start("autolr", layers=6, clip=(0.25, 4.0))
    for round in range(1, 40):
        # the last block never answers: it is first in v and last in depth
        rates.step(round, moved([1.0, 8.0, 3.0, 1.0, 0.0, 1.0]))
        assert rates.multiplier[0, 4] == 1
        assert ((rates.multiplier[0, 1:-1] >= 0.25) & (rates.multiplier[0, 1:-1] <= 4)).all()
    # blocks 9, 8, 1, 0: gap 3 around 1: the targets of the first two are below 0
    rates = start("autolr", layers=6, clip=(0.25, 4.0))
    rates.step(2, moved([1.0, 9.0, 8.0, 1.0, 0.0, 1.0]))
    expect(rates, [0.125, 0.25, 0.25, 1.0, 1.0, 1.0])


def test_autolr_stem_follows_the_rate_of_the_first_block():
    rates = start("autolr", layers=4, base=(0.4, 0.1, 0.2, 0.3))
    rates.step(2, moved([1.0, 6.0, 4.0, 1.0]))
    assert rates.rates[0].tolist() == pytest.approx([0.1 / 6, 0.1 / 3, 0.2, 0.3])
    assert rates.multiplier[0].tolist() == pytest.approx([1 / 24, 1 / 3, 1, 1])


# Fed-LAMB


def test_fed_lamb_by_hand():
    rates = start("fed_lamb", layers=3, nodes=2, trust=0.5, told={"steps": (4, 8)})
    rates.step(1, non_finite([0.1, 0.2, 0.8], [0.1, 0.2, 0.8]))
    # .5 * .1 * 4 / sigma, and twice that with twice the steps
    expect(rates, [2.0, 1.0, 0.25], [4.0, 2.0, 0.5])
    rates.step(2, non_finite([0.1, 0.2, 0.8], [0.4, 0.4, 0.4]))
    expect(rates, [4.0, 1.0, 0.1], [4.0, 2.0, 0.5])  # .0625 is clipped


def test_fed_lamb_by_default_has_a_mean_of_one():
    rates = start("fed_lamb", layers=4, told={"steps": ()})
    rates.step(1, non_finite([0.1, 0.2, 0.4, 0.4]))  # ratios as 4, 2, 1, 1: their mean is 2
    expect(rates, [2.0, 1.0, 0.5, 0.5])
    rates.step(2, non_finite([0.3, 0.3, 0.3, 0.3]))  # now they are as the rates
    expect(rates, [2.0, 1.0, 0.5, 0.5])


def test_fed_lamb_does_not_depend_on_the_rate_it_was_measured_with():
    """sigma is in proportion to the rate, so the ratio of norms is not: no feedback."""
    rates, update = start("fed_lamb", layers=3), f64([3.0, 1.0, 2.0])
    seen = []
    for round in range(1, 4):
        rates.step(round, Signals(rates.rates * update, update))
        seen.append(rates.rates)
    assert seen[0][0].tolist() == pytest.approx([BASE * r * 18 / 11 for r in (1 / 3, 1, 1 / 2)])
    torch.testing.assert_close(seen[2], seen[0], rtol=1e-14, atol=0)


def test_fed_lamb_equal_layers_have_the_base_rate():
    rates = start("fed_lamb", layers=4)
    rates.step(1, non_finite([0.25] * 4))
    expect(rates, [1.0] * 4)


@pytest.mark.parametrize("trust", [None, 0.5])
def test_fed_lamb_a_layer_at_rest_has_the_base_rate_and_no_say(trust):
    rates = start("fed_lamb", layers=3, nodes=2, trust=trust)
    rates.step(1, non_finite([0.0, 0.1, 0.3], [0.0, 0.0, 0.0]))
    expect(rates, [1.0, 1.5, 0.5] if trust is None else [1.0, 2.0, 2 / 3], [1.0, 1.0, 1.0])


def test_fed_lamb_clips():
    rates = start("fed_lamb", layers=3, clip=(0.5, 1.25))
    rates.step(1, non_finite([1e-9, 1.0, 1e9]))
    expect(rates, [1.25, 0.5, 0.5])


# FLAYER


def test_flayer_by_hand():
    rates = start("flayer", layers=4, told={"steps": (5,)})
    expect(rates, [1.0] * 4)
    # g = moved / (.1 * 5) = 1, 2, .5, 3
    rates.step(1, moved([0.5, 1.0, 0.25, 1.5]))
    expect(rates, [1.0, 1 + math.log(1.5) / 3, 1 + 2 * math.log(3) / 3, 0.2])
    # the same gradients at the new rates move each layer in proportion
    gradient = f64([1.0, 2.0, 0.5, 3.0])
    before = rates.rates.clone()
    rates.step(2, Signals(gradient, gradient, gradient * before * 5))
    torch.testing.assert_close(rates.rates, before, rtol=1e-12, atol=0)


def test_flayer_counts_the_steps_of_each_node():
    rates = start("flayer", layers=3, nodes=2, told={"steps": (2, 10)})
    rates.step(1, moved([1.0, 0.2, 1.0], [1.0, 1.0, 1.0]))  # g = 1 in the middle of both
    expect(rates, *[[1.0, 1 + math.log(2) / 2, 0.2]] * 2)


def test_flayer_with_a_huge_gradient_leaves_the_body_alone():
    rates = start("flayer", layers=3)
    rates.step(1, moved([1e300] * 3))
    expect(rates, [1.0, 1.0, 0.2])


def test_flayer_is_bounded_where_a_layer_stands_still():
    rates = start("flayer", layers=3, eps=1e-3)
    rates.step(1, moved([0.0] * 3))
    expect(rates, [1.0, 1 + math.log(1001) / 2, 0.2])


def test_flayer_small_models():
    one, two = start("flayer", layers=1), start("flayer", layers=2)
    one.step(1, moved([0.3]))
    two.step(1, moved([0.3, 0.3]))
    expect(one, [1.0])
    expect(two, [1.0, 0.2])


# all of them


@pytest.mark.parametrize(
    ("name", "knobs", "words"),
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
def test_bad_parameters(name, knobs, words):
    with pytest.raises(FedA2LError, match=words):
        RULES[name](**knobs)


@pytest.mark.parametrize(
    ("name", "told", "words"),
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
def test_what_was_not_told_is_asked_for(name, told, words):
    with pytest.raises(FedA2LError, match=words):
        start(name, nodes=2, told=told, **({"trust": 1.0} if name == "fed_lamb" else {}))


@pytest.mark.parametrize("name", ["autolr", "flayer"])
def test_movement_is_asked_for(name):
    assert RULES[name]().measure.movement
    with pytest.raises(FedA2LError, match=f"{name} needs .*movement"):
        start(name).step(1, non_finite([0.1] * 5))


def test_nobody_else_asks_for_movement():
    asking = {name for name, rule in RULES.items() if name != "decay_only_matched" and rule().measure.movement}
    assert asking == {"autolr", "flayer"}


@pytest.mark.parametrize("name", ["feda2l", "shuffled", "random_multiplier", "decay_only", "constant"])
def test_the_others_do_not_read_movement(name):
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
def test_rows_do_not_see_each_other(name):
    together = start(name, layers=9, nodes=6)
    alone = [start(name, layers=9) for _ in range(6)]
    seen: set[float] = set()
    for round in range(1, 20):
        signals = random_signals(round, 6)
        together.step(round, signals)
        for node, rates in enumerate(alone):
            rates.step(round, Signals(*(signal[[node]] for signal in signals)))
            assert torch.equal(rates.rates[0], together.rates[node])
            assert torch.equal(rates.multiplier[0], together.multiplier[node])
        seen.update(together.rates.flatten().tolist())
    assert name == "flare" or len(seen) > 100  # it did adapt


@pytest.mark.parametrize("name", RELATED)
@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_state_goes_on_to_the_same_bits(name, stop):
    through, stopped, restored = (start(name, layers=9, nodes=3) for _ in range(3))
    for round in range(1, 15):
        through.step(round, random_signals(round, 3))
        if round <= stop:
            stopped.step(round, random_signals(round, 3))
    restored.load_state_dict(stopped.state_dict())
    for round in range(stop + 1, 15):
        restored.step(round, random_signals(round, 3))
    assert torch.equal(restored.rates, through.rates)
    assert torch.equal(restored.multiplier, through.multiplier)


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
