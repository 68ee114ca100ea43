"""A messenger with honest, late, hung and hostile neighbours, in memory."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from feda2l.peer.config import DeadlineConfig, LimitsConfig, NeighbourConfig
from feda2l.peer.messenger import Facts, Messenger
from feda2l.peer.neighbours import Neighbour
from feda2l.wire.mailbox import Mailbox
from feda2l.wire.memory_transport import Hub
from feda2l.wire.message import PROTOCOL, Head, seal
from feda2l.wire.payload import Template, digest, pack
from feda2l.wire.transport import Payload, Reply

ROW = {"model.weight": torch.tensor([3.0, 4.0]), "buffers.running_var": torch.tensor([1.0])}
TEMPLATE = Template.of(ROW)
LEAST, MOST = 0.4, 1.2
NORM = 10.0


class Told(list[tuple[str, str, bool]]):
    """The rejected messages: neighbour, reason, quarantined."""

    def __call__(self, neighbour: Neighbour, refused: Any, quarantined: bool) -> None:
        self.append((neighbour.name, refused.reason, quarantined))


def messenger(
    hub: Hub, name: str, *near: str, told: Told | None = None, exchanges: int = 1, **limits: Any
) -> Messenger:
    made = [
        Neighbour(
            NeighbourConfig(name=other, id=int(other[1:]), address="localhost:1"),
            DeadlineConfig(least=LEAST, most=MOST),
            LimitsConfig(**({"samples": 1000, "strikes": 3, "quarantine_rounds": 5} | limits)),
        )
        for other in near
    ]
    facts = Facts("run", name, TEMPLATE.fingerprint, samples=10, steps=1, degree=len(near), receivers=len(near))
    told = told if told is not None else Told()
    return Messenger(hub.join(name), made, facts, exchanges=exchanges, rejected=told)


def one_way(name: str, direction: Literal["both", "in", "out"], most: float = MOST) -> Neighbour:
    """A neighbour that only sends to us (in), or that only receives from us (out)."""
    config = NeighbourConfig(name=name, id=int(name[1:]), address="localhost:1", direction=direction)
    return Neighbour(config, DeadlineConfig(least=LEAST, most=most), LimitsConfig())


def head(sender: str, round: int, load: Payload = b"", **changes: Any) -> bytes:
    """A head as `sender` would seal it, with false fields."""
    said = {
        "protocol": PROTOCOL,
        "run": "run",
        "round": round,
        "step": 0,
        "sender": sender,
        "model": TEMPLATE.fingerprint,
        "digest": digest(load) if load else "",
        "size": len(load),
        "samples": 10,
        "steps": 1,
        "degree": 1,
        "receivers": 1,
    }
    return seal(Head(**(said | changes)), None)


def impostor(hub: Hub, name: str, answer: Callable[[str], Payload | None]) -> None:
    """A member of the network that answers what a test wants."""

    def reply_with(key: str, reply: Reply) -> None:
        reply(answer(key))

    hub.join(name).serve(reply_with)


@pytest.fixture
def hub() -> Hub:
    return Hub()


# --- waiting ------------------------------------------------------------------------------------------------------


def test_heads_come_in_ascending_id_and_loads_are_the_tensors(hub):
    messengers = [messenger(hub, f"n{i}", *(f"n{j}" for j in (2, 1, 0) if j != i)) for i in range(3)]
    for one in messengers:
        one.publish(1, 0, ROW, TEMPLATE)
    heads = messengers[0].heads(1, 0)
    assert [neighbour.name for neighbour in heads] == ["n1", "n2"]
    for neighbour, said in heads.items():
        loaded = messengers[0].load(neighbour, said, TEMPLATE, NORM)
        assert loaded is not None
        assert all(torch.equal(loaded[name], ROW[name]) for name in ROW)
        assert neighbour.received == 1
    assert messengers[0].received == 2 * TEMPLATE.limit


def test_a_request_is_held_until_the_neighbour_publishes(hub):
    one, other = messenger(hub, "n0", "n1"), messenger(hub, "n1", "n0")
    threading.Timer(0.3, other.publish, (1, 0, ROW, TEMPLATE)).start()
    one.begin()
    began = time.monotonic()
    assert len(one.heads(1, 0)) == 1
    assert 0.25 < time.monotonic() - began < MOST


def test_a_late_neighbour_is_left_out_once_and_then_not_waited_for(hub):
    one, other = messenger(hub, "n0", "n1"), messenger(hub, "n1", "n0")
    neighbour = one.neighbours[0]
    one.begin()
    began = time.monotonic()
    assert one.heads(1, 0) == {}
    assert MOST - 0.1 < time.monotonic() - began < MOST + 1
    assert not neighbour.present
    one.begin()
    began = time.monotonic()
    assert one.heads(2, 0) == {}
    assert time.monotonic() - began < LEAST  # only a short request
    other.publish(1, 0, ROW, TEMPLATE)
    assert one.heads(3, 0) == {}  # it answers, but is two rounds behind
    assert not neighbour.present
    threading.Timer(0.2, other.publish, (4, 0, ROW, TEMPLATE)).start()
    other.publish(3, 0, ROW, TEMPLATE)
    one.begin()
    assert len(one.heads(4, 0)) == 1  # it keeps up again: it is waited for
    assert neighbour.present


def test_the_least_deadline_counts_from_our_own_message(hub):
    """A node that is the slowest itself still waits for the others."""
    one, other = messenger(hub, "n0", "n1"), messenger(hub, "n1", "n0")
    one.neighbours[0].arrivals.extend([0.01] * 5)  # usually at once
    one.began = time.monotonic() - 60  # our own training took a minute
    threading.Timer(LEAST / 2, other.publish, (1, 0, ROW, TEMPLATE)).start()
    assert len(one.heads(1, 0)) == 1


def test_a_neighbour_that_is_cut_off_is_asked_again_until_the_deadline(hub):
    one, other = messenger(hub, "n0", "n1"), messenger(hub, "n1", "n0")
    other.publish(1, 0, ROW, TEMPLATE)
    hub.cut("n0", "n1")
    threading.Timer(0.3, hub.heal, ("n0", "n1")).start()
    one.begin()
    assert len(one.heads(1, 0)) == 1


def test_a_neighbour_without_a_link_gets_only_the_least_deadline(hub):
    one = messenger(hub, "n0", "n1")
    one.begin()
    began = time.monotonic()
    assert one.heads(1, 0) == {}
    assert LEAST <= time.monotonic() - began < MOST
    assert not one.neighbours[0].present


def test_a_hung_neighbour_does_not_delay_the_others(hub):
    one, other = messenger(hub, "n0", "n1", "n2"), messenger(hub, "n2", "n0")
    hub.join("n1").serve(lambda key, reply: None)  # never answers
    other.publish(1, 0, ROW, TEMPLATE)
    one.begin()
    assert [neighbour.name for neighbour in one.heads(1, 0)] == ["n2"]


def test_an_error_in_a_thread_leaves_one_neighbour_out_and_blocks_no_round(hub, monkeypatch):
    one, other = messenger(hub, "n0", "n1", "n2"), messenger(hub, "n2", "n0")
    other.publish(1, 0, ROW, TEMPLATE)
    ask = one.transport.ask

    def broken(neighbour: str, *rest: Any) -> Payload | None:
        if neighbour == "n1":
            raise RuntimeError("nobody foresaw this")
        return ask(neighbour, *rest)

    monkeypatch.setattr(one.transport, "ask", broken)
    assert [neighbour.name for neighbour in one.heads(1, 0)] == ["n2"]


def test_a_lagging_node_gets_the_newest_head(hub):
    one, other = messenger(hub, "n0", "n1"), messenger(hub, "n1", "n0")
    for round in range(1, 8):
        other.publish(round, 0, ROW, TEMPLATE)
    (said,) = one.heads(2, 0).values()
    assert said.round == 7


def test_a_payload_that_is_gone_makes_the_neighbour_away(hub):
    one, other = messenger(hub, "n0", "n1"), messenger(hub, "n1", "n0")
    other.publish(1, 0, ROW, TEMPLATE)
    ((neighbour, said),) = one.heads(1, 0).items()
    other.publish(2, 0, ROW, TEMPLATE)
    other.publish(3, 0, ROW, TEMPLATE)  # two messages are kept: the first is gone
    assert one.load(neighbour, said, TEMPLATE, NORM) is None
    assert not neighbour.present
    assert not neighbour.rejects  # late, not wrong


# --- leaving and coming ---------------------------------------------------------------------------------------------


def test_newest_waits_for_all_or_for_enough(hub):
    one, other = messenger(hub, "n0", "n1", "n2"), messenger(hub, "n1", "n0")
    other.publish(5, 0, ROW, TEMPLATE)
    began = time.monotonic()
    assert [said.round for said in one.newest(MOST, lambda heads: bool(heads)).values()] == [5]
    assert time.monotonic() - began < MOST
    began = time.monotonic()
    assert len(one.newest(LEAST, lambda heads: False)) == 1
    assert time.monotonic() - began >= LEAST
    late = messenger(hub, "n2", "n0")
    threading.Timer(0.2, late.publish, (6, 0, ROW, TEMPLATE)).start()
    assert {said.round for said in one.newest(60, lambda heads: False).values()} == {5, 6}


@pytest.mark.parametrize(
    ("kept", "direction", "listener_at", "after", "received"),
    [
        (5, "in", 1, 0, 1),  # it never waits for us: while it has the next message we missed nothing
        (5, "in", 2, 0, 1),  # our listener missed us once and waits when we keep up
        (5, "in", 3, 0, 4),  # it gave us up: the network continued without us
        (5, "in", 3, 1, 2),
        (3, "in", 1, 0, 4),  # the next message is gone
        (3, "in", 1, 1, 2),
        (5, "both", 1, 0, 4),  # it waits for its neighbours, so it gave us up
    ],
)
def test_a_present_node_is_not_behind_a_neighbour_that_never_waits_for_it(
    hub, kept, direction, listener_at, after, received
):
    one, other, listener = messenger(hub, "n0"), messenger(hub, "n1"), messenger(hub, "n2")
    one.neighbours, one.listeners = [one_way("n1", direction)], [one_way("n2", "out")]
    other.mailbox = Mailbox(kept)
    other.transport.serve(other.mailbox.answer)
    for round in range(5):
        other.publish(round, 0, ROW if round else {}, TEMPLATE)
    listener.publish(listener_at, 0, ROW, TEMPLATE)
    assert [said.round for said in one.newest(MOST, lambda heads: False, after=after).values()] == [received]
    assert [said.round for said in one.newest(MOST, lambda heads: False).values()] == [4]


def test_a_missing_answer_about_the_next_message_is_requested_again(hub):
    """On a busy machine an answer can be slow: this does not mean that the message is gone."""
    one, silent = messenger(hub, "n0"), ["head/1/0"]
    one.neighbours = [one_way("n1", "in")]

    def answer(key: str) -> Payload | None:
        if key in silent:
            return silent.remove(key)
        return head("n1", 1 if key == "head/1/0" else 4, LOAD)

    impostor(hub, "n1", answer)
    assert [said.round for said in one.newest(60, lambda heads: False, after=0).values()] == [1]


def test_farewell_lasts_until_all_have_the_last_message(hub):
    one, other = messenger(hub, "n0", "n1"), messenger(hub, "n1", "n0")
    for each in (one, other):
        each.publish(3, 0, ROW, TEMPLATE)
    threading.Timer(0.4, other.publish, (4, 0, ROW, TEMPLATE)).start()
    began = time.monotonic()
    one.farewell(3, TEMPLATE, 30.0)
    assert 0.35 < time.monotonic() - began < 10


def test_farewell_ends_when_the_others_are_gone_or_the_time_is_over(hub):
    one, other = messenger(hub, "n0", "n1"), messenger(hub, "n1", "n0")
    began = time.monotonic()
    one.farewell(3, TEMPLATE, 0.6)  # n1 never reaches that round
    assert 0.55 < time.monotonic() - began < 5
    other.close()
    began = time.monotonic()
    one.farewell(3, TEMPLATE, 30.0)
    assert time.monotonic() - began < 5


def test_a_farewell_to_a_listener_lasts_while_it_makes_progress(hub):
    """The listener is rounds behind, and its round takes longer than we stay without progress."""
    one, listener = messenger(hub, "n0"), messenger(hub, "n1", "n0")
    one.listeners = [one_way("n1", "out", most=60.0)]
    listener.publish(1, 0, ROW, TEMPLATE)
    began = time.monotonic()
    for round in (2, 3, 4):
        threading.Timer(0.5 * (round - 1), listener.publish, (round, 0, ROW, TEMPLATE)).start()
    one.farewell(3, TEMPLATE, 0.1)
    assert 1.5 <= time.monotonic() - began < 30


@pytest.mark.parametrize(("hurry", "patience", "stays"), [(False, MOST, MOST), (True, 600.0, 0.1)])
def test_a_farewell_to_a_listener_ends_when_it_hangs_or_we_are_in_a_hurry(hub, hurry, patience, stays):
    one, listener = messenger(hub, "n0"), messenger(hub, "n1", "n0")
    one.listeners = [one_way("n1", "out", most=patience)]
    listener.publish(1, 0, ROW, TEMPLATE)
    began = time.monotonic()
    one.farewell(3, TEMPLATE, 0.1, hurry=lambda: hurry)
    assert stays <= time.monotonic() - began < 30


def test_a_farewell_is_not_a_bad_message(hub):
    told = Told()
    one, other = messenger(hub, "n0", "n1", told=told), messenger(hub, "n1", "n0")
    threading.Thread(target=other.farewell, args=(3, TEMPLATE, 0.5)).start()
    heads = one.heads(4, 0)
    assert [(said.round, said.size) for said in heads.values()] == [(4, 0)]
    assert not told


@pytest.mark.parametrize("steps", [1, 3])
def test_a_lagging_node_gets_the_last_message_of_a_leaving_neighbour(hub, steps):
    """It does not get the empty head of the farewell, which has no state."""
    one, other = messenger(hub, "n0", "n1", exchanges=steps), messenger(hub, "n1", "n0", exchanges=steps)
    for step in range(steps):
        other.publish(7, step, ROW, TEMPLATE)
    threading.Thread(target=other.farewell, args=(7, TEMPLATE, 5.0)).start()
    wait = time.monotonic() + 5
    while other.mailbox._messages[-1].round < 8 and time.monotonic() < wait:
        time.sleep(0.01)
    ((neighbour, said),) = one.heads(3, 0).items()
    assert (said.round, said.step) == (7, steps - 1)
    assert one.newest(5, lambda heads: False) == {neighbour: said}
    assert one.load(neighbour, said, TEMPLATE, NORM) is not None
    one.publish(8, 0, {}, TEMPLATE)


# --- rejecting -------------------------------------------------------------------------------------------------------

LOAD = pack(ROW, TEMPLATE)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (head("n1", 4, LOAD), "replay"),
        (head("n2", 5, LOAD), "sender"),
        (head("n1", 5, LOAD, run="another"), "run"),
        (head("n1", 5, LOAD, model="0" * 64), "model"),
        (head("n1", 5, LOAD, samples=10**9), "samples"),
        (head("n1", 5, LOAD, samples=0), "samples"),
        (b"", "head"),
        (b"\xff" * 100, "head"),
        (bytes(100_000), "too large"),
    ],
)
def test_a_bad_head_is_rejected_once_per_round_and_finally_quarantined(hub, answer, reason):
    told = Told()
    one = messenger(hub, "n0", "n1", told=told)
    impostor(hub, "n1", lambda key: answer)
    neighbour = one.neighbours[0]
    for round in (5, 6, 7):
        one.publish(round, 0, ROW, TEMPLATE)
        one.begin()
        began = time.monotonic()
        assert one.heads(5, 0) == {}
        assert time.monotonic() - began < MOST / 2  # a bad answer is an answer: the node does not wait for a better one
    assert told == [("n1", reason, False), ("n1", reason, False), ("n1", reason, True)]
    assert neighbour.rejects == {reason: 3}
    assert one.heads(12, 0) == {}  # not asked: 7 + 5 rounds
    assert len(told) == 3
    one.heads(13, 0)
    assert len(told) == 4


def test_a_plausible_leap_is_accepted_and_an_implausible_one_is_no_offence(hub):
    told = Told()
    one = messenger(hub, "n0", "n1", "n2", told=told)
    neighbour = one.neighbours[0]
    impostor(hub, "n1", lambda key: head("n1", claimed, LOAD))
    impostor(hub, "n2", lambda key: head("n2", one.round, LOAD))  # keeps up with us

    def last_received(round: int) -> list[int]:
        one.publish(round, 0, ROW, TEMPLATE)
        one.begin()
        one._lasted = deque([0.4])  # our fastest round: a neighbour completes at most ten per second
        return [said.round for said in one.heads(round, 0).values()]

    claimed = 5
    assert last_received(5) == [5, 5]
    neighbour.came(5, 0.1)
    claimed = 8  # one round after its next: plausible 0.1 s later
    assert last_received(6) == [8, 6]
    neighbour.came(8, 0.1)
    claimed = 1000
    assert last_received(7) == [7]
    assert not neighbour.present
    assert told == []


@pytest.mark.parametrize(
    ("claims", "believed"),
    [
        ([1000, 1001, 998], [1000, 1001, 998]),  # we are slow
        ([1000, 1001, 7], [1000, 1001, 7]),  # two of three
        ([1000, 7, 7], [7, 7]),  # the leap is false
        ([1000, 2000, 3000], [1000, 2000]),  # different claims: accepted up to the round of most
        ([1000, 7], [7]),
        ([1000], [1000]),  # no other neighbour to ask
    ],
)
@pytest.mark.parametrize("away", [False, True])
def test_a_slow_node_accepts_what_most_neighbours_claim(hub, claims, believed, away):
    told, names = Told(), [f"n{number}" for number in range(1, len(claims) + 1)]
    one = messenger(hub, "n0", *names, told=told)
    for name, neighbour, round in zip(names, one.neighbours, claims, strict=True):
        impostor(hub, name, lambda key, name=name, round=round: head(name, round, LOAD))
        neighbour.came(6, 0.1)
        neighbour.present = not away
    one.publish(7, 0, ROW, TEMPLATE)
    one.begin()
    one._lasted = deque([100.0])  # our round: so long that their claims are not plausible by time
    assert [said.round for said in one.heads(7, 0).values()] == believed
    assert told == []


def test_a_slow_node_accepts_the_only_remaining_neighbour(hub):
    one = messenger(hub, "n0", "n1", "n2", "n3")
    impostor(hub, "n1", lambda key: head("n1", 1000, LOAD))  # the others are gone
    one.neighbours[0].came(6, 0.1)
    one.publish(7, 0, ROW, TEMPLATE)
    one.begin()
    one._lasted = deque([100.0])
    assert [said.round for said in one.heads(7, 0).values()] == [1000]


@pytest.mark.parametrize("away", [False, True])
def test_a_quarantine_counts_from_our_round_not_from_the_senders(hub, away):
    told = Told()
    one = messenger(hub, "n0", "n1", told=told, strikes=1)
    impostor(hub, "n1", lambda key: head("n1", 2**31, LOAD, run="another"))
    one.neighbours[0].present = not away
    one.publish(40, 0, ROW, TEMPLATE)
    one.heads(40, 0)
    assert told == [("n1", "run", True)]
    assert one.neighbours[0].quarantined_until == 46


def bad(name: str, values: list[float]) -> dict[str, Tensor]:
    return ROW | {name: torch.tensor(values)}


def load_from_impostor(hub, *, announced, sent, reason):
    """A node that announces one payload and sends another: nothing is loaded, and the reason is reported."""
    told = Told()
    one = messenger(hub, "n0", "n1", told=told)
    impostor(hub, "n1", lambda key: head("n1", 1, announced) if key.startswith("head") else sent)
    ((neighbour, message),) = one.heads(1, 0).items()
    assert one.load(neighbour, message, TEMPLATE, NORM) is None
    assert told == [("n1", reason, False)]
    return neighbour


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (pack(bad("model.weight", [math.nan, 0]), TEMPLATE), "not finite"),
        (pack(bad("model.weight", [math.inf, 0]), TEMPLATE), "not finite"),
        (pack(bad("buffers.running_var", [-0.1]), TEMPLATE), "negative variance"),
        (pack(bad("model.weight", [1e4, 0]), TEMPLATE), "norm"),
        (LOAD + b"x", "size"),
        (LOAD[:-4], "size"),
        (pack({"model.weight": torch.ones(2), "buffers.running_vaz": torch.ones(1)}), "layout"),
    ],
)
def test_a_bad_payload_is_rejected(hub, load, reason):
    assert load_from_impostor(hub, announced=load, sent=load, reason=reason).received == 0


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (pack(bad("model.weight", [3.0, 5.0]), TEMPLATE), "digest"),  # differs from the signed digest
        (LOAD[:-4], "size"),
        (bytes(100_000), "too large"),  # rejected by its announced size before it is fetched
    ],
)
def test_a_payload_that_differs_from_the_announced_one_is_rejected(hub, sent, reason):
    load_from_impostor(hub, announced=LOAD, sent=sent, reason=reason)


def test_bad_payloads_also_lead_to_quarantine(hub):
    told = Told()
    one = messenger(hub, "n0", "n1", told=told)
    impostor(hub, "n1", lambda key: head("n1", int(key.split("/")[1]), LOAD) if key[0] == "h" else LOAD[:-1])
    for round in (1, 2, 3, 4):
        one.publish(round, 0, ROW, TEMPLATE)
        one.begin()
        for neighbour, said in one.heads(round, 0).items():
            one.load(neighbour, said, TEMPLATE, NORM)
    assert [quarantined for _, _, quarantined in told] == [False, False, True]  # after that it was not asked
