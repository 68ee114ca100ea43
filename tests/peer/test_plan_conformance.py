"""One fault plan in two runtimes: simulator and peers give the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from networks import configs, run_together

import feda2l
from feda2l.simulate.checkpoint import read_checkpoint

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 7,
    "data": {"name": "digits", "nodes": 5, "alpha": 0.5},
    "rates": {"name": "feda2l", "warmup_rounds": 1, "window": 2, "base": 0.05},
}
PLANS = {
    "drop": '[[fault]]\nkind = "drop"\nnode = 1\nround = 3\n[[fault]]\nkind = "drop"\nnode = 2\nround = 4\nto = [3]\n',
    "corrupt": '[[fault]]\nkind = "corrupt"\nnode = 0\nround = 2\n',
    "split": '[[fault]]\nkind = "split"\nround = 3\nrounds = 3\nsides = [[0, 1], [2, 3, 4]]\n',
    "alone": '[[fault]]\nkind = "split"\nround = 3\nrounds = 2\nsides = [[0], [1, 2, 3, 4]]\n',
    "rejoin": '[[fault]]\nkind = "rejoin"\nnode = 2\nround = 4\n',
    "late": 'deadline = 5.0\n[[fault]]\nkind = "delay"\nnode = 3\nround = 3\nseconds = 6.0\n',
}


def _check(values: dict[str, Any], plan: str, folder: Path) -> None:
    patient = "" if "deadline" in plan else "deadline = 100.0\n"  # otherwise a busy machine adds absences
    (folder / "plan.toml").write_text(patient + plan)
    run = feda2l.run(values | {"faults": str(folder / "plan.toml")}, out=folder / "simulated", progress=False)
    whole = read_checkpoint(run.checkpoint)
    nodes = run_together(configs(values, folder / "peers", faults=str(folder / "plan.toml")))
    for node in nodes:
        id, own = node.exchange.id, read_checkpoint(node.folder.checkpoint)
        for name, found in own.items():
            if name.startswith("rates."):
                there = whole[f"rates.{id}.{name.removeprefix('rates.')}"]
            else:
                there = whole[name] if name == "round" else whole[name][id : id + 1]
            torch.testing.assert_close(found, there, rtol=0, atol=0, equal_nan=True, msg=f"{name} of {id}")
        for ours, theirs in zip(node.folder.read(), run.folder.read(), strict=True):
            assert len(ours["received"]) == theirs["nodes"]["received"][id]
            assert ours["layers"]["stability"] == [theirs["layers"]["stability"][id]]


# on a sparse graph, nodes that waited for the late one are late for others: an effect of real time only
@pytest.mark.parametrize(
    ("plan", "topology"), [*((plan, "full") for plan in PLANS), *((p, "ring") for p in PLANS if p != "late")]
)
def test_a_plan_means_the_same_in_both(tmp_path, plan, topology):
    _check(SMALL | {"topology": {"name": topology}}, PLANS[plan], tmp_path)


@pytest.mark.parametrize("algorithm", ["fedyogi", "fedawa", "push_sum", "gradient_tracking", "choco"])
def test_for_algorithms_with_other_averages(tmp_path, algorithm):
    _check(SMALL | {"algorithm": {"name": algorithm}, "topology": {"name": "ring"}}, PLANS["split"], tmp_path)


@pytest.mark.parametrize("plan", ["split", "rejoin", "corrupt"])
def test_for_several_parts(tmp_path, plan):
    """A node that is cut off or returns keeps its corrections, and its outer momentum starts again."""
    algorithm = {"name": "drift_correction+prior_loss+outer_momentum"}
    _check(SMALL | {"algorithm": algorithm, "topology": {"name": "full"}}, PLANS[plan], tmp_path)


def test_for_several_gossip_steps(tmp_path):
    values = SMALL | {"algorithm": {"name": "dfedsam", "gossip_steps": 2}, "topology": {"name": "ring"}}
    _check(values, PLANS["drop"], tmp_path)
