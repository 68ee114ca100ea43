"""One state of a rate rule per node, for nodes that may miss rounds: their histories differ in length."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.rates.base import Rates, Rule, Setting


class RatesByNode(Rates):
    """One `Rates` per node, as peers have: bitwise equal to one for all nodes while no node misses a round.

    >>> from feda2l.rates import RULES
    >>> rates = RatesByNode(RULES["step"](step_size=1, gamma=0.5), Setting(0.1, ("a",), nodes=(0, 1)))
    >>> rates.skip(1, nodes=[1])
    >>> rates.rates.flatten().tolist()
    [0.1, 0.05]
    """

    def __init__(self, rule: Rule, setting: Setting) -> None:
        super().__init__(setting)
        self.own = [rule.start(one) for one in _one_by_one(setting)]
        self._gather()

    def step(self, round: int, signals: Signals, nodes: Sequence[int] | None = None) -> None:
        """End the round of these nodes (default: all); `signals` has one row per node, absent ones included."""
        for node in range(len(self.own)) if nodes is None else nodes:
            rows = (None if values is None else values[node : node + 1] for values in signals)
            self.own[node].step(round, Signals(*rows))  # type: ignore[arg-type]
        self._gather()

    def skip(self, round: int, nodes: Sequence[int] | None = None) -> None:
        for node in range(len(self.own)) if nodes is None else nodes:
            self.own[node].skip(round)
        self._gather()

    def advance(self, round: int, signals: Signals, mixed: Sequence[int], alone: Sequence[int]) -> None:
        self.step(round, signals, mixed)
        self.skip(round, alone)

    def momentum_of(self, node: int) -> float | None:
        return self.own[node].momentum

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of each node under its id: `3.divergence_history` is [rounds, 1, layers] of node 3."""
        return {
            f"{id}.{key}": value
            for id, own in zip(self.setting.nodes, self.own, strict=True)
            for key, value in own.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for id, own in zip(self.setting.nodes, self.own, strict=True):
            prefix = f"{id}."
            own.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        self._gather()

    def _gather(self) -> None:
        """Collect the rates of all nodes as rows."""
        self.base = torch.cat([own.base for own in self.own])
        self.rates = torch.cat([own.rates for own in self.own])
        self.multiplier = torch.cat([own.multiplier for own in self.own])
        self.momentum = self.own[0].momentum


def _one_by_one(setting: Setting) -> Iterator[Setting]:
    """Yield the setting of each node."""
    for place, id in enumerate(setting.nodes):
        part = slice(place, place + 1)
        yield replace(
            setting,
            nodes=(id,),
            steps=setting.steps[part],
            near_steps=setting.near_steps[part],
            factors=setting.factors[part],
        )
