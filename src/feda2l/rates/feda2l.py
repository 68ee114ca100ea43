"""FedA2L as a rate rule: each layer's next rate from its divergence and stability in the last rounds (Algorithm 1)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import ClassVar, Literal

import torch
from torch import Tensor

from feda2l.equations import Signals, WindowForm, next_rates, window_multiplier
from feda2l.errors import FedA2LError
from feda2l.plain_values import PlainDict
from feda2l.rates.base import Rates, Role, Rule, Setting, SignalSettings

DEEP = 10  # a model with more layers is deep, in the paper's defaults and in the released code

PRESETS: dict[str, PlainDict] = {
    # the paper
    "paper": {
        "transform": "none",
        "newest": "current",
        "decay_index": "round",
        "warmup_factor": 1.0,
        "bn_warmup_factor": 1.0,
        "lr_clip": (0.0, float("inf")),
        "measured": "all",
    },
    # the released code, exactly as it is; `warmup_factor` depends on the depth, see `resolved`
    "reference": {
        "transform": "softsign",
        "newest": "previous",
        "decay_index": "adaptations",
        "lr_clip": (1e-4, 0.02),
        "measured": "weight",
    },
}

CHOICES = {
    key: tuple(preset[key] for preset in PRESETS.values()) for key in ("transform", "newest", "decay_index", "measured")
}


@dataclass(frozen=True, kw_only=True)
class FedA2LRule(Rule):
    """Set each layer's rate from its update intensity and its agreement with the neighbours.

    Parameters that are None take the preset's value or depend on the model's depth (`resolved`).
    """

    summary = "layer-wise rates from weight divergence and aggregation stability (the paper)"
    role: ClassVar[Role] = "ours"

    preset: Literal["paper", "reference"] = "paper"
    warmup_rounds: int | None = None
    window: int | None = None
    window_form: WindowForm = "sample"
    decay: float | None = None
    balance: float = 0.6
    threshold: float = 1e-3
    consensus_sign: Literal[1, -1] = 1
    eps_norm: float = 1e-8
    eps_std: float = 1e-6
    transform: Literal["none", "softsign"] | None = None
    newest: Literal["current", "previous"] | None = None
    decay_index: Literal["round", "adaptations"] | None = None
    warmup_factor: float | None = None
    bn_warmup_factor: float | None = None
    lr_clip: tuple[float, float] | None = None
    measured: Literal["all", "weight"] | None = None

    def __post_init__(self) -> None:
        def demand(valid: bool, key: str, message: str) -> None:
            if not valid:
                raise FedA2LError(f"rates.{key} = {getattr(self, key)}: {message}")

        def at_least(value: int | None, least: int) -> bool:
            return value is None or value >= least

        _demand_types(self)
        demand(self.preset in PRESETS, "preset", f"must be one of {', '.join(PRESETS)}")
        demand(at_least(self.warmup_rounds, 0), "warmup_rounds", "must be 0 or more rounds")
        demand(at_least(self.window, 2), "window", "must be 2 or more rounds: one value has no standard deviation")
        demand(
            self.window_form in ("sample", "printed"),
            "window_form",
            "must be sample (the mean of the last `window` values) or printed (window + 1 values divided by window)",
        )
        demand(self.decay is None or 0 <= self.decay < float("inf"), "decay", "must be 0 (no decay) or more")
        demand(0 <= self.balance <= 1, "balance", "must be between 0 (only stability) and 1 (only divergence)")
        demand(self.threshold > 0, "threshold", "must be above 0, otherwise no parameter counts as stable")
        demand(self.consensus_sign in (1, -1), "consensus_sign", "must be 1 (the equation) or -1 (the prose)")
        demand(self.eps_norm >= 0, "eps_norm", "must not be negative")
        demand(self.eps_std > 0, "eps_std", "must be above 0, otherwise a constant window divides by zero")
        for key in ("warmup_factor", "bn_warmup_factor"):
            demand(getattr(self, key) is None or 0 <= getattr(self, key) < float("inf"), key, "must be 0 or more")
        clip = self.lr_clip
        valid = clip is None or (len(clip) == 2 and 0 <= clip[0] <= clip[1])
        demand(valid, "lr_clip", "must be [low, high] with 0 <= low <= high")
        for key, choices in CHOICES.items():
            demand(getattr(self, key) in (None, *choices), key, f"must be one of {', '.join(choices)}")

    def resolved(self, layers: int, *, model: str = "", data: str = "") -> "FedA2LRule":
        """Return the rule with every parameter set: the preset's values and the paper's defaults by depth and task."""
        deep = layers > DEEP
        defaults = PRESETS[self.preset] | _paper_defaults(deep, model, data)
        if self.preset == "reference":
            decay = defaults["decay"] if self.decay is None else self.decay
            defaults |= {"warmup_factor": decay if deep else 1.0, "bn_warmup_factor": 0.5 if deep else 1.0}
        return replace(self, **{key: value for key, value in defaults.items() if getattr(self, key) is None})

    @property
    def measure(self) -> SignalSettings:
        reference = self.preset == "reference"
        which = self.measured or PRESETS[self.preset]["measured"]
        return SignalSettings(threshold=self.threshold, tensors=which, eps=self.eps_norm, eps_in_norm=reference)

    def start(self, setting: Setting) -> "FedA2LRates":
        return FedA2LRates(self.resolved(len(setting.layers)), setting)


def _demand_types(rule: FedA2LRule) -> None:
    """Raise unless every parameter that is given has the type of its field."""
    kinds = {int: "a whole number", float: "a number", str: "a word", tuple: "[low, high]"}
    fields = {
        **dict.fromkeys(("warmup_rounds", "window"), int),
        **dict.fromkeys(("balance", "threshold", "eps_norm", "eps_std"), float),
        **dict.fromkeys(("decay", "warmup_factor", "bn_warmup_factor"), float),
        **dict.fromkeys(("preset", "window_form", *CHOICES), str),
        "consensus_sign": int,
        "lr_clip": tuple,
    }
    for key, kind in fields.items():
        value = getattr(rule, key)
        if not (_has_type(value, kind) or (value is None and rule.__dataclass_fields__[key].default is None)):
            raise FedA2LError(f"rates.{key} = {value!r}: must be {kinds[kind]}, not a {type(value).__name__}")


def _has_type(value: object, kind: type) -> bool:
    """Return whether a value has a kind: True is no number, and a whole number is a number."""
    if kind is tuple:
        return isinstance(value, tuple | list) and all(_has_type(bound, float) for bound in value)
    if kind is str:
        return isinstance(value, str)
    return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)


def _paper_defaults(deep: bool, model: str, data: str) -> PlainDict:
    """Return the warm-up rounds, window and decay that the paper uses for a task."""
    if model == "timer":
        return {"warmup_rounds": 20, "window": 10, "decay": 0.3}
    if deep:
        return {"warmup_rounds": 40, "window": 10, "decay": 0.05 if data == "tinyimagenet" else 0.1}
    return {"warmup_rounds": 10, "window": 5, "decay": 0.3}


class FedA2LRates(Rates):
    """The state of FedA2L during a run. The controls override one of its two steps, `observed` or `multiplied`."""

    def __init__(self, rule: FedA2LRule, setting: Setting) -> None:
        super().__init__(setting)
        self.rule = rule
        # `resolved` leaves no None; these assertions tell the type checker
        assert rule.warmup_rounds is not None
        assert rule.window is not None
        assert rule.decay is not None
        assert rule.warmup_factor is not None
        assert rule.bn_warmup_factor is not None
        self.warmup_rounds, self.window, self.decay = rule.warmup_rounds, rule.window, rule.decay
        factors = [rule.warmup_factor * (rule.bn_warmup_factor if "bn" in layer else 1.0) for layer in setting.layers]
        self.rates = self.base * torch.tensor(factors, dtype=torch.float64)
        empty = torch.empty(0, *self.rates.shape, dtype=torch.float64)
        self.history = Signals(empty, empty)
        self.rounds_kept = self.window + (rule.window_form == "printed")  # rounds of the histories
        self.adaptations = 0

    def step(self, round: int, signals: Signals) -> None:
        history = self._append(self.observed(round, signals))
        if self.rule.newest == "current" and round > self.warmup_rounds:
            self._adapt(round, history)
        # the released code adapts before it stores this round's signals: a lag of one round
        elif self.rule.newest == "previous" and round > self.warmup_rounds + 1:
            self._adapt(round, self.history)
        self.history = history

    def observed(self, round: int, signals: Signals) -> Signals:
        """Return the signals as they enter the histories."""
        divergence, stability = (signal.to(torch.float64).expand_as(self.rates) for signal in signals[:2])
        if self.rule.transform == "softsign":
            return Signals(torch.nn.functional.softsign(divergence), torch.nn.functional.softsign(stability))
        return Signals(divergence, stability)

    def multiplied(self, round: int, history: Signals) -> Tensor:
        """Return the factor m on the base rate, [nodes, layers]."""
        rule = self.rule
        return window_multiplier(
            *history[:2],
            balance=rule.balance,
            eps=rule.eps_std,
            consensus_sign=rule.consensus_sign,
            form=rule.window_form,
        )

    def state_dict(self) -> dict[str, Tensor]:
        return super().state_dict() | {
            "divergence_history": self.history.divergence.clone(),
            "stability_history": self.history.stability.clone(),
            "adaptations": torch.tensor(self.adaptations),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.history = Signals(state["divergence_history"].clone(), state["stability_history"].clone())
        self.adaptations = int(state["adaptations"])

    def _append(self, current: Signals) -> Signals:
        return Signals(
            *(
                torch.cat([old, new.unsqueeze(0)])[-self.rounds_kept :]
                for old, new in zip(self.history[:2], current[:2], strict=True)
            )
        )

    def _adapt(self, round: int, history: Signals) -> None:
        assert self.rule.lr_clip is not None
        index = round if self.rule.decay_index == "round" else self.adaptations
        self.multiplier = self.multiplied(round, history)
        rates = next_rates(self.multiplier, round=index, base_lr=self.base, decay=self.decay)
        self.rates = rates.clamp(*self.rule.lr_clip)
        self.adaptations += 1
