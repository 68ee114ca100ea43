"""A plain PyTorch loop over nodes, as in the released reference code: the baseline of the benchmarks.

Each node has a model, a DataLoader and an optimizer. Nodes train one after the other with torch's default settings,
including all threads. The baseline is not slowed down: images are normalised in advance, and the average over the
full graph is computed once for all nodes.
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
    """The nodes of a run on the full graph, with the run's data, initial model and settings."""

    models: list[nn.Module]
    loaders: list[Loader]
    optimizers: list[torch.optim.SGD]
    weights: list[float]
    loss: Loss = F.cross_entropy

    @classmethod
    def of(cls, run: Assembled, batches: Sequence[Sequence[Any]] | None = None) -> Self:
        """Create a loop with the same work as a run.

        `batches` fixes the batches of each node as positions in its shard. By default they are drawn at random.
        """
        training, shards = run.live.plan.member.training, run.live.plan.member.shards
        loaders = []
        for node, shard in enumerate(shards):
            dataset = TensorDataset(training.samples.inputs(shard), training.samples.targets(shard))
            if batches is None:
                loader = DataLoader(dataset, training.batch_size, shuffle=True, drop_last=training.drop_last)
            else:
                loader = DataLoader(dataset, batch_sampler=batches[node])
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
        """Return a loop over the first `nodes` nodes with their models on another device. Batches are copied there."""
        for model in self.models[:nodes]:
            model.to(device)
        lists = self.models[:nodes], self.loaders[:nodes], self.optimizers[:nodes], self.weights[:nodes]
        return type(self)(*lists, self.loss)

    def round(self) -> None:
        """Train one epoch on each node, then average all models."""
        self.epoch()
        average(self.models, self.weights)

    def epoch(self) -> None:
        """Train one epoch on each node."""
        for model, loader, optimizer in zip(self.models, self.loaders, self.optimizers, strict=True):
            train(model, loader, optimizer, self.loss)


def train(model: nn.Module, loader: Loader, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
    """Train a model for one epoch."""
    model.train()
    device = next(model.parameters()).device
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def average(models: Sequence[nn.Module], weights: Sequence[float]) -> None:
    """Set every model to the weighted mean of all models."""
    for tensors in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.zeros_like(tensors[0])
        for tensor, weight in zip(tensors, weights, strict=True):
            mean.add_(tensor, alpha=weight)
        for tensor in tensors:
            tensor.copy_(mean)
