"""Three states -> the two signals of every layer (Algorithm 1, lines 8 to 10), as reductions over columns."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from feda2l.layers import Layer
from feda2l.rates.base import Measure
from feda2l.round.states import Layout, Segment

# elements of a temporary: on a CPU small enough for the cache, on a GPU large enough for few kernels
BLOCK = {"cpu": 1 << 20, "cuda": 1 << 28}


class Columns:
    """Reductions over the columns of each layer, for any number of rows at once; a row's bits do not depend on it."""

    def __init__(self, layout: Layout, layers: list[Layer], measure: Measure) -> None:
        self.measure = measure
        self.segments = [
            layout.segments(tuple(layer.tensors[i] for i in layer.measured(measure.tensors))) for layer in layers
        ]
        self.sizes = torch.tensor([float(sum(s.size for s in segments)) for segments in self.segments]).double()

    def divergence(self, base: Tensor, trained: Tensor) -> Tensor:
        """sigma of every row and layer (Eq. 3): [rows, width] twice -> [rows, layers], float64."""
        moved = self._reduce(lambda part: (part(trained) - part(base)).square_(), base)
        eps = self.measure.eps
        if self.measure.eps_in_norm:
            # the released code adds eps to every coordinate of B; padding holds eps then, which is taken off
            padding = torch.tensor([sum(s.stop - s.start - s.size for s in one) for one in self.segments])
            empty = padding * base.new_tensor(eps).square().double()
            size = self._reduce(lambda part: (part(base) + eps).square_(), base) - empty
            eps = 0.0
        else:
            size = self._reduce(lambda part: part(base).square(), base)
        if self.measure.pooled:
            moved, size = _pool(moved), _pool(size)
        return moved.sqrt() / (size.sqrt() + eps)

    def stability(self, trained: Tensor, aggregated: Tensor) -> Tensor:
        """zeta of every row and layer (Eq. 4): [rows, width] twice -> [rows, layers], float64."""
        threshold = self.measure.threshold
        # counted from the other side, so that padding (which never moves) counts for nothing
        moved = self._reduce(lambda part: ~((part(aggregated) - part(trained)).abs_() < threshold), trained)
        if self.measure.pooled:
            return 1 - _pool(moved) / self.sizes.sum()
        return 1 - moved / self.sizes

    def disagreement(self, rows: Tensor, mean: Tensor) -> Tensor:
        """D of every layer: the mean over nodes of the squared distance to the mean model, [layers], float64."""
        return self._reduce(lambda part: (part(rows) - part(mean)).square_(), rows).mean(dim=0)

    def _reduce(self, of: Callable[[Callable[[Tensor], Tensor]], Tensor], like: Tensor) -> Tensor:
        """The sum of an elementwise expression over the columns of each layer, blocks of rows at a time."""
        result = torch.zeros(len(like), len(self.segments), dtype=torch.float64, device=like.device)
        for number, segments in enumerate(self.segments):
            for rows, segment in _blocks(len(like), segments, BLOCK[like.device.type]):

                def part(matrix: Tensor, rows: slice = rows, segment: Segment = segment) -> Tensor:
                    columns = matrix[..., segment.start : segment.stop]
                    return columns[rows] if matrix.dim() == 2 else columns

                result[rows, number] += of(part).sum(dim=1, dtype=torch.float64)
        return result.cpu()


def _blocks(rows: int, segments: list[Segment], most: int) -> Iterator[tuple[slice, Segment]]:
    for segment in segments:
        step = max(1, most // (segment.stop - segment.start))
        for start in range(0, rows, step):
            yield slice(start, start + step), segment


def _pool(sums: Tensor) -> Tensor:
    return sums.sum(dim=1, keepdim=True).expand_as(sums)
