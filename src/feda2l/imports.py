"""Import a user's own model, loss, algorithm or rate rule by the path that a spec names."""

import importlib
import os
import sys
from typing import Any

from feda2l.errors import FedA2LError


def import_object(path: str, key: str) -> Any:
    """Return the object at `"package.module:name"`; the current folder is searched first, as with `python -m`."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded = importlib.import_module(module)
        for part in name.split("."):
            loaded = getattr(loaded, part)
    except Exception as error:  # a user's module may raise anything
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise FedA2LError(
            f'{key} = "{path}" cannot be imported as "package.module:name": {kind}{error}', see="own-code"
        ) from error
    if not callable(loaded):
        raise FedA2LError(
            f'{key} = "{path}" is a {type(loaded).__name__}, which is not callable: name a function or a class',
            see="own-code",
        )
    return loaded
