"""The interface between a node and a network: answer the requests of neighbours, and send requests to them."""

from collections.abc import Callable
from typing import Protocol

Payload = bytes | bytearray | memoryview
"""The bytes of a message. `ask` may return a view, which stays valid as long as it is referenced."""

Reply = Callable[[Payload | None], None]
"""Gives the answer to one request; None means that there is no answer. It never waits for the network and works from
any thread. Only the first call counts. A request whose `Reply` is never called stays open until its timeout."""

RequestHandler = Callable[[str, Reply], None]
"""Called with the key of a request and its `Reply`, which may be stored and called later (a *held* request).

It runs in threads of the transport, one thread per neighbour. The neighbour fetches a large payload in pieces, and
every piece is a call. So a key must give the same bytes every time, and the call must be cheap. An exception is logged
and counts as no answer.
"""


class Transport(Protocol):
    """The links of one node to its neighbours. Keys are `head/ROUND/STEP` and `load/ROUND/STEP`."""

    def serve(self, answer: RequestHandler) -> None:
        """Answer the requests of neighbours from now on. Earlier requests got no answer."""

    def ask(
        self, neighbour: str, key: str, timeout: float, limit: int, into: memoryview | None = None
    ) -> Payload | None:
        """The neighbour's answer; None if it is absent, has no answer or needs more than `timeout` seconds.

        `into` is memory of `limit` bytes for a large answer, because new memory takes longer than the copy.

        Raises `RejectedMessage` for an answer of more than `limit` bytes (before it is fetched) or a malformed one.
        Any number of threads may call this at the same time.
        """

    def alive(self, neighbour: str) -> bool:
        """Whether the neighbour is reachable now and answers requests."""

    def close(self) -> None:
        """Leave the network: held requests end without an answer on both sides. Closing twice is harmless."""
