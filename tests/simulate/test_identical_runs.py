"""Identical runs train once: the rows that are trained, and equal results for every run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from feda2l.simulate.identical_runs import shares_left
from feda2l.simulate.loop import RoundLoop

Start = Callable[..., RoundLoop]
NODES = 4
NET = """
class Net(nn.Sequential):
    def __init__(self, momentum=0.1):
        norm = nn.BatchNorm2d(4, momentum=momentum)
        super().__init__(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))

def plain_means():
    return Net(momentum=None)

class Fixed(Net):
    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self
"""
FEW = {
    "nodes": NODES,
    "partition": "iid",
    "train_fraction": 0.1,
}  # 3 steps per round, so that statistics still depend on their start
LATE: dict[str, Any] = {
    "name": "feda2l",
    "warmup_rounds": 1,
    "window": 2,
}  # adapts after round 2, with an effect in round 3


def spec(rounds: int = 4, **more: Any) -> dict[str, Any]:
    return {"rounds": rounds, "data": {"nodes": NODES, "alpha": 1.0}, "rates": {"name": "constant"}} | more


def run(simulator: RoundLoop) -> tuple[list[list[dict[str, Any]]], list[list[int]], list[int]]:
    """Return the records of each run, the runs that trained in each round, and the numbers of scored models."""
    engine = simulator.engine
    train, score = engine.train, engine.score
    trained: list[list[int]] = []
    scored: list[int] = []

    def counted(jobs: Any) -> list[float]:
        trained.append(sorted({job.run for job in jobs}))
        assert len(jobs) == NODES * len(trained[-1])
        return train(jobs)

    engine.train = counted  # type: ignore[method-assign]
    engine.score = lambda jobs: (scored.append(len(jobs)), score(jobs))[1]  # type: ignore[method-assign, func-returns-value]
    found: list[list[dict[str, Any]]] = [[] for _ in simulator.runs]
    for completed in simulator.rounds():
        for done in completed:
            assert done.record is not None
            found[done.run.number].append(done.record)
    return found, trained, scored


@pytest.mark.parametrize("engine", ["auto", "rows"])
def test_runs_with_equal_rates_train_once_until_they_differ(start: Start, engine: str) -> None:
    rules = [{"name": "constant"}, LATE, {"name": "step"}, {**LATE, "name": "decay_only"}, {"name": "constant"}]
    specs = [spec(rates=rates, runtime={"engine": engine}) for rates in rules]
    specs[4]["seed"] = 2
    found, trained, scored = run(start(*specs))
    # step is constant for 100 rounds; the two adaptive rules differ from it, and from each other, in round 3
    assert trained == [[0, 4], [0, 4], [0, 1, 3, 4], [0, 1, 3, 4]]
    assert scored == [2, 2, 4, 4]  # on a full graph a run has a single model
    assert found[0] == found[2]
    for settings, packed in zip(specs, found, strict=True):
        assert run(start(settings))[0] == [packed]


def test_runs_with_any_difference_train_separately(start: Start) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"seed": 2},
        {"data": {"nodes": NODES, "alpha": 0.5}},
        {"training": {"momentum": 0.0}},
        {"training": {"weight_decay": 0.01}},
        {"training": {"batch_size": 20}},
        {"rates": {"name": "constant", "base": 0.02}},
        {"algorithm": {"name": "fedprox"}},
        {"model": {"init": "per_node"}},
    ]
    _, trained, scored = run(start(*(spec(1, **change) for change in changes)))
    assert trained == [list(range(len(changes)))]
    assert scored == [len(changes)]


def test_runs_that_mix_differently_train_separately_after_round_1(start: Start) -> None:
    specs = [spec(2), spec(2, topology={"name": "ring"}), spec(2, algorithm={"name": "fedawa"})]
    found, trained, _ = run(start(*specs))
    # FedAWA trains in the same way as FedAvg, but is another algorithm
    assert trained == [[0, 2], [0, 1, 2]]
    for settings, packed in zip(specs, found, strict=True):
        assert run(start(settings))[0] == [packed]


def test_a_run_resumed_at_another_round_trains_separately(start: Start) -> None:
    simulator = start(spec(3), spec(3))
    simulator.runs[1].state.round = 1
    _, trained, _ = run(simulator)
    assert trained == [[0, 1], [0, 1], [0]]


def policies(model: str, **more: Any) -> list[dict[str, Any]]:
    return [
        spec(2, data=FEW, model={"name": model}, algorithm={"buffers": policy, **more})
        for policy in ("average", "local", "recalibrate")
    ]


def test_reproducible_engines_need_equal_statistics(start: Start, module: Callable[[str], str]) -> None:
    specs = policies(f"{module(NET)}:Net")
    found, trained, _ = run(start(*specs))
    assert trained == [[0], [0, 1, 2]]
    for settings, packed in zip(specs, found, strict=True):
        assert run(start(settings))[0] == [packed]


def state(simulator: RoundLoop, rows: slice) -> dict[str, Tensor]:
    population = simulator.engine.population
    named = {"base": population.base, "trained": population.trained, "momentum": population.optimizer_state["momentum"]}
    return {name: values[rows].double() for name, values in (named | population.buffers).items()}


def free(simulator: RoundLoop) -> RoundLoop:
    """Emulate a GPU engine, whose last bits are not reproducible."""
    simulator.engine.repeats = False
    return RoundLoop(simulator.engine, simulator.runs)


def test_other_engines_share_training_across_statistics_policies(start: Start, module: Callable[[str], str]) -> None:
    specs = policies(f"{module(NET)}:Net")
    together = free(start(*specs))
    _, trained, scored = run(together)
    assert trained == [[0], [0]]
    assert scored == [1 + 5 + 5] * 2  # their statistics differ, so all are scored: one model, or four and the mean
    for number, settings in enumerate(specs):
        alone = start(settings)
        run(alone)
        rows = slice(NODES * number, NODES * (number + 1))
        for name, values in state(alone, slice(0, NODES)).items():
            torch.testing.assert_close(state(together, rows)[name], values, rtol=1e-5, atol=1e-6, msg=name)


def test_the_base_model_is_evaluated_with_the_statistics_of_the_node(
    start: Start, module: Callable[[str], str]
) -> None:
    _, trained, _ = run(free(start(*policies(f"{module(NET)}:Net", name="fedntd"))))
    assert trained == [[0], [0, 1, 2]]


@pytest.mark.parametrize("name", ["plain_means", "Fixed"])
def test_statistics_that_affect_training_must_be_equal(start: Start, module: Callable[[str], str], name: str) -> None:
    simulator = free(start(*policies(f"{module(NET)}:{name}")))
    assert shares_left(simulator.engine.model) == {}


def test_a_step_keeps_nine_tenths_of_a_statistic() -> None:
    norm = nn.BatchNorm2d(2)
    found = shares_left(nn.Sequential(norm, nn.InstanceNorm2d(2, track_running_stats=True)))
    assert found == {"0.running_mean": 0.9, "0.running_var": 0.9, "0.num_batches_tracked": 1.0}
    before = norm.running_mean.clone()  # type: ignore[union-attr, operator]
    x = torch.randn(5, 2, 3, 3)
    norm(x)
    torch.testing.assert_close(norm.running_mean, 0.9 * before + 0.1 * x.mean(dim=(0, 2, 3)))
