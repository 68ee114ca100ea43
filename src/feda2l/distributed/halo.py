"""Mixing over ranks: the rows of other ranks that this one's nodes hear (its halo) are fetched, then summed as ever."""

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
    """Who sends which rows to whom in a phase, and what of the mixing needs none of that."""

    sent: list[tuple[int, Tensor]]  # to a rank: which of our rows, by place
    received: list[tuple[int, int]]  # from a rank: how many, one after the other
    halo: Ids  # the ids of all that are received, in that order
    inner: Ids  # places of our rows that hear only ours
    outer: Ids  # and of the others
    ours: Ids  # places of our rows that `outer` hears


@dataclass(eq=False)
class Halo:
    """The mixing of a whole network for one rank's rows: `apply` takes and gives [own nodes, columns].

    Each row travels once to every rank that has a listener; rows that hear none of them are mixed meanwhile.
    """

    whole: Mixing
    ranks: Ranks
    ids: Ids  # which of the network's nodes are ours, ascending
    owner: Ids  # the rank of every node
    chosen: dict[int, NDArray[np.float64]] = field(default_factory=dict, repr=False)  # weights by phase, if not W's
    transfers: dict[int, _Transfers] = field(default_factory=dict, repr=False)
    plans: dict[tuple[int, torch.device, torch.dtype], tuple[Plan, Plan]] = field(default_factory=dict, repr=False)
    known: dict[tuple[int, torch.Size], Tensor] = field(default_factory=dict, repr=False)  # halos fetched this round
    rooms: dict[tuple[str, torch.device, torch.dtype], Tensor] = field(default_factory=dict, repr=False)

    def apply(self, trained: Tensor, round: int, out: Tensor) -> None:
        phase = self.whole.topology.phase(round)
        transfers = self._transfers_of(phase, round)
        inner, outer = self._inner_and_outer(phase, round, trained)
        # what the outer rows hear: ours, then the halo
        count = len(transfers.ours)
        near = self._room("near", count + len(transfers.halo), trained)
        known = self.known.get((trained.data_ptr(), trained.shape))
        flight = self._fetch(transfers, trained, near[count:]) if known is None else None
        if known is not None:
            near[count:].copy_(known)
        torch.index_select(trained, 0, torch.from_numpy(transfers.ours).to(trained.device), out=near[:count])
        inner.apply(trained, out)  # while rows are on their way
        if flight:
            flight.wait()
        outer.apply(near, out)

    def receive(self, values: Tensor, round: int) -> Callable[[Sequence[int]], Tensor]:
        """A function from the network's ids to these nodes' rows of what is published; fetches what is elsewhere."""
        transfers = self._transfers_of(self.whole.topology.phase(round), round)
        rows = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        halo = rows.new_empty(len(transfers.halo), rows.shape[1])
        self._fetch(transfers, rows, halo).wait()
        self.known[rows.data_ptr(), rows.shape] = halo
        place = _places(self.whole.topology.nodes, self.ids, transfers.halo)
        all_rows = torch.cat([rows, halo]).view(-1, *values.shape[1:])
        return lambda ids: all_rows[torch.from_numpy(place[list(ids)]).to(all_rows.device)]

    def reweigh(self, weights: Sequence[Tensor], round: int) -> None:
        """Other weights of our rows until the round ends; what was heard to choose them is not fetched again."""
        self.chosen = {self.whole.topology.phase(round): torch.cat(list(weights)).double().numpy()}
        self.plans.clear()

    def end_round(self) -> None:
        """The next round has the topology's weights again."""
        if self.chosen:
            self.chosen = {}
            self.plans.clear()

    def forget(self) -> None:
        """The exchange is mixed: what was fetched is old."""
        self.known.clear()

    def _transfers_of(self, phase: int, round: int) -> _Transfers:
        if phase not in self.transfers:
            nodes, me = self.whole.topology.nodes, self.ranks.rank
            everyone = self.whole.part(np.arange(nodes), round)
            receiver = np.repeat(np.arange(nodes), np.diff(everyone.offsets))
            listener, speaker = self.owner[receiver], self.owner[everyone.ids]
            out, into = (speaker == me) & (listener != me), (listener == me) & (speaker != me)
            # each (other rank, row) once, by rank and then by id: both sides come to the same order
            sent = np.unique(listener[out] * nodes + everyone.ids[out])
            received = np.unique(speaker[into] * nodes + everyone.ids[into])
            to, rows = np.divmod(sent, nodes)
            of, halo = np.divmod(received, nodes)
            place = _places(nodes, self.ids)
            outer = np.unique(place[receiver[into]])
            received = place[self.whole.part(self.ids[outer], round).ids]
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
            transfers, rows = self._transfers_of(phase, round), self.whole.part(self.ids, round)
            if phase in self.chosen:
                rows = rows._replace(weights=self.chosen[phase])
            inner, outer = rows.take(transfers.inner), rows.take(transfers.outer)
            own = _places(self.whole.topology.nodes, self.ids)
            near = _places(self.whole.topology.nodes, self.ids[transfers.ours], transfers.halo)
            self.plans[key] = (
                Plan.of(inner._replace(ids=own[inner.ids]), transfers.inner, like),
                Plan.of(outer._replace(ids=near[outer.ids]), transfers.outer, like),
            )
        return self.plans[key]

    def _fetch(self, transfers: _Transfers, rows: Tensor, halo: Tensor) -> Flight:
        """Send what others hear of ours, and receive the halo."""
        copies = self._room("sent", sum(len(places) for _, places in transfers.sent), rows)
        sent, start = [], 0
        for rank, places in transfers.sent:
            own = copies[start : start + len(places)]
            sent.append((rank, torch.index_select(rows, 0, places.to(rows.device), out=own)))
            start += len(places)
        parts = halo.split([count for _, count in transfers.received]) if transfers.received else ()
        received = [(rank, part) for (rank, _), part in zip(transfers.received, parts, strict=True)]
        return self.ranks.start(sent, received)

    def _room(self, purpose: str, rows: int, like: Tensor) -> Tensor:
        """Memory for some rows, the same every time: fresh pages cost more than what is copied into them."""
        key, size = (purpose, like.device, like.dtype), rows * like.shape[1]
        if key not in self.rooms or self.rooms[key].numel() < size:
            self.rooms[key] = like.new_empty(size)
        return self.rooms[key][:size].view(rows, like.shape[1])


def _places(nodes: int, *ids: Ids) -> Ids:
    """For each of the network's nodes its place in these ids, one after the other; -1 if it is not among them."""
    place: Ids = np.full(nodes, -1)
    listed = np.concatenate(ids)
    place[listed] = np.arange(len(listed))
    return place
