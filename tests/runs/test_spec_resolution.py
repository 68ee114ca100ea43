"""Specs: given values, default values, and that a resolved spec is a fixed point."""

import tomllib

import pytest

from feda2l.errors import FedA2LError
from feda2l.rates import RULES
from feda2l.rates.feda2l import FedA2LRule
from feda2l.spec.spec import Spec


def rates(name: str) -> dict:
    return {"name": name} | ({"paired": "runs/pair"} if name == "decay_only_matched" else {})


@pytest.mark.parametrize("preset", [None, "paper", "reference"])
@pytest.mark.parametrize("layers", [4, 41])
@pytest.mark.parametrize("name", RULES)
def test_a_resolved_spec_round_trips_through_its_file(name, layers, preset):
    given = {"rounds": 70, "seed": 3, "rates": rates(name)}
    if preset and issubclass(RULES[name], FedA2LRule) and name != "hidden_schedule":
        given["rates"]["preset"] = preset
    resolved = Spec.parse(given).resolved(layers=layers, model="mine:Net")
    text = resolved.to_toml()
    again = Spec.parse(tomllib.loads(text))
    assert again.to_toml() == text
    assert again.rates.rule == resolved.rates.rule
    assert again.training == resolved.training
    assert again.resolved(layers=layers, model="mine:Net").to_toml() == text
    assert (resolved.rounds, resolved.seed, resolved.model.name) == (70, 3, "mine:Net")
    assert resolved.rates.horizon == 70


def test_an_empty_spec_has_the_documented_defaults():
    spec = Spec.parse({})
    assert (spec.seed, spec.rounds, spec.data.name, spec.data.nodes, spec.data.alpha) == (1, 100, "digits", 10, 0.1)
    assert (spec.data.partition, spec.data.partition_seed, spec.data.train_fraction) == ("dirichlet", 1, 0.75)
    assert (spec.topology.name, spec.topology.weights, spec.topology.k) == ("full", "samples", 7)
    assert (spec.algorithm.name, spec.algorithm.buffers, spec.model.init) == ("fedavg", "average", "common")
    assert (spec.rates.name, spec.rates.base, spec.rates.rule) == ("feda2l", 0.01, FedA2LRule())
    training = spec.training
    assert (training.epochs, training.batch_size, training.optimizer, training.momentum) == (1, 10, "sgd", 0.9)
    assert (training.weight_decay, training.drop_last, training.momentum_state) == (0.0, True, "keep")
    assert (spec.evaluation.every, spec.evaluation.on, spec.evaluation.smoothing) == (1, "global", 10)
    assert spec.evaluation.target is None


def resolve(layers: int, **given) -> Spec:
    return Spec.parse(given).resolved(layers=layers, model="mine:Net")


@pytest.mark.parametrize("name", ["feda2l", "decay_only", "random_multiplier", "shuffled", "model_level"])
@pytest.mark.parametrize(
    ("layers", "model", "data", "expected"),
    [
        (4, "cnn", "cifar100", (10, 5, 0.3)),
        (10, "mine:Net", "cifar100", (10, 5, 0.3)),
        (11, "mine:Net", "cifar100", (40, 10, 0.1)),
        (41, "resnet18", "cifar10", (40, 10, 0.1)),
        (73, "resnet34", "tinyimagenet", (40, 10, 0.05)),
        (19, "timer", "exchange_rate", (20, 10, 0.3)),
    ],
)
def test_defaults_by_depth_model_and_data(name, layers, model, data, expected):
    """Defaults of section A.6. Controls have the defaults of the rule that they control."""
    found = RULES[name]().resolved(layers, model=model, data=data)
    assert (found.warmup_rounds, found.window, found.decay) == expected
    assert (found.threshold, found.balance) == (1e-3, 0.6)


def test_a_run_resolves_them_from_its_own_model_and_data():
    assert resolve(11).rates.rule.warmup_rounds == 40
    assert resolve(10).rates.rule.warmup_rounds == 10
    assert Spec.parse({}).resolved(layers=3, model="mlp").rates.rule == FedA2LRule().resolved(3)


def test_given_values_are_never_replaced():
    given = {"warmup_rounds": 3, "window": 7, "decay": 0.0, "lr_clip": [0.001, 0.5], "measured": "weight"}
    rule = resolve(41, rates=given).rates.rule
    assert (rule.warmup_rounds, rule.window, rule.decay, rule.measured) == (3, 7, 0.0, "weight")
    assert rule.lr_clip == (0.001, 0.5)
    assert rule.transform == "none"


def test_the_reference_preset_matches_the_specification():
    deep = resolve(41, rates={"preset": "reference"}).rates.rule
    assert (deep.transform, deep.newest, deep.decay_index) == ("softsign", "previous", "adaptations")
    assert (deep.warmup_factor, deep.bn_warmup_factor) == (0.1, 0.5)  # xi, and half of it for BatchNorm
    assert (deep.lr_clip, deep.measured, deep.eps_norm, deep.eps_std) == ((1e-4, 0.02), "weight", 1e-8, 1e-6)
    shallow = resolve(4, rates={"preset": "reference"}).rates.rule
    assert (shallow.warmup_factor, shallow.bn_warmup_factor) == (1.0, 1.0)
    paper = resolve(41).rates.rule
    assert (paper.transform, paper.newest, paper.decay_index) == ("none", "current", "round")
    assert (paper.warmup_factor, paper.bn_warmup_factor, paper.measured) == (1.0, 1.0, "all")
    assert paper.lr_clip == (0.0, float("inf"))
    given = resolve(41, rates={"preset": "reference", "decay": 0.05}).rates.rule
    assert given.warmup_factor == 0.05  # xi is also the warm-up factor of deep models


@pytest.mark.parametrize(
    ("layers", "preset", "training", "momentum"),
    [
        (41, "reference", {}, 0.0),  # the released code passes no momentum for more than 10 layers
        (11, "reference", {}, 0.0),
        (10, "reference", {}, 0.9),
        (4, "reference", {}, 0.9),
        (41, "paper", {}, 0.9),
        (41, "reference", {"momentum": 0.9}, 0.9),  # a given value is kept
        (41, "reference", {"momentum": 0.5}, 0.5),
        (41, "reference", {"epochs": 2}, 0.0),
    ],
)
def test_the_reference_preset_has_no_momentum_on_deep_models_unless_it_is_given(layers, preset, training, momentum):
    spec = resolve(layers, rates={"preset": preset}, training=training)
    assert spec.training.momentum == momentum
    again = Spec.parse(tomllib.loads(spec.to_toml())).resolved(layers=layers, model="mine:Net")
    assert again.training.momentum == momentum


def test_momentum_of_other_rules_does_not_change():
    assert resolve(41, rates={"name": "constant"}).training.momentum == 0.9
    assert resolve(41, rates={"name": "hidden_schedule"}).training.momentum == 0.0  # preset reference


def test_a_given_horizon_does_not_depend_on_rounds():
    spec = Spec.parse({"rounds": 70, "rates": {"name": "cosine", "horizon": 500}})
    assert spec.resolved(layers=4, model="cnn").rates.horizon == 500


@pytest.mark.parametrize(
    ("values", "sets", "words"),
    [
        ({"rates": {"name": "feda2"}}, [], "did you mean 'feda2l'"),
        ({"rates": {"warmup": 3}}, [], "rates.warmup: unknown key; did you mean 'warmup_rounds'"),
        ({"rates": {"name": "constant", "window": 3}}, [], "rates.window: unknown key"),
        ({"rates": {"window": 1}}, [], "rates.window = 1: must be 2 or more"),
        ({"trainin": {}}, [], "trainin: unknown key or section; did you mean 'training'"),
        ({"training": {"momentum": 1.0}}, [], "training.momentum = 1.0"),
        ({"data": {"alpha": float("nan")}}, [], "data.alpha = nan"),
        ({}, ["rates.base=0"], "--set rates.base=0: rates.base = 0"),
        ({}, ["rounds"], "write it as key=value"),
        ({"rounds": 0, "seed": -1}, [], "seed = -1"),  # all errors at once
        ({"rounds": 0, "seed": -1}, [], "rounds = 0"),
    ],
)
def test_errors_name_the_key_and_a_suggestion(values, sets, words):
    with pytest.raises(FedA2LError) as caught:
        Spec.parse(values, "mine.toml", sets)
    assert words in str(caught.value)


def test_set_accepts_toml_values_and_bare_words():
    spec = Spec.parse({"rounds": 5}, sets=["rounds=7", "topology.name=ring", "rates.decay=0.05", "name=a-b"])
    assert (spec.rounds, spec.topology.name, spec.rates.rule.decay, spec.name) == (7, "ring", 0.05, "a-b")
