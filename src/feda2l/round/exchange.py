"""The exchange of states (Algorithm 1, line 5): it separates what a node computes from where it runs.

Implementations: `simulate.exchange` (all nodes in one process, with or without absences), `distributed.exchange` (nodes
on several ranks) and `peer.exchange` (neighbours over a network).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from feda2l.network import Clock
from feda2l.rates.base import Rates, Rule, Setting

if TYPE_CHECKING:
    from feda2l.round.run import LiveRun, RunPlan, RunState

NodeTensors = dict[str, Tensor]  # published values by name, [nodes, ...]; "model" becomes the aggregated state
STATISTICS, OPTIMIZER = "buffers.", "optimizer."  # prefixes of the values that are sent with the published rows


class Received(NamedTuple):
    """The states that one node received in an exchange, its own included, in ascending id."""

    node: int  # its index among the nodes in this process
    ids: tuple[int, ...]
    weights: Tensor  # the topology's weights, [k], float64
    samples: Tensor  # numbers of training samples, [k], float64
    states: Callable[[str], Tensor]  # the values published under a name, [k, ...]


class MessageCounts(NamedTuple):
    """Messages of a round per node; None for an absent node."""

    received: list[int | None]  # messages that the node received from other nodes
    rejected: list[int | None]  # messages that the node rejected


class Exchange(Protocol):
    """Publishes, receives and mixes the states of a run's nodes, and knows which nodes are present."""

    @property
    def clock(self) -> Clock | None:
        """The clock of the whole network if time is simulated."""

    def start_rates(self, rule: Rule, setting: Setting) -> Rates:
        """Start the rate rule: one for all nodes, or one per node if nodes may miss rounds."""

    def join(self, plan: "RunPlan", state: "RunState") -> None:
        """Called once the run has its rows in the population."""

    def present(self, round: int) -> Sequence[int]:
        """Return the nodes in this process that take part in a round."""

    def counted(self, present: Sequence[int]) -> Sequence[int]:
        """Return the nodes here whose models count in scores and means, given those that are present."""

    def begin(self, run: "LiveRun", nodes: Sequence[int]) -> None:
        """Prepare a round: nodes that return start from their neighbours' states."""

    def publish(self, run: "LiveRun", rows: NodeTensors, step: int) -> bool:
        """Send these rows to the neighbours and receive theirs.

        Returns False if the node took over the network's state instead; then nothing is aggregated.
        """

    def received(self, nodes: Sequence[int]) -> Iterator[Received]:
        """Yield the states that each of these nodes received."""

    def reweigh(self, weights: Mapping[int, Tensor]) -> None:
        """Replace the topology's weights for the rest of the round: by node, [k] over the states it received."""

    def mix(self, into: NodeTensors) -> NodeTensors:
        """Return the weighted means of the received states by name; a name in `into` is written there."""

    def mixed(self, round: int, nodes: Sequence[int]) -> Sequence[int]:
        """Return those of the nodes that received something in this round and so can observe signals."""

    def end(self, run: "LiveRun", nodes: Sequence[int]) -> None:
        """Called once the round is aggregated."""

    def bytes_sent(self, run: "LiveRun") -> list[int]:
        """Return the bytes that each node of the network sent in the round that was just completed."""

    def message_counts(self, round: int) -> MessageCounts | None:
        """Return the messages that each node received and rejected in a round; None if no node can be absent."""

    def checkpoint_state(self) -> dict[str, Tensor]:
        """Return the exchange's part of a checkpoint by name; it is restored in place."""


def published(rows: NodeTensors) -> NodeTensors:
    """Return only the rows that the algorithm published."""
    return {name: values for name, values in rows.items() if not name.startswith((STATISTICS, OPTIMIZER))}


class Mixes(Protocol):
    """W or some of its rows."""

    def apply(self, trained: Tensor, round: int, out: Tensor) -> None: ...


def mix_rows(mixing: Mixes, round: int, rows: NodeTensors, into: NodeTensors) -> NodeTensors:
    """Apply W to everything that was published: [nodes, ...] by name.

    Statistics of one dtype are mixed as one matrix, because forty small matrices take a GPU forty times as long.
    """
    mixed: NodeTensors = {}
    small: dict[torch.dtype, list[str]] = {}
    for name, values in rows.items():
        if name.startswith(STATISTICS):
            small.setdefault(values.dtype, []).append(name)
            continue
        flat = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        out = into[name] if name in into else torch.empty_like(flat)
        mixing.apply(flat, round, out)
        mixed[name] = out.view_as(values)
    for names in small.values():
        flat = torch.cat([rows[name].flatten(1) for name in names], dim=1)
        out = torch.empty_like(flat)
        mixing.apply(flat, round, out)
        parts = out.split([rows[name][0].numel() for name in names], dim=1)
        mixed |= {name: part.reshape(rows[name].shape) for name, part in zip(names, parts, strict=True)}
    return mixed
