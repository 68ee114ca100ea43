"""A network inside one process that behaves like the real one, for tests."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from feda2l.wire.rejected_message import RejectedMessage
from feda2l.wire.transport import Payload, RequestHandler

log = logging.getLogger(__name__)


class Hub:
    """Connects the nodes of a test. Links can be cut and restored; a node that left can join again."""

    def __init__(self) -> None:
        self.members: dict[str, MemoryTransport] = {}
        self.cuts: set[frozenset[str]] = set()
        self.questions: list[_MemoryRequest] = []  # open requests; a cut link or a leaving node ends its own
        self.lock = threading.Lock()

    def join(self, name: str) -> "MemoryTransport":
        with self.lock:
            if name in self.members:
                raise ValueError(f"{name} is already in the hub")
            self.members[name] = MemoryTransport(self, name)
            return self.members[name]

    def cut(self, one: str, other: str) -> None:
        """Cut the link in both directions until `heal`; open requests on it end without an answer."""
        with self.lock:
            self.cuts.add(frozenset((one, other)))
        self.end(lambda question: {question.asker, question.answerer} == {one, other})

    def heal(self, one: str, other: str) -> None:
        with self.lock:
            self.cuts.discard(frozenset((one, other)))

    def reach(self, asker: str, answerer: str) -> "MemoryTransport | None":
        with self.lock:
            member = self.members.get(answerer)
            linked = asker in self.members and frozenset((asker, answerer)) not in self.cuts
            return member if linked and member is not None and member.answer is not None else None

    def leave(self, name: str) -> None:
        with self.lock:
            del self.members[name]
        self.end(lambda question: name in (question.asker, question.answerer))

    def end(self, touched: "Callable[[_MemoryRequest], bool]") -> None:
        with self.lock:
            ending = [question for question in self.questions if touched(question)]
        for question in ending:
            question.reply(None)


class MemoryTransport:
    """One node's place in a `Hub`."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub, self.name = hub, name
        self.answer: RequestHandler | None = None
        self.workers: dict[
            str, SimpleQueue[_MemoryRequest | None]
        ] = {}  # one thread per asking node, as in ZenohTransport
        self.closed = False

    def serve(self, answer: RequestHandler) -> None:
        self.answer = answer

    def ask(
        self, neighbour: str, key: str, timeout: float, limit: int, into: memoryview | None = None
    ) -> Payload | None:
        answerer = self.hub.reach(self.name, neighbour)
        if answerer is None:
            return None
        question = _MemoryRequest(self.name, neighbour, key)
        with self.hub.lock:
            self.hub.questions.append(question)
        try:
            answerer.take(question)
            if self.hub.reach(self.name, neighbour) is not answerer:  # the link was cut or the node left in between
                return None
            question.answered.wait(timeout)
        finally:
            with self.hub.lock:
                self.hub.questions.remove(question)
        payload = question.payload
        if payload is not None and memoryview(payload).nbytes > limit:
            size = memoryview(payload).nbytes
            raise RejectedMessage("too large", f"{size} bytes in answer to {key}, {limit} allowed")
        return payload

    def alive(self, neighbour: str) -> bool:
        return self.hub.reach(self.name, neighbour) is not None

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.hub.leave(self.name)
        with self.hub.lock:
            workers = list(self.workers.values())
        for worker in workers:
            worker.put(None)

    def take(self, question: "_MemoryRequest") -> None:
        with self.hub.lock:
            if self.closed:
                return
            worker = self.workers.get(question.asker)
            if worker is None:
                worker = self.workers[question.asker] = SimpleQueue()
                name = f"{self.name} answers {question.asker}"
                threading.Thread(target=self._work, args=(worker,), name=name, daemon=True).start()
        worker.put(question)

    def _work(self, questions: "SimpleQueue[_MemoryRequest | None]") -> None:
        while (question := questions.get()) is not None:
            assert self.answer is not None
            try:
                self.answer(question.key, question.reply)
            except Exception:
                log.exception("answering %s to %s failed", question.key, question.asker)
                question.reply(None)


class _MemoryRequest:
    """A request and, when it has arrived, its answer."""

    def __init__(self, asker: str, answerer: str, key: str) -> None:
        self.asker, self.answerer, self.key = asker, answerer, key
        self.payload: Payload | None = None
        self.answered = threading.Event()
        self.lock = threading.Lock()

    def reply(self, payload: Payload | None) -> None:
        with self.lock:  # two threads may answer: the first answer counts
            if not self.answered.is_set():
                self.payload = payload
                self.answered.set()
