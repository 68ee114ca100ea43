"""Choose the engine that trains a pack from the device, the model and `runtime.engine`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F

from feda2l.engines.batched_forward import covers
from feda2l.engines.batched_loss import BY_SAMPLE
from feda2l.engines.engine import Engine, RowEngine
from feda2l.engines.stacked import Stacked, is_perceptron
from feda2l.errors import FedA2LError
from feda2l.models.timer import Timer
from feda2l.round.population import Population

if TYPE_CHECKING:
    from feda2l.runs.assemble import Assembled

# compiling node-batched kernels takes 20 to 45 s, which pays off from this many samples (measured on an H200)
WORTH_COMPILING = 5_000_000


def choose_engine(runs: "Sequence[Assembled]", population: Population) -> Engine:
    """Return the engine for these runs. `auto` takes a bit-reproducible engine on a CPU and the fastest on a GPU."""
    first = runs[0]
    wanted, members = first.spec.runtime.engine, [run.live.plan.member for run in runs]
    if population.device.type == "cpu":
        precision = first.spec.runtime.precision
        if wanted == "batched" or (wanted == "auto" and precision == "fp32" and is_perceptron(first.model)):
            return Stacked(first.model, population, members)
        return RowEngine(first.model, population, members, precision=precision)
    return _on_gpu(runs, population, wanted)


def _on_gpu(runs: "Sequence[Assembled]", population: Population, wanted: str) -> Engine:
    # imported here because a machine without a GPU has no triton
    from feda2l.engines.cuda_graphs import CudaGraphs
    from feda2l.engines.cuda_stacked import CudaStacked

    first, members = runs[0], [run.live.plan.member for run in runs]
    precision, deterministic = first.spec.runtime.precision, first.spec.runtime.deterministic
    why = why_not_batched(runs)
    if wanted == "batched" and why:
        raise FedA2LError(f'runtime.engine = "batched" cannot train these runs on a GPU: {why}')
    samples = sum(run.spec.rounds * sum(map(len, run.live.plan.member.shards)) for run in runs)
    if wanted == "batched" or (wanted == "auto" and not why and samples >= WORTH_COMPILING):
        return CudaStacked(first.model, population, members, precision=precision, deterministic=deterministic)
    return CudaGraphs(first.model, population, members, precision=precision, deterministic=deterministic)


def why_not_batched(runs: "Sequence[Assembled]") -> str:
    """Return the reason why node-batched kernels cannot train these runs, or an empty string if they can."""
    trainings = [run.live.plan.member.training for run in runs]
    full_batches = all(
        t.only_full_batches(len(shard))
        for t, run in zip(trainings, runs, strict=True)
        for shard in run.live.plan.member.shards
    )
    if not covers(runs[0].model):
        return (
            "the model must be a ResNet, a Timer, or a sequence of convolution, pooling, linear and elementwise layers"
        )
    if runs[0].spec.runtime.deterministic:
        return "runtime.deterministic needs the per-node engine"
    forecasts = isinstance(runs[0].model, Timer)
    if any(t.loss not in (BY_SAMPLE if forecasts else (F.cross_entropy,)) for t in trainings):
        return f"model.loss must be {'mse or mae' if forecasts else 'cross_entropy'}"
    if len({t.batch_size for t in trainings}) > 1:
        return "the runs differ in training.batch_size"
    return "" if full_batches or forecasts else "training.drop_last = false gives batches of different sizes"
