"""Benchmarks on a GPU: the engine in its fastest precision against the plain loop in fp32, measured in one run."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from feda2l.bench.plain_loop import PlainLoop
from feda2l.bench.works import Result, note, pictures, walks
from feda2l.data import Images
from feda2l.data.samples import Dataset
from feda2l.engines import timer_passes
from feda2l.engines.batched_timer import count_dropout_layers, timer_forward
from feda2l.engines.compiling import compiled
from feda2l.engines.engine import ScoreJob
from feda2l.engines.timer_passes import draws_of
from feda2l.models.timer import Timer
from feda2l.plain_values import PlainDict
from feda2l.runs.assemble import Assembled, assemble, populate
from feda2l.runs.datasets import Loaded
from feda2l.simulate.loop import RoundLoop
from feda2l.spec.spec import Spec

NODES, EACH = 10, 5000
PLAIN_NODES = 2  # the plain loop trains nodes one by one, so its speed does not depend on their number
BYTES = 26  # memory traffic per parameter and step: read p, m, g; write p, m, copy; read copy twice; write g


def race(
    model: str,
    batch: int,
    *,
    runs: int = 1,
    each: int = EACH,
    rounds: int = 3,
    data: Callable[[int, int], Dataset] = pictures,
) -> Result:
    """Measure the training of one round, also of several packed runs, and compute a lower bound of its time."""
    images = data(NODES, each)
    plain_spec = {"data": {"nodes": NODES}, "model": {"name": model}, "training": {"batch_size": batch}}
    plain = PlainLoop.of(_assembled(plain_spec, images, "cpu", 1)[0]).on("cuda", PLAIN_NODES)
    plain_speed = PLAIN_NODES * each / _median(plain.epoch, 1)
    note(f"plain loop {plain_speed:,.0f} images/s")
    with _ours(model, batch, images, runs=runs) as (members, simulator):
        seconds, parts = _median_round(simulator, rounds)
        memory = torch.cuda.max_memory_allocated() / 2**30
        count = runs * NODES * (each // batch) * batch
        floor = _floor(members[0].model, images, count, batch, simulator.engine.population.layout.parameters)
    speed, ratio = count / seconds, count / seconds / plain_speed
    share = parts["adapt"] / (parts["train"] + parts["mix"] + parts["adapt"])
    return Result(
        what=f"{runs} x {NODES} nodes x {each:,} images, batch {batch}",
        outcome=f"plain {plain_speed:,.0f} images/s, ours {speed:,.0f} images/s ({seconds:.3f} s per round; floor "
        f"{floor:.3f} s), adapt {share:.2%}, {memory:.1f} GiB",
        figure=f"{ratio:.1f}x",
        numbers={"ratio": ratio, "plain": plain_speed, "ours": speed, "seconds": seconds, "floor": floor, **parts},
    )


def scoring(model: str, *, models: int = 10, images: int = 10_000) -> Result:
    """Measure the scoring of several different models on one test set."""
    data = pictures(NODES, 100)
    test = pictures(1, images)
    data = Images(**{**data.__dict__, "test_x": test.train_x, "test_y": test.train_y})
    with _ours(model, 10, data) as (_, simulator):
        next(simulator.rounds())
        jobs = [ScoreJob(row, 0, row, local=False) for row in range(models)]
        seconds = _median(lambda: simulator.engine.score(jobs), 5)
    return Result(
        what=f"{models} models on {images:,} images",
        outcome=f"{models * images / seconds:,.0f} images/s",
        figure=f"{seconds:.3f} s",
        numbers={"seconds": seconds},
    )


def growth(model: str, *, sizes: tuple[int, ...], each: int) -> Result:
    """Measure the cost of a round per node as the network grows, relative to the smallest network."""
    costs = {}
    for nodes in sizes:
        with _ours(model, 10, pictures(nodes, each), nodes=nodes) as (_, simulator):
            costs[nodes] = 1e3 * _median_round(simulator, 3)[0] / nodes
        note(f"{nodes} nodes: {costs[nodes]:.3f} ms per node")
    ratio = costs[sizes[-1]] / costs[sizes[0]]
    return Result(
        what=f"{each} images per node, batch 10",
        outcome=", ".join(f"{nodes} nodes {cost:.3f} ms per node" for nodes, cost in costs.items()),
        figure=f"{ratio:.2f}x",
        numbers={"milliseconds": costs, "ratio": ratio},
    )


def deterministic(model: str, batch: int, *, each: int) -> Result:
    """Measure the cost of deterministic kernels: the per-node engine with and without them."""
    seconds = {}
    for fixed in (False, True):
        runtime = {"engine": "rows", "deterministic": fixed}
        with _ours(model, batch, pictures(NODES, each), runtime=runtime) as (_, simulator):
            seconds[fixed] = _median_round(simulator, 3)[0]
    return Result(
        what=f"{NODES} nodes x {each:,} images, batch {batch}",
        outcome=f"default {seconds[False]:.3f} s, deterministic {seconds[True]:.3f} s per round",
        figure=f"{seconds[True] / seconds[False]:.2f}x",
        numbers={"free": seconds[False], "deterministic": seconds[True]},
    )


def timer_kernels(rows: int, batch: int, channels: int) -> Result:
    """Measure forecasts and gradients of some Timers: compiled passes against hand-written Triton kernels."""
    from feda2l.engines import cuda_passes

    device, half = torch.device("cuda"), torch.bfloat16
    model = Timer(input=(96, channels))
    leaves = [p.detach().to(device, half).expand(rows, *p.shape).clone().requires_grad_() for p in model.parameters()]
    x, y = torch.randn(2, rows, batch, 96, channels, device=device)
    seeds, step = torch.arange(rows, dtype=torch.int32, device=device), torch.zeros(rows, device=device)
    draws, seconds = draws_of(seeds, step, count_dropout_layers(model)), {}
    for name, passes in (("compiled", timer_passes), ("kernels", cuda_passes)):
        torch.compiler.reset()  # otherwise both use the code compiled first, since guards ignore modules
        forward = compiled(timer_forward(model, device, half, passes))

        def learn(forward: Callable[..., Tensor] = forward) -> None:
            torch.autograd.grad((forward(leaves, x, draws) - y).square().sum(), leaves)

        seconds[name] = _median(learn, 21)
    ratio = seconds["compiled"] / seconds["kernels"]
    return Result(
        what=f"{rows} Timers x {batch} windows of {channels} variates",
        outcome=", ".join(f"{name} {1e3 * value:.3f} ms" for name, value in seconds.items()),
        figure=f"{ratio:.2f}x",
        numbers={**seconds, "ratio": ratio},
    )


def _spec(overrides: PlainDict, name: str, **runtime: Any) -> PlainDict:
    data = {"name": name, "partition": "iid", "train_fraction": 1.0, **overrides["data"]}
    quiet = {"rounds": 1_000_000, "evaluation": {"every": 1_000_000}, "topology": {"name": "ring"}}
    return {**quiet, **overrides, "data": data, "runtime": runtime}


def _assembled(overrides: PlainDict, images: Dataset, device: str, runs: int, **runtime: Any) -> list[Assembled]:
    loaded = Loaded.of(images, torch.device(device, 0) if device == "cuda" else torch.device("cpu"))
    spec = _spec(overrides, images.name, device=device, **runtime)
    return [assemble(Spec.parse(spec | {"seed": seed, "name": f"run-{seed}"}), loaded) for seed in range(1, runs + 1)]


@contextmanager
def _ours(
    model: str,
    batch: int,
    images: Dataset,
    *,
    runs: int = 1,
    nodes: int = NODES,
    runtime: PlainDict | None = None,
) -> Iterator[tuple[list[Assembled], RoundLoop]]:
    overrides = {"data": {"nodes": nodes}, "model": {"name": model}, "training": {"batch_size": batch}}
    members = _assembled(overrides, images, "cuda", runs, **{"precision": "bf16", **(runtime or {})})
    torch.cuda.reset_peak_memory_stats()
    engine = populate(members)
    engine.start(0)
    try:
        yield members, RoundLoop(engine, [member.live for member in members])
    finally:
        engine.close()
        torch.cuda.empty_cache()


def _median_round(simulator: RoundLoop, rounds: int) -> tuple[float, dict[str, float]]:
    """Return the median training seconds per round and those of its parts, without the first round (compilation)."""
    simulated = simulator.rounds()
    next(simulated)
    every = []
    for _ in range(rounds):
        completed = next(simulated)
        mix, adapt = (sum(done.seconds[part] for done in completed) for part in ("mix", "adapt"))
        every.append({"train": completed[0].seconds["train"], "mix": mix, "adapt": adapt})
    middle = sorted(every, key=lambda parts: parts["train"])[len(every) // 2]
    return middle["train"], middle


def _median(action: Callable[[], object], times: int) -> float:
    action()
    seconds = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _floor(model: nn.Module, images: Dataset, count: int, batch: int, parameters: int) -> float:
    """Return a lower bound in seconds: the time of the arithmetic or of the memory traffic alone on this GPU."""
    sample = images.train.inputs(torch.tensor([0]))
    with FlopCounterMode(display=False) as counter:
        model(sample).sum().backward()
    operations = float(counter.get_total_flops()) * count
    moved = count / batch * parameters * BYTES
    return max(operations / _matrix_rate(), moved / _copy_rate())


def _matrix_rate() -> float:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192**3 / _median(lambda: a @ a, 5)


def _copy_rate() -> float:
    a = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * (1 << 30) / _median(lambda: b.copy_(a), 5)


GPU_WORKS: dict[str, Callable[[], Result]] = {
    "gpu-resnet18-b10": partial(race, "resnet18", 10, rounds=1),
    "gpu-resnet18-b64": partial(race, "resnet18", 64, rounds=1),
    "gpu-cnn-b10": partial(race, "cnn", 10),
    "gpu-cnn-b10-x7": partial(race, "cnn", 10, runs=7),
    "gpu-timer-b32": partial(race, "timer", 32, each=5888, data=walks),
    "gpu-timer-kernels": partial(timer_kernels, 14, 32, 11),
    "gpu-score": partial(scoring, "resnet18"),
    "gpu-nodes": partial(growth, "cnn", sizes=(10, 100, 1000), each=200),
    "gpu-fixed": partial(deterministic, "cnn", 10, each=2000),
}
