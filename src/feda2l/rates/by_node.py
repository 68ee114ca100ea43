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
        self.rates_of = [rule.start(one) for one in _one_by_one(setting)]
        self._gather()

    def step(self, round: int, signals: Signals, nodes: Sequence[int] | None = None) -> None:
        """End the round of these nodes (default: all); `signals` has one row per node, absent ones included."""
        for node in range(len(self.rates_of)) if nodes is None else nodes:
            rows = (None if values is None else values[node : node + 1] for values in signals)
            self.rates_of[node].step(round, Signals._make(rows))
        self._gather()

    def skip(self, round: int, nodes: Sequence[int] | None = None) -> None:
        for node in range(len(self.rates_of)) if nodes is None else nodes:
            self.rates_of[node].skip(round)
        self._gather()

    def advance(self, round: int, signals: Signals, mixed: Sequence[int], alone: Sequence[int]) -> None:
        self.step(round, signals, mixed)
        self.skip(round, alone)

    def momentum_of(self, node: int) -> float | None:
        return self.rates_of[node].momentum

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of each node under its id: `3.divergence_history` is [rounds, 1, layers] of node 3."""
        return {
            f"{id}.{key}": value
            for id, one in zip(self.setting.nodes, self.rates_of, strict=True)
            for key, value in one.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for id, one in zip(self.setting.nodes, self.rates_of, strict=True):
            prefix = f"{id}."
            one.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        self._gather()

    def _gather(self) -> None:
        """Collect the rates of all nodes as rows."""
        self.base = torch.cat([one.base for one in self.rates_of])
        self.rates = torch.cat([one.rates for one in self.rates_of])
        self.multiplier = torch.cat([one.multiplier for one in self.rates_of])
        self.momentum = self.rates_of[0].momentum


def _one_by_one(setting: Setting) -> Iterator[Setting]:
    """Yield the setting of each node."""
    for place, id in enumerate(setting.nodes):
        part = slice(place, place + 1)
        yield replace(
            setting,
            nodes=(id,),
            steps=setting.steps[part],
            neighbour_steps=setting.neighbour_steps[part],
            factors=setting.factors[part],
        )
