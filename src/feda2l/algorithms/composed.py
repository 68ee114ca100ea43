"""Several algorithms as the parts of one: hooks that chain, and hooks that only one part may have."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, MixingNeed, Neighbourhood, NodeStates, Task
from feda2l.errors import FedA2LError

JOIN = "+"
# hooks that replace a step of the round, and what that step is called in an error
SINGLE = {
    "publish": "what is sent",
    "message_bytes": "what is sent",
    "weigh": "the weights of the average",
    "combine": "the rule of the average",
    "accept": "the aggregated state",
    "outer_step": "the step after averaging",
    "ascent": "the point at which the gradient is taken",
    "gossip": "the number of exchanges",
    "local_steps": "the number of local steps",
    "rate_search": "the search of the base rate",
}


def part_names(name: str) -> list[str]:
    """Return the names of the parts of an algorithm.

    >>> part_names("prior_loss + outer_momentum")
    ['prior_loss', 'outer_momentum']
    """
    return [part.strip() for part in name.split(JOIN)]


@dataclass(frozen=True, kw_only=True)
class Composed(Algorithm):
    """The parts of a round, by name.

    - `gradient` chains: each part receives the result of the part before it.
    - `logit_offset` adds up. The offsets correct the outputs first; then each part adds its term to the loss.
    - `observe` is called for every part, with the average before the outer step.
    - The hooks in `SINGLE` belong to at most one part.

    A part sees its own state, which is stored as `part.name`.
    """

    summary = "several parts in one round"
    citation = ""

    parts: tuple[tuple[str, Algorithm], ...]

    def __post_init__(self) -> None:
        for one, other in combinations(self.parts, 2):
            _refuse_collision(one, other)
        kinds = [part for _, part in self.parts]
        defaults: dict[str, dict[str, Any]] = {}
        for part in kinds:
            for section, values in part.defaults.items():
                defaults.setdefault(section, {}).update(values)
        own = {
            "state": tuple(f"{name}.{key}" for name, part in self.parts for key in part.state),
            "defaults": defaults,
            "mixing": _mixing_need({part.mixing for part in kinds}),
            "uses_base_outputs": any(part.uses_base_outputs for part in kinds),
        }
        for key, value in own.items():
            object.__setattr__(self, key, value)  # class attributes of a plain algorithm

    # --- hooks that chain ------------------------------------------------------------------------------------

    def logit_offset(self, shares: Tensor) -> Tensor:
        return torch.stack([part.logit_offset(shares) for _, part in self.parts]).sum(dim=0)

    def loss(self, task: Tensor, outputs: Tensor, targets: Tensor, base_outputs: Tensor | None) -> Tensor:
        for _, part in self.parts:
            task = part.loss(task, outputs, targets, base_outputs)
        return task

    def gradient(self, gradient: Tensor, parameters: Tensor, base: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        for name, part in self.parts:
            gradient = part.gradient(gradient, parameters, base, _own(name, state))
        return gradient

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": values
            for name, part in self.parts
            for key, values in part.small_state(shares, nodes, layers).items()
        }

    def observe(self, states: NodeStates, average: Tensor) -> None:
        for name, part in self.parts:
            part.observe(_states(name, states), average)

    def check(self, task: Task) -> None:
        for _, part in self.parts:
            part.check(task)

    def check_graph(self, eigenvalues: Sequence[float], betas: Sequence[float]) -> None:
        for name, part in self.parts:
            with errors_of_part(name):
                part.check_graph(eigenvalues, betas)

    # --- hooks of one part -----------------------------------------------------------------------------------

    def publish(self, states: NodeStates) -> dict[str, Tensor]:
        name, part = self._owner("publish")
        return part.publish(_states(name, states))

    def message_bytes(self, parameters: int, width: int) -> int:
        return self._owner("message_bytes")[1].message_bytes(parameters, width)

    def weigh(self, neighbourhood: Neighbourhood) -> Tensor:
        name, part = self._owner("weigh")
        return part.weigh(replace(neighbourhood, small_state=_own(name, neighbourhood.small_state)))

    def combine(self, neighbourhood: Neighbourhood) -> Tensor:
        name, part = self._owner("combine")
        return part.combine(replace(neighbourhood, small_state=_own(name, neighbourhood.small_state)))

    def accept(self, states: NodeStates, sent: dict[str, Tensor], mixed: dict[str, Tensor]) -> Tensor:
        name, part = self._owner("accept")
        return part.accept(_states(name, states), sent, mixed)

    def outer_step(self, states: NodeStates, average: Tensor) -> Tensor:
        name, part = self._owner("outer_step")
        return part.outer_step(_states(name, states), average)

    @property
    def outer_betas(self) -> tuple[float, ...]:
        return self._owner("outer_step")[1].outer_betas

    @property
    def ascent(self) -> float:
        return self._owner("ascent")[1].ascent

    @property
    def gossip(self) -> int:
        return self._owner("gossip")[1].gossip

    @property
    def local_steps(self) -> int | None:
        return self._owner("local_steps")[1].local_steps

    def overrides(self, hook: str) -> bool:
        return any(part.overrides(hook) for _, part in self.parts)

    @property
    def averages_plainly(self) -> bool:
        return all(part.averages_plainly for _, part in self.parts)

    def _owner(self, hook: str) -> tuple[str, Algorithm]:
        """Return the part that overrides a hook; if none does, any part, which then behaves as FedAvg."""
        return next(((name, part) for name, part in self.parts if part.overrides(hook)), self.parts[0])


@contextmanager
def errors_of_part(name: str) -> Iterator[None]:
    """Name the part in an error about one of its parameters: algorithm.KEY becomes algorithm.PART.KEY."""
    try:
        yield
    except FedA2LError as error:
        raise FedA2LError(re.sub(r"^algorithm\.(?!name\b)", f"algorithm.{name}.", str(error)), see=error.see) from error


def _refuse_collision(one: tuple[str, Algorithm], other: tuple[str, Algorithm]) -> None:
    for name, part in (one, other):
        if part.rate_search is not None:
            raise FedA2LError(f'algorithm.name: "{name}" searches the base rate before round 1 and cannot be combined')
    for hook, words in SINGLE.items():
        if any(part.overrides(hook) for _, part in (one, other)) and _has(one[1], hook) and _has(other[1], hook):
            raise FedA2LError(
                f'algorithm.name: "{one[0]}" and "{other[0]}" both decide {words} (the hook {hook}); only one part of '
                "an algorithm can: remove one of the two",
                see="spec",
            )
    if "push" in (needs := {one[1].mixing, other[1].mixing}) and needs - {"push", "any"}:
        raise FedA2LError(
            f'algorithm.name: "{one[0]}" needs {one[1].mixing} weights and "{other[0]}" needs {other[1].mixing} '
            "weights: remove one of the two",
            see="spec",
        )


def _has(part: Algorithm, hook: str) -> bool:
    return part.overrides(hook) or hook in part.claims


def _mixing_need(needs: set[MixingNeed]) -> MixingNeed:
    """Return the weakest property of W that satisfies all needs: a symmetric W is doubly stochastic."""
    strict = needs - {"any"}
    return "symmetric" if len(strict) > 1 else next(iter(strict), "any")


def _own(name: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of one part, under the names that it gave them."""
    return {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}


def _states(name: str, states: NodeStates) -> NodeStates:
    return replace(states, state=_own(name, states.state), small_state=_own(name, states.small_state))
