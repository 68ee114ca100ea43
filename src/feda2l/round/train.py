"""base -> trained (Algorithm 1, line 4): one node's local epochs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from feda2l.randomness import derive_seed, torch_generator

Loss = Callable[[Tensor, Tensor], Tensor]


class Samples(NamedTuple):
    """Pictures as published and how a batch of them is turned into the model's input."""

    x: Tensor
    y: Tensor
    normalise: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Training:
    """How a node trains between two exchanges; the same for all nodes of a run."""

    samples: Samples
    loss: Loss
    optimizer: str
    weight_decay: float
    batch_size: int
    epochs: int
    drop_last: bool
    seed: int

    def epoch_orders(self, shard: Tensor, node: int, round: int) -> list[Tensor]:
        """The samples of each epoch of a round in their order: a fresh permutation of the node's shard."""
        keep = len(shard) // self.batch_size * self.batch_size if self.drop_last else len(shard)
        orders = []
        for epoch in range(self.epochs):
            generator = torch_generator(self.seed, node=node, round=round, purpose=f"batches/{epoch}")
            orders.append(shard[torch.randperm(len(shard), generator=generator)[:keep]])
        return orders

    def batches(self, shard: Tensor, node: int, round: int) -> list[Tensor]:
        """The sample indices of each step of a round."""
        orders = self.epoch_orders(shard, node, round)
        return [batch for order in orders for batch in order.split(self.batch_size)]


class Hyperparameters(NamedTuple):
    """What a round's step needs beside the batch: the rate of every tensor, and the momentum."""

    rates: list[float]
    momentum: float


def train_node(
    model: nn.Module,
    parameters: Sequence[Tensor],
    memory: Sequence[Sequence[Tensor]],
    steps: Tensor,
    training: Training,
    batches: Sequence[Tensor],
    hyper: Hyperparameters,
    *,
    node: int,
    round: int,
) -> float:
    """Train one node in place and return its mean training loss.

    `parameters` are the model's trainable tensors, `memory` the optimiser's state beside each (one list of
    tensors for SGD's momentum, two for Adam), `steps` the number of Adam steps so far.
    """
    # for a user's own nn.Dropout: draws depend on (seed, node, round), not on the order of the nodes
    torch.manual_seed(derive_seed(training.seed, node=node, round=round, purpose="layers"))
    model.train()
    groups = _equal_rates(hyper.rates)
    losses = torch.empty(len(batches))
    x, y, normalise = training.samples
    channels_last = any(parameter.dim() == 4 for parameter in parameters)
    for number, batch in enumerate(batches):
        inputs = normalise(x[batch])
        if channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        loss = training.loss(model(inputs), y[batch])
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
        losses[number] = loss.detach()
        steps += 1
        with torch.no_grad():
            for rate, members in groups:
                _update(
                    training.optimizer,
                    [parameters[i] for i in members],
                    [in_memory_order(gradients[i], parameters[i]) for i in members],
                    [[kind[i] for i in members] for kind in memory],
                    steps,
                    rate,
                    hyper.momentum,
                    training.weight_decay,
                )
    return float(losses.double().mean())


def _equal_rates(rates: list[float]) -> list[tuple[float, list[int]]]:
    """Tensors by rate: those that share one are updated in one call."""
    groups: dict[float, list[int]] = {}
    for number, rate in enumerate(rates):
        groups.setdefault(rate, []).append(number)
    return list(groups.items())


def in_memory_order(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient in the parameter's memory format: the fused updates walk both in memory order."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _update(
    optimizer: str,
    parameters: list[Tensor],
    gradients: list[Tensor],
    memory: list[list[Tensor]],
    steps: Tensor,
    rate: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """One step of torch's own fused optimisers: a single pass over parameters, gradients and state."""
    if optimizer == "sgd":
        torch._fused_sgd_(
            parameters,
            gradients,
            memory[0] if momentum else [],
            weight_decay=weight_decay,
            momentum=momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        return
    fused = torch._fused_adamw_ if optimizer == "adamw" else torch._fused_adam_
    fused(
        parameters,
        gradients,
        memory[0],
        memory[1],
        [],
        [steps] * len(parameters),
        lr=rate,
        beta1=0.9,
        beta2=0.999,
        weight_decay=weight_decay,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )
