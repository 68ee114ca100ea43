"""What the processes that hold one run's nodes must know of each other. In one process nothing has to be said."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from feda2l.round.exact_mean import exact_mean

T = TypeVar("T")


class Collectives(Protocol):
    """Operations over all nodes of a network. Every process calls them in the same order."""

    def mean(self, rows: Tensor) -> Tensor:
        """The mean over nodes of [nodes, ...]; of integers, the first node's."""

    def agree(self, state: Sequence[Tensor] | None) -> bool:
        """Do all nodes hold one state? `state` is that of the nodes here; None if they differ among themselves."""

    def first(self, place: int | None) -> int | None:
        """The smallest place that any process names; None if none does."""

    def of_all(self, values: Sequence[T]) -> list[T]:
        """One value per node here -> one per node of the network, at every process."""

    def at_leader(self, values: Sequence[T]) -> list[T] | None:
        """The same at the process that records alone; None elsewhere."""


class OneProcess:
    """All nodes are here."""

    def mean(self, rows: Tensor) -> Tensor:
        return exact_mean(rows) if rows.is_floating_point() else rows[0]

    def agree(self, state: Sequence[Tensor] | None) -> bool:
        return state is not None

    def first(self, place: int | None) -> int | None:
        return place

    def of_all(self, values: Sequence[T]) -> list[T]:
        return list(values)

    def at_leader(self, values: Sequence[T]) -> list[T] | None:
        return list(values)
