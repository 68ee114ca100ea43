"""The answers of a node: its last two messages, the newest head for a late request, a wait for an early one."""

import threading

import pytest

from feda2l.wire.mailbox import NEWEST, Mailbox, Message


def mailbox(*when: tuple[int, int]) -> Mailbox:
    box = Mailbox()
    for round, step in when:
        publish(box, round, step)
    return box


def publish(box: Mailbox, round: int, step: int = 0) -> None:
    box.publish(Message(round, step, b"head %d.%d" % (round, step), b"load %d.%d" % (round, step)))


def ask(box: Mailbox, key: str) -> list[bytes | None]:
    """The answers so far; empty while the request is held."""
    answers: list[bytes | None] = []
    box.answer(key, answers.append)
    return answers


def test_the_last_two_messages_are_kept():
    box = mailbox((1, 0), (2, 0), (3, 0))
    assert ask(box, "load/1/0") == [None]
    assert ask(box, "load/2/0") == [b"load 2.0"]
    assert ask(box, "load/3/0") == [b"load 3.0"]
    assert ask(box, "head/2/0") == [b"head 2.0"]


def test_every_exchange_of_a_round_is_a_separate_message():
    box = mailbox((1, 0), (1, 1), (1, 2))
    assert ask(box, "load/1/1") == [b"load 1.1"]
    assert ask(box, "head/1/2") == [b"head 1.2"]
    assert ask(box, "head/1/0") == [b"head 1.2"]  # dropped, so the answer is the newest head


def test_a_late_request_gets_the_newest_head():
    box = mailbox((7, 0), (8, 0))
    assert ask(box, "head/3/0") == [b"head 8.0"]
    assert ask(box, NEWEST) == [b"head 8.0"]


def test_an_early_request_waits_for_the_message():
    box = mailbox((1, 0))
    second, third = ask(box, "head/2/0"), ask(box, "head/3/0")
    assert second == third == []
    publish(box, 2)
    assert second == [b"head 2.0"]
    assert third == []
    publish(box, 4)  # round 3 was never published: the waiting request gets the newest head
    assert second == [b"head 2.0"]
    assert third == [b"head 4.0"]


def test_before_anything_is_published():
    box = mailbox()
    assert ask(box, NEWEST) == [None]
    assert ask(box, "load/1/0") == [None]
    held = ask(box, "head/0/0")
    publish(box, 0)
    assert held == [b"head 0.0"]


NONSENSE = (
    *("", "head", "head/", "head/1", "head/-1/0", "head/1/0/0", "head/x/0", "head/1e3/0", "head/²/0"),
    *("head/99999999999/0", "foot/1/0", "load", "load/1/0?x"),
)


@pytest.mark.parametrize("key", NONSENSE)
def test_an_invalid_key_gets_no_answer_and_is_not_held(key):
    box = mailbox((1, 0))
    assert ask(box, key) == [None]
    assert not box._held


def test_closing_ends_held_requests():
    box = mailbox((1, 0))
    held = ask(box, "head/2/0")
    box.close()
    assert held == [None]


def test_a_request_and_its_message_at_the_same_time():
    """Every request is answered exactly once, whichever comes first."""
    for _ in range(200):
        box, answers = mailbox((1, 0)), list[bytes | None]()
        asking = threading.Thread(target=box.answer, args=("head/2/0", answers.append))
        asking.start()
        publish(box, 2)
        asking.join()
        assert answers == [b"head 2.0"]
