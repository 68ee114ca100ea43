"""Estimate the quantities of the paper's bounds on the training data (docs/equations.md, "Theory")."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from feda2l.randomness import torch_generator
from feda2l.records.theory import TheoryQuantities
from feda2l.round.compare import compare, distances
from feda2l.round.record import mean, spread
from feda2l.round.run import LiveRun
from feda2l.round.train import gradients_of


def estimate_theory(runs: Sequence[LiveRun], model: nn.Module) -> dict[int, TheoryQuantities]:
    """Estimate the quantities of those runs whose coming round is due, by the run's number.

    To be called before the round trains; at a process that does not record the result is empty.
    """
    due = [run for run in runs if run.plan.theory_due_in(run.state.round + 1)]
    estimates = {run.number: _estimate(run, model) for run in due}
    return {number: quantities for number, quantities in estimates.items() if quantities is not None}


def _estimate(run: LiveRun, model: nn.Module) -> TheoryQuantities | None:
    plan, collectives = run.plan, run.collectives
    compare(run)
    at_mean = _MeanModel(run, model)
    estimates = [at_mean.loss_gradient_variance(node) for node in range(plan.nodes)]
    losses, gradients, variances = zip(*estimates, strict=True)
    rows = torch.stack(gradients)
    mean_gradient = collectives.mean(rows)  # grad f, with the same bits on any number of ranks
    apart = (rows - mean_gradient).square().sum(dim=1).tolist()
    distances_of = spread(plan.nodes, run.counted, distances(run).sum(dim=1).tolist())
    everyone = collectives.at_leader(list(zip(losses, apart, variances, distances_of, strict=True)))
    if everyone is None:
        return None
    loss, squares, variance, distance = zip(*everyone, strict=True)
    return {
        "objective": mean(loss),
        "squared_gradient": float(mean_gradient.square().sum()),
        "heterogeneity": mean(squares),
        "gradient_variance": mean(variance),
        "start_disagreement": mean([value for value in distance if value is not None]),
    }


class _MeanModel:
    """The mean of a run's models, evaluated on the training samples of its nodes: no dropout, no batch statistics."""

    def __init__(self, run: LiveRun, model: nn.Module) -> None:
        self.run, population = run, run.state.population
        on_cpu = population.device.type == "cpu"
        self.model = (model if on_cpu else copy.deepcopy(model).to(population.device)).eval()
        self.layout = population.layout
        if run.compared.agreed:
            node = run.counted[0]
            row, buffers = run.state.base[node], {name: values[node] for name, values in run.state.buffers.items()}
        else:
            row = population.mean[run.number]
            buffers = {name: values[run.number] for name, values in population.mean_buffers.items()}
        names = [slot.name for slot in self.layout.slots]
        self.parameters = [view.detach().clone().requires_grad_() for view in self.layout.views(row)]
        self.state = buffers | dict(zip(names, self.parameters, strict=True))

    def loss_gradient_variance(self, node: int) -> tuple[float, Tensor, float]:
        """Compute f_i, grad f_i and the variance of mini-batch gradients about it, over one epoch of a node's samples.

        Mean and variance are updated batch by batch (Welford), in float64; a batch counts as many times as it has
        samples.
        """
        training, shard = self.run.plan.member.training, self.run.plan.member.shards[node]
        generator = torch_generator(
            training.seed, node=self.run.plan.member.id(node), round=self.run.state.round + 1, purpose="theory"
        )
        device = self.run.state.population.device
        order = shard[torch.randperm(len(shard), generator=generator)].to(device)
        seen, total, squares = 0, 0.0, 0.0
        gradient = torch.zeros(self.layout.width, dtype=torch.float64, device=device)
        for batch in order.split(training.batch_size):
            outputs = functional_call(self.model, self.state, (training.samples.inputs(batch),))
            loss = training.loss(outputs, training.samples.targets(batch))
            seen += len(batch)
            total += float(loss.detach()) * len(batch)
            before = self._flat(gradients_of(loss, self.parameters)) - gradient
            gradient += before * (len(batch) / seen)
            squares += float((before * before).sum()) * (len(batch) * (seen - len(batch)) / seen)
        return total / seen, gradient, squares / seen

    def _flat(self, gradients: Sequence[Tensor]) -> Tensor:
        row = gradients[0].new_zeros(self.layout.width, dtype=torch.float64)
        for view, values in zip(self.layout.views(row), gradients, strict=True):
            view.copy_(values)
        return row
