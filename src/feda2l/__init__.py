"""Decentralized federated learning with layer-wise adaptive learning rates.

`FedA2L` and `layer_groups` serve your own PyTorch loop, `equations` holds the paper's, `run` runs an experiment,
`study` many.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from feda2l import equations
from feda2l.layers import layer_groups
from feda2l.scheduler import FedA2L

if TYPE_CHECKING:
    from feda2l.experiment.run import Run, run
    from feda2l.experiment.studies import study

try:
    __version__ = version("feda2l")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["FedA2L", "Run", "__version__", "equations", "layer_groups", "run", "study"]


def __getattr__(name: str) -> Any:
    # what needs more than torch loads on first use
    if name in ("run", "Run"):
        return getattr(import_module("feda2l.experiment.run"), name)
    if name == "study":
        return import_module("feda2l.experiment.studies").study
    if name in ("data", "models", "topology"):
        return import_module(f"feda2l.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
