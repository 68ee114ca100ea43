"""One interface for "where does the next learning rate come from", a constant rate included."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.errors import FedA2LError

__all__ = ["Rates", "Role", "Rule", "Schedule", "ScheduledRates", "Setting", "SignalSettings", "demand_clip"]

# what a rule is in a comparison: FedA2L, a control (FedA2L without one of its parts), the constant rate or another rule
Role = Literal["ours", "control", "constant", "baseline"]


@dataclass(frozen=True)
class Setting:
    """What a rule is told about the run that it serves."""

    base: float | tuple[float, ...]  # eta0, the base rate: one, or one a layer
    layers: tuple[str, ...]  # layer names, in the model's order
    nodes: tuple[int, ...] = (0,)  # ids of the nodes it sets rates for; random rules draw by id
    horizon: int = 1  # rounds until the end of a schedule that has one
    momentum: float = 0.0  # the optimiser's own
    seed: int = 0
    steps: tuple[int, ...] = ()  # local steps a round of each of `nodes`
    near_steps: tuple[tuple[int, ...], ...] = ()  # for each of `nodes` those of its closed neighbourhood
    sizes: tuple[int, ...] = ()  # trainable parameters of each layer
    factors: tuple[float, ...] = ()  # of the base rate, one for each of `nodes`, where nodes differ in it

    def of_each_node(self) -> "list[Setting]":
        """What a rule is told that serves one node alone; one for all where their base rates are the same."""
        if not self.factors:
            return [self]
        assert isinstance(self.base, float)
        return [replace(self, base=self.base * factor, factors=()) for factor in self.factors]

    def demand(self, rule: str, *keys: Literal["steps", "near_steps", "sizes"]) -> None:
        """Raise unless each of these is known: one positive entry a node, or a layer in `sizes`."""
        for key in keys:
            values: tuple[int | tuple[int, ...], ...] = getattr(self, key)
            each, count = ("layer", len(self.layers)) if key == "sizes" else ("node", len(self.nodes))
            if not values:
                raise FedA2LError(f"{rule} needs `{key}` of its setting, one entry a {each}, and was not told them")
            if len(values) != count:
                raise FedA2LError(f"{rule}: the setting has {len(values)} {key} for {count} {each}s")
            for value in values:
                if min(value if isinstance(value, tuple) else (value,), default=0) < 1:
                    raise FedA2LError(f"{rule}: the setting has {key} = {value} for a {each}, must be at least 1")


@dataclass(frozen=True)
class SignalSettings:
    """How the signals of a round are taken."""

    threshold: float = 1e-3  # tau of the aggregation stability
    tensors: Literal["all", "weight"] = "all"  # of each layer
    eps: float = 1e-8  # beside the norm of the base state
    eps_in_norm: bool = False  # or added to each of its coordinates, as the released code does
    pooled: bool = False  # one sigma and one zeta over all layers
    movement: bool = False  # is ||T - B|| of each layer wanted beside sigma and zeta?


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rate rule: its parameters are its fields, and they are the keys of `[rates]` in a spec."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    summary: ClassVar[str]
    role: ClassVar[Role] = "baseline"
    has_end: ClassVar[bool] = False  # does `horizon` matter?

    @property
    def measure(self) -> SignalSettings:
        return SignalSettings()

    def start(self, setting: Setting) -> "Rates":
        raise NotImplementedError


def demand_clip(clip: tuple[float, float]) -> None:
    """Raise unless `clip`, the bounds of a multiplier, keeps every rate positive and finite."""
    if not (len(clip) == 2 and 0 < clip[0] <= clip[1] < float("inf")):
        raise FedA2LError(f"rates.clip = {clip}: must be [low, high] with 0 < low <= high, both finite")


class Rates:
    """A rule at work: the rates of the coming round, [nodes, layers], and how they follow from this one."""

    momentum: float | None = None  # the optimiser's momentum in the coming round, where the rule sets it

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
        """A round in which the node mixed with nobody: there was nothing to observe, so the rates stay."""

    def advance(self, round: int, signals: Signals, mixed: Sequence[int], alone: Sequence[int]) -> None:
        """End a round: nodes that mixed with somebody step, those that were alone skip it. Here all do the same."""
        if mixed:
            self.step(round, signals)
        elif alone:
            self.skip(round)

    def momentum_of(self, node: int) -> float | None:
        """The optimizer's momentum of one node."""
        return self.momentum

    def movement(self, rule: str, signals: Signals) -> Tensor:
        """||T - B|| of the round, [nodes, layers] in float64, for a rule that reads it."""
        if signals.movement is None:
            raise FedA2LError(f"{rule} needs ||T - B|| of each layer, and the signals came without `movement`")
        return signals.movement.to(torch.float64).expand_as(self.rates)

    def state_dict(self) -> dict[str, Tensor]:
        return {"rates": self.rates.clone(), "multiplier": self.multiplier.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name in ("rates", "multiplier"):
            if state[name].shape != self.rates.shape:
                raise FedA2LError(
                    f"the saved {name} are for {list(state[name].shape)} [nodes, layers], "
                    f"this model and network have {list(self.rates.shape)}"
                )
        self.rates, self.multiplier = state["rates"].clone(), state["multiplier"].clone()


@dataclass(frozen=True, kw_only=True)
class Schedule(Rule):
    """A rule that depends on the round alone: rate = base * factor."""

    def factor(self, index: int, setting: Setting) -> float:
        """The share of the base rate for 0-based round `index` (stepped once a round, after training)."""
        raise NotImplementedError

    def momentum(self, index: int, setting: Setting) -> float | None:
        """The optimiser's momentum for that round; None leaves it as it is."""
        return None

    def start(self, setting: Setting) -> "Rates":
        return ScheduledRates(self, setting)


class ScheduledRates(Rates):
    """A schedule at work: `multiplier` is its factor, the same for every layer, and for every node of one base rate."""

    def __init__(self, schedule: Schedule, setting: Setting) -> None:
        super().__init__(setting)
        self.schedule = schedule
        self._set(0)

    def step(self, round: int, signals: Signals) -> None:
        self._set(round)

    def skip(self, round: int) -> None:
        """A schedule follows the round, whoever is there."""
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
