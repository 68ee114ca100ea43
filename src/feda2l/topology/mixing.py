"""Mixing: A = W T, and what W says about the network.

Row i of A is the sum over i and its neighbours, in ascending id, of weight x row, rounded as `plan.py` says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feda2l.names import look_up
from feda2l.topology.edges import Phase
from feda2l.topology.errors import topology_error
from feda2l.topology.graphs import Topology
from feda2l.topology.plan import Plan, SparseRows
from feda2l.topology.spectrum import perron, spectral_gap

WEIGHTS = ("samples", "uniform", "metropolis")


class Report(TypedDict):
    """What W says about a network; see `Mixing.report`."""

    spectral_gap: float | None
    phi: float | None
    stationary: list[float] | None
    doubly_stochastic: bool
    symmetric: bool
    edges: int


class _MixingRows(NamedTuple):
    """W in one phase, row after row: row i is `[offsets[i] : offsets[i + 1]]` of `ids` and `weights`."""

    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]  # the closed neighbourhood, ascending
    weights: NDArray[np.float64]
    mass: NDArray[np.float64]  # m_i with m_i W_ij = m_j W_ji on an undirected graph


@dataclass(frozen=True, eq=False)
class Mixing:
    """A = W T for the rounds of a topology; made by `build_mixing`.

    >>> from feda2l.topology import build
    >>> mixing = build_mixing(build("ring", 4), "samples", samples=[10, 20, 30, 40])
    >>> mixing.dense()[1].tolist()
    [0.16666666666666666, 0.3333333333333333, 0.5, 0.0]
    """

    topology: Topology
    weights: str
    _period: tuple[_MixingRows, ...] = field(repr=False)
    push: bool = False  # is it its columns, not its rows, that sum to 1?
    _plans: dict[tuple[int, torch.device, torch.dtype], Plan] = field(default_factory=dict, repr=False)

    def apply(self, trained: Tensor, round: int, out: Tensor) -> None:
        """Write W T to `out`; both `[nodes, columns]`, of one float dtype and device, in separate memory."""
        self._check(trained, out)
        self._plan(self.topology.phase(round), trained).apply(trained, out)

    def row(self, node: int, round: int = 1) -> tuple[tuple[int, ...], Tensor]:
        """The closed neighbourhood of a node, ascending, and its float32 weights: what one peer needs."""
        offsets, ids, weights, _ = self._rows(round)
        part = slice(int(offsets[node]), int(offsets[node + 1]))
        return tuple(ids[part].tolist()), torch.from_numpy(weights[part]).float()

    def given(self, node: int, round: int) -> Tensor:
        """The float64 weights of a node's row."""
        offsets, _, weights, _ = self._rows(round)
        return torch.from_numpy(weights[offsets[node] : offsets[node + 1]])

    def reweighed(self, weights: Sequence[Tensor], round: int) -> "Mixing":
        """The same network with other weights in `round`: of each node those it gives its closed neighbourhood."""
        period = list(self._period)
        phase = self.topology.phase(round)
        period[phase] = period[phase]._replace(weights=torch.cat(list(weights)).double().numpy())
        return replace(self, _period=tuple(period), _plans={})

    def with_rows(self, rows: Mapping[int, tuple[Sequence[int], Tensor]], round: int) -> "Mixing":
        """The same network with other rows of W in `round`: whom a node hears, ascending, and how much each weighs."""
        period = list(self._period)
        phase = self.topology.phase(round)
        old = period[phase]
        ids, weights = [], []
        for node, (start, stop) in enumerate(pairwise(old.offsets)):
            near, given = rows[node] if node in rows else (old.ids[start:stop], None)
            ids.append(np.asarray(near, dtype=np.int64))
            weights.append(old.weights[start:stop] if given is None else given.numpy())
        offsets = np.concatenate([[0], np.cumsum([len(near) for near in ids])])
        period[phase] = _MixingRows(offsets, np.concatenate(ids), np.concatenate(weights), old.mass)
        return replace(self, _period=tuple(period), _plans={})

    def part(self, nodes: NDArray[np.int64], round: int) -> SparseRows:
        """The rows of W of some nodes in `round`: closed neighbourhoods, ascending, and their float64 weights."""
        offsets, ids, weights, _ = self._rows(round)
        return SparseRows(offsets, ids, weights).take(nodes)

    def groups(self, round: int = 1) -> Tensor:
        """int64 `[nodes]`: nodes with equal rows of W share a number, counted from 0 by first appearance."""
        return torch.from_numpy(SparseRows(*self._rows(round)[:3]).groups())

    def dense(self, round: int = 1) -> Tensor:
        """W as a float64 matrix: for small networks."""
        return torch.from_numpy(self._sparse(self._rows(round)).toarray())

    def messages(self, round: int = 1) -> Tensor:
        """int64 `[nodes]`: to how many neighbours each node sends its row."""
        _, ids, _, _ = self._rows(round)
        return torch.from_numpy(np.bincount(ids, minlength=self.topology.nodes) - 1)  # less itself

    def report(self) -> Report:
        """How fast, and to which average, mixing alone would bring the nodes. P is the product of W over one period.

        - `spectral_gap`: 1 - |lambda_2| of P; None if the sparse solver did not converge (over 200 nodes, gap tiny);
        - `phi`: ||W - J||_2, J the plain average; only for one symmetric, doubly stochastic W, where it is |lambda_2|;
        - `stationary`: the left Perron vector of P: the weights of the nodes' losses in what is really minimised;
        - `doubly_stochastic`, `symmetric`: of W in every round; `edges`: in a round.

        Isolated nodes have gap 0 and no stationary weights: each minimises its own loss. With push-sum the weights of
        the losses are those that the nodes start with, whatever P is.
        """
        symmetric, doubly_stochastic = self.symmetric(), self.doubly_stochastic()
        reversible = len(self._period) == 1 and not self.topology.directed and not self.push
        gap, stationary = self._spectrum(reversible=reversible)
        return Report(
            spectral_gap=gap,
            phi=1 - gap if gap is not None and symmetric and doubly_stochastic and reversible else None,
            stationary=None if stationary is None else stationary.tolist(),
            doubly_stochastic=doubly_stochastic,
            symmetric=symmetric,
            edges=self.topology.edges(),
        )

    def _spectrum(self, *, reversible: bool) -> tuple[float | None, NDArray[np.float64] | None]:
        """The spectral gap of P and the stationary weights."""
        if not self.topology.connected():
            return 0.0, None
        matrices = [self._sparse(rows) for rows in self._period]
        if self.push:  # rows of the transposed chain sum to 1, and it has the same eigenvalues
            matrices = [W.T.tocsr() for W in reversed(matrices)]
        start = self._period[0].mass
        mass = start if reversible else perron(matrices)
        if mass is None:
            return None, None
        stationary = mass / mass.sum()
        gap = spectral_gap(matrices, stationary, reversible=reversible)
        return gap, start / start.sum() if self.push else stationary

    def doubly_stochastic(self) -> bool:
        """Do the rows and the columns of W sum to 1, in every round?"""
        matrices = [self._sparse(rows) for rows in self._period]
        return all(np.allclose(W.sum(axis=axis), 1, rtol=0, atol=1e-9) for W in matrices for axis in (0, 1))

    def symmetric(self) -> bool:
        """Is W its own transpose, in every round?"""
        matrices = [self._sparse(rows) for rows in self._period]
        return all(abs(W - W.T).max() < 1e-12 for W in matrices)

    def _rows(self, round: int) -> _MixingRows:
        return self._period[self.topology.phase(round)]

    def _sparse(self, rows: _MixingRows) -> Any:
        from scipy.sparse import csr_array  # not at the top: `import feda2l` stays light

        return csr_array((rows.weights, rows.ids, rows.offsets), shape=(self.topology.nodes,) * 2)

    def _plan(self, phase: int, trained: Tensor) -> Plan:
        key = (phase, trained.device, trained.dtype)
        if key not in self._plans:
            rows = SparseRows(*self._period[phase][:3])
            self._plans[key] = Plan.of(rows, np.arange(self.topology.nodes), trained)
        return self._plans[key]

    def _check(self, trained: Tensor, out: Tensor) -> None:
        if trained.ndim != 2 or len(trained) != self.topology.nodes or not trained.is_floating_point():
            raise ValueError(
                f"mixing needs floats [{self.topology.nodes}, columns], got {trained.dtype} {[*trained.shape]}"
            )
        if (out.shape, out.dtype, out.device) != (trained.shape, trained.dtype, trained.device):
            raise ValueError("mixing needs `out` with the shape, dtype and device of `trained`")
        if out.numel() and _first_byte(out) <= _last_byte(trained) and _first_byte(trained) <= _last_byte(out):
            raise ValueError("mixing needs `out` and `trained` in separate memory: rows are read more than once")


def _first_byte(matrix: Tensor) -> int:
    return matrix.data_ptr()


def _last_byte(matrix: Tensor) -> int:
    return matrix[-1:, -1:].data_ptr()


def build_mixing(topology: Topology, weights: str, samples: Sequence[int], *, push: bool = False) -> Mixing:
    """The mixing of a topology; `samples[i]` is the number of training samples of node i. Over i and its neighbours:

    - `samples`: n_j / sum of n;
    - `uniform`: 1 / (deg_i + 1);
    - `metropolis`: 1 / (1 + max(deg_i, deg_j)), and the rest for i itself; symmetric, so undirected graphs only.

    Every row sums to 1. With `push` every column does: j gives 1 / (out_j + 1) of itself to each that hears it,
    whatever the graph (`samples` is then what the nodes start with).
    Weights are float64 and are rounded once, to the dtype of the matrix they meet.
    """
    look_up(weights, dict.fromkeys(WEIGHTS), "topology.weights")
    if weights == "metropolis" and topology.directed:
        raise topology_error(
            f'topology.weights = "metropolis" needs an undirected graph and topology.name = "{topology.name}" '
            'is directed; use "uniform" or "samples"'
        )
    if len(samples) != topology.nodes:
        raise topology_error(f"samples has {len(samples)} entries for data.nodes = {topology.nodes}")
    if weights == "samples" and min(samples) < 1:
        empty = next(i for i, n in enumerate(samples) if n < 1)
        raise topology_error(
            f'topology.weights = "samples": node {empty} has {samples[empty]} training samples, and needs at least 1; '
            f'use fewer data.nodes, another data.partition or topology.weights = "uniform"'
        )
    counts = np.asarray(samples, dtype=np.int64)
    period = tuple(_weigh(phase, weights, counts, push=push) for phase in topology.period)
    return Mixing(topology, weights, period, push)


def _weigh(phase: Phase, weights: str, samples: NDArray[np.int64], *, push: bool) -> _MixingRows:
    nodes = len(phase)
    size = np.fromiter((len(near) + 1 for near in phase), np.int64, nodes)  # deg + 1
    offsets = np.concatenate([[0], np.cumsum(size)])
    closed = (j for i, near in enumerate(phase) for j in sorted((i, *near)))
    ids = np.fromiter(closed, np.int64, offsets[-1])
    owner = np.repeat(np.arange(nodes), size)
    if push and weights != "metropolis":
        received = np.bincount(ids, minlength=nodes)  # out + 1
        mass = samples if weights == "samples" else np.ones(nodes)
        return _MixingRows(offsets, ids, 1 / received[ids], mass=mass.astype(np.float64))
    if weights == "samples":
        total = np.add.reduceat(samples[ids], offsets[:-1])
        return _MixingRows(offsets, ids, samples[ids] / total[owner], mass=(samples * total).astype(np.float64))
    uniform = 1 / size[owner]
    if weights == "uniform":
        return _MixingRows(offsets, ids, uniform, mass=size.astype(np.float64))
    values = 1 / np.maximum(size[owner], size[ids])
    # 1 - sum, written as 1 / (deg + 1) plus what busier neighbours do not take: exact where degrees are equal,
    # so that the rows of a full graph are equal too and are computed once.
    values[ids == owner] += np.add.reduceat(uniform - values, offsets[:-1])
    return _MixingRows(offsets, ids, values, mass=np.ones(nodes))
