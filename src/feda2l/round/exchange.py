"""How states reach a node's neighbours (Algorithm 1, line 5): the seam between what a node computes and where it runs.

The implementations: `simulate.exchange` (all nodes in one process; some of them absent), `distributed.exchange` (nodes
on other ranks) and `peer.exchange` (neighbours over a network).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from feda2l.network import Clock
from feda2l.rates.base import Rates, Rule, Setting

if TYPE_CHECKING:
    from feda2l.round.run import LiveRun, RunPlan, RunState

Rows = dict[str, Tensor]  # what travels, by name: [nodes, ...]; "model" becomes the aggregated state
STATISTICS, OPTIMIZER = "buffers.", "optimizer."  # prefixes of what travels beside the published rows


class Received(NamedTuple):
    """What one node received in an exchange from its closed neighbourhood, itself included, in ascending id."""

    node: int  # its place among the nodes here
    ids: tuple[int, ...]
    weights: Tensor  # what the topology gives each, [k], float64
    samples: Tensor  # training samples of each, [k], float64
    states: Callable[[str], Tensor]  # what they published under a name, [k, ...]


class MessageCounts(NamedTuple):
    """Messages of a round, by node; None for an absent one."""

    received: list[int | None]  # of how many other nodes it took the message
    rejected: list[int | None]  # how many it refused


class Exchange(Protocol):
    """Publish, receive and mix the states of a run's nodes, and say which nodes are present."""

    @property
    def clock(self) -> Clock | None:
        """The simulated time of the whole network, where it is simulated."""

    def start_rates(self, rule: Rule, setting: Setting) -> Rates:
        """The rate rule at its start: one for all nodes, or one per node where nodes may miss rounds."""

    def join(self, plan: "RunPlan", state: "RunState") -> None:
        """The run has its rows now."""

    def present(self, round: int) -> Sequence[int]:
        """The nodes here that act in a round."""

    def counted(self, present: Sequence[int]) -> Sequence[int]:
        """The nodes here whose models count as the network's, when these are present."""

    def begin(self, run: "LiveRun", nodes: Sequence[int]) -> None:
        """Before a round: nodes that return start from their neighbours' states."""

    def publish(self, run: "LiveRun", rows: Rows, step: int) -> bool:
        """Let neighbours see these rows, and receive theirs.

        False where the node took over the network's state instead: then nothing is aggregated.
        """

    def received(self, nodes: Sequence[int]) -> Iterator[Received]:
        """What each of these nodes received."""

    def reweigh(self, weights: Mapping[int, Tensor]) -> None:
        """Replace the topology's weights for the rest of the round: by node, [k] over its closed neighbourhood."""

    def mix(self, into: Rows) -> Rows:
        """The weighted mean of what each node received, by name; written to `into` where it has the name."""

    def mixed(self, round: int, nodes: Sequence[int]) -> Sequence[int]:
        """Those of the nodes that received something in this round, and so have something to observe."""

    def end(self, run: "LiveRun", nodes: Sequence[int]) -> None:
        """The round is aggregated."""

    def bytes_sent(self, run: "LiveRun") -> list[int]:
        """Bytes that each node of the network sent in the round that was just completed."""

    def message_counts(self, round: int) -> MessageCounts | None:
        """The messages that each node took and refused in a round, where some may be absent."""

    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint holds of the exchange, by name; restored in place."""


def published(rows: Rows) -> Rows:
    """What the algorithm published, without what travels beside it."""
    return {name: values for name, values in rows.items() if not name.startswith((STATISTICS, OPTIMIZER))}


class Mixes(Protocol):
    """W, or some rows of it."""

    def apply(self, trained: Tensor, round: int, out: Tensor) -> None: ...


def mix_rows(mixing: Mixes, round: int, rows: Rows, into: Rows) -> Rows:
    """W applied to all that was published: [nodes, ...] by name.

    Statistics of one dtype are mixed as one matrix: forty small ones take a GPU forty times as long.
    """
    mixed: Rows = {}
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
