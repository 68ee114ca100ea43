"""The rate rules. A new one is a short file and an entry in `RULES`; `round` measures the signals."""

from feda2l.rates.auto_lr import AutoLr
from feda2l.rates.base import Rates, Rule, Schedule, Setting, SignalSettings
from feda2l.rates.cawr import Cawr
from feda2l.rates.constant import Constant
from feda2l.rates.cosine import Cosine
from feda2l.rates.decay_only import DecayOnly, HiddenSchedule
from feda2l.rates.decay_only_matched import DecayOnlyMatched
from feda2l.rates.exponential import Exponential
from feda2l.rates.fed_lamb import FedLamb
from feda2l.rates.feda2l import FedA2LRule
from feda2l.rates.flare import Flare
from feda2l.rates.flayer import Flayer
from feda2l.rates.hyperbolic import ExpHyperbolic, Hyperbolic, HyperbolicReference
from feda2l.rates.inverse_sqrt import InverseSqrt
from feda2l.rates.model_level import ModelLevel
from feda2l.rates.one_cycle import OneCycle
from feda2l.rates.random_multiplier import RandomMultiplier
from feda2l.rates.shuffled import Shuffled
from feda2l.rates.step import Step

RULES: dict[str, type[Rule]] = {
    "constant": Constant,
    "step": Step,
    "cawr": Cawr,
    "one_cycle": OneCycle,
    "hyperbolic": Hyperbolic,
    "exp_hyperbolic": ExpHyperbolic,
    "hyperbolic_reference": HyperbolicReference,
    "inverse_sqrt": InverseSqrt,
    "cosine": Cosine,
    "exponential": Exponential,
    "feda2l": FedA2LRule,
    "decay_only": DecayOnly,
    "decay_only_matched": DecayOnlyMatched,
    "hidden_schedule": HiddenSchedule,
    "random_multiplier": RandomMultiplier,
    "shuffled": Shuffled,
    "model_level": ModelLevel,
    "flare": Flare,
    "autolr": AutoLr,
    "fed_lamb": FedLamb,
    "flayer": Flayer,
}

__all__ = ["RULES", "Rates", "Rule", "Schedule", "Setting", "SignalSettings"]
