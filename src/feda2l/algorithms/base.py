"""What an algorithm is: the part of a round that differs from FedAvg, as parameters and hooks of one node.

Hooks see rows, one a node: [nodes, width], a column for each parameter (padding is 0 and must stay 0). The simulator
calls a hook once with all nodes of a run, a peer with its own row alone, so every row is treated by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from feda2l.errors import FedA2LError

__all__ = ["Algorithm", "Defaults", "Neighbourhood", "NodeStates", "RateSearch", "Task", "Trial"]

Defaults = Mapping[str, Mapping[str, Any]]


class Task(NamedTuple):
    """What a run asks of an algorithm, for `check`."""

    classes: bool  # are the targets classes?
    optimizer: str
    momentum: float
    precision: str


@dataclass(frozen=True)
class NodeStates:
    """What nodes know of themselves after local training: a row each."""

    round: int
    seed: int
    ids: tuple[int, ...]
    base: Tensor  # B, [nodes, width]
    trained: Tensor  # T
    state: dict[str, Tensor]  # the algorithm's parameter-shaped state, [nodes, width]; changed in place
    small_state: dict[str, Tensor]  # and its small state, [nodes, ...], on the CPU; changed in place
    rates: Tensor  # of the round, [nodes, layers], float64
    steps: Tensor  # local steps of the round, [nodes], float64
    momentum: float
    columns: Tensor  # the columns that hold a parameter, not padding: int64
    movement: Callable[[Tensor, Tensor], Tensor]  # ||b - a|| of every row and layer: float64 on the CPU
    expand: Callable[[Tensor], Tensor]  # a value a layer -> a value a column: [nodes, layers] -> [nodes, width]

    def per_step(self, change: Tensor) -> Tensor:
        """change / (rate x steps): what each step of the round did on average, in units of the gradient."""
        reach = self.rates * self.steps.unsqueeze(1)
        # a layer at rate 0 took no step, though mixing may have moved it: x / inf is 0
        return change / self.expand(torch.where(reach > 1e-30, reach, torch.inf))


@dataclass(frozen=True)
class Neighbourhood:
    """What one node hears in a round: the closed neighbourhood, itself included, in ascending id."""

    node: int
    ids: tuple[int, ...]
    weights: Tensor  # what the topology gives each, [k], float64
    samples: Tensor  # training samples of each, [k], float64; they came with the first message
    base: Tensor  # the node's own B, [width]
    small_state: dict[str, Tensor]  # the node's own small state; changed in place
    receive: Callable[[str], Tensor]  # what they published under a name, [k, ...]
    movement: Callable[[Tensor, Tensor], Tensor]  # ||b - a|| of every row and layer


class Trial(NamedTuple):
    """A rate that a node tried in a search, and the loss that it led to; a diverged trial's loss is infinite."""

    rate: float
    loss: float


class RateSearch(Protocol):
    """A search for each node's base rate: it tries rates, exchanges trials with its neighbours and decides."""

    @property
    def trials(self) -> int:
        """How many rates each node draws."""

    @property
    def eval_epochs(self) -> int:
        """Local epochs per trial."""

    @property
    def consensus(self) -> bool:
        """Do all nodes agree on one rate?"""

    def draw(self, seed: int, node: int) -> list[float]:
        """A node's own candidates."""

    def shortlist(self, states: list[Trial], received: list[Trial], seed: int, node: int) -> list[float]:
        """What a node tries itself once it has received its neighbours' trials."""

    def decide(self, states: list[Trial], received: list[Trial], tried: list[Trial]) -> float:
        """The rate that a node takes; `tried` are the trials of its shortlist."""

    def epochs(self, nodes: int) -> int:
        """The most local epochs of a node whose closed neighbourhood has so many nodes."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A base algorithm: its parameters are its fields, and they are the keys of `[algorithm]` in a spec.

    What is not overridden is FedAvg: train on the task loss, publish the trained state, take the topology's weighted
    average. Overriding a hook is all it takes; nothing else has to be declared.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    summary: ClassVar[str]
    citation: ClassVar[str]
    state: ClassVar[tuple[str, ...]] = ()  # names of its parameter-shaped state, zero at the start
    defaults: ClassVar[Defaults] = {}  # spec keys that it sets unless the user does
    mixing: ClassVar[Literal["any", "doubly_stochastic", "symmetric", "push"]] = "any"  # what W must be
    uses_base_outputs: ClassVar[bool] = False  # does `loss` want the base model's outputs?

    # --- local training ------------------------------------------------------------------------------------

    def loss(self, task: Tensor, outputs: Tensor, targets: Tensor, base_outputs: Tensor | None) -> Tensor:
        """The local objective from the task loss [...], outputs [..., batch, classes] and targets [..., batch].

        `base_outputs` are the outputs of the base model, which stays as it was when the round began, in eval mode.
        """
        return task

    @property
    def ascent(self) -> float:
        """How far to go along the normed gradient before the gradient is taken that the step uses."""
        return 0.0

    def gradient(self, gradient: Tensor, parameters: Tensor, base: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """What the optimiser is given in place of the gradient; all [..., width]. May change `gradient` in place."""
        return gradient

    @property
    def local_steps(self) -> int | None:
        """How many steps a node takes between two exchanges; None: the epochs of `[training]`."""
        return None

    # --- exchange and aggregation --------------------------------------------------------------------------

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        """The small state at the start, [len(shares), ...].

        `shares` is what each node starts with: its samples where they are the weights, else 1; `nodes` and `layers`
        are those of the network and of the model.
        """
        return {}

    def publish(self, states: NodeStates) -> dict[str, Tensor]:
        """What each node lets its neighbours see, by name: [nodes, ...]; "model" is what is averaged to the model."""
        return {"model": states.trained}

    def message_bytes(self, parameters: int, width: int) -> int:
        """The size of what is published, as it travels: of so many parameters, in so many columns of a row."""
        return 4 * parameters

    @property
    def gossip(self) -> int:
        """How many times a round mixes."""
        return 1

    def weigh(self, neighbourhood: Neighbourhood) -> Tensor:
        """The weights that a node gives those it hears, [k], float64, instead of the topology's."""
        return neighbourhood.weights

    def combine(self, neighbourhood: Neighbourhood) -> Tensor:
        """The model that a node makes of all states it received, [width], instead of their weighted mean.

        `near.hear("model")` is what the closed neighbourhood published, [k, width].
        """
        return neighbourhood.weights.to(neighbourhood.base) @ neighbourhood.receive("model")

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        """The aggregated state A from what was sent and what mixing made of it; may change `mixed` in place."""
        return mixed["model"]

    # --- before the first round ----------------------------------------------------------------------------

    @property
    def rate_search(self) -> RateSearch | None:
        """The search for the base rate before round 1, for an algorithm that has one.

        It notes the rate and the epochs of every node under "found" and "epochs".
        """
        return None

    def check(self, task: Task) -> None:
        """Raise a FedA2LError if the algorithm cannot serve this task."""

    def demand(self, sound: bool, key: str, words: str) -> None:
        """Refuse a parameter."""
        if not sound:
            raise FedA2LError(f"algorithm.{key} = {getattr(self, key)}: {words}")

    def overrides(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Algorithm, hook)

    @property
    def trains_plainly(self) -> bool:
        """Is local training FedAvg's?"""
        return not (self.ascent or self.overrides("loss") or self.overrides("gradient"))

    @property
    def kind(self) -> str:
        """Rows whose algorithms are of one kind train alike."""
        # with the module: a user's own class may be called like one of ours
        return "" if self.trains_plainly else f"{type(self).__module__}.{self!r}"

    @property
    def averages_plainly(self) -> bool:
        """Is the aggregated state one weighted average of the trained ones?"""
        return self.gossip == 1 and not (self.overrides("publish") or self.overrides("accept"))
