"""The benchmarks. Each returns its result and the measurements behind it."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from feda2l.bench.plain_loop import PlainLoop
from feda2l.data import Images
from feda2l.data.images import digits
from feda2l.data.samples import Dataset
from feda2l.data.series import Lengths, Series, Site, Split
from feda2l.data.series import assemble as series
from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.round.round import Completed
from feda2l.runs.assemble import Assembled, assemble, populate
from feda2l.runs.datasets import Loaded
from feda2l.simulate.loop import RoundLoop, one_thread
from feda2l.spec.spec import Spec
from feda2l.topology import build, build_mixing

UNEVALUATED = {"rounds": 1_000_000, "evaluation": {"every": 1_000_000}}
IID = {"name": "cifar10", "partition": "iid", "train_fraction": 1.0}
CIFAR = {"data": IID, "model": {"name": "cnn"}} | UNEVALUATED
DIGITS = {"data": {"name": "digits", "partition": "dirichlet", "alpha": 0.1}, "model": {"name": "mlp"}} | UNEVALUATED

RESNET = CIFAR | {"model": {"name": "resnet18"}}
TIMER = {"data": {"name": "exchange_rate"}, "model": {"name": "timer"}} | UNEVALUATED

SMALL = CIFAR | {"model": {"name": "mlp"}}

PATIENCE = 100.0  # seconds after which no further repetition starts, for busy machines
NOISY = 1.5


@dataclass(frozen=True)
class Result:
    """The result of a benchmark: the work, the outcome, the main figure, and all numbers for the JSON file."""

    what: str
    outcome: str
    figure: str
    numbers: PlainDict


def race(spec: PlainMapping, data: Callable[[], Dataset], *, rounds: int, repetitions: int) -> Result:
    """Measure rounds of the plain loop and of the engine in turn: train all nodes and mix.

    The engine also measures the signals and adapts the learning rates.
    """
    with _ours(spec, data()) as (run, simulated):
        plain = PlainLoop.of(run)
        return _in_turn(run, {"plain": plain.round, "ours": lambda: next(simulated)}, rounds, repetitions)


def half(spec: PlainMapping, data: Callable[[], Dataset], *, rounds: int, repetitions: int) -> Result:
    """Measure rounds of the same run in fp32 and in bf16 in turn."""
    samples = data()
    with (
        _ours(spec, samples) as (run, full),
        _ours({**spec, "runtime": {"precision": "bf16"}}, samples) as (_, halved),
    ):
        return _in_turn(run, {"fp32": lambda: next(full), "bf16": lambda: next(halved)}, rounds, repetitions)


def _in_turn(run: Assembled, sides: Mapping[str, Callable[[], object]], rounds: int, repetitions: int) -> Result:
    """Measure rounds of two sides in turn. The figure is the speed of the second relative to the first."""
    samples, unit = _images(run), "images" if run.dataset.classes else "windows"
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    started = time.monotonic()
    for one_round in sides.values():
        one_round()  # the warm-up
    for repetition in range(1, repetitions + 1):
        for side, one_round in sides.items():
            speeds[side].append(rounds * samples / _seconds(one_round, rounds))
        note(f"repetition {repetition} of {repetitions}")
        if time.monotonic() - started > PATIENCE:
            break
    _warn_if_noisy(speeds)
    medians = {side: statistics.median(values) for side, values in speeds.items()}
    first, second = medians.values()
    ratio = second / first
    return Result(
        what=f"{run.live.plan.nodes} nodes, {samples:,} {unit} per round, {repetition} x {rounds} rounds",
        outcome=", ".join(
            f"{side} {medians[side]:,.0f} {unit}/s ({min(values):,.0f} to {max(values):,.0f})"
            for side, values in speeds.items()
        ),
        figure=f"{ratio:.2f}x",
        numbers={"ratio": ratio, "images_per_second": medians, "repetitions": speeds},
    )


def _warn_if_noisy(speeds: Mapping[str, list[float]]) -> None:
    for side, values in speeds.items():
        spread = max(values) / min(values)
        if spread > NOISY:
            note(
                f"{side}: the fastest repetition is {spread:.1f} times as fast as the slowest; the machine may be busy"
            )


def adapt(spec: PlainMapping, images: Callable[[], Images], *, rounds: int) -> Result:
    """Measure FedA2L's share of a round: (divergence, stability and rule) / (training, mixing and adapting)."""
    with _ours(spec, images()) as (run, simulated):
        seconds: dict[str, list[float]] = {"train": [], "mix": [], "adapt": []}
        for number in range(1, rounds + 1):
            (completed,) = next(simulated)
            for part, values in seconds.items():
                values.append(completed.seconds[part])
            note(f"round {number} of {rounds}")
    totals = {part: sum(values) for part, values in seconds.items()}
    share = totals["adapt"] / sum(totals.values())
    return Result(
        what=f"{run.live.plan.nodes} nodes, {_images(run):,} images per round, {rounds} rounds",
        outcome=", ".join(f"{part} {total / rounds:.3g} s" for part, total in totals.items()) + " per round",
        figure=f"{share:.2%}".replace("%", " %"),
        numbers={"share": share, "seconds": seconds},
    )


def mixing(*, sizes: tuple[int, ...], parameters: int, repetitions: int) -> Result:
    """Measure one mixing of a ring: the cost per edge of the largest ring relative to the smallest."""
    milliseconds: dict[int, float] = {}
    with one_thread():
        for nodes in sizes:
            mix = build_mixing(build("ring", nodes), "uniform", [1] * nodes)
            trained = torch.rand(nodes, parameters)
            aggregated = torch.empty_like(trained)
            one_mixing = partial(mix.apply, trained, 1, aggregated)
            times = [_seconds(one_mixing, 1) for _ in range(repetitions + 1)]
            milliseconds[nodes] = 1e3 * statistics.median(times[1:])
            note(f"{nodes} nodes")
    each = {nodes: 1e6 * value / (nodes * parameters) for nodes, value in milliseconds.items()}
    ratio = each[sizes[-1]] / each[sizes[0]]
    return Result(
        what=f"{parameters:,} parameters per node on a ring, {repetitions} times",
        outcome=", ".join(f"{nodes} nodes {value:.3g} ms" for nodes, value in milliseconds.items())
        + f", {each[sizes[0]]:.2f} to {each[sizes[-1]]:.2f} ns per edge and parameter",
        figure=f"{ratio:.2f}x",
        numbers={"ratio": ratio, "milliseconds": milliseconds, "nanoseconds_per_edge_and_parameter": each},
    )


def growth(*, sizes: tuple[int, int], graphs: tuple[str, ...], rounds: int) -> Result:
    """Measure whole rounds of a small model: the cost per node in a large network relative to a small one."""
    each: dict[str, dict[int, float]] = {}
    for graph in graphs:
        for nodes in sizes:
            spec = SMALL | {"data": IID | {"nodes": nodes}, "topology": {"name": graph, "k": 4}}
            with _ours(spec, pictures(nodes, 10, (1, 9, 9))) as (run, simulated):
                next(simulated)  # the warm-up
                times = [_seconds(lambda: next(simulated), 1) for _ in range(rounds)]
            each.setdefault(graph, {})[nodes] = 1e6 * statistics.median(times) / nodes
            note(f"{graph}, {nodes} nodes")
    parameters = sum(slot.size for slot in run.live.state.population.layout.slots)
    ratios = {graph: cost[sizes[1]] / cost[sizes[0]] for graph, cost in each.items()}
    return Result(
        what=f"{parameters:,} parameters per node, {sizes[0]:,} and {sizes[1]:,} nodes, {rounds} rounds",
        outcome=", ".join(
            f"{graph} {cost[sizes[0]]:.0f} to {cost[sizes[1]]:.0f} us per node ({ratios[graph]:.2f})"
            for graph, cost in each.items()
        ),
        figure=f"{max(ratios.values()):.2f}x",
        numbers={"ratio": max(ratios.values()), "ratios": ratios, "microseconds_per_node": each},
    )


def pictures(nodes: int, each: int, shape: tuple[int, int, int] = (3, 32, 32)) -> Images:
    """Return noise images with the shape of CIFAR-10. The content does not affect the cost of a step."""
    random = torch.Generator().manual_seed(1)
    x = torch.randint(256, (nodes * each, *shape), dtype=torch.uint8, generator=random)
    y = torch.arange(nodes * each) % 10
    half = (0.5,) * shape[0]
    return Images("cifar10", x, y, x[:10], y[:10], 10, 255.0, half, half, tuple("0123456789"))


def walks(nodes: int, each: int) -> Series:
    """Return random walks with the shape of ExchangeRate and `each` training windows per node."""
    random, lengths = np.random.default_rng(1), Lengths()
    rows = each + lengths.window - 1
    split = Split(np.arange(each), np.arange(1), rows, 0)
    sites = [Site(str(node), random.standard_normal((rows, 1)).cumsum(axis=0), split) for node in range(nodes)]
    return series("exchange_rate", sites, ("rate",), lengths)


def note(text: str) -> None:
    """Print the progress of the current benchmark on stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


@contextmanager
def _ours(spec: PlainMapping, data: Dataset) -> Iterator[tuple[Assembled, Iterator[list[Completed]]]]:
    """Set up a run as `feda2l run` does, but without a folder. Each `next` on the iterator trains one round."""
    run = assemble(Spec.parse(spec), Loaded.of(data))
    engine = populate([run])
    engine.start()
    try:
        yield run, RoundLoop(engine, [run.live]).rounds()
    finally:
        engine.close()


def _images(run: Assembled) -> int:
    """Return the number of training samples per round."""
    training, shards = run.live.plan.member.training, run.live.plan.member.shards
    return sum(len(order) for shard in shards for order in training.epoch_orders(shard, 0, 1))


def _seconds(action: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        action()
    return time.perf_counter() - start


HALF_WORKS: dict[str, Callable[[], Result]] = {  # only if the processor has bf16 instructions
    "cnn-bf16": partial(half, CIFAR, partial(pictures, 10, 500), rounds=1, repetitions=5),
    "resnet18-bf16": partial(half, RESNET, partial(pictures, 10, 50), rounds=1, repetitions=3),
    "timer-bf16": partial(half, TIMER, partial(walks, 8, 320), rounds=1, repetitions=5),
}

WORKS: dict[str, Callable[[], Result]] = {
    "cnn-cifar-b10": partial(race, CIFAR, partial(pictures, 10, 500), rounds=1, repetitions=7),
    "digits": partial(race, DIGITS, digits, rounds=30, repetitions=7),
    "resnet18-b10": partial(race, RESNET, partial(pictures, 10, 10), rounds=1, repetitions=3),
    "timer-b32": partial(race, TIMER, partial(walks, 8, 32), rounds=1, repetitions=5),
    "adapt": partial(adapt, CIFAR, partial(pictures, 10, 5000), rounds=2),
    "mixing": partial(mixing, sizes=(250, 500, 1000, 2000), parameters=10_000, repetitions=21),
    "nodes": partial(growth, sizes=(100, 10_000), graphs=("k_regular", "one_peer_exponential"), rounds=7),
}
