"""Exchange messages with neighbours: publish the node's messages, fetch and check the messages of neighbours."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple, Protocol

from torch import Tensor

from feda2l.peer.neighbours import AHEAD, KEPT, Neighbour
from feda2l.wire.certificates import Authority, Identity
from feda2l.wire.mailbox import NEWEST, Mailbox, Message
from feda2l.wire.message import HEAD_LIMIT, MOST, PROTOCOL, Head, seal, unseal
from feda2l.wire.payload import Template, digest, pack, unpack
from feda2l.wire.rejected_message import RejectedMessage
from feda2l.wire.transport import Transport

SLICE = 5.0  # seconds of one held request; then it is sent again, so that a hung neighbour blocks a thread only briefly
GLANCE = 0.3  # seconds that a neighbour that is away has for an answer
CLOSE = 2  # rounds: the largest lag of a returning neighbour that is waited for again
FASTER = 4.0  # a neighbour can be so many times faster than our fastest round; larger claims need confirmation
PAUSE = 0.05  # seconds between requests to a neighbour that does not answer


class Facts(NamedTuple):
    """The facts about a node that every head contains."""

    run: str
    name: str
    model: str
    samples: int
    steps: int
    degree: int
    receivers: int


class FaultInjector(Protocol):
    """The effects of a fault plan on a node and on the messages that it receives."""

    def before_message(self, round: int) -> None:
        """Called after training and before publishing: the node may crash, hang or be late here."""

    def rejoins(self, round: int) -> bool:
        """Does the node start this round from the states of the others?"""

    def receives(self, sender: int, round: int) -> bool:
        """Does the link from the sender work in this round?"""

    def corrupts(self, sender: int, round: int) -> bool:
        """Does the message of the sender arrive damaged?"""


class Messenger:
    """The messages of one node. `rejected(neighbour, why, quarantined)` is called for every rejected message."""

    def __init__(
        self,
        transport: Transport,
        neighbours: Sequence[Neighbour],
        facts: Facts,
        *,
        identity: Identity | None = None,
        authority: Authority | None = None,
        rounds: int = MOST["round"],
        exchanges: int = 1,
        history: int = 2,
        listeners: Sequence[Neighbour] = (),
        fault_injector: FaultInjector | None = None,
        rejected: Callable[[Neighbour, RejectedMessage, bool], None] = lambda neighbour, refused, quarantined: None,
    ) -> None:
        self.transport, self.facts = transport, facts
        self.neighbours = sorted(neighbours, key=lambda neighbour: neighbour.id)
        self.listeners = listeners  # nodes that only receive from us: asked only for their round
        self.identity, self.authority, self.fault_injector, self.rejected = (
            identity,
            authority,
            fault_injector,
            rejected,
        )
        self.rounds = rounds  # of the run: no node can be further
        self.exchanges = exchanges  # per round
        self.mailbox = Mailbox(history)
        self.received = 0  # bytes
        self._lasted: deque[float] = deque(maxlen=KEPT)  # seconds of the last rounds
        self._spare: bytearray | None = None  # memory of a used message
        self._leaps: dict[Neighbour, Head] = {}  # heads of this exchange that claim an implausibly late round
        self.round = 0  # of our last message: a quarantine counts from here, whatever round the sender claims
        self.began = time.monotonic()  # start of the round
        self._pool = _threads(len(self.neighbours))
        transport.serve(self.mailbox.answer)

    def meet(
        self,
        neighbours: Sequence[Neighbour],
        listeners: Sequence[Neighbour],
        facts: Facts,
        identity: Identity | None,
        authority: Authority | None,
    ) -> None:
        """Use other neighbours or renewed credentials from now on."""
        self.neighbours = sorted(neighbours, key=lambda neighbour: neighbour.id)
        self.listeners = listeners
        self.facts, self.identity, self.authority = facts, identity, authority
        self._pool.shutdown(wait=False)
        self._pool = _threads(len(self.neighbours))

    def begin(self) -> None:
        """Start a round: deadlines count from here."""
        now = time.monotonic()
        if self.round:
            self._lasted.append(now - self.began)
        self.began = now

    def publish(self, round: int, step: int, tensors: Mapping[str, Tensor], template: Template) -> None:
        """Publish the message of an exchange for the neighbours."""
        self.round = round
        load = bytearray()
        if tensors:
            load = pack(tensors, template, self._spare or self.mailbox.make_room())
            self._spare = None
        facts = self.facts
        head = Head(
            protocol=PROTOCOL,
            run=facts.run,
            round=round,
            step=step,
            sender=facts.name,
            model=facts.model,
            digest=digest(load) if tensors else "",
            size=len(load),
            samples=facts.samples,
            steps=facts.steps,
            degree=facts.degree,
            receivers=facts.receivers,
        )
        if self.fault_injector and tensors:
            self.fault_injector.before_message(round)
        self.mailbox.publish(Message(round, step, seal(head, self.identity), load))

    def heads(self, round: int, step: int) -> dict[Neighbour, Head]:
        """The heads of an exchange, or later heads of neighbours that continued without us; waits until the deadline.

        Neighbours that took part in the last round are waited for. A neighbour that is away is only asked, and it is
        waited for again as soon as it keeps up.
        """
        self._leaps.clear()
        reachable = [neighbour for neighbour in self.neighbours if self._can_ask(neighbour, round)]
        alone = bool(self.neighbours) and not any(neighbour.present for neighbour in self.neighbours)
        answered = self._answers(reachable, round, step)
        answered |= self._confirmed(list(answered.values()), reachable)
        if alone and not answered:
            self._keep_pace()
        if len(answered) == len(self.neighbours) == self.facts.receivers and self._mutual:
            # all of them have received the previous message, so its memory can store what they send
            self._spare = self._spare or self.mailbox.make_room()
        return dict(sorted(answered.items(), key=lambda item: item[0].id))

    def _keep_pace(self) -> None:
        """Wait until the usual end of a round: a node alone would run ahead, and returning nodes would skip rounds."""
        if self._lasted:
            time.sleep(max(0.0, self.began + statistics.median(self._lasted) - time.monotonic()))

    def _answers(self, reachable: Sequence[Neighbour], round: int, step: int) -> dict[Neighbour, Head]:
        """The heads of the neighbours that answer in time; a neighbour whose request raises counts as silent."""
        answers = {neighbour: self._pool.submit(self._head, neighbour, round, step) for neighbour in reachable}
        wait(answers.values())
        heads = {neighbour: answer.result() for neighbour, answer in answers.items() if not answer.exception()}
        return {neighbour: head for neighbour, head in heads.items() if head is not None}

    def newest(
        self, seconds: float, enough: Callable[[dict[Neighbour, Head]], bool], *, after: int | None = None
    ) -> dict[Neighbour, Head]:
        """The newest heads of the neighbours; ends when all have answered, after `seconds`, or when it is `enough`.

        `after` is our last round. A neighbour that never waits for us gives the head of the next round as long as it
        has it.
        """
        heads: dict[Neighbour, Head] = {}
        until = time.monotonic() + seconds
        while True:
            for neighbour in self.neighbours:
                if neighbour not in heads and (head := self._ask_head(neighbour, NEWEST, GLANCE)) is not None:
                    last = self._last(neighbour, head)
                    chosen = last if after is None else self._next(neighbour, last, after)
                    if chosen is not None:
                        heads[neighbour] = chosen
            if len(heads) == len(self.neighbours) or time.monotonic() > until or enough(heads):
                return heads
            time.sleep(PAUSE)

    def load(self, neighbour: Neighbour, head: Head, template: Template, most: float) -> dict[str, Tensor] | None:
        """The tensors of a message after all checks; None if they are gone, late or rejected.

        They are valid until the next message is loaded, which reuses their memory. `most` is the largest accepted norm.
        """
        try:
            if head.size != template.limit:
                raise RejectedMessage("size", f"{head.size} bytes announced instead of {template.limit}")
            left = max(self.began + neighbour.patience - time.monotonic(), neighbour.deadline.least)
            key = f"load/{head.round}/{head.step}"
            if self._spare is None or len(self._spare) != template.limit:
                self._spare = bytearray(template.limit)
            payload = self.transport.ask(neighbour.name, key, left, template.limit, memoryview(self._spare))
            if payload is None:
                neighbour.missed()
                return None
            self.received += len(payload)
            if self.fault_injector and self.fault_injector.corrupts(neighbour.id, head.round):
                payload = bytearray(payload)
                payload[len(payload) // 2] ^= 1
            tensors = unpack(payload, template, head.digest, most)
        except RejectedMessage as refused:
            self._refuse(neighbour, refused)
            return None
        neighbour.came(head.round, time.monotonic() - self.began)
        return tensors

    def farewell(
        self, round: int, template: Template, seconds: float, *, hurry: Callable[[], bool] = lambda: False
    ) -> None:
        """Stay until the neighbours have fetched the last message, are gone, or the time is over.

        A head without a payload tells them that no further message follows. We may be several rounds ahead of a
        listener: while it makes progress its time starts again, unless there is a `hurry`.
        """
        self.publish(round + 1, 0, {}, template)
        waiting = [*self.neighbours, *self.listeners]  # also nodes that lag: they continue from here
        until = dict.fromkeys(waiting, time.monotonic() + seconds)

        def stays_for(neighbour: Neighbour) -> bool:
            listens = neighbour in self.listeners  # its link may be down for a moment and return for the next round
            if not listens and not self.transport.alive(neighbour.name):
                return False
            head = self._ask_head(neighbour, NEWEST, GLANCE)
            if head is not None and head.round > round:
                return False
            now = time.monotonic()
            if listens and head is not None and not hurry() and self._gets_on(neighbour, head):
                until[neighbour] = now + seconds
            return now < until[neighbour]

        while waiting := [neighbour for neighbour in waiting if stays_for(neighbour)]:
            time.sleep(PAUSE)
        time.sleep(2 * PAUSE)  # a neighbour that waits for us in the same way asks once more

    def close(self) -> None:
        self.mailbox.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.transport.close()

    def _gets_on(self, listener: Neighbour, head: Head) -> bool:
        """Did the listener reach another round within its deadline?"""
        if head.round > listener.received or not listener.received_at:
            listener.received, listener.received_at = head.round, time.monotonic()
        return time.monotonic() < listener.received_at + listener.patience

    @property
    def _mutual(self) -> bool:
        """Do all neighbours also receive from us?"""
        return all(neighbour.config.direction == "both" for neighbour in self.neighbours)

    def _can_ask(self, neighbour: Neighbour, round: int) -> bool:
        if neighbour.quarantined(round):
            return False
        return self.fault_injector is None or self.fault_injector.receives(neighbour.id, round)

    def _head(self, neighbour: Neighbour, round: int, step: int) -> Head | None:
        """A neighbour's head of an exchange as soon as it exists; None if it is too late."""
        if not neighbour.present:
            head = self._ask_head(neighbour, NEWEST, GLANCE)
            if head is None or head.round < round - CLOSE:
                return None
            neighbour.present = True  # it keeps up again
        least = time.monotonic() + neighbour.deadline.least
        until = max(self.began + neighbour.patience, least)
        rejected_messages = neighbour.rejects.total()
        while (left := until - time.monotonic()) > 0:
            head = self._ask_head(neighbour, f"head/{round}/{step}", min(left, SLICE), (round, step))
            if head is not None:
                return self._last(neighbour, head) if head.round > round else head
            if neighbour.rejects.total() > rejected_messages:
                return None  # count one bad message per round: else a single bad round would use up all strikes
            if time.monotonic() > least and not self.transport.alive(neighbour.name):
                break  # the neighbour is not slow, its link is down: waiting longer is useless
            time.sleep(PAUSE)
        neighbour.missed()
        return None

    def _last(self, neighbour: Neighbour, head: Head) -> Head:
        """The last head with a payload of a leaving neighbour, while it has it: else a lagging node would end alone."""
        if head.size or head.round < 2:
            return head
        last = self._ask(neighbour, f"head/{head.round - 1}/{self.exchanges - 1}", GLANCE)
        return last if last is not None and last.size else head

    def _next(self, neighbour: Neighbour, head: Head, after: int) -> Head | None:
        """The head after our last round, of a neighbour that is ahead because it never waits for us; None: ask again.

        While the neighbour has that message we missed nothing, unless our listeners gave us up. In that case the
        network has moved on.
        """
        if neighbour.config.direction == "both" or head.round <= after + 1:
            return head
        heads = [self._ask_head(listener, NEWEST, GLANCE) for listener in self.listeners]
        if any(newest is not None and newest.round > after + CLOSE for newest in heads):
            return head
        following = self._ask_head(neighbour, f"head/{after + 1}/0", GLANCE, (after + 1, 0))
        return head if following is not None and following.round > after + 1 else following

    def _confirmed(self, heads: Sequence[Head], neighbours: Sequence[Neighbour]) -> dict[Neighbour, Head]:
        """The leaps that most reachable neighbours made too: then this node is slow and the leaps are true.

        A node with only one neighbour cannot ask another one, so it accepts the leap.
        """
        if not self._leaps:
            return {}
        reachable = sum(self.transport.alive(neighbour.name) for neighbour in neighbours)
        claimed = [head.round for head in (*heads, *self._leaps.values())]
        return {
            neighbour: self._last(neighbour, head)
            for neighbour, head in self._leaps.items()
            if 2 * sum(round >= head.round - AHEAD for round in claimed) > reachable
        }

    def _ask_head(self, neighbour: Neighbour, key: str, timeout: float, when: tuple[int, int] = (0, 0)) -> Head | None:
        """The head that a neighbour answers with, if the neighbour can have reached its round."""
        head = self._ask(neighbour, key, timeout, when)
        self._leaps.pop(neighbour, None)
        # A leap over many rounds is no offence: a node that took over the state of others skips rounds, and we may be
        # slow. It is accepted when the neighbour can have reached the round by itself a moment later, or when most
        # neighbours claim the same. A neighbour that claims rounds that never happened is treated as silent.
        if head is None or neighbour.can_be_at(head.round, min(self._lasted, default=0.0) / FASTER or 1e-3):
            return head
        self._leaps[neighbour] = head
        return None

    def _ask(self, neighbour: Neighbour, key: str, timeout: float, when: tuple[int, int] = (0, 0)) -> Head | None:
        """The head that a neighbour answers with, if it is its own, of our run and model, and of `when` or later."""
        facts = self.facts
        try:
            sealed = self.transport.ask(neighbour.name, key, timeout, HEAD_LIMIT)
            if sealed is None:
                return None
            head = unseal(sealed, self.authority)
            round, step = when
            head.expect(run=facts.run, round=round, step=step, sender=neighbour.name, model=facts.model)
            if head.round > self.rounds + 1:  # a farewell names the round after the last one
                raise RejectedMessage("round", f"{head.round}, but the run has {self.rounds} rounds")
            if not 1 <= head.samples <= neighbour.limits.samples:
                raise RejectedMessage("samples", f"{head.samples} claimed, {neighbour.limits.samples} allowed")
        except RejectedMessage as refused:
            self._refuse(neighbour, refused)
            return None
        return head

    def _refuse(self, neighbour: Neighbour, refused: RejectedMessage) -> None:
        quarantined = neighbour.record_rejection(refused.reason, self.round)
        self.rejected(neighbour, refused, quarantined)


def _threads(neighbours: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, 2 * neighbours), thread_name_prefix="ask")  # a hung neighbour can block one
