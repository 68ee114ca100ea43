"""The interface of an algorithm: what differs from FedAvg in a round, as parameters and hooks.

Hooks work on rows, one per node: [nodes, width], with one column per parameter (padding is 0 and must stay 0). The
simulator calls a hook once with all nodes of a run; a peer calls it with its own row only. So a hook must treat each
row independently of the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from feda2l.errors import FedA2LError

__all__ = ["Algorithm", "Defaults", "Neighbourhood", "NodeStates", "RateSearch", "Task", "Trial"]

Defaults = Mapping[str, Mapping[str, Any]]
MixingNeed = Literal["any", "doubly_stochastic", "symmetric", "full_or_symmetric", "push"]


class Task(NamedTuple):
    """The task of a run, for an algorithm's `check`."""

    classes: int  # the number of classes; 0 if the targets are numbers
    optimizer: str
    momentum: float
    precision: str


@dataclass(frozen=True)
class NodeStates:
    """The state of the nodes after local training, one row per node."""

    round: int
    seed: int
    ids: tuple[int, ...]
    base: Tensor  # B, [nodes, width]
    trained: Tensor  # T
    state: dict[str, Tensor]  # the algorithm's parameter-shaped state, [nodes, width]; hooks change it in place
    small_state: dict[str, Tensor]  # its small state, [nodes, ...], on the CPU; hooks change it in place
    rates: Tensor  # learning rates of the round, [nodes, layers], float64
    steps: Tensor  # local steps of the round, [nodes], float64
    momentum: float
    columns: Tensor  # the columns that hold a parameter and no padding, int64
    movement: Callable[[Tensor, Tensor], Tensor]  # ||b - a|| per row and layer, float64 on the CPU
    expand: Callable[[Tensor], Tensor]  # one value per layer -> per column: [nodes, layers] -> [nodes, width]
    momentum_state: str = "keep"  # what happens to the optimizer state at each mixing: keep, reset or average

    def per_step(self, change: Tensor) -> Tensor:
        """Return change / (rate x steps): the mean change per local step, in units of the gradient."""
        reach = self.rates * self.steps.unsqueeze(1)
        # a layer with rate 0 took no step, but mixing may have moved it: x / inf is 0
        return change / self.expand(torch.where(reach > 1e-30, reach, torch.inf))


@dataclass(frozen=True)
class Neighbourhood:
    """What one node receives in a round from its closed neighbourhood (itself included), in ascending id."""

    node: int
    ids: tuple[int, ...]
    weights: Tensor  # the topology's weight of each, [k], float64
    samples: Tensor  # the number of training samples of each, [k], float64; sent with the first message
    base: Tensor  # the node's own B, [width]
    small_state: dict[str, Tensor]  # the node's own small state; hooks change it in place
    receive: Callable[[str], Tensor]  # what the neighbourhood published under a name, [k, ...]
    movement: Callable[[Tensor, Tensor], Tensor]  # ||b - a|| per row and layer


class Trial(NamedTuple):
    """A rate that a node tried in a search, and the resulting loss; a non-finite trial has an infinite loss."""

    rate: float
    loss: float


class RateSearch(Protocol):
    """A search for each node's base rate: try rates, exchange the trials with the neighbours, then decide."""

    @property
    def trials(self) -> int:
        """The number of rates that each node draws."""

    @property
    def eval_epochs(self) -> int:
        """The local epochs per trial."""

    @property
    def consensus(self) -> bool:
        """Whether all nodes agree on one rate."""

    def draw(self, seed: int, node: int) -> list[float]:
        """Return a node's own candidates."""

    def shortlist(self, own_trials: list[Trial], received: list[Trial], seed: int, node: int) -> list[float]:
        """Return the rates that a node tries after it has received its neighbours' trials."""

    def decide(self, own_trials: list[Trial], received: list[Trial], tried: list[Trial]) -> float:
        """Return the rate that a node takes; `tried` are the trials of its shortlist."""

    def epochs(self, nodes: int) -> int:
        """Return the largest number of local epochs for a node whose closed neighbourhood has `nodes` nodes."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A base algorithm. Its parameters are its fields, and they are the keys of `[algorithm]` in a spec.

    Hooks that are not overridden behave as FedAvg: train on the task loss, publish the trained state, take the weighted
    average of the topology. Overriding a hook is enough; nothing else has to be declared.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    summary: ClassVar[str]
    citation: ClassVar[str]
    state: ClassVar[tuple[str, ...]] = ()  # names of its parameter-shaped state, which starts at zero
    defaults: ClassVar[Defaults] = {}  # spec keys that it sets unless the user sets them
    mixing: ClassVar[MixingNeed] = "any"  # the property that W must have
    uses_base_outputs: ClassVar[bool] = False  # whether `loss` needs the base model's outputs
    claims: ClassVar[tuple[str, ...]] = ()  # hooks that no other part may override, besides those overridden here

    # --- local training ------------------------------------------------------------------------------------

    def logit_offset(self, shares: Tensor) -> Tensor:
        """Return what is added to a node's outputs before the loss, [classes], from the node's label shares.

        It is computed once per node and round, so that every engine adds the same bits.
        """
        return torch.zeros_like(shares)

    def loss(self, task: Tensor, outputs: Tensor, targets: Tensor, base_outputs: Tensor | None) -> Tensor:
        """Return the local objective from the task loss [...], outputs [..., batch, classes], targets [..., batch].

        `base_outputs` holds the outputs of the base model of the round, which stays fixed and in eval mode.
        """
        return task

    @property
    def ascent(self) -> float:
        """The distance along the normalized gradient at which the step's gradient is taken (0: at the point itself)."""
        return 0.0

    def gradient(self, gradient: Tensor, parameters: Tensor, base: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """Return what the optimizer gets in place of the gradient, [..., width]; may change `gradient` in place."""
        return gradient

    @property
    def local_steps(self) -> int | None:
        """The number of local steps between two exchanges; None means the epochs of `[training]`."""
        return None

    # --- exchange and aggregation --------------------------------------------------------------------------

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        """Return the small state at the start, [len(shares), ...], by name.

        Args:
            shares: the number of samples of each node if samples are the weights, else 1.
            nodes: the number of nodes of the network.
            layers: the number of layers of the model.
        """
        return {}

    def publish(self, states: NodeStates) -> dict[str, Tensor]:
        """Return what each node sends to its neighbours, [nodes, ...] by name; "model" is averaged to the model."""
        return {"model": states.trained}

    def message_bytes(self, parameters: int, width: int) -> int:
        """Return the bytes of one published message for this number of parameters, in rows of `width` columns."""
        return 4 * parameters

    @property
    def gossip(self) -> int:
        """The number of mixing steps per round."""
        return 1

    def weigh(self, neighbourhood: Neighbourhood) -> Tensor:
        """Return the weights of the received states, [k] in float64, in place of the topology's."""
        return neighbourhood.weights

    def combine(self, neighbourhood: Neighbourhood) -> Tensor:
        """Return the aggregated model of all received states, [width], in place of their weighted mean.

        `neighbourhood.receive("model")` returns what the closed neighbourhood published, [k, width].
        """
        return neighbourhood.weights.to(neighbourhood.base) @ neighbourhood.receive("model")

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        """Return the aggregated state A from what was sent and from its mix; may change `mixed` in place."""
        return mixed["model"]

    def observe(self, states: NodeStates, average: Tensor) -> None:
        """Update the algorithm's state from the average that `accept` returned, before the outer step."""

    def outer_step(self, states: NodeStates, average: Tensor) -> Tensor:
        """Return A from the average; may change `average` in place."""
        return average

    @property
    def outer_betas(self) -> tuple[float, ...]:
        """Return values that represent the range of the outer momentum; 0 without an outer step."""
        return (0.0,)

    # --- before the first round ----------------------------------------------------------------------------

    @property
    def rate_search(self) -> RateSearch | None:
        """The search for the base rate before round 1, if the algorithm has one.

        The search stores the rate and the epochs of every node in the small state, as "found" and "epochs".
        """
        return None

    def check(self, task: Task) -> None:
        """Raise a FedA2LError if the algorithm does not support this task."""

    def check_graph(self, eigenvalues: Sequence[float], betas: Sequence[float]) -> None:
        """Raise a FedA2LError if the algorithm is unstable for these eigenvalues of W and values of outer momentum."""

    def demand(self, sound: bool, key: str, words: str) -> None:
        """Raise a FedA2LError that names the parameter `key`, unless it is `sound`."""
        if not sound:
            raise FedA2LError(f"algorithm.{key} = {getattr(self, key)}: {words}")

    def overrides(self, hook: str) -> bool:
        """Return whether the algorithm overrides a hook."""
        return getattr(type(self), hook) is not getattr(Algorithm, hook)

    @property
    def trains_plainly(self) -> bool:
        """Whether local training is that of FedAvg."""
        return not (self.ascent or any(map(self.overrides, ("loss", "gradient", "logit_offset"))))

    @property
    def kind(self) -> str:
        """A key of the local training: rows whose algorithms have the same kind train identically."""
        # the module is part of it: a user's own class may have the name of one of ours
        return "" if self.trains_plainly else f"{type(self).__module__}.{self!r}"

    @property
    def averages_plainly(self) -> bool:
        """Whether the aggregated state is one weighted average of the trained states."""
        return self.gossip == 1 and not any(map(self.overrides, ("publish", "accept", "observe", "outer_step")))
