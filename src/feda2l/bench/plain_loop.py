"""The loop most people write, and the released reference code is one: the other side of the benchmark.

A model, a DataLoader and an optimiser a node, one node after the other, torch's defaults throughout (all threads
included). Pictures are normalised beforehand, and on the full graph the average is made once for all nodes, so
nothing here is slower than it has to be.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from feda2l.round.train import Loss
from feda2l.runs.assemble import Assembled

Loader = DataLoader[tuple[Tensor, ...]]


@dataclass(frozen=True)
class PlainLoop:
    """The nodes of a run on the full graph, with its data, its initial model and its settings."""

    models: list[nn.Module]
    loaders: list[Loader]
    optimizers: list[torch.optim.SGD]
    weights: list[float]
    loss: Loss = F.cross_entropy

    @classmethod
    def of(cls, run: Assembled, batches: Sequence[Sequence[Any]] | None = None) -> Self:
        """The same work as a run's; `batches` fixes each node's batches (positions in its shard), by default drawn."""
        training, shards = run.live.plan.member.training, run.live.plan.member.shards
        loaders = []
        for node, shard in enumerate(shards):
            own = TensorDataset(training.samples.inputs(shard), training.samples.targets(shard))
            if batches is None:
                loader = DataLoader(own, training.batch_size, shuffle=True, drop_last=training.drop_last)
            else:
                loader = DataLoader(own, batch_sampler=batches[node])
            loaders.append(loader)
        models = [deepcopy(run.model) for _ in shards]
        settings = run.spec.training
        optimizers = [
            torch.optim.SGD(
                model.parameters(),
                lr=run.spec.rates.base,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
            )
            for model in models
        ]
        total = sum(map(len, shards))
        return cls(models, loaders, optimizers, [len(shard) / total for shard in shards], training.loss)

    def on(self, device: str, nodes: int) -> Self:
        """The first nodes of it with their models on another device; batches are copied there one by one."""
        for model in self.models[:nodes]:
            model.to(device)
        lists = self.models[:nodes], self.loaders[:nodes], self.optimizers[:nodes], self.weights[:nodes]
        return type(self)(*lists, self.loss)

    def round(self) -> None:
        """An epoch on every node, then the average of all."""
        self.epoch()
        average(self.models, self.weights)

    def epoch(self) -> None:
        """An epoch on every node."""
        for model, loader, optimizer in zip(self.models, self.loaders, self.optimizers, strict=True):
            train(model, loader, optimizer, self.loss)


def train(model: nn.Module, loader: Loader, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
    """One epoch."""
    model.train()
    device = next(model.parameters()).device
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def average(models: Sequence[nn.Module], weights: Sequence[float]) -> None:
    """Give every model the weighted mean of all."""
    for tensors in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.zeros_like(tensors[0])
        for tensor, weight in zip(tensors, weights, strict=True):
            mean.add_(tensor, alpha=weight)
        for tensor in tensors:
            tensor.copy_(mean)
