"""The interface of a rate rule, which sets the learning rates of the next round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.errors import FedA2LError

__all__ = ["Rates", "Role", "Rule", "Schedule", "ScheduledRates", "Setting", "SignalSettings", "demand_clip"]

# the role of a rule in a comparison: FedA2L, a control (FedA2L without one of its parts), the constant rate or another
Role = Literal["ours", "control", "constant", "baseline"]


@dataclass(frozen=True)
class Setting:
    """What a rule knows about its run."""

    base: float | tuple[float, ...]  # eta0, the base rate: one, or one per layer
    layers: tuple[str, ...]  # layer names, in the model's order
    nodes: tuple[int, ...] = (0,)  # ids of the nodes that it sets rates for; random rules draw by id
    horizon: int = 1  # rounds until the end of a schedule that has one
    momentum: float = 0.0  # the optimizer's momentum
    seed: int = 0
    steps: tuple[int, ...] = ()  # local steps per round of each of `nodes`
    neighbour_steps: tuple[tuple[int, ...], ...] = ()  # the same for each node's closed neighbourhood
    sizes: tuple[int, ...] = ()  # trainable parameters of each layer
    factors: tuple[float, ...] = ()  # on the base rate, one per node, if the nodes have different base rates

    def of_each_node(self) -> "list[Setting]":
        """Return one setting per node, or a single one if all nodes have the same base rate."""
        if not self.factors:
            return [self]
        assert isinstance(self.base, float)
        return [replace(self, base=self.base * factor, factors=()) for factor in self.factors]

    def demand(self, rule: str, *keys: Literal["steps", "neighbour_steps", "sizes"]) -> None:
        """Raise unless each of these is given, with one positive entry per node (per layer for `sizes`)."""
        for key in keys:
            values: tuple[int | tuple[int, ...], ...] = getattr(self, key)
            each, count = ("layer", len(self.layers)) if key == "sizes" else ("node", len(self.nodes))
            if not values:
                raise FedA2LError(f"{rule} needs `{key}` in its setting, one entry per {each}; none were given")
            if len(values) != count:
                raise FedA2LError(f"{rule}: the setting has {len(values)} {key} for {count} {each}s")
            for value in values:
                if min(value if isinstance(value, tuple) else (value,), default=0) < 1:
                    raise FedA2LError(f"{rule}: the setting has {key} = {value} for a {each}: must be at least 1")


@dataclass(frozen=True)
class SignalSettings:
    """How the signals of a round are measured."""

    threshold: float = 1e-3  # tau of the aggregation stability
    tensors: Literal["all", "weight"] = "all"  # which tensors of each layer
    eps: float = 1e-8  # added to the norm of the base state
    eps_in_norm: bool = False  # add eps to each coordinate instead, as the released code does
    pooled: bool = False  # one divergence and one stability over all layers
    movement: bool = False  # measure ||T - B|| of each layer in addition to both signals


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rate rule. Its parameters are its fields, and they are the keys of `[rates]` in a spec."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    summary: ClassVar[str]
    role: ClassVar[Role] = "baseline"
    has_end: ClassVar[bool] = False  # whether `horizon` has an effect

    @property
    def measure(self) -> SignalSettings:
        """How the rule's signals are measured."""
        return SignalSettings()

    def start(self, setting: Setting) -> "Rates":
        """Return the rates of round 1, ready to step."""
        raise NotImplementedError


def demand_clip(clip: tuple[float, float]) -> None:
    """Raise unless `clip`, the bounds of a multiplier, keeps every rate positive and finite."""
    if not (len(clip) == 2 and 0 < clip[0] <= clip[1] < float("inf")):
        raise FedA2LError(f"rates.clip = {clip}: must be [low, high] with 0 < low <= high, both finite")


class Rates:
    """The state of a rule during a run: the rates of the coming round, [nodes, layers], and their update."""

    momentum: float | None = None  # the optimizer's momentum in the coming round, if the rule sets it

    def __init__(self, setting: Setting) -> None:
        shape = len(setting.nodes), len(setting.layers)
        self.setting = setting
        self.base = torch.tensor(setting.base, dtype=torch.float64).expand(shape)
        if setting.factors:
            self.base = self.base * torch.tensor(setting.factors, dtype=torch.float64).unsqueeze(1)
        self.rates = self.base.clone()
        self.multiplier = torch.ones(shape, dtype=torch.float64)

    def step(self, round: int, signals: Signals) -> None:
        """Set the rates of round `round + 1` at the end of round `round` (1-based)."""
        raise NotImplementedError

    def skip(self, round: int) -> None:
        """End a round in which the node received nothing: there are no signals, so the rates stay."""

    def advance(self, round: int, signals: Signals, mixed: Sequence[int], alone: Sequence[int]) -> None:
        """End a round: nodes that received something step, the others skip. Here all nodes do the same."""
        if mixed:
            self.step(round, signals)
        elif alone:
            self.skip(round)

    def momentum_of(self, node: int) -> float | None:
        """Return the optimizer's momentum of one node."""
        return self.momentum

    def movement(self, rule: str, signals: Signals) -> Tensor:
        """Return ||T - B|| of the round, [nodes, layers] in float64, for a rule that needs it."""
        if signals.movement is None:
            raise FedA2LError(f"{rule} needs ||T - B|| of each layer, but the signals have no `movement`")
        return signals.movement.to(torch.float64).expand_as(self.rates)

    def state_dict(self) -> dict[str, Tensor]:
        return {"rates": self.rates.clone(), "multiplier": self.multiplier.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name in ("rates", "multiplier"):
            if state[name].shape != self.rates.shape:
                raise FedA2LError(
                    f"the saved {name} are for {list(state[name].shape)} [nodes, layers], but "
                    f"this model and network have {list(self.rates.shape)}"
                )
        self.rates, self.multiplier = state["rates"].clone(), state["multiplier"].clone()


@dataclass(frozen=True, kw_only=True)
class Schedule(Rule):
    """A rule that depends only on the round: rate = base * factor."""

    def factor(self, index: int, setting: Setting) -> float:
        """Return the factor on the base rate for the 0-based round `index`."""
        raise NotImplementedError

    def momentum(self, index: int, setting: Setting) -> float | None:
        """Return the optimizer's momentum for that round; None does not change it."""
        return None

    def start(self, setting: Setting) -> "Rates":
        return ScheduledRates(self, setting)


class ScheduledRates(Rates):
    """The state of a schedule: `multiplier` is its factor, equal for all layers and for nodes of equal base rates."""

    def __init__(self, schedule: Schedule, setting: Setting) -> None:
        super().__init__(setting)
        self.schedule = schedule
        self._set(0)

    def step(self, round: int, signals: Signals) -> None:
        self._set(round)

    def skip(self, round: int) -> None:
        """End a round: a schedule depends on the round only."""
        self._set(round)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        if "momentum" in state:
            self.momentum = float(state["momentum"])

    def state_dict(self) -> dict[str, Tensor]:
        momentum = {} if self.momentum is None else {"momentum": torch.tensor(self.momentum, dtype=torch.float64)}
        return super().state_dict() | momentum

    def _set(self, index: int) -> None:
        factors = [self.schedule.factor(index, setting) for setting in self.setting.of_each_node()]
        self.multiplier.copy_(torch.tensor(factors, dtype=torch.float64).unsqueeze(1))
        self.rates = self.base * self.multiplier
        self.momentum = self.schedule.momentum(index, self.setting)
