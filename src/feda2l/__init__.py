"""Decentralized federated learning with layer-wise adaptive learning rates.

`FedA2L` and `layer_groups` are for your own PyTorch loop. `run` runs one spec, `study` runs many, and `equations` holds
the paper's equations.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feda2l import equations
    from feda2l.layers import layer_groups
    from feda2l.runs.run import Run, run
    from feda2l.scheduler import FedA2L
    from feda2l.studies.api import study

try:
    __version__ = version("feda2l")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["FedA2L", "Run", "__version__", "equations", "layer_groups", "run", "study"]


# everything loads on first use, torch too: `feda2l --help` needs none of it
_HOMES = {
    "FedA2L": "feda2l.scheduler",
    "Run": "feda2l.runs.run",
    "layer_groups": "feda2l.layers",
    "run": "feda2l.runs.run",
    "study": "feda2l.studies.api",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in ("data", "equations", "layers", "models", "scheduler", "topology"):
        return import_module(f"feda2l.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
