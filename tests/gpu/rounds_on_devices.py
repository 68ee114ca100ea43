"""A few rounds of a small run on a CPU or a GPU, for the tests in this folder."""

from typing import Any

import torch

from feda2l.round.population import Population
from feda2l.runs.assemble import Assembled, assemble, populate
from feda2l.runs.datasets import Loaded, load_data
from feda2l.simulate.loop import RoundLoop
from feda2l.spec.spec import Spec

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "data": {"nodes": 4, "partition": "iid", "train_fraction": 0.1, "min_size": 30},  # 3 steps per round
    "topology": {"name": "ring"},
    "model": {"name": "small_cnn"},
}


def merged(*specs: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for spec in specs:
        for key, value in spec.items():
            result[key] = {**result.get(key, {}), **value} if isinstance(value, dict) else value
    return result


def rounds(spec: dict[str, Any], count: int, device: str) -> tuple[Population, list[dict[str, Any]], Assembled]:
    """Train some rounds without a run folder. Return the population and the records."""
    place = CPU if device == "cpu" else torch.device("cuda", 0)
    wanted = Spec.parse(merged(spec, {"runtime": {"device": device}}))
    run = assemble(wanted, Loaded.of(load_data(wanted.data), place))
    engine = populate([run])
    population = engine.population
    engine.start(0)
    simulated = RoundLoop(engine, [run.live]).rounds()
    records = [next(simulated)[0].record for _ in range(count)]
    engine.close()
    return population, records, run  # type: ignore[return-value]


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first.cpu().double() - second.cpu().double()).norm() / first.cpu().double().norm())
