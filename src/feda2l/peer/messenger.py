"""Between a node and its neighbours: publishes messages, asks for theirs, and believes nothing unchecked."""

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

SLICE = 5.0  # seconds of one held question; then it is asked again, so that a hung neighbour binds nobody for long
GLANCE = 0.3  # seconds that an answer of a neighbour that is away may take
CLOSE = 2  # rounds behind, from which one that was away can catch up while it is waited for
FASTER = 4.0  # times as fast as we ever were: who claims more rounds than that is not believed yet
PAUSE = 0.05  # seconds between questions to a neighbour that is not there


class Facts(NamedTuple):
    """What a node says of itself in every head."""

    run: str
    name: str
    model: str
    samples: int
    steps: int
    degree: int
    receivers: int


class FaultInjector(Protocol):
    """What a fault plan does to a node and to what it hears."""

    def before_message(self, round: int) -> None:
        """The node trained and its message is not out: it may crash, hang or be late here."""

    def rejoins(self, round: int) -> bool:
        """Does the node begin this round from the others' states?"""

    def receives(self, sender: int, round: int) -> bool:
        """Does the link from a sender work in this round?"""

    def corrupts(self, sender: int, round: int) -> bool:
        """Does the sender's message arrive broken?"""


class Messenger:
    """One node's mail. `rejected(neighbour, why, quarantined)` is told of every message that is not taken."""

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
        kept: int = 2,
        listeners: Sequence[Neighbour] = (),
        fault_injector: FaultInjector | None = None,
        rejected: Callable[[Neighbour, RejectedMessage, bool], None] = lambda neighbour, refused, quarantined: None,
    ) -> None:
        self.transport, self.facts = transport, facts
        self.neighbours = sorted(neighbours, key=lambda neighbour: neighbour.id)
        self.listeners = listeners  # who hear us and are not heard: asked only how far they are
        self.identity, self.authority, self.fault_injector, self.rejected = (
            identity,
            authority,
            fault_injector,
            rejected,
        )
        self.rounds = rounds  # of the run: nobody can be further
        self.exchanges = exchanges  # of a round
        self.mailbox = Mailbox(kept)
        self.received = 0  # bytes
        self._lasted: deque[float] = deque(maxlen=KEPT)  # seconds of the last rounds
        self._spare: bytearray | None = None  # memory of a message that was used
        self._leaps: dict[Neighbour, Head] = {}  # of an exchange: heads of rounds for which there was no time
        self.round = 0  # of the last message: a quarantine counts from here, whatever round the sender claims
        self.began = time.monotonic()  # of the round
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
        """Other neighbours or renewed credentials from here on."""
        self.neighbours = sorted(neighbours, key=lambda neighbour: neighbour.id)
        self.listeners = listeners
        self.facts, self.identity, self.authority = facts, identity, authority
        self._pool.shutdown(wait=False)
        self._pool = _threads(len(self.neighbours))

    def begin(self) -> None:
        """A round begins: deadlines count from here."""
        now = time.monotonic()
        if self.round:
            self._lasted.append(now - self.began)
        self.began = now

    def publish(self, round: int, step: int, tensors: Mapping[str, Tensor], template: Template) -> None:
        """Let the neighbours see the message of an exchange."""
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
        """The heads of an exchange, or later ones of neighbours that went on without us; waits until the deadline.

        Whoever came to the last round is waited for; who is away is asked, and waited for again when it keeps the pace.
        """
        self._leaps.clear()
        asked = [neighbour for neighbour in self.neighbours if self._asked(neighbour, round)]
        alone = bool(self.neighbours) and not any(neighbour.present for neighbour in self.neighbours)
        found = self._answers(asked, round, step)
        found |= self._confirmed(list(found.values()), asked)
        if alone and not found:
            self._keep_pace()
        if len(found) == len(self.neighbours) == self.facts.receivers and self._mutual:
            # they have what went before, or they would not be here: its memory takes what they send
            self._spare = self._spare or self.mailbox.make_room()
        return dict(sorted(found.items(), key=lambda item: item[0].id))

    def _keep_pace(self) -> None:
        """Wait for the usual end of a round: alone we would run ahead, and whoever returns would have to jump."""
        if self._lasted:
            time.sleep(max(0.0, self.began + statistics.median(self._lasted) - time.monotonic()))

    def _answers(self, asked: Sequence[Neighbour], round: int, step: int) -> dict[Neighbour, Head]:
        """The heads of those who answer in time; a neighbour whose answer ends in an error counts as silent."""
        answers = {neighbour: self._pool.submit(self._head, neighbour, round, step) for neighbour in asked}
        wait(answers.values())
        heads = {neighbour: answer.result() for neighbour, answer in answers.items() if not answer.exception()}
        return {neighbour: head for neighbour, head in heads.items() if head is not None}

    def newest(
        self, seconds: float, enough: Callable[[dict[Neighbour, Head]], bool], *, after: int | None = None
    ) -> dict[Neighbour, Head]:
        """The newest head of everyone who answers, until all have, or so many seconds are over, or it is `enough`.

        `after` is our last round: of those who never wait for us it is the head of the next one, while they have it.
        """
        found: dict[Neighbour, Head] = {}
        until = time.monotonic() + seconds
        while True:
            for neighbour in self.neighbours:
                if neighbour not in found and (head := self._ask_head(neighbour, NEWEST, GLANCE)) is not None:
                    last = self._last(neighbour, head)
                    said = last if after is None else self._next(neighbour, last, after)
                    if said is not None:
                        found[neighbour] = said
            if len(found) == len(self.neighbours) or time.monotonic() > until or enough(found):
                return found
            time.sleep(PAUSE)

    def load(self, neighbour: Neighbour, head: Head, template: Template, most: float) -> dict[str, Tensor] | None:
        """The tensors of a message, every byte checked; None if they are gone, late or not to be believed.

        They stay as they are until the next message is loaded, which takes their memory.
        `most` is the largest norm that we believe.
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
        """Stay until the neighbours have taken the last message, or are gone, or the time is over.

        A head without a payload tells them that there is nothing to wait for.
        We may be rounds ahead of a listener: unless there is a `hurry`, its time begins anew while it gets on.
        """
        self.publish(round + 1, 0, {}, template)
        waiting = [*self.neighbours, *self.listeners]  # also those who lag: they go on from here
        until = dict.fromkeys(waiting, time.monotonic() + seconds)

        def stays_for(neighbour: Neighbour) -> bool:
            listens = neighbour in self.listeners  # its link may be down for a moment, and up again for the next round
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
        time.sleep(2 * PAUSE)  # who waits for us in the same way asks once more

    def close(self) -> None:
        self.mailbox.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.transport.close()

    def _gets_on(self, listener: Neighbour, head: Head) -> bool:
        """Has it come to another round within its patience?"""
        if head.round > listener.received or not listener.received_at:
            listener.received, listener.received_at = head.round, time.monotonic()
        return time.monotonic() < listener.received_at + listener.patience

    @property
    def _mutual(self) -> bool:
        """Does everyone whom we hear hear us?"""
        return all(neighbour.config.direction == "both" for neighbour in self.neighbours)

    def _asked(self, neighbour: Neighbour, round: int) -> bool:
        if neighbour.quarantined(round):
            return False
        return self.fault_injector is None or self.fault_injector.receives(neighbour.id, round)

    def _head(self, neighbour: Neighbour, round: int, step: int) -> Head | None:
        """A neighbour's head of an exchange, as soon as it is there and unless it is too late."""
        if not neighbour.present:
            head = self._ask_head(neighbour, NEWEST, GLANCE)
            if head is None or head.round < round - CLOSE:
                return None
            neighbour.present = True  # it keeps the pace again
        least = time.monotonic() + neighbour.deadline.least
        until = max(self.began + neighbour.patience, least)
        rejected_messages = neighbour.rejects.total()
        while (left := until - time.monotonic()) > 0:
            head = self._ask_head(neighbour, f"head/{round}/{step}", min(left, SLICE), (round, step))
            if head is not None:
                return self._last(neighbour, head) if head.round > round else head
            if neighbour.rejects.total() > rejected_messages:
                return None  # one bad message a round: else a single bad round would cost all strikes
            if time.monotonic() > least and not self.transport.alive(neighbour.name):
                break  # it is not slow, its link is down: there is nobody to be patient with
            time.sleep(PAUSE)
        neighbour.missed()
        return None

    def _last(self, neighbour: Neighbour, head: Head) -> Head:
        """The head of what a neighbour that leaves said last, as long as it has it: else whoever lags ends alone."""
        if head.size or head.round < 2:
            return head
        last = self._ask(neighbour, f"head/{head.round - 1}/{self.exchanges - 1}", GLANCE)
        return last if last is not None and last.size else head

    def _next(self, neighbour: Neighbour, head: Head, after: int) -> Head | None:
        """The head that follows our last round, of one that is ahead because it never waits for us; None: ask again.

        While it has that message we missed nothing, unless our listeners gave us up: the network is past us then.
        """
        if neighbour.config.direction == "both" or head.round <= after + 1:
            return head
        heads = [self._ask_head(listener, NEWEST, GLANCE) for listener in self.listeners]
        if any(said is not None and said.round > after + CLOSE for said in heads):
            return head
        following = self._ask_head(neighbour, f"head/{after + 1}/0", GLANCE, (after + 1, 0))
        return head if following is not None and following.round > after + 1 else following

    def _confirmed(self, found: Sequence[Head], asked: Sequence[Neighbour]) -> dict[Neighbour, Head]:
        """The leaps that most of those whose link is up have made: then it is we who are slow, and nobody lies.

        Whoever hears only one has nobody else to ask, and believes it.
        """
        if not self._leaps:
            return {}
        there = sum(self.transport.alive(neighbour.name) for neighbour in asked)
        said = [head.round for head in (*found, *self._leaps.values())]
        return {
            neighbour: self._last(neighbour, head)
            for neighbour, head in self._leaps.items()
            if 2 * sum(round >= head.round - AHEAD for round in said) > there
        }

    def _ask_head(self, neighbour: Neighbour, key: str, timeout: float, when: tuple[int, int] = (0, 0)) -> Head | None:
        """The head that a neighbour answers with, of a round that it can have come to."""
        head = self._ask(neighbour, key, timeout, when)
        self._leaps.pop(neighbour, None)
        # Too many rounds at once is no offence: whoever took over the round of others jumps, and we may be slow. It is
        # believed when it can have come there by itself, a moment later, or when most say the same; who claims rounds
        # that never were is left out as if it were silent.
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
            if head.round > self.rounds + 1:  # a farewell is of the round after the last
                raise RejectedMessage("round", f"{head.round} of {self.rounds}")
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
    return ThreadPoolExecutor(max(1, 2 * neighbours), thread_name_prefix="ask")  # a hung one may bind one for a while
