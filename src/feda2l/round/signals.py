"""Compute the signals of every layer from the three states (Algorithm 1, lines 8 to 10)."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from feda2l.layers import Layer
from feda2l.rates.base import SignalSettings
from feda2l.round.layout import ALIGNMENT, Layout, Segment

BLOCK = 1 << 20  # elements of a temporary: fits the cache, and few calls are needed


class LayerReductions:
    """Reductions over the columns of each layer; a row's bits do not depend on the number of rows."""

    def __init__(
        self, layout: Layout, layers: list[Layer], measure: SignalSettings, device: torch.device | None = None
    ) -> None:
        self.measure = measure
        self.segments = [
            layout.segments(tuple(layer.tensors[i] for i in layer.measured(measure.tensors))) for layer in layers
        ]
        flat = [(number, segment) for number, segments in enumerate(self.segments) for segment in segments]
        self.owners = torch.tensor([number for number, _ in flat])
        edges = [(segment.start // ALIGNMENT, segment.stop // ALIGNMENT) for _, segment in flat]
        self.edges = torch.tensor(edges, device=device).T
        sizes = [float(sum(segment.size for segment in segments)) for segments in self.segments]
        self.sizes = torch.tensor(sizes, dtype=torch.float64)
        self.padding = torch.tensor([sum(s.stop - s.start - s.size for s in one) for one in self.segments])

    def divergence(self, base: Tensor, trained: Tensor) -> Tensor:
        """Compute sigma (Eq. 3) from two states [rows, width]: [rows, layers], float64 on the CPU."""
        inside = self.measure.eps if self.measure.eps_in_norm else 0.0
        moved, size = self._moved_and_size(base, trained, inside)
        # the released code adds eps to every coordinate of B, so padding holds eps, which is subtracted here
        size -= self.padding * torch.tensor(inside, dtype=base.dtype).square().double()
        if self.measure.pooled:
            moved, size = _pool(moved), _pool(size)
        return moved.sqrt() / (size.sqrt() + (self.measure.eps - inside))

    def movement(self, base: Tensor, trained: Tensor) -> Tensor:
        """Compute ||T - B|| from two states [rows, width]: [rows, layers], float64 on the CPU."""
        moved = self._moved(base, trained)
        return (_pool(moved) if self.measure.pooled else moved).sqrt()

    def stability(self, trained: Tensor, aggregated: Tensor) -> Tensor:
        """Compute zeta (Eq. 4) from two states [rows, width]: [rows, layers], float64 on the CPU."""
        moved = self._corrected(trained, aggregated)
        if self.measure.pooled:
            return 1 - _pool(moved) / self.sizes.sum()
        return 1 - moved / self.sizes

    def _moved_and_size(self, base: Tensor, trained: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Compute ||T - B||^2 and ||B + eps||^2 of every row and layer."""
        if base.is_cuda:
            from feda2l.round.cuda_signals import divergence_blocks

            moved, size = self._from_blocks(divergence_blocks(base, trained, eps))
            return moved, size
        size = self._reduce(lambda part: (part(base) + eps if eps else part(base)).square(), base)
        return self._moved(base, trained), size

    def _moved(self, base: Tensor, trained: Tensor) -> Tensor:
        """Compute ||T - B||^2 of every row and layer; B may be one state for all rows."""
        if trained.is_cuda:
            from feda2l.round.cuda_signals import divergence_blocks

            return self._from_blocks(divergence_blocks(base.expand_as(trained).contiguous(), trained, 0.0))[0]
        return self._reduce(lambda part: (part(trained) - part(base)).square_(), trained)

    def _corrected(self, trained: Tensor, aggregated: Tensor) -> Tensor:
        """Count the parameters that mixing moved by the threshold or more; padding never moves."""
        threshold = self.measure.threshold
        if trained.is_cuda:
            from feda2l.round.cuda_signals import stability_blocks

            return self._from_blocks(stability_blocks(trained, aggregated, threshold))[0]
        return self._reduce(lambda part: ~((part(aggregated) - part(trained)).abs_() < threshold), trained)

    def distances(self, rows: Tensor, mean: Tensor) -> Tensor:
        """Compute the squared distances to the mean model: [rows, layers], float64 on the CPU."""
        return self._moved(mean, rows)

    def _reduce(self, of: Callable[[Callable[[Tensor], Tensor]], Tensor], like: Tensor) -> Tensor:
        """Sum an elementwise expression over the columns of each layer: [rows, layers].

        It works layer by layer and on few rows at a time, so that temporaries stay in the cache.
        """
        result = torch.zeros(len(like), len(self.segments), dtype=torch.float64)
        for number, segments in enumerate(self.segments):
            for rows, segment in _blocks(len(like), segments):

                def part(matrix: Tensor, rows: slice = rows, segment: Segment = segment) -> Tensor:
                    columns = matrix[..., segment.start : segment.stop]
                    return columns[rows] if matrix.dim() == 2 else columns

                result[rows, number] += of(part).sum(dim=1, dtype=torch.float64)
        return result

    def _from_blocks(self, sums: Tensor) -> Tensor:
        """Reduce sums over blocks [kinds, rows, blocks] to sums over layers [kinds, rows, layers], on the CPU.

        A segment's sum is the difference of two running sums, so the number of launches does not grow with the layers.
        """
        running = torch.nn.functional.pad(sums.cumsum(dim=2), (1, 0))
        start, stop = self.edges
        by_segment = (running[..., stop] - running[..., start]).cpu()
        result = torch.zeros(*sums.shape[:2], len(self.segments), dtype=torch.float64)
        return result.index_add_(2, self.owners, by_segment)


def _blocks(rows: int, segments: list[Segment]) -> Iterator[tuple[slice, Segment]]:
    for segment in segments:
        step = max(1, BLOCK // (segment.stop - segment.start))
        for start in range(0, rows, step):
            yield slice(start, start + step), segment


def _pool(sums: Tensor) -> Tensor:
    return sums.sum(dim=1, keepdim=True).expand_as(sums)
