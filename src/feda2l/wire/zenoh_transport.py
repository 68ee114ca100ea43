"""The network between nodes over zenoh: pull requests, mutual TLS, access control by certificate name.

A request is a zenoh query on `feda2l/RUN/ASKED/ASKER/KEY`. So access rules for the common names of certificates can
state who may ask whom and who may answer under which name. Large answers are fetched in pieces.

Behaviour of zenoh 1.10, found by experiments:
- A `Query` can be stored and answered from any thread at any time. The request ends with `query.drop()` or at its
  timeout, not when `reply` returns. A query that is never dropped blocks the asking node.
- The answering side is not told that the asking node gave up or died. Replies to it disappear without an error.
- `ZBytes(x)` copies its argument (bytes, bytearray or str, not memoryview) and `to_bytes` copies again. The fragments
  of a reply also stay in memory until the reply is freed. Replies of 45 MB in one piece need 4.7 models of memory at a
  node that answers and asks two neighbours. Pieces of 1 MB need 1.3 models and are as fast.
- A neighbour that hangs during a large write is not always disconnected at its lease (in one of seven trials on a busy
  machine). It looks alive, and a request to it ends at its timeout. So every request has a timeout.
- A reply inherits the priority and the congestion control of its request, and both are reliable. By default a request
  blocks under congestion. This is what we need, and it is set explicitly.
- A message is sent in batches of 48 KB (TLS). Larger receive or socket buffers, longer queues or no priorities made no
  difference beyond the noise. Shared memory halves the time between processes on one machine. But it bypasses TLS and
  counts as memory of every node, so it is off.
"""

import atexit
import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

import numpy as np
import zenoh

from feda2l.errors import RunFailed
from feda2l.wire.rejected_message import RejectedMessage
from feda2l.wire.transport import Payload, RequestHandler
from feda2l.wire.zenoh_settings import PIECE, Tls, session_settings

log = logging.getLogger(__name__)

AHEAD = 2  # pieces in flight at a time: 80 MB/s at a round-trip time of 0.1 s
OPEN = 64  # open requests allowed per neighbour; beyond, the oldest one ends without an answer


class ZenohTransport:
    """The links of one node. `neighbours` maps each name to an address (`host:port`), or to None for a neighbour that
    connects to us. Other nodes get no answer, even with a certificate of the same CA.

    The certificate of the node at an address must contain the host of that address: zenoh checks the host, and the
    access rules check the common name. Without `tls` nothing is secret and anybody can use any name.
    """

    def __init__(
        self, name: str, run: str, listen: str, neighbours: Mapping[str, str | None], tls: Tls | None = None
    ) -> None:
        self.name, self.run, self.listen = name, run, listen
        self.answer: RequestHandler | None = None
        self.receiver: threading.Thread | None = None  # receives the requests while the node serves
        self.inboxes: dict[str, set[_Inbox]] = {}  # of the requests that wait for an answer, by neighbour
        self.lock = threading.Lock()  # protects opening and closing
        self.watch = threading.Lock()  # protects the inboxes; never held during a call of zenoh
        self._open(neighbours, tls)
        atexit.register(self.close)

    def serve(self, answer: RequestHandler) -> None:
        with self.lock:
            first, self.answer = self.answer is None, answer
            if first:
                self._declare()

    def ask(
        self, neighbour: str, key: str, timeout: float, limit: int, into: memoryview | None = None
    ) -> Payload | None:
        try:
            return self._fetch(neighbour, key, monotonic() + timeout, limit, into)
        except zenoh.ZError as error:  # the session was closed meanwhile
            log.debug("asking %s for %s: %s", neighbour, key, error)
            return None

    def alive(self, neighbour: str) -> bool:
        querier = self.queriers.get(neighbour)
        try:
            status: Any = querier.matching_status if querier else False
        except zenoh.ZError:
            return False
        return bool(getattr(status, "matching", status))  # typed as a bool, but an object with a bool

    def reopen(self, neighbours: Mapping[str, str | None], tls: Tls | None) -> None:
        """Continue with other neighbours or a renewed certificate, which zenoh reads only when a session opens.

        Links are down for a moment, and open requests end without an answer. The `serve` callback stays.
        """
        with self.lock:
            self._close()
            self._open(neighbours, tls)
            if self.answer is not None:
                self._declare()

    def close(self) -> None:
        atexit.unregister(self.close)
        with self.lock:
            self._close()

    def _open(self, neighbours: Mapping[str, str | None], tls: Tls | None) -> None:
        settings = session_settings(self.name, self.run, self.listen, neighbours, tls)
        try:
            self.session = zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
        except zenoh.ZError as error:
            raise RunFailed(
                f"listen = {self.listen}: node {self.name} cannot listen there: {error}", see="port-in-use"
            ) from None
        self.askers = {neighbour: _Asker(neighbour) for neighbour in neighbours}
        self.queriers = {}
        for neighbour in neighbours:
            querier = self.session.declare_querier(f"feda2l/{self.run}/{neighbour}/{self.name}/**")
            querier.declare_matching_listener(
                zenoh.handlers.Callback(partial(self._changed, neighbour), indirect=False)
            )
            self.queriers[neighbour] = querier

    def _close(self) -> None:
        for asker in self.askers.values():
            asker.close()
        self.session.close()
        if self.receiver is not None:  # if Python ended while a thread is inside zenoh, the process would abort
            self.receiver.join()
            self.receiver = None
        self._end_fetches(list(self.inboxes))

    def _declare(self) -> None:
        # One thread receives the requests and passes them on; it never waits for a neighbour. We start it ourselves
        # because the callback thread of zenoh is not a daemon: a program that ends without `close` would hang.
        queries = self.session.declare_queryable(f"feda2l/{self.run}/{self.name}/**")
        self.receiver = threading.Thread(
            target=self._receive, args=(queries,), name=f"questions-{self.name}", daemon=True
        )
        self.receiver.start()

    def _receive(self, queries: "zenoh.Queryable[zenoh.Handler[zenoh.Query]]") -> None:
        for query in queries:  # until the session closes
            self._take(query)

    def _take(self, query: zenoh.Query) -> None:
        """Pass a request to the thread of the asking neighbour, or end it here."""
        parts = str(query.key_expr).split("/", 4)
        start = query.parameters.get("from") or "0"
        asker = self.askers.get(parts[3]) if len(parts) == 5 else None
        if asker is None or self.answer is None or "*" in parts[-1] or not re.fullmatch("[0-9]{1,15}", start):
            query.drop()
        else:
            asker.take(_ZenohRequest(query, parts[-1], int(start)), self.answer)

    def _fetch(self, neighbour: str, key: str, until: float, limit: int, into: memoryview | None) -> Payload | None:
        where = f"feda2l/{self.run}/{neighbour}/{self.name}/{key}"
        with self._watched(neighbour) as inbox:
            self._send(f"{where}?from=0", 0, until, inbox)
            first = inbox.take(until)
            if first is None:
                return None
            total = _total(first[1], key)
            if total > limit:
                raise RejectedMessage("too large", f"{total} bytes in answer to {key}, {limit} allowed")
            _check(first[1], 0, total, key)
            if total <= PIECE:
                return first[1].payload.to_bytes()
            # not a bytearray, because Python would fill it with zeros first
            buffer = np.empty(total, np.uint8).data if into is None or len(into) < total else into[:total]
            buffer[:PIECE] = first[1].payload.to_bytes()
            del first  # frees the received fragments
            return buffer if self._fetch_rest(where, key, until, buffer, inbox) else None

    def _fetch_rest(self, where: str, key: str, until: float, buffer: memoryview, inbox: "_Inbox") -> bool:
        """Fetch all pieces except the first into `buffer`; False if one does not arrive in time."""
        total = len(buffer)
        starts = range(PIECE, total, PIECE)
        following = iter(starts)
        for start in islice(following, AHEAD):
            self._send(f"{where}?from={start}", start, until, inbox)
        for _ in starts:
            taken = inbox.take(until)
            if taken is None:
                return False
            start, piece = taken
            if _total(piece, key) != total:
                raise RejectedMessage("bad piece", f"the answer to {key} changed while it was fetched")
            _check(piece, start, total, key)
            for later in islice(following, 1):
                self._send(f"{where}?from={later}", later, until, inbox)
            buffer[start : start + PIECE] = piece.payload.to_bytes()
        return True

    def _send(self, selector: str, start: int, until: float, inbox: "_Inbox") -> None:
        callback: zenoh.handlers.Callback[zenoh.Reply] = zenoh.handlers.Callback(
            lambda reply: inbox.put((start, reply)), lambda: inbox.put((start, None)), indirect=False
        )
        self.session.get(
            selector,
            callback,
            timeout=max(until - monotonic(), 0.001),
            consolidation=zenoh.ConsolidationMode.NONE,  # there is only one answer
            congestion_control=zenoh.CongestionControl.BLOCK,  # the answer inherits it
        )

    @contextmanager
    def _watched(self, neighbour: str) -> "Iterator[_Inbox]":
        """An inbox that is also notified when the neighbour disappears.

        zenoh first ends the requests of a dead link and only then removes the neighbour. A request that is sent in
        between would wait for its timeout.
        """
        inbox = _Inbox()
        with self.watch:
            self.inboxes.setdefault(neighbour, set()).add(inbox)
        try:
            yield inbox
        finally:
            with self.watch:
                self.inboxes[neighbour].discard(inbox)

    def _changed(self, neighbour: str, status: zenoh.MatchingStatus) -> None:
        """Called by zenoh when a neighbour starts or stops serving."""
        if not status.matching:
            self._end_fetches([neighbour])

    def _end_fetches(self, neighbours: Iterable[str]) -> None:
        with self.watch:
            inboxes = [inbox for neighbour in neighbours for inbox in self.inboxes.get(neighbour, ())]
        for inbox in inboxes:
            inbox.put(None)


class _Inbox(SimpleQueue["tuple[int, zenoh.Reply | None] | None"]):
    """The replies to one fetch: pieces, the end of a request as (start, None), or None when the neighbour is gone."""

    def __init__(self) -> None:
        self.taken: set[int] = set()

    def take(self, until: float) -> tuple[int, zenoh.Sample] | None:
        """The next piece with its start; None if it does not arrive."""
        while True:
            try:
                event = self.get(timeout=max(until - monotonic(), 0))
            except Empty:
                return None
            if event is None:
                return None
            start, reply = event
            if start in self.taken:  # the end of an answered request
                continue
            if reply is None or reply.ok is None:
                return None
            self.taken.add(start)
            return start, reply.ok


class _Asker:
    """The open requests of one neighbour and the thread that answers them.

    Every neighbour has its own thread, so that a slow receiver delays only itself. `reply` blocks until the link
    accepts the data, or for 5 s, after which zenoh closes the link.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=f"answers-{name}")
        self.open: dict[_ZenohRequest, None] = {}  # in the order of arrival
        self.lock = threading.Lock()

    def take(self, question: "_ZenohRequest", answer: RequestHandler) -> None:
        question.asker = self
        with self.lock:
            self.open[question] = None
            oldest = next(iter(self.open)) if len(self.open) > OPEN else None
        if oldest is not None:  # the neighbour gave it up long ago, or it tries to overload this node
            oldest.reply(None)
        self.run(question, lambda: question.put_to(answer))

    def run(self, question: "_ZenohRequest", job: Any) -> None:
        try:
            self.pool.submit(job)
        except RuntimeError:  # closed
            question.end()

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        with self.lock:
            left = list(self.open)
        for question in left:
            question.end()


class _ZenohRequest:
    """A received query. `reply` can be called from any thread and never waits."""

    asker: _Asker

    def __init__(self, query: zenoh.Query, key: str, start: int) -> None:
        self.query, self.key, self.start = query, key, start
        self.answered = False
        self.lock = threading.Lock()

    def put_to(self, answer: RequestHandler) -> None:
        try:
            answer(self.key, self.reply)
        except Exception:
            log.exception("answering %s to %s failed", self.key, self.asker.name)
            self.reply(None)

    def reply(self, payload: Payload | None) -> None:
        with self.lock:
            if self.answered:
                return
            self.answered = True
        if payload is None:
            self.end()
        else:
            view = memoryview(payload).cast("B")  # the view protects the memory from being reused
            self.asker.run(self, lambda: self._send(view))

    def _send(self, view: memoryview) -> None:
        if not self._claim():
            return
        piece = zenoh.ZBytes(bytes(view[self.start : self.start + PIECE]))
        try:
            self.query.reply(self.query.key_expr, piece, attachment=view.nbytes.to_bytes(8, "little"))
        except zenoh.ZError as error:
            log.debug("answering %s to %s: %s", self.key, self.asker.name, error)
        finally:
            self.query.drop()

    def end(self) -> None:
        """End the request at the asking node."""
        if self._claim():
            self.query.drop()

    def _claim(self) -> bool:
        """Whether only the caller may end the query: dropping it twice or during a reply raises an exception."""
        with self.asker.lock:
            return self.asker.open.pop(self, self) is None


def _total(piece: zenoh.Sample, key: str) -> int:
    """The length of the whole answer, as the sender states it."""
    total = piece.attachment
    if total is None or len(total) != 8:
        raise RejectedMessage("bad piece", f"the answer to {key} does not state its length")
    return int.from_bytes(total.to_bytes(), "little")


def _check(piece: zenoh.Sample, start: int, total: int, key: str) -> None:
    if len(piece.payload) != min(PIECE, total - start):
        raise RejectedMessage("bad piece", f"{len(piece.payload)} bytes at {start} of {total} in answer to {key}")
