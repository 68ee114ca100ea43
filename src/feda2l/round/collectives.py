"""Operations over all nodes of a run, which may be on several processes. `OneProcess` needs no communication."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from feda2l.round.exact_mean import exact_mean

T = TypeVar("T")


class Collectives(Protocol):
    """Operations over all nodes of a network; every process must call them in the same order."""

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean over nodes of [nodes, ...]; for integers, the value of the first node."""

    def agree(self, state: Sequence[Tensor] | None) -> bool:
        """Return whether all nodes hold one state. `state` is that of the nodes here; None if these differ."""

    def first(self, place: int | None) -> int | None:
        """Return the smallest place that any process passes; None if no process passes one."""

    def of_all(self, values: Sequence[T]) -> list[T]:
        """Gather one value per node, in the order of ids, at every process."""

    def at_leader(self, values: Sequence[T]) -> list[T] | None:
        """Gather one value per node at the process that writes the records; None elsewhere."""


class OneProcess:
    """All nodes are in this process."""

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
