"""Each control differs from FedA2L only in what its definition names."""

import json
from pathlib import Path

import pytest
import torch

from feda2l.equations import Signals, decay_factor
from feda2l.errors import FedA2LError
from feda2l.rates import RULES, Rates, Setting

NODES, LAYERS = 3, 6


def setting(nodes: tuple[int, ...] = tuple(range(NODES)), layers: int = LAYERS, seed: int = 1) -> Setting:
    return Setting(base=0.01, layers=tuple(f"layer{i}" for i in range(layers)), nodes=nodes, seed=seed, horizon=50)


def noise(round: int, layers: int = LAYERS) -> Signals:
    generator = torch.Generator().manual_seed(round)
    return Signals(*torch.rand(2, NODES, layers, dtype=torch.float64, generator=generator))


def run(rates: Rates, rounds: int = 20) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The rates and the multipliers in force in rounds 1, 2, ..."""
    values, multipliers = [], []
    for round in range(1, rounds + 1):
        values.append(rates.rates.clone())
        multipliers.append(rates.multiplier.clone())
        rates.step(round, noise(round))
    return values, multipliers


def write_record(folder: Path, multipliers: list[torch.Tensor]) -> str:
    lines = [
        json.dumps({"round": round, "layers": {"multiplier": m.tolist()}})
        for round, m in enumerate(multipliers, start=1)
    ]
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.mark.parametrize("preset", ["paper", "reference"])
@pytest.mark.parametrize("layers", [6, 12])
def test_decay_only_is_feda2l_with_multiplier_one(preset, layers):
    settings = {"preset": preset, "warmup_rounds": 3, "decay": 0.5}
    rates = RULES["decay_only"](**settings).start(setting(layers=layers))
    warm = 0.01 * (0.5 if preset == "reference" and layers > 10 else 1)
    for round in range(1, 31):
        first = 5 if preset == "paper" else 6  # the first round with an adapted rate
        index = (round - 1) if preset == "paper" else round - first
        expected = 0.01 * (1 + 0.5 * index) ** -0.5 if round >= first else warm
        assert rates.rates.flatten().tolist() == pytest.approx([expected] * NODES * layers, rel=1e-15)
        rates.step(round, noise(round, layers))
    assert torch.equal(rates.multiplier, torch.ones(NODES, layers, dtype=torch.float64))


def test_hidden_schedule_equals_the_schedule_of_the_released_code():
    settings = {"warmup_rounds": 3, "decay": 0.5}
    hidden, _ = run(RULES["hidden_schedule"](**settings).start(setting()))
    by_hand, _ = run(RULES["decay_only"](preset="reference", **settings).start(setting()))
    assert torch.equal(torch.stack(hidden), torch.stack(by_hand))
    with pytest.raises(FedA2LError, match="decay_only"):
        RULES["hidden_schedule"](preset="paper")


def test_decay_only_matched_has_the_mean_multiplier_of_the_paired_run(tmp_path):
    rule = RULES["feda2l"](warmup_rounds=3)
    _, multipliers = run(rule.start(setting()))
    paired = write_record(tmp_path, multipliers)
    values, matched = run(RULES["decay_only_matched"](warmup_rounds=3, paired=paired).start(setting()))
    for round, (m, multiplier, rate) in enumerate(zip(multipliers, matched, values, strict=True), start=1):
        assert multiplier.flatten().tolist() == pytest.approx([float(m.mean())] * m.numel(), rel=1e-15)
        decay = decay_factor(round - 1, 0.3) if round >= 5 else 1.0
        assert rate[0, 0].item() == pytest.approx(0.01 * float(m.mean()) * decay)


def test_decay_only_matched_needs_a_long_enough_paired_run(tmp_path):
    paired = write_record(tmp_path, [torch.ones(NODES, LAYERS)] * 20)
    rates = RULES["decay_only_matched"](warmup_rounds=3, paired=paired).start(setting())
    run(rates, 20)  # as many rounds as the paired run: no error at the end of the last one
    with pytest.raises(FedA2LError, match="20 rounds and no round 22: "):
        rates.step(21, noise(21))


@pytest.mark.parametrize(
    "content", [None, "not json\n", '{"round": 1}\n', "[1]\n", '{"layers": {"multiplier": null}}\n']
)
def test_decay_only_matched_reports_an_invalid_paired_run(tmp_path, content):
    if content is not None:
        (tmp_path / "rounds.jsonl").write_text(content)
    with pytest.raises(FedA2LError, match=r"rates\.paired"):
        RULES["decay_only_matched"](paired=str(tmp_path)).start(setting())
    with pytest.raises(FedA2LError, match=r"rates\.paired is missing"):
        RULES["decay_only_matched"]().start(setting())


@pytest.mark.parametrize("window", [5, 10, 20])
def test_random_multiplier_has_the_distribution_of_white_noise(window):
    rates = RULES["random_multiplier"](warmup_rounds=20, window=window).start(setting(nodes=(0,), layers=40_000))
    for round in range(1, 22):
        rates.step(round, Signals(torch.zeros(1, 1), torch.zeros(1, 1)))
    m = rates.multiplier.flatten()
    assert m.mean().item() == pytest.approx(1.14, abs=0.02)
    assert m.median().item() == pytest.approx(1.20, abs=0.03)
    assert m.quantile(0.05).item() == pytest.approx(0.24, abs=0.03)
    assert m.quantile(0.95).item() == pytest.approx(1.87, abs=0.05)  # 1.83, 1.87, 1.89 in an independent simulation


def test_random_multiplier_ignores_signals_and_depends_on_the_seed():
    def trace(signals: float, seed: int) -> torch.Tensor:
        rates = RULES["random_multiplier"](warmup_rounds=2).start(setting(seed=seed))
        for round in range(1, 9):
            rates.step(round, Signals(*torch.full((2, NODES, LAYERS), signals * round)))
        return rates.rates

    assert torch.equal(trace(0.1, seed=1), trace(7.0, seed=1))
    assert not torch.equal(trace(0.1, seed=1), trace(0.1, seed=2))
    assert len(trace(0.1, seed=1).unique()) == NODES * LAYERS


def test_shuffled_permutes_the_values_between_layers():
    _, original = run(RULES["feda2l"](warmup_rounds=3).start(setting()))
    _, shuffled = run(RULES["shuffled"](warmup_rounds=3).start(setting()))
    assert any(not torch.equal(a, b) for a, b in zip(original, shuffled, strict=True))
    for a, b in zip(original, shuffled, strict=True):
        assert torch.equal(a.sort(dim=1).values, b.sort(dim=1).values)
    adapted = zip(original[4:], shuffled[4:], strict=True)
    origins = [tuple(a[n].tolist().index(m) for m in b[n].tolist()) for a, b in adapted for n in range(NODES)]
    assert len(set(origins)) > 0.9 * len(origins)  # another permutation for every node and round


def test_model_level_has_one_value_per_node():
    rule = RULES["model_level"](warmup_rounds=3)
    assert rule.measure.pooled
    assert not RULES["feda2l"]().measure.pooled
    rates, single = rule.start(setting()), RULES["feda2l"](warmup_rounds=3).start(setting(layers=1))
    for round in range(1, 20):
        pooled = noise(round, layers=1)
        rates.step(round, pooled)
        single.step(round, pooled)
        assert torch.equal(rates.rates, single.rates.expand(NODES, LAYERS))
    assert len(rates.rates.unique()) == NODES


def test_other_consensus_sign_mirrors_the_second_signal():
    rates = RULES["feda2l"](consensus_sign=-1, warmup_rounds=3).start(setting())
    mirrored = RULES["feda2l"](warmup_rounds=3).start(setting())
    for round in range(1, 20):
        sigma, zeta = noise(round)[:2]
        rates.step(round, Signals(sigma, zeta))
        mirrored.step(round, Signals(sigma, 1 - zeta))
    torch.testing.assert_close(rates.rates, mirrored.rates)
