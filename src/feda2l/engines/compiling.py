"""torch.compile as engines use it that have a shape for each kind of pack."""

from collections.abc import Callable
from typing import Any

import torch

SHAPES = 128  # of one function in a process


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled anew for every shape it is called with.

    After a few of them (8) torch would go on without compiling: a study of many sizes, or a long session, would be
    slow from then on and right, and only a warning would say so.
    """
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, SHAPES)
    return torch.compile(function, dynamic=False)
