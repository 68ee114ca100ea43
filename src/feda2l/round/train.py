"""Local training of one node, base -> trained (Algorithm 1, line 4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from feda2l.algorithms import Algorithm, FedAvg
from feda2l.data.samples import Samples
from feda2l.randomness import derive_seed, torch_generator
from feda2l.round.local_step import LocalStep

Loss = Callable[[Tensor, Tensor], Tensor]
ForwardPass = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Training:
    """The settings of local training, the same for all nodes of a run."""

    samples: Samples
    loss: Loss
    optimizer: str
    weight_decay: float
    batch_size: int
    epochs: int
    drop_last: bool
    seed: int
    algorithm: Algorithm = FedAvg()  # noqa: RUF009 (frozen)

    def epoch_orders(self, shard: Tensor, node: int, round: int, epochs: int | None = None) -> list[Tensor]:
        """Return the samples of each epoch of a round in their order: a fresh permutation of the node's shard.

        An algorithm that counts steps instead of epochs starts as many epochs as its steps need.
        """
        orders = []
        for epoch, size in enumerate(self._sizes(len(shard), epochs)):
            generator = torch_generator(self.seed, node=node, round=round, purpose=f"batches/{epoch}")
            orders.append(shard[torch.randperm(len(shard), generator=generator)[:size]])
        return orders

    def batches(self, shard: Tensor, node: int, round: int, epochs: int | None = None) -> list[Tensor]:
        """Return the sample indices of each step of a round."""
        orders = self.epoch_orders(shard, node, round, epochs)
        return [batch for order in orders for batch in order.split(self.batch_size)]

    def steps(self, shard: int) -> int:
        """Return the number of steps per round of a node with a shard of this size."""
        steps = self.algorithm.local_steps
        return self._steps(self._used(shard)) * self.epochs if steps is None else steps

    def only_full_batches(self, shard: int) -> bool:
        """Return whether all batches of a node with a shard of this size have the same size."""
        return self.drop_last or shard % self.batch_size == 0

    def gradients(self, shard: int) -> int:
        """Return the number of sample gradients per round of such a node; an ascent step doubles it."""
        return sum(self._sizes(shard)) * (2 if self.algorithm.ascent else 1)

    def _sizes(self, shard: int, epochs: int | None = None) -> list[int]:
        """Return the number of samples in each epoch of a round."""
        keep = self._used(shard)
        steps = self.algorithm.local_steps if epochs is None else None
        if steps is None:
            return [keep] * (epochs or self.epochs)
        full, rest = divmod(steps, self._steps(keep))
        return [keep] * full + [rest * self.batch_size] * (rest > 0)

    def _used(self, shard: int) -> int:
        """Return the number of samples of a shard that an epoch uses."""
        return shard // self.batch_size * self.batch_size if self.drop_last else shard

    def _steps(self, keep: int) -> int:
        return -(-keep // self.batch_size)


class Hyperparameters(NamedTuple):
    """What a step needs beside the batch: the rate of every tensor, and the momentum."""

    rates: list[float]
    momentum: float


class NodeTraining(NamedTuple):
    """One node's model and state while it trains.

    Attributes:
        model: the model, whose parameters are views of the node's row.
        parameters: its trainable tensors.
        optimizer_state: the optimizer state of each, one list of tensors for SGD's momentum and two for Adam.
        steps: the number of Adam steps so far.
        local: the algorithm's part in a step, if it has one.
        perturbed_model: a model at the point to which the algorithm ascends.
        base_outputs: the base model's outputs, one row per sample.
        forward_pass: computes a model's outputs from inputs, by calling it or `in_half`.
        logit_offset: what the algorithm adds to the outputs of this node.
    """

    model: nn.Module
    parameters: Sequence[Tensor]
    optimizer_state: Sequence[Sequence[Tensor]]
    steps: Tensor
    local: LocalStep | None = None
    perturbed_model: tuple[nn.Module, Sequence[Tensor]] | None = None
    base_outputs: Tensor | None = None
    forward_pass: ForwardPass = nn.Module.__call__
    logit_offset: Tensor | None = None


def in_half(model: nn.Module, inputs: Tensor) -> Tensor:
    """Compute a model's outputs with bf16 products; its parameters and its outputs stay float32."""
    with torch.autocast(inputs.device.type, torch.bfloat16):
        outputs: Tensor = model(inputs)
    return outputs.float()


def train_node(
    state: NodeTraining, training: Training, batches: Sequence[Tensor], hyper: Hyperparameters, *, node: int, round: int
) -> float:
    """Train one node in place and return its mean training loss."""
    # dropout draws depend on (seed, node, round) and not on the order of the nodes
    torch.default_generator.manual_seed(derive_seed(training.seed, node=node, round=round, purpose="layers"))
    model, parameters = state.model.train(), state.parameters
    groups = _equal_rates(hyper.rates)
    losses = torch.empty(len(batches))
    channels_last = any(parameter.dim() == 4 for parameter in parameters)
    for number, batch in enumerate(batches):
        inputs = training.samples.inputs(batch)
        if channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        targets = training.samples.targets(batch)
        base_outputs = None if state.base_outputs is None else state.base_outputs[batch]
        loss = objective(training, state.forward_pass(model, inputs), targets, base_outputs, state.logit_offset)
        gradients: Sequence[Tensor] = gradients_of(loss, parameters)
        losses[number] = loss.detach()
        if state.local is not None:
            again = partial(_gradients_at, state, training, inputs, targets, base_outputs)
            gradients = state.local.modified_gradients(gradients, again)
        state.steps.add_(1)
        with torch.no_grad():
            for rate, members in groups:
                _update(
                    training.optimizer,
                    [parameters[i] for i in members],
                    [in_memory_order(gradients[i], parameters[i]) for i in members],
                    [[kind[i] for i in members] for kind in state.optimizer_state],
                    state.steps,
                    rate,
                    hyper.momentum,
                    training.weight_decay,
                )
    return float(losses.double().mean())


def objective(
    training: Training, outputs: Tensor, targets: Tensor, base_outputs: Tensor | None, offset: Tensor | None
) -> Tensor:
    """Compute what a node minimizes: the task loss, as its algorithm modifies it."""
    outputs, base_outputs = with_offset(offset, outputs, base_outputs)
    return training.algorithm.loss(training.loss(outputs, targets), outputs, targets, base_outputs)


def with_offset(offset: Tensor | None, outputs: Tensor, base_outputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Add the algorithm's logit offset to the outputs of the model and of the base model."""
    if offset is None:
        return outputs, base_outputs
    return outputs + offset, None if base_outputs is None else base_outputs + offset


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Compute the gradient of each parameter (zeros if the loss does not depend on it); losses of rows are summed."""
    # no `grad_outputs`: for a scalar it is not needed, and torch's check of it imports sympy (0.25 s per process)
    total = loss.sum() if loss.dim() else loss
    return torch.autograd.grad(total, parameters, materialize_grads=True, allow_unused=True)


def _gradients_at(
    state: NodeTraining,
    training: Training,
    inputs: Tensor,
    targets: Tensor,
    base_outputs: Tensor | None,
) -> tuple[Tensor, ...]:
    assert state.perturbed_model is not None
    model, parameters = state.perturbed_model
    outputs = state.forward_pass(model, inputs)
    return gradients_of(objective(training, outputs, targets, base_outputs, state.logit_offset), parameters)


def _equal_rates(rates: list[float]) -> list[tuple[float, list[int]]]:
    """Group tensors by rate; tensors with the same rate are updated in one call."""
    groups: dict[float, list[int]] = {}
    for number, rate in enumerate(rates):
        groups.setdefault(rate, []).append(number)
    return list(groups.items())


def in_memory_order(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return the gradient in the parameter's memory format; the fused updates read both in memory order."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _update(
    optimizer: str,
    parameters: list[Tensor],
    gradients: list[Tensor],
    optimizer_state: list[list[Tensor]],
    steps: Tensor,
    rate: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """Take one step with torch's fused optimizers: a single pass over parameters, gradients and state."""
    if optimizer == "sgd":
        torch._fused_sgd_(
            parameters,
            gradients,
            optimizer_state[0] if momentum else [],
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
        optimizer_state[0],
        optimizer_state[1],
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
