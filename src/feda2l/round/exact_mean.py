"""A mean over nodes whose bits do not depend on the order of summation."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

HEIGHT, WIDTH = 32, 1 << 13  # size of a tile that is converted to float64

Reduce = Callable[[Tensor], Tensor]


def exact_mean(
    rows: Tensor, *, count: int | None = None, largest: Reduce | None = None, total: Reduce | None = None
) -> Tensor:
    """Compute the mean over [nodes, ...] in its dtype; with `count`, over so many nodes on several processes.

    Let M = max |x| of a column and a = 2^b M with 2^b > 4 nodes. Every x is rounded to (x + a) - a, a multiple of
    a 2^-53 at worst. Sums of such values are exact in float64, so their order does not matter. `largest` and
    `total` reduce M and the sum over processes. The rounding error is 2^(b - 53) M, far below float32 precision.

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
    """Yield tiles of a matrix that fit the cache, and their columns; on a GPU, fewer and larger tiles."""
    wide = WIDTH if matrix.device.type == "cpu" else 128 * WIDTH
    for start in range(0, matrix.shape[1], wide):
        columns = slice(start, start + wide)
        for some in matrix[:, columns].split(HEIGHT):
            yield some, columns
