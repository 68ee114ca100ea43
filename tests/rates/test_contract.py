"""The contract of every rate rule. A new rule needs a row in `RULES` and, if it needs settings, one in `SETTINGS`."""

import io
import json

import pytest
import torch

from feda2l.equations import Signals
from feda2l.rates import RULES, Rates, Rule, Setting

NODES, LAYERS, ROUNDS, STOP = 5, 11, 30, 17
SETTINGS = {
    "one_cycle": [{}, {"cycle_momentum": False}],
    "feda2l": [{"warmup_rounds": 4}, {"preset": "reference", "warmup_rounds": 4, "window": 10}],
    "decay_only": [{"warmup_rounds": 4}, {"preset": "reference", "warmup_rounds": 4}],
    "hidden_schedule": [{"warmup_rounds": 4}],
    "random_multiplier": [{"warmup_rounds": 4}, {"preset": "reference", "warmup_rounds": 4}],
    "shuffled": [{"warmup_rounds": 4}, {"preset": "reference", "warmup_rounds": 4}],
    "model_level": [{"warmup_rounds": 4}],
    "fed_lamb": [{}, {"trust": 0.02}],
}
CASES = [(name, settings) for name in RULES for settings in SETTINGS.get(name, [{}])]


@pytest.fixture(params=CASES, ids=lambda case: " ".join([case[0], *map(str, case[1].values())]))
def rule(request, tmp_path) -> Rule:
    name, settings = request.param
    if name == "decay_only_matched":
        line = json.dumps({"round": 1, "layers": {"multiplier": [[1.2, 0.8], [1.1, 1.3]]}})
        (tmp_path / "rounds.jsonl").write_text(f"{line}\n" * ROUNDS)
        settings = {"warmup_rounds": 4, "paired": str(tmp_path)}
    return RULES[name](**settings)


def start(rule: Rule, nodes: tuple[int, ...] = tuple(range(NODES)), seed: int = 3) -> Rates:
    layers = tuple(f"{'bn' if i % 3 == 0 else 'conv'}{i}" for i in range(LAYERS))
    return rule.start(
        Setting(
            base=0.01,
            layers=layers,
            nodes=nodes,
            horizon=ROUNDS + 1,
            momentum=0.9,
            seed=seed,
            steps=tuple(10 + 3 * node for node in nodes),
            neighbour_steps=tuple((10 + 3 * node, 10, 17) for node in nodes),
            sizes=tuple(100 + 7 * i for i in range(LAYERS)),
        )
    )


def signals(round: int, rule: Rule, nodes: tuple[int, ...] = tuple(range(NODES))) -> Signals:
    width = 1 if rule.measure.pooled else LAYERS
    values = torch.rand(3, NODES, width, generator=torch.Generator().manual_seed(round))
    return Signals(*values[:, list(nodes)])


def advance(rates: Rates, rule: Rule, first: int = 1, last: int = ROUNDS) -> list[torch.Tensor]:
    history = []
    for round in range(first, last + 1):
        rates.step(round, signals(round, rule, rates.setting.nodes))
        history.append(torch.stack([rates.rates, rates.multiplier]))
    return history


def test_shape_type_and_range(rule):
    rates = start(rule)
    assert rates.rates.shape == rates.multiplier.shape == (NODES, LAYERS)
    assert (rates.rates > 0).all()
    for rates_and_multipliers in advance(rates, rule):
        assert rates_and_multipliers.shape == (2, NODES, LAYERS)
        assert rates_and_multipliers.dtype == torch.float64
        assert rates_and_multipliers.isfinite().all()
        assert (rates_and_multipliers > 0).all()
    assert rates.momentum is None or 0 < rates.momentum < 1


def test_deterministic(rule):
    torch.manual_seed(1)
    once = advance(start(rule), rule)
    torch.manual_seed(2)  # the global generator is not used
    again = advance(start(rule), rule)
    assert torch.equal(torch.stack(once), torch.stack(again))


def test_a_resumed_rule_gives_the_same_rates(rule):
    uninterrupted, stopped, restored = start(rule), start(rule), start(rule)
    advance(uninterrupted, rule)
    advance(stopped, rule, last=STOP)
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(restored.rates, stopped.rates)
    assert restored.momentum == stopped.momentum
    advance(restored, rule, first=STOP + 1)
    assert torch.equal(restored.rates, uninterrupted.rates)
    assert torch.equal(restored.multiplier, uninterrupted.multiplier)
    assert restored.momentum == uninterrupted.momentum


def test_a_saved_state_does_not_change_afterwards(rule):
    rates = start(rule)
    advance(rates, rule, last=STOP)
    state = rates.state_dict()
    copy = {name: tensor.clone() for name, tensor in state.items()}
    advance(rates, rule, first=STOP + 1)
    assert all(torch.equal(state[name], copy[name]) for name in copy)
    other = start(rule)
    other.load_state_dict(state)
    advance(other, rule, first=STOP + 1)
    assert all(torch.equal(state[name], copy[name]) for name in copy)


@pytest.mark.parametrize("nodes", [(3,), (4, 1)])
def test_a_node_does_not_depend_on_other_nodes(rule, nodes):
    """A peer holds one row, a rank several, the simulator all. The results are equal bit by bit."""
    together = torch.stack(advance(start(rule), rule))
    apart = torch.stack(advance(start(rule, nodes), rule))
    assert torch.equal(apart, together[:, :, list(nodes)])


def test_every_rule_has_a_summary_and_a_docstring():
    for name, rule in RULES.items():
        assert rule.summary, name
        assert rule.__doc__, name
