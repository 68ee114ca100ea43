"""The quantities of the convergence bounds, on a star of three nodes where each can be computed by hand."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import feda2l
from feda2l.data.samples import Labelled
from feda2l.errors import FedA2LError
from feda2l.peer.check import refuse_network
from feda2l.records.theory import THEORY, theorem_terms
from feda2l.report.find_runs import Notes, find_runs
from feda2l.report.report import report
from feda2l.report.theory_figure import theory_figure
from feda2l.runs.assemble import assemble
from feda2l.runs.datasets import Loaded
from feda2l.simulate.loop import RoundLoop
from feda2l.spec.spec import Spec
from tests.run_files import content, stopped

Start = Callable[..., RoundLoop]
MODEL = """
class Line(nn.Module):
    '''w x: with x = 1 the mean squared error of a node is a quadratic in w.'''

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * self.w
"""
TARGETS = torch.tensor([[1.0], [3.0], [-1.0], [-1.0], [4.0], [6.0]])
OWNERS = torch.tensor([0, 0, 1, 1, 2, 2])  # mean targets 2, -1 and 5, so f has its optimum at 2
BASE = 0.125


def same(x: Tensor) -> Tensor:
    return x


class Points:
    """Two samples per node; x is always 1."""

    name, input, classes, class_names = "points", (1,), None, ("a", "b", "c")
    train = test = Labelled(torch.ones(6, 1), TARGETS, same)
    groups, test_groups = OWNERS, None


def spec(model: str, **more: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": {"nodes": 3, "partition": "natural", "train_fraction": 1.0, "min_size": 1},
        "model": {"name": model, "init": "common"},
        "topology": {"name": "star", "weights": "metropolis"},
        "rates": {"name": "constant", "base": BASE},
        "training": {"batch_size": 1, "momentum": 0.0},
        "evaluation": {"theory_every": 1},
    } | more


def records(loop: RoundLoop) -> list[dict[str, Any]]:
    return [dict(done.record) for completed in loop.rounds() for done in completed if done.record]


@pytest.mark.parametrize("engine", ["rows", "batched"])
def test_a_star_of_three_quadratics(start: Start, module: Callable[[str], str], engine: str) -> None:
    model = f"{module(MODEL)}:Line"
    loop = start(spec(model, runtime={"engine": engine}), loaded=Loaded.of(Points()))
    base = loop.runs[0].state.base
    found = []
    for completed in loop.rounds():
        found.append((dict(completed[0].record or {}), base[:, 0].tolist()))
    models = [0.0, 0.0, 0.0]
    for record, after in found:
        w = sum(models) / 3
        gradients = [2 * (w - mean) for mean in (2.0, -1.0, 5.0)]
        assert record["objective"] == pytest.approx(sum((w - y) ** 2 for y in TARGETS.flatten().tolist()) / 6, rel=1e-6)
        assert record["squared_gradient"] == pytest.approx((2 * (w - 2)) ** 2, rel=1e-6)
        # the gradients are 2 (w - mean_i): they differ from their mean by 0, 6 and -6, wherever w is
        assert record["heterogeneity"] == pytest.approx((0 + 36 + 36) / 3, rel=1e-6)
        assert sum((g - sum(gradients) / 3) ** 2 for g in gradients) / 3 == pytest.approx(24)
        # of single samples: +-2, 0 and +-2 about the node's gradient
        assert record["gradient_variance"] == pytest.approx((4 + 0 + 4) / 3, rel=1e-6)
        assert record["start_disagreement"] == pytest.approx(sum((x - w) ** 2 for x in models) / 3, rel=1e-6, abs=1e-9)
        models = after
    # the paper's D^(r + 1) is what round r recorded after mixing
    for (now, _), (following, _) in pairwise(found):
        assert following["start_disagreement"] == pytest.approx(now["disagreement"], rel=1e-6)


def test_a_batch_of_all_samples_has_no_variance(start: Start, module: Callable[[str], str]) -> None:
    training = {"batch_size": 2, "momentum": 0.0}
    settings = spec(f"{module(MODEL)}:Line", training=training, evaluation={"theory_every": 2}, rounds=4)
    found = records(start(settings, loaded=Loaded.of(Points())))
    assert [record["round"] for record in found if "objective" in record] == [1, 3]
    assert [record["gradient_variance"] for record in found if "objective" in record] == [0, 0]


def test_the_terms_of_theorem_1_by_hand() -> None:
    rounds: list[dict[str, object]] = [
        {"round": 1, "objective": 8.0, "squared_gradient": 4.0, "gradient_variance": 3.0, "start_disagreement": 0.0},
        {"round": 2},
        {"round": 3, "objective": 5.0, "squared_gradient": 2.0, "gradient_variance": 1.0, "start_disagreement": 9.0},
    ]
    for record, disagreement in zip(rounds, (6.0, 9.0, 1.0), strict=True):
        record["disagreement"] = disagreement
    first, last = theorem_terms(rounds, base_rate=0.5, nodes=4)
    assert first == (1, 4.0, 8 / 0.5, 0.5 * 3 / 4, 0.0)
    assert last == (3, 3.0, 8 / 1.5, 0.5 * 2 / 4, (0 + 6 + 9) / 3)
    assert theorem_terms([{"round": 1, "disagreement": 0.0}], base_rate=0.5, nodes=4) == []


SMALL: dict[str, Any] = {
    "rounds": 4,
    "data": {"nodes": 3, "alpha": 1.0},
    "topology": {"name": "ring", "weights": "metropolis"},
    "rates": {"warmup_rounds": 1, "window": 2},
    "evaluation": {"theory_every": 2},
    "runtime": {"workers": 0},
}


def test_a_run_with_estimates_learns_the_same_packed_and_resumed(tmp_path: Path) -> None:
    plain = feda2l.run({**SMALL, "evaluation": {}}, out=tmp_path / "plain", progress=False)
    once = feda2l.run(SMALL, out=tmp_path / "once", progress=False)
    assert (once.path / "checkpoint.safetensors").read_bytes() == (plain.path / "checkpoint.safetensors").read_bytes()
    named = [
        {**SMALL, "name": name, "rates": SMALL["rates"] | {"base": base}} for name, base in (("a", 0.01), ("b", 0.1))
    ]
    packed, _ = feda2l.run(named, out=tmp_path / "pack", progress=False)
    assert content(packed) == content(once)
    stopped(SMALL, tmp_path / "cut", after=3)  # its checkpoint is of round 2: round 3 is estimated again
    resumed = feda2l.run(SMALL, out=tmp_path / "cut", resume=True, progress=False)
    assert content(resumed) == content(once)
    theory = once.summary["theory"]
    assert theory["phi"] == pytest.approx(1)  # a ring of three is a full graph
    assert theory["terms"]["rounds"] == 3
    assert theory["delta_m"] == max(once.rounds["multiplier_change"])
    assert once.rounds["heterogeneity"].drop_nulls().len() == 2 * 3
    assert "theory" not in plain.summary


def test_the_figure_draws_what_the_run_recorded(tmp_path: Path) -> None:
    run = feda2l.run(SMALL, out=tmp_path / "with", progress=False)
    plain = feda2l.run({**SMALL, "seed": 2, "evaluation": {}}, out=tmp_path / "without", progress=False)
    figure = theory_figure(find_runs([run.path, plain.path], Notes()))
    assert figure is not None
    left, right = figure.axes
    curves = {str(line.get_label()): line for axes in (left, right) for line in axes.get_lines()}
    due = [record for record in run.folder.read() if "objective" in record]
    drawn = curves["B² (A4)"].get_xydata()
    assert np.array(drawn).tolist() == [[record["round"], record["heterogeneity"]] for record in due]
    terms = run.summary["theory"]["terms"]
    for label, key in (("mean of ||grad f||²", "gradient"), ("eta0 s² / N, times C2", "noise")):
        assert np.array(curves[label].get_xydata())[-1].tolist() == [3, terms[key]]
    assert theory_figure(find_runs([plain.path], Notes())) is None
    tables, _, _ = report([tmp_path], tmp_path / "report")
    assert len(tables) == 1
    assert (tmp_path / "report" / "figures" / "theory.svg").exists()


def test_both_engines_estimate_the_same(tmp_path: Path) -> None:
    runs = [
        feda2l.run(SMALL | {"runtime": {"workers": 0, "engine": engine}}, out=tmp_path / engine, progress=False)
        for engine in ("auto", "rows")
    ]
    one, other = (run.folder.read() for run in runs)
    first, later = ([[dict(records[r])[key] for key in THEORY] for records in (one, other)] for r in (0, 2))
    assert first[0] == first[1]  # the same start: the same bits
    assert later[0] == pytest.approx(later[1], rel=1e-4)


def test_nodes_that_miss_rounds_still_count_in_f(tmp_path: Path) -> None:
    settings = SMALL | {"network": {"participation": 0.7}}
    run = feda2l.run(settings, out=tmp_path / "out", progress=False)
    lines = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line.get("objective", 0) > 0] == [1, 3]


def test_peers_are_refused_by_name() -> None:
    with pytest.raises(FedA2LError, match=r"evaluation\.theory_every = 5: .* all nodes"):
        refuse_network(Spec.parse({"evaluation": {"theory_every": 5}}))


def test_a_report_does_not_tell_runs_apart_by_their_estimates(tmp_path: Path) -> None:
    """One seed with estimates, one without; the second was made before `rates.window_form` existed."""
    feda2l.run(SMALL, out=tmp_path / "a", progress=False)
    old = feda2l.run({**SMALL, "seed": 2, "evaluation": {}}, out=tmp_path / "b", progress=False)
    text = old.folder.spec.read_text()
    assert 'window_form = "sample"\n' in text
    old.folder.spec.write_text(text.replace('window_form = "sample"\n', ""))
    ((table,), _, _) = report([tmp_path], tmp_path / "report")
    assert [len(cell.seeds) for _, cell in table.cells] == [2]


NORMED = """
class Normed(nn.Sequential):
    def __init__(self):
        frozen = nn.Linear(64, 32).requires_grad_(False)
        super().__init__(nn.Flatten(), frozen, nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 10))
"""


@pytest.mark.parametrize("topology", ["ring", "full"])
def test_statistics_frozen_layers_and_dropout(
    tmp_path: Path, module: Callable[[str], str], digits: Loaded, topology: str
) -> None:
    """The estimate in round 2 is that of the mean model after round 1, as a user would compute it."""
    settings = {
        "rounds": 1,
        "data": {"nodes": 4, "alpha": 1.0},
        "model": {"name": f"{module(NORMED)}:Normed"},
        "topology": {"name": topology, "weights": "metropolis"},
        "evaluation": {"theory_every": 1},
        "runtime": {"workers": 0},
    }
    model = feda2l.run(settings, out=tmp_path / "one", progress=False).model()
    record = feda2l.run(settings | {"rounds": 2}, out=tmp_path / "two", progress=False).folder.read()[1]
    plan = assemble(Spec.parse(settings), digits).live.plan
    trainable = [
        parameter.requires_grad_() for name, parameter in model.named_parameters() if not name.startswith("1.")
    ]
    losses, gradients = [], []
    for shard in plan.member.shards:
        loss = F.cross_entropy(model(digits.train.inputs(shard)), digits.train.targets(shard))
        losses.append(loss.item())
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, trainable)]))
    whole = torch.stack(gradients).mean(dim=0)
    assert record["objective"] == pytest.approx(sum(losses) / 4, rel=1e-5)
    assert record["squared_gradient"] == pytest.approx(whole.square().sum().item(), rel=1e-4)
    apart = sum((gradient - whole).square().sum().item() for gradient in gradients) / 4
    assert record["heterogeneity"] == pytest.approx(apart, rel=1e-4)
