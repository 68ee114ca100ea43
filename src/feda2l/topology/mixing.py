"""The mixing step A = W T, and the properties of W.

Row i of A is the sum over node i and its neighbours, in ascending id, of weight x row; `plan.py` defines the rounding.
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
from feda2l.topology.spectrum import perron, spectral_gap, symmetric_eigenvalues

WEIGHTS = ("samples", "uniform", "metropolis")


class Report(TypedDict):
    """Properties of W; see `Mixing.report`."""

    spectral_gap: float | None
    phi: float | None
    mixing_norm: float | None
    stationary: list[float] | None
    doubly_stochastic: bool
    symmetric: bool
    edges: int


class _MixingRows(NamedTuple):
    """W in one phase, stored by rows: row i is `[offsets[i] : offsets[i + 1]]` of `ids` and `weights`."""

    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]  # the closed neighbourhood, ascending
    weights: NDArray[np.float64]
    mass: NDArray[np.float64]  # m_i such that m_i W_ij = m_j W_ji on an undirected graph


@dataclass(frozen=True, eq=False)
class Mixing:
    """The mixing step A = W T in every round of a topology; `build_mixing` creates it.

    >>> from feda2l.topology import build
    >>> mixing = build_mixing(build("ring", 4), "samples", samples=[10, 20, 30, 40])
    >>> mixing.dense()[1].tolist()
    [0.16666666666666666, 0.3333333333333333, 0.5, 0.0]
    """

    topology: Topology
    weights: str
    _period: tuple[_MixingRows, ...] = field(repr=False)
    push: bool = False  # push-sum: the columns of W, not its rows, sum to 1
    _plans: dict[tuple[int, torch.device, torch.dtype], Plan] = field(default_factory=dict, repr=False)

    def apply(self, trained: Tensor, round: int, out: Tensor) -> None:
        """Write W T to `out`: both `[nodes, columns]`, of the same float dtype and device, without shared memory."""
        self._check(trained, out)
        self._plan(self.topology.phase(round), trained).apply(trained, out)

    def row(self, node: int, round: int = 1) -> tuple[tuple[int, ...], Tensor]:
        """Return the node itself and its neighbours, ascending, and their float32 weights: all that one peer needs."""
        offsets, ids, weights, _ = self._rows(round)
        part = slice(int(offsets[node]), int(offsets[node + 1]))
        return tuple(ids[part].tolist()), torch.from_numpy(weights[part]).float()

    def given(self, node: int, round: int) -> Tensor:
        """Return the float64 weights of a node's row of W."""
        offsets, _, weights, _ = self._rows(round)
        return torch.from_numpy(weights[offsets[node] : offsets[node + 1]])

    def reweighed(self, weights: Sequence[Tensor], round: int) -> "Mixing":
        """Return the same network with other weights in `round`: for each node, one per entry of its row of W."""
        period = list(self._period)
        phase = self.topology.phase(round)
        period[phase] = period[phase]._replace(weights=torch.cat(list(weights)).double().numpy())
        return replace(self, _period=tuple(period), _plans={})

    def with_rows(self, rows: Mapping[int, tuple[Sequence[int], Tensor]], round: int) -> "Mixing":
        """Return the same network with other rows of W in `round`: by node, ascending ids and their weights."""
        period = list(self._period)
        phase = self.topology.phase(round)
        old = period[phase]
        ids, weights = [], []
        for node, (start, stop) in enumerate(pairwise(old.offsets)):
            neighbours, given = rows[node] if node in rows else (old.ids[start:stop], None)
            ids.append(np.asarray(neighbours, dtype=np.int64))
            weights.append(old.weights[start:stop] if given is None else given.numpy())
        offsets = np.concatenate([[0], np.cumsum([len(neighbours) for neighbours in ids])])
        period[phase] = _MixingRows(offsets, np.concatenate(ids), np.concatenate(weights), old.mass)
        return replace(self, _period=tuple(period), _plans={})

    def part(self, nodes: NDArray[np.int64], round: int) -> SparseRows:
        """Return the rows of W of some nodes in `round`: ids in ascending order and their float64 weights."""
        offsets, ids, weights, _ = self._rows(round)
        return SparseRows(offsets, ids, weights).take(nodes)

    def groups(self, round: int = 1) -> Tensor:
        """Number the distinct rows of W by first appearance: int64 `[nodes]`, equal where rows are equal."""
        return torch.from_numpy(SparseRows(*self._rows(round)[:3]).groups())

    def dense(self, round: int = 1) -> Tensor:
        """Return W as a dense float64 matrix, for small networks."""
        return torch.from_numpy(self._sparse(self._rows(round)).toarray())

    def messages(self, round: int = 1) -> Tensor:
        """Count the neighbours that each node sends its row to: int64 `[nodes]`."""
        _, ids, _, _ = self._rows(round)
        return torch.from_numpy(np.bincount(ids, minlength=self.topology.nodes) - 1)  # less itself

    def report(self) -> Report:
        """Report how fast the nodes would agree by mixing alone, and on which average.

        P is the product of W over one period; J = 1 1' / N is the plain average.

        - `phi`: the spectral gap of the paper's assumption A3, the largest number with ||W - J||_2 <= 1 - phi. It is 1
          on a full graph and 0 if W never averages. None where A3 does not hold: W changes over the rounds, or is not
          symmetric and doubly stochastic.
        - `mixing_norm`: ||W - J||_2 = 1 - phi, None where `phi` is.
        - `spectral_gap`: 1 - |lambda_2| of P. It is defined for every W, also where the average is weighted or W
          changes over the rounds, and equals `phi` where both are defined. None if the sparse solver does not converge
          (more than 200 nodes and a tiny gap).
        - `stationary`: the left Perron vector of P, which weighs the nodes' losses in the objective that is minimised.
        - `doubly_stochastic` and `symmetric`: whether W is, in every round; `edges`: how many there are in a round.

        Isolated nodes have a gap of 0 and no stationary weights, because each minimises its own loss. With push-sum,
        the weights of the losses are those that the nodes start with, whatever P is.
        """
        symmetric, doubly_stochastic = self.symmetric(), self.doubly_stochastic()
        reversible = len(self._period) == 1 and not self.topology.directed and not self.push
        gap, stationary = self._spectrum(reversible=reversible)
        phi = gap if symmetric and doubly_stochastic and reversible else None
        return Report(
            spectral_gap=gap,
            phi=phi,
            mixing_norm=None if phi is None else 1 - phi,
            stationary=None if stationary is None else stationary.tolist(),
            doubly_stochastic=doubly_stochastic,
            symmetric=symmetric,
            edges=self.topology.edges(),
        )

    def _spectrum(self, *, reversible: bool) -> tuple[float | None, NDArray[np.float64] | None]:
        """Compute the spectral gap of P and the stationary weights."""
        if not self.topology.connected():
            return 0.0, None
        matrices = [self._sparse(rows) for rows in self._period]
        if self.push:  # the transposed matrices have rows that sum to 1, and the same eigenvalues
            matrices = [W.T.tocsr() for W in reversed(matrices)]
        start = self._period[0].mass
        mass = start if reversible else perron(matrices)
        if mass is None:
            return None, None
        stationary = mass / mass.sum()
        gap = spectral_gap(matrices, stationary, reversible=reversible)
        return gap, start / start.sum() if self.push else stationary

    def doubly_stochastic(self) -> bool:
        """Return whether the rows and the columns of W sum to 1 in every round."""
        matrices = [self._sparse(rows) for rows in self._period]
        return all(np.allclose(W.sum(axis=axis), 1, rtol=0, atol=1e-9) for W in matrices for axis in (0, 1))

    def symmetric(self) -> bool:
        """Return whether W equals its transpose in every round."""
        matrices = [self._sparse(rows) for rows in self._period]
        return all(abs(W - W.T).max() < 1e-12 for W in matrices)

    def equal_rows(self) -> bool:
        """Return whether all rows of W are equal in every round, as on a full graph: every node gets one average."""
        return all(not SparseRows(*rows[:3]).groups().any() for rows in self._period)

    def eigenvalues(self) -> list[float]:
        """Return the eigenvalues of W, which is symmetric or has equal rows.

        For a large network they are numbers from the smallest one to 1, because computing all takes too long.
        """
        if self.equal_rows():
            return [0.0, 1.0]
        matrices = [self._sparse(rows) for rows in self._period]
        return [float(value) for W in matrices for value in symmetric_eigenvalues(W)]

    def _rows(self, round: int) -> _MixingRows:
        return self._period[self.topology.phase(round)]

    def _sparse(self, rows: _MixingRows) -> Any:
        from scipy.sparse import csr_array  # imported here to keep `import feda2l` fast

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
    """Build the mixing of a topology; `samples[i]` is the number of training samples of node i.

    Node i weighs node j, a neighbour or itself, with

    - `samples`: n_j / (the sum of n over i and its neighbours);
    - `uniform`: 1 / (deg_i + 1);
    - `metropolis`: 1 / (1 + max(deg_i, deg_j)), and i keeps the rest. W is symmetric, so the graph must be undirected.

    Every row sums to 1. With `push` every column does: node j gives 1 / (out_j + 1) to itself and to each of
    its receivers, on any graph; `samples` then sets the mass that the nodes start with.
    Weights are float64 and are rounded once, to the dtype of the matrix that they multiply.
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
            f'topology.weights = "samples": node {empty} has {samples[empty]} training samples and needs at least 1; '
            f'use fewer data.nodes, another data.partition or topology.weights = "uniform"'
        )
    counts = np.asarray(samples, dtype=np.int64)
    period = tuple(_weigh(phase, weights, counts, push=push) for phase in topology.period)
    return Mixing(topology, weights, period, push)


def _weigh(phase: Phase, weights: str, samples: NDArray[np.int64], *, push: bool) -> _MixingRows:
    nodes = len(phase)
    size = np.fromiter((len(neighbours) + 1 for neighbours in phase), np.int64, nodes)  # deg + 1
    offsets = np.concatenate([[0], np.cumsum(size)])
    closed = (j for i, neighbours in enumerate(phase) for j in sorted((i, *neighbours)))
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
    # The node keeps 1 - sum, written as 1 / (deg + 1) plus what neighbours with more edges do not take. This is exact
    # where degrees are equal, so the rows of a full graph are equal and are computed once.
    values[ids == owner] += np.add.reduceat(uniform - values, offsets[:-1])
    return _MixingRows(offsets, ids, values, mass=np.ones(nodes))
