"""Compare the nodes' models: which are equal, their mean, and their distances to it."""

import torch
from torch import Tensor

from feda2l.round.run import LiveRun, ModelComparison


def compare(run: LiveRun) -> None:
    """Find the nodes that hold the same model; if not all do, write the mean model where the engine reads it."""
    state, population = run.state, run.state.population
    models = state.models()
    same = first_equal(models)
    counted = list(run.counted)
    all_equal = len({same[node] for node in counted}) == 1
    agreed = run.collectives.agree([values[counted[0]] for values in models] if all_equal else None)
    run.compared = ModelComparison(same, agreed)
    if agreed:
        return
    population.mean[run.number] = run.collectives.mean(_of(counted, state.base))
    for name, values in state.buffers.items():
        population.mean_buffers[name][run.number] = run.collectives.mean(_of(counted, values))


def distances(run: LiveRun) -> Tensor:
    """Compute ||theta_i - mean||^2 per layer, [counted nodes, layers]; 0 if all models are equal."""
    counted = list(run.counted)
    if run.compared.agreed:
        return torch.zeros(len(counted), len(run.plan.layers), dtype=torch.float64)
    return run.all_reductions.distances(_of(counted, run.state.base), run.state.population.mean[run.number])


def first_equal(matrices: list[Tensor]) -> list[int]:
    """For each row, return the first row that equals it in all of these tensors."""
    width = matrices[0].shape[1]
    probe = matrices[0][:, :: max(1, width // 64)].cpu()  # a few columns tell most models apart
    by_probe: dict[bytes, list[int]] = {}
    first = []
    for row in range(len(probe)):
        candidates = by_probe.setdefault(probe[row].numpy().tobytes(), [])
        same = next((other for other in candidates if all(torch.equal(m[row], m[other]) for m in matrices)), None)
        if same is None:
            candidates.append(row)
        first.append(row if same is None else same)
    return first


def _of(nodes: list[int], rows: Tensor) -> Tensor:
    return rows if len(nodes) == len(rows) else rows[nodes]
