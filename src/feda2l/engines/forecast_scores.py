"""Score several forecasters together, each on its own windows, in pieces of equal size.

A node has few windows, so a single model spends most GPU time on kernel launches. All pieces have the same shape,
so that one compilation serves all, and a score does not depend on the other models.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 200  # windows per piece
PIECES = 25  # pieces that are evaluated together


class ForecastRequest(NamedTuple):
    """The row of a model, [width], and the sample indices of each part on which it is scored, int64 [n]."""

    state: Tensor
    parts: Sequence[Tensor]


# (rows [PIECES, width], sample indices [PIECES, PIECE]) -> errors [PIECES, PIECE, kinds]
ErrorFunction = Callable[[Tensor, Tensor], Tensor]


def summed_errors(requests: Sequence[ForecastRequest], errors_of: ErrorFunction, kinds: int) -> list[Tensor]:
    """Return, for each question, the error sums of its parts, float64 [parts, kinds].

    The last piece is padded with the first sample, and the last call with the first piece; the padding is in no sum.
    Each part is summed separately, because index_add would use atomics, whose order is not reproducible.
    """
    states, pieces, lengths = list[Tensor](), list[Tensor](), list[list[int]]()
    for state, parts in requests:
        requested = torch.cat(list(parts))
        missing = -len(requested) % PIECE
        filled = F.pad(requested, (0, missing)).view(-1, PIECE).unbind()
        pieces += filled
        states += [state] * len(filled)
        lengths.append([*map(len, parts), missing])
    sums = [torch.zeros(0, kinds, dtype=torch.float64, device=requests[0].state.device)]
    for start in range(0, len(pieces), PIECES):
        chosen = [number if number < len(pieces) else 0 for number in range(start, start + PIECES)]
        rows, samples = (torch.stack([every[number] for number in chosen]) for every in (states, pieces))
        sums.append(errors_of(rows, samples)[: len(pieces) - start].flatten(0, 1))
    by_question = torch.cat(sums).split([*map(sum, lengths)])
    # without the last part, which is padding
    return [
        torch.stack([part.sum(dim=0) for part in errors.split(counts)[:-1]])
        for errors, counts in zip(by_question, lengths, strict=True)
    ]
