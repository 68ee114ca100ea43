"""Three states -> the two signals of every layer (Algorithm 1, lines 8 to 10), as reductions over columns."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from feda2l.layers import Layer
from feda2l.rates.base import Measure
from feda2l.round.states import ALIGNMENT, Layout, Segment

BLOCK = 1 << 20  # elements of a temporary: small enough for the cache, large enough for few calls
GPU_BLOCK = 1 << 28


class Columns:
    """Reductions over the columns of each layer, for any number of rows at once; a row's bits do not depend on it."""

    def __init__(
        self, layout: Layout, layers: list[Layer], measure: Measure, device: torch.device | None = None
    ) -> None:
        self.measure = measure
        self.segments = [
            layout.segments(tuple(layer.tensors[i] for i in layer.measured(measure.tensors))) for layer in layers
        ]
        flat = [(number, segment) for number, segments in enumerate(self.segments) for segment in segments]
        self.owners = torch.tensor([number for number, _ in flat], device=device)
        edges = [(segment.start // ALIGNMENT, segment.stop // ALIGNMENT) for _, segment in flat]
        self.edges = torch.tensor(edges, device=device).T
        sizes = [float(sum(segment.size for segment in segments)) for segments in self.segments]
        self.sizes = torch.tensor(sizes, dtype=torch.float64, device=device)

    def divergence(self, base: Tensor, trained: Tensor) -> Tensor:
        """sigma of every row and layer (Eq. 3): [rows, width] twice -> [rows, layers], float64."""
        moved = self._reduce(lambda part: (part(trained) - part(base)).square_(), base)
        eps = self.measure.eps
        if self.measure.eps_in_norm:
            # the released code adds eps to every coordinate of B; padding holds eps then, which is taken off
            padding = [sum(s.stop - s.start - s.size for s in one) for one in self.segments]
            empty = base.new_tensor(padding).double() * base.new_tensor(eps).square().double()
            size = self._reduce(lambda part: (part(base) + eps).square_(), base) - empty
            eps = 0.0
        else:
            size = self._reduce(lambda part: part(base).square(), base)
        if self.measure.pooled:
            moved, size = _pool(moved), _pool(size)
        return (moved.sqrt() / (size.sqrt() + eps)).cpu()

    def stability(self, trained: Tensor, aggregated: Tensor) -> Tensor:
        """zeta of every row and layer (Eq. 4): [rows, width] twice -> [rows, layers], float64."""
        threshold = self.measure.threshold
        # counted from the other side, so that padding (which never moves) counts for nothing
        moved = self._reduce(lambda part: ~((part(aggregated) - part(trained)).abs_() < threshold), trained)
        if self.measure.pooled:
            return (1 - _pool(moved) / self.sizes.sum()).cpu()
        return (1 - moved / self.sizes).cpu()

    def disagreement(self, rows: Tensor, mean: Tensor) -> Tensor:
        """D of every layer: the mean over nodes of the squared distance to the mean model, [layers], float64."""
        return self._reduce(lambda part: (part(rows) - part(mean)).square_(), rows).mean(dim=0).cpu()

    def _reduce(self, of: Callable[[Callable[[Tensor], Tensor]], Tensor], like: Tensor) -> Tensor:
        """The sum of an elementwise expression over the columns of each layer: [rows, layers]."""
        return self._by_columns(of, like) if like.is_cuda else self._by_layer(of, like)

    def _by_layer(self, of: Callable[[Callable[[Tensor], Tensor]], Tensor], like: Tensor) -> Tensor:
        """Layer by layer and few rows at a time, so that temporaries stay in the cache."""
        result = torch.zeros(len(like), len(self.segments), dtype=torch.float64)
        for number, segments in enumerate(self.segments):
            for rows, segment in _blocks(len(like), segments):

                def part(matrix: Tensor, rows: slice = rows, segment: Segment = segment) -> Tensor:
                    columns = matrix[..., segment.start : segment.stop]
                    return columns[rows] if matrix.dim() == 2 else columns

                result[rows, number] += of(part).sum(dim=1, dtype=torch.float64)
        return result

    def _by_columns(self, of: Callable[[Callable[[Tensor], Tensor]], Tensor], like: Tensor) -> Tensor:
        """All columns at once, for few kernels: a layer is the difference of two running sums over aligned blocks."""
        sums = []
        start, stop = self.edges
        for rows in torch.arange(len(like)).split(max(1, GPU_BLOCK // like.shape[1])):

            def part(matrix: Tensor, chosen: slice = slice(int(rows[0]), int(rows[-1]) + 1)) -> Tensor:
                return matrix[chosen] if matrix.dim() == 2 else matrix

            blocks = of(part).unflatten(1, (-1, ALIGNMENT)).sum(dim=2, dtype=torch.float64)
            running = torch.nn.functional.pad(blocks.cumsum(dim=1), (1, 0))
            sums.append(running[:, stop] - running[:, start])
        by_segment = torch.cat(sums)
        result = by_segment.new_zeros(len(like), len(self.segments))
        return result.index_add_(1, self.owners, by_segment)


def _blocks(rows: int, segments: list[Segment]) -> Iterator[tuple[slice, Segment]]:
    for segment in segments:
        step = max(1, BLOCK // (segment.stop - segment.start))
        for start in range(0, rows, step):
            yield slice(start, start + step), segment


def _pool(sums: Tensor) -> Tensor:
    return sums.sum(dim=1, keepdim=True).expand_as(sums)
