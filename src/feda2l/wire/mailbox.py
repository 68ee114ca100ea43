"""The messages that a node published last, and the requests that wait for the next one."""

import threading
from collections import deque
from typing import NamedTuple

from feda2l.wire.transport import Payload, Reply

NEWEST = "head/newest"


class Message(NamedTuple):
    """The message of one exchange: a sealed head and the payload that it describes."""

    round: int
    step: int
    head: bytes
    load: bytearray

    @property
    def when(self) -> tuple[int, int]:
        return self.round, self.step


class Mailbox:
    """Answers the requests of neighbours; a request for a future message waits until the node publishes it.

    Two messages are enough for neighbours that keep up. A node publishes the next message only after it received all
    messages of the exchange. So when it publishes the one after that, all neighbours have fetched the first. A
    neighbour that asks for an older message gets the newest head and learns that the network went on without it.
    """

    def __init__(self, history: int = 2) -> None:
        self._messages: deque[Message] = deque(maxlen=history)  # more if some nodes only receive and may lag
        self._held: list[tuple[tuple[int, int], Reply]] = []
        self._lock = threading.Lock()

    def make_room(self) -> bytearray | None:
        """Drop the older of two messages before the next is made, and return its memory, which may still be read."""
        with self._lock:
            return self._messages.popleft().load if len(self._messages) == self._messages.maxlen else None

    def publish(self, message: Message) -> None:
        with self._lock:
            self._messages.append(message)
            due = [reply for when, reply in self._held if when <= message.when]
            self._held = [(when, reply) for when, reply in self._held if when > message.when]
        for reply in due:
            reply(message.head)

    def answer(self, key: str, reply: Reply) -> None:
        """The transport's `Answer`."""
        kind, _, rest = key.partition("/")
        when = _when(rest)
        payload: Payload | None = None
        with self._lock:
            if key == NEWEST:
                payload = self._messages[-1].head if self._messages else None
            elif kind == "load" and (message := self._find(when)):
                payload = message.load
            elif kind == "head" and when:
                payload = self._head(when)
                if payload is None:
                    self._held.append((when, reply))
                    return
        reply(payload)

    def _find(self, when: tuple[int, int] | None) -> Message | None:
        return next((message for message in self._messages if message.when == when), None)

    def _head(self, when: tuple[int, int]) -> bytes | None:
        """The head of an exchange, or the newest one if that is later."""
        if message := self._find(when):
            return message.head
        return self._messages[-1].head if self._messages and self._messages[-1].when > when else None

    def close(self) -> None:
        with self._lock:
            held, self._held = self._held, []
        for _, reply in held:
            reply(None)


def _when(text: str) -> tuple[int, int] | None:
    round, _, step = text.partition("/")
    plain = all(part.isascii() and part.isdigit() and len(part) < 11 for part in (round, step))
    return (int(round), int(step)) if plain else None
