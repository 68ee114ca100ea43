"""torch.compile for engines, with one compilation per input shape."""

from collections.abc import Callable
from typing import Any

import torch

SHAPES = 128  # maximum compilations of one function in a process


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function compiled separately for each input shape.

    By default torch stops compiling after 8 shapes with only a warning. A study with many sizes would then be correct
    but slow.
    """
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, SHAPES)
    return torch.compile(function, dynamic=False)
