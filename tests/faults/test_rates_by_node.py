"""Learning rates by node: same bits as shared rates without absences, and separate histories with absences."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from feda2l.equations import Signals, learning_rates
from feda2l.errors import FedA2LError
from feda2l.rates import RULES, Setting
from feda2l.rates.by_node import RatesByNode

LAYERS, NODES = ("a", "b.bn", "c", "d", "e"), (0, 1, 2)
SETTING = Setting(
    base=0.1,
    layers=LAYERS,
    nodes=NODES,
    horizon=12,
    momentum=0.9,
    seed=3,
    steps=(3, 5, 8),
    neighbour_steps=((3, 5), (3, 5, 8), (5, 8)),
    sizes=(10, 20, 30, 40, 50),
    factors=(1.0, 0.5, 2.0),
)


def signals(round):
    draws = torch.rand(3, len(NODES), len(LAYERS), dtype=torch.float64, generator=torch.Generator().manual_seed(round))
    return Signals(*draws)


def made(name, folder: Path):
    knobs = {"warmup_rounds": 2, "window": 3} if "window" in {field.name for field in fields(RULES[name])} else {}
    if name == "decay_only_matched":
        record = '{"layers": {"multiplier": [[null, null], [0.5, 1.5]]}}\n'  # from a run whose node 0 was absent
        (folder / "rounds.jsonl").write_text(record * 12)
        knobs["paired"] = str(folder)
    return RULES[name](**knobs)


@pytest.mark.parametrize("name", RULES)
def test_rates_by_node_match_shared_rates_without_absences(name, tmp_path):
    rule = made(name, tmp_path)
    joint, apart = rule.start(SETTING), RatesByNode(rule, SETTING)
    for round in range(1, 9):
        joint.step(round, signals(round))
        apart.step(round, signals(round))
        assert torch.equal(joint.rates, apart.rates)
        assert torch.equal(joint.multiplier, apart.multiplier)
        assert joint.momentum == apart.momentum


@pytest.mark.parametrize("name", RULES)
def test_rates_saved_during_an_absence_resume_identically(name, tmp_path):
    rule = made(name, tmp_path)
    there, apart = [0, 2], RatesByNode(rule, SETTING)
    for round in range(1, 7):
        apart.step(round, signals(round), there if round in (3, 4) else None)
    again = RatesByNode(rule, SETTING)
    again.load_state_dict(apart.state_dict())
    assert list(again.state_dict()) == list(apart.state_dict())
    for rates in (apart, again):
        rates.step(7, signals(7))
    assert torch.equal(apart.rates, again.rates)
    assert torch.equal(apart.multiplier, again.multiplier)


def test_a_missed_round_adds_no_history_entry():
    """Node 1 has no entry for rounds 4 and 5, keeps its rate in them, and continues with the network's round number."""
    rule = RULES["feda2l"](warmup_rounds=2, window=3, decay=0.3)
    rates = RatesByNode(rule, SETTING)
    for round in range(1, 4):
        rates.step(round, signals(round))
    last = rates.rates.clone()
    for round in (4, 5):
        rates.step(round, signals(round), [0, 2])
        rates.skip(round, [1])
        assert torch.equal(rates.rates[1], last[1])
        assert not torch.equal(rates.rates[0], last[0])
    rates.step(6, signals(6))
    for node, seen in ((0, (4, 5, 6)), (1, (2, 3, 6)), (2, (4, 5, 6))):
        sigma = torch.stack([signals(round).divergence[node] for round in seen])
        zeta = torch.stack([signals(round).stability[node] for round in seen])
        by_hand = learning_rates(sigma, zeta, round=6, base_lr=1.0, balance=0.6, decay=0.3, eps=1e-6)
        torch.testing.assert_close(rates.rates[node], 0.1 * SETTING.factors[node] * by_hand, rtol=1e-12, atol=0)


def test_a_schedule_follows_the_round():
    rates = RatesByNode(RULES["exponential"](gamma=0.5), SETTING)
    rates.step(1, signals(1), [0])
    rates.skip(1, [1])
    assert (rates.rates[:, 0] / rates.base[:, 0]).tolist() == [0.5, 0.5, 1.0]


def test_the_state_of_another_network_is_an_error():
    rates = RatesByNode(RULES["feda2l"](), SETTING)
    state = {key: value[..., :2] if key.endswith("rates") else value for key, value in rates.state_dict().items()}
    with pytest.raises(FedA2LError, match="saved rates"):
        rates.load_state_dict(state)
