"""Forecasters asked together: each about its own windows, in pieces of one size.

A node's own windows are few, and a model alone leaves most of a GPU to launches. Pieces have one shape, so that one
compilation serves all, and an answer does not depend on who else is asked.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 200  # windows of a piece
PIECES = 25  # that are answered together


class ForecastRequest(NamedTuple):
    """A model's row, [width], and the samples of each of the parts that it is asked about, int64 [n]."""

    state: Tensor
    parts: Sequence[Tensor]


# errors [PIECES, PIECE, kinds] from rows [PIECES, width] and the samples that each is asked about, [PIECES, PIECE]
ErrorFunction = Callable[[Tensor, Tensor], Tensor]


def summed_errors(requests: Sequence[ForecastRequest], errors_of: ErrorFunction, kinds: int) -> list[Tensor]:
    """The sum over each part of a question of its samples' errors, float64 [parts, kinds].

    A last piece is filled up with the first sample, the last call with the first piece; neither is in a sum. Each part
    has a sum of its own: adding by index would be by atomics, whose order does not repeat.
    """
    states, pieces, lengths = list[Tensor](), list[Tensor](), list[list[int]]()
    for state, parts in requests:
        requested = torch.cat(list(parts))
        missing = -len(requested) % PIECE
        own = F.pad(requested, (0, missing)).view(-1, PIECE).unbind()
        pieces += own
        states += [state] * len(own)
        lengths.append([*map(len, parts), missing])
    found = [torch.zeros(0, kinds, dtype=torch.float64, device=requests[0].state.device)]
    for start in range(0, len(pieces), PIECES):
        chosen = [number if number < len(pieces) else 0 for number in range(start, start + PIECES)]
        rows, samples = (torch.stack([every[number] for number in chosen]) for every in (states, pieces))
        found.append(errors_of(rows, samples)[: len(pieces) - start].flatten(0, 1))
    by_question = torch.cat(found).split([*map(sum, lengths)])
    # all but the last part, which only fills
    return [
        torch.stack([part.sum(dim=0) for part in errors.split(own)[:-1]])
        for errors, own in zip(by_question, lengths, strict=True)
    ]
