"""What a node needs of a network: to be asked by its neighbours, and to ask them."""

from collections.abc import Callable
from typing import Protocol

Payload = bytes | bytearray | memoryview
"""Bytes on their way. What `ask` returns may be a view: it stays valid as long as it is referred to."""

Reply = Callable[[Payload | None], None]
"""Gives the answer to one question, None for "nothing". It never waits for the network, works from any thread,
and only the first call counts; a question whose `Reply` is lost without a call stays open until it times out."""

RequestHandler = Callable[[str, Reply], None]
"""Called with the key of a question and its `Reply`, which may be kept and called later (a *held* question).

It runs in the transport's threads, one at a time for each neighbour, several for several neighbours. A large payload is
fetched in pieces and this is called again for every piece: a key must have the same bytes every time, and handing
them out must be cheap. An exception is logged and counts as "nothing".
"""


class Transport(Protocol):
    """The links of one node to its neighbours. Keys are `head/ROUND/STEP` and `load/ROUND/STEP`."""

    def serve(self, answer: RequestHandler) -> None:
        """Answer the neighbours' questions from now on. Questions that came before found nothing."""

    def ask(
        self, neighbour: str, key: str, timeout: float, limit: int, into: memoryview | None = None
    ) -> Payload | None:
        """The neighbour's answer; None if it is absent, has nothing or is not done within `timeout` seconds.

        `into` is memory of `limit` bytes that a large answer may be put in: fresh memory takes longer than the copy.

        Raises `RejectedMessage` for an answer of more than `limit` bytes (before it is fetched) or a malformed one.
        Any number of threads may ask at the same time.
        """

    def alive(self, neighbour: str) -> bool:
        """Whether the neighbour can be reached now and serves."""

    def close(self) -> None:
        """Leave: held questions end as "nothing", here and at those who wait for us. Closing twice is harmless."""
