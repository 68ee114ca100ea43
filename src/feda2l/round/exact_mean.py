"""The mean over nodes, with the same bits in whatever order they are added."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

HEIGHT, WIDTH = 32, 1 << 13  # of what is taken to float64 at a time

Reduce = Callable[[Tensor], Tensor]


def exact_mean(
    rows: Tensor, *, count: int | None = None, largest: Reduce | None = None, total: Reduce | None = None
) -> Tensor:
    """The mean over [nodes, ...], in its dtype; over `count` nodes of which others have the rest.

    With M = max |x| of a column and a = 2^b M, 2^b > 4 nodes, every x is rounded to (x + a) - a: to a multiple of
    a 2^-53 at worst. Sums of these are exact in float64, so their order does not matter: `largest` and `total` may
    take M and the sum over other processes. What is rounded away, 2^(b - 53) M, is far below a float32.

    >>> x = torch.tensor([[1e-8], [1.0], [-1.0]])
    >>> torch.equal(exact_mean(x), exact_mean(x[[2, 0, 1]]))
    True
    """
    nodes = len(rows) if count is None else count
    flat = rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)
    top = torch.zeros_like(flat[0])
    for some, columns in _tiles(flat):
        torch.maximum(top[columns], some.abs().amax(dim=0), out=top[columns])
    anchor = (top if largest is None else largest(top)).double() * 2.0 ** (nodes.bit_length() + 2)
    sums = torch.zeros_like(anchor)
    for some, columns in _tiles(flat):
        sums[columns] += some.double().add_(anchor[columns]).sub_(anchor[columns]).sum(dim=0)
    return ((sums if total is None else total(sums)) / nodes).to(rows.dtype).view(rows.shape[1:])


def _tiles(matrix: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """Parts of a matrix that stay in the cache, and their columns; on a GPU few and large ones."""
    wide = WIDTH if matrix.device.type == "cpu" else 128 * WIDTH
    for start in range(0, matrix.shape[1], wide):
        columns = slice(start, start + wide)
        for some in matrix[:, columns].split(HEIGHT):
            yield some, columns
