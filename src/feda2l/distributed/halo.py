"""Mixing over ranks: fetch the halo (the neighbours' rows on other ranks), then sum as in a single process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feda2l.distributed.ranks import Flight, Ranks
from feda2l.topology import Mixing
from feda2l.topology.plan import Plan

Ids = NDArray[np.int64]


class _Transfers(NamedTuple):
    """The rows that this rank sends and receives in a phase, and the rows that mix without the halo."""

    sent: list[tuple[int, Tensor]]  # (rank, indices of local rows to send)
    received: list[tuple[int, int]]  # (rank, number of rows), in order
    halo: Ids  # ids of all received rows, in that order
    inner: Ids  # indices of local rows with local neighbours only
    outer: Ids  # indices of the other local rows
    ours: Ids  # indices of local rows that are neighbours of `outer`


@dataclass(eq=False)
class Halo:
    """The mixing of a whole network, restricted to one rank's rows. `apply` takes and returns [local nodes, columns].

    Each row is sent once to every rank that needs it. Rows without remote neighbours are mixed during the transfer.
    """

    mixing: Mixing
    ranks: Ranks
    ids: Ids  # node ids of this rank, ascending
    owner: Ids  # the rank of each node
    # weights by phase that replace those of W
    chosen: dict[int, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    transfers: dict[int, _Transfers] = field(default_factory=dict, repr=False)
    plans: dict[tuple[int, torch.device, torch.dtype], tuple[Plan, Plan]] = field(default_factory=dict, repr=False)
    known: dict[tuple[int, torch.Size], Tensor] = field(default_factory=dict, repr=False)  # halos fetched in this round
    rooms: dict[tuple[str, torch.device, torch.dtype], Tensor] = field(default_factory=dict, repr=False)

    def apply(self, trained: Tensor, round: int, out: Tensor) -> None:
        phase = self.mixing.topology.phase(round)
        transfers = self._transfers_of(phase, round)
        inner, outer = self._inner_and_outer(phase, round, trained)
        # the input of the outer rows: local rows, then the halo
        count = len(transfers.ours)
        inputs = self._room("inputs", count + len(transfers.halo), trained)
        known = self.known.get((trained.data_ptr(), trained.shape))
        flight = self._fetch(transfers, trained, inputs[count:]) if known is None else None
        if known is not None:
            inputs[count:].copy_(known)
        torch.index_select(trained, 0, torch.from_numpy(transfers.ours).to(trained.device), out=inputs[:count])
        inner.apply(trained, out)  # overlaps with the transfer
        if flight:
            flight.wait()
        outer.apply(inputs, out)

    def receive(self, values: Tensor, round: int) -> Callable[[Sequence[int]], Tensor]:
        """Return a function from node ids to their published rows. Rows of other ranks are fetched."""
        transfers = self._transfers_of(self.mixing.topology.phase(round), round)
        rows = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        halo = rows.new_empty(len(transfers.halo), rows.shape[1])
        self._fetch(transfers, rows, halo).wait()
        self.known[rows.data_ptr(), rows.shape] = halo
        place = _places(self.mixing.topology.nodes, self.ids, transfers.halo)
        all_rows = torch.cat([rows, halo]).view(-1, *values.shape[1:])
        return lambda ids: all_rows[torch.from_numpy(place[list(ids)]).to(all_rows.device)]

    def reweigh(self, weights: Sequence[Tensor], round: int) -> None:
        """Replace the weights of the local rows until the end of the round. Fetched rows are reused."""
        self.chosen = {self.mixing.topology.phase(round): torch.cat(list(weights)).double().numpy()}
        self.plans.clear()

    def end_round(self) -> None:
        """Restore the weights of the topology for the next round."""
        if self.chosen:
            self.chosen = {}
            self.plans.clear()

    def forget(self) -> None:
        """Drop the fetched rows after mixing, since they are outdated."""
        self.known.clear()

    def _transfers_of(self, phase: int, round: int) -> _Transfers:
        if phase not in self.transfers:
            nodes, me = self.mixing.topology.nodes, self.ranks.rank
            everyone = self.mixing.part(np.arange(nodes), round)
            receiver = np.repeat(np.arange(nodes), np.diff(everyone.offsets))
            listener, speaker = self.owner[receiver], self.owner[everyone.ids]
            out, into = (speaker == me) & (listener != me), (listener == me) & (speaker != me)
            # each (other rank, row) once, sorted by rank and then by id, so that both sides use the same order
            sent = np.unique(listener[out] * nodes + everyone.ids[out])
            received = np.unique(speaker[into] * nodes + everyone.ids[into])
            to, rows = np.divmod(sent, nodes)
            of, halo = np.divmod(received, nodes)
            place = _places(nodes, self.ids)
            outer = np.unique(place[receiver[into]])
            received = place[self.mixing.part(self.ids[outer], round).ids]
            self.transfers[phase] = _Transfers(
                [(int(rank), torch.from_numpy(place[rows[to == rank]])) for rank in np.unique(to)],
                [(int(rank), int((of == rank).sum())) for rank in np.unique(of)],
                halo,
                np.setdiff1d(np.arange(len(self.ids)), outer),
                outer,
                np.unique(received[received >= 0]),
            )
        return self.transfers[phase]

    def _inner_and_outer(self, phase: int, round: int, like: Tensor) -> tuple[Plan, Plan]:
        key = phase, like.device, like.dtype
        if key not in self.plans:
            transfers, rows = self._transfers_of(phase, round), self.mixing.part(self.ids, round)
            if phase in self.chosen:
                rows = rows._replace(weights=self.chosen[phase])
            inner, outer = rows.take(transfers.inner), rows.take(transfers.outer)
            local = _places(self.mixing.topology.nodes, self.ids)
            input_places = _places(self.mixing.topology.nodes, self.ids[transfers.ours], transfers.halo)
            self.plans[key] = (
                Plan.of(inner._replace(ids=local[inner.ids]), transfers.inner, like),
                Plan.of(outer._replace(ids=input_places[outer.ids]), transfers.outer, like),
            )
        return self.plans[key]

    def _fetch(self, transfers: _Transfers, rows: Tensor, halo: Tensor) -> Flight:
        """Send the local rows that other ranks need, and receive the halo."""
        copies = self._room("sent", sum(len(places) for _, places in transfers.sent), rows)
        sent, start = [], 0
        for rank, places in transfers.sent:
            buffer = copies[start : start + len(places)]
            sent.append((rank, torch.index_select(rows, 0, places.to(rows.device), out=buffer)))
            start += len(places)
        parts = halo.split([count for _, count in transfers.received]) if transfers.received else ()
        received = [(rank, part) for (rank, _), part in zip(transfers.received, parts, strict=True)]
        return self.ranks.start(sent, received)

    def _room(self, purpose: str, rows: int, like: Tensor) -> Tensor:
        """Return a reused buffer for some rows. Touching fresh memory pages costs more than copying into used ones."""
        key, size = (purpose, like.device, like.dtype), rows * like.shape[1]
        if key not in self.rooms or self.rooms[key].numel() < size:
            self.rooms[key] = like.new_empty(size)
        return self.rooms[key][:size].view(rows, like.shape[1])


def _places(nodes: int, *ids: Ids) -> Ids:
    """Return, for each node of the network, its index in the concatenated ids, or -1 if it is not among them."""
    place: Ids = np.full(nodes, -1)
    listed = np.concatenate(ids)
    place[listed] = np.arange(len(listed))
    return place
