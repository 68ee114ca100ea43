"""Objects by import path: a user's own model, loss, algorithm or rate rule, named in a spec."""

import importlib
import os
import sys
from typing import Any

from feda2l.errors import FedA2LError


def import_object(path: str, key: str) -> Any:
    """What `"package.module:name"` stands for; the current folder is searched first, as `python -m` does."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # a user's module may raise anything
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise FedA2LError(
            f'{key} = "{path}" cannot be imported as "package.module:name": {kind}{error}', see="own-code"
        ) from error
    if not callable(found):
        raise FedA2LError(
            f'{key} = "{path}" is a {type(found).__name__}, not something that can be called', see="own-code"
        )
    return found
