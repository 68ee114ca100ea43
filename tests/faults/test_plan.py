"""Queries of a fault plan about nodes, rounds and messages, and its error messages."""

from pathlib import Path

import pytest

from feda2l.errors import FedA2LError
from feda2l.faults import FaultPlan
from feda2l.faults.plan import KINDS


def rounds(check, last=8):
    return [round for round in range(1, last + 1) if check(round)]


def test_a_crash_lasts_until_the_restart(plan):
    found = FaultPlan.load(plan("crash node=1 round=3", "restart node=1 round=5", "crash node=2 round=7"), 4)
    assert rounds(lambda r: found.is_absent(1, r)) == [3, 4]
    assert rounds(lambda r: found.is_absent(2, r)) == [7, 8]
    assert rounds(lambda r: found.crashes(1, r)) == [3]
    assert rounds(lambda r: found.restarts(1, r)) == [5]
    assert {r: found.rejoins(1, r) for r in range(1, 9) if found.rejoins(1, r)} == {5: "without_own"}
    assert not any(found.rejoins(2, r) for r in range(1, 9))
    # the absent node neither sends nor receives; all other messages arrive
    assert rounds(lambda r: not found.receives(0, 1, r)) == rounds(lambda r: not found.receives(1, 0, r)) == [3, 4]
    assert all(found.receives(0, 3, r) for r in range(1, 9))


def test_a_hang_is_an_absence_of_fixed_length(plan):
    found = FaultPlan.load(plan("hang node=0 round=2 rounds=3 seconds=1.5", "hang node=1 round=4"), 3)
    assert rounds(lambda r: found.is_absent(0, r)) == [2, 3, 4]
    assert rounds(lambda r: found.is_absent(1, r)) == [4]
    assert found.rejoins(0, 5) == found.rejoins(1, 5) == "with_own"
    begun = found.hangs(0, 2)
    assert begun is not None
    assert (begun.rounds, begun.seconds) == (3, 1.5)
    assert found.hangs(0, 3) is None
    assert not found.crashes(0, 2)


def test_a_node_that_fails_again_on_return_does_not_return(plan):
    found = FaultPlan.load(plan("hang node=0 round=2", "crash node=0 round=3", "restart node=0 round=4"), 3)
    assert rounds(lambda r: found.is_absent(0, r)) == [2, 3]
    assert found.rejoins(0, 3) is None
    assert found.rejoins(0, 4) == "without_own"


def test_a_delay_counts_only_after_the_deadline(plan):
    path = plan("delay node=1 round=2 seconds=2", "delay node=1 round=3 seconds=2.5 rounds=2", head="deadline = 2")
    found = FaultPlan.load(path, 3)
    assert [found.delay(1, r) for r in (1, 2, 3, 4, 5)] == [0, 2, 2.5, 2.5, 0]
    assert rounds(lambda r: not found.receives(0, 1, r)) == [3, 4]
    assert all(found.receives(1, 0, r) for r in range(1, 9))  # the sender itself still receives all messages
    assert not any(found.is_absent(1, r) for r in range(1, 9))
    assert FaultPlan.load(plan("delay node=1 round=2 seconds=5"), 3).deadline == 5


def test_drop_and_corrupt_affect_one_sender_and_its_receivers(plan):
    found = FaultPlan.load(
        plan("drop node=0 round=2 to=[1]", "corrupt node=0 round=3 to=[2]", "corrupt node=1 round=4"), 3
    )
    cut = [(i, j, r) for r in range(1, 6) for i in range(3) for j in range(3) if not found.receives(i, j, r)]
    assert cut == [(1, 0, 2), (2, 0, 3), (0, 1, 4), (2, 1, 4)]
    refused = [(i, j, r) for r in range(1, 6) for i in range(3) for j in range(3) if found.rejects(i, j, r)]
    assert refused == [(2, 0, 3), (0, 1, 4), (2, 1, 4)]


def test_a_message_that_does_not_arrive_is_not_rejected(plan):
    found = FaultPlan.load(
        plan(
            "corrupt node=0 round=2",
            "drop node=0 round=2 to=[1]",
            "split round=2 sides=[[0],[3]]",
            "hang node=4 round=2",
        ),
        5,
    )
    assert [found.rejects(i, 0, 2) for i in range(5)] == [False, False, True, False, False]


def test_a_split_separates_its_sides_and_ends(plan):
    found = FaultPlan.load(plan("split round=2 rounds=2 sides=[[0,1],[2,3]]"), 5)
    parted = {(i, j) for i in range(5) for j in range(5) if not found.receives(i, j, 3)}
    assert parted == {(i, j) for a, b in (((0, 1), (2, 3)), ((2, 3), (0, 1))) for i in a for j in b}  # 4 is on no side
    assert rounds(lambda r: not found.receives(0, 2, r)) == [2, 3]


def test_rejoin_and_several_nodes_at_once(plan):
    found = FaultPlan.load(plan("rejoin node=2 round=4", "crash node=[0,1] round=3"), 4)
    assert found.rejoins(2, 4) == "with_own"
    assert found.rejoins(2, 3) is None
    assert found.is_absent(0, 3)
    assert found.is_absent(1, 3)
    assert found.returns
    assert not FaultPlan.load(plan("crash node=0 round=1"), 2).returns


def test_a_plan_without_faults_is_empty(plan):
    assert not FaultPlan.load(plan(), 3)
    assert FaultPlan().receives(0, 1, 1)


MISTAKES = {
    "unknown": (["crash node=0 round=1 rund=2"], "fault 1 (crash): rund: unknown key; did you mean 'round'?"),
    "kind": (["crush node=0 round=1"], "fault 1 (crush): kind = 'crush' is unknown; did you mean 'crash'?"),
    "key of another kind": (["crash node=0 round=1 seconds=2"], "fault 1 (crash): seconds: unknown key"),
    "no round": (["crash node=0"], "fault 1 (crash): round is missing"),
    "no node": (["drop round=2"], "fault 1 (drop): node is missing"),
    "no seconds": (["delay node=0 round=2"], "fault 1 (delay): seconds is missing"),
    "node": (
        ["crash node=0 round=1", "crash node=3 round=1"],
        "fault 2 (crash): node = 3: there is no such node; the nodes are 0 to 2",
    ),
    "no number": (['crash node="a" round=1'], "fault 1 (crash): node = 'a': there is no such node"),
    "truth": (["crash node=true round=1"], "node = True: there is no such node"),
    "no nodes": (["crash node=[] round=1"], "node = []: must name at least one node"),
    "twice": (["crash node=[1,1] round=1"], "node: node 1 is named twice"),
    "round 0": (["crash node=0 round=0"], "fault 1 (crash): round = 0: must be an integer of at least 1"),
    "round 1.5": (["crash node=0 round=1.5"], "round = 1.5: must be an integer of at least 1"),
    "rounds": (["hang node=0 round=1 rounds=0"], "fault 1 (hang): rounds = 0: must be an integer of at least 1"),
    "seconds": (
        ["delay node=0 round=1 seconds=-1"],
        "fault 1 (delay): seconds = -1: must be a finite number of at least 0",
    ),
    "endless": (["delay node=0 round=1 seconds=inf"], "seconds = inf: must be a finite number of at least 0"),
    "overlap": (
        ["crash node=0 round=2", "crash node=0 round=4"],
        "fault 2 (crash): node 0 crashed in round 2; restart it first",
    ),
    "dead and hung": (["crash node=0 round=2", "hang node=0 round=2"], "node 0 crashed in round 2"),
    "hung and dead": (
        ["hang node=0 round=2 rounds=3", "crash node=0 round=4"],
        "fault 2 (crash): node 0 hangs until round 4",
    ),
    "restart": (["restart node=0 round=2"], "fault 1 (restart): node 0 has not crashed before round 2"),
    "restart at once": (
        ["crash node=0 round=2", "restart node=0 round=2"],
        "fault 2 (restart): node 0 has not crashed before round 2",
    ),
    "restart twice": (
        ["crash node=0 round=2", "restart node=0 round=3", "restart node=0 round=4"],
        "fault 3 (restart)",
    ),
    "empty side": (["split round=1 sides=[[0],[]]"], "fault 1 (split): sides: a side is empty"),
    "one side": (["split round=1 sides=[[0,1]]"], "sides = [[0, 1]]: must be at least two lists of nodes"),
    "two sides": (["split round=1 sides=[[0,1],[1,2]]"], "sides: node 1 is on two sides"),
    "to itself": (["drop node=1 round=1 to=[0,1]"], "fault 1 (drop): to: node 1 is the sender"),
    "to nobody": (["drop node=1 round=1 to=[]"], "to = []: must name at least one node"),
    "to a number": (["drop node=1 round=1 to=0"], "to = 0: must name at least one node"),
    "rejoin at 1": (
        ["rejoin node=1 round=1"],
        "fault 1 (rejoin): round = 1: a rejoin needs messages of the previous round",
    ),
    "rejoin away": (["hang node=1 round=2", "rejoin node=1 round=2"], "fault 2 (rejoin): node 1 is absent in round 2"),
    "nobody left": (["crash node=[0,1] round=2", "hang node=2 round=3"], "fault 2 (hang): in round 3 no node is left"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_an_invalid_entry_is_an_error_with_file_and_number(name, plan):
    faults, message = MISTAKES[name]
    path = plan(*faults)
    with pytest.raises(FedA2LError) as error:
        FaultPlan.load(path, 3)
    assert str(error.value).startswith(f"{path}: fault ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deadline = 0", "deadline = 0: must be a number of seconds above 0"),
        ("dedline = 3", "dedline: unknown key; did you mean 'deadline'?"),
        ("fault = 3", "write each fault as a separate [[fault]] table"),
        ("[fault]\nkind = 'crash'", "write each fault as a separate [[fault]] table"),
        ("[[fault]]\nround = 3", "fault 1: kind is missing"),
        ("[[fault]", "is not valid TOML"),
    ],
)
def test_an_invalid_file_is_an_error(tmp_path: Path, text, message):
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(FedA2LError) as error:
        FaultPlan.load(path, 3)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(FedA2LError, match="there is no such file"):
        FaultPlan.load(tmp_path / "none.toml", 3)


def test_the_plan_in_the_documentation_is_valid(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
    path = tmp_path / "faults.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0])
    found = FaultPlan.load(path, 5)
    assert {fault.kind for fault in found.faults} == set(KINDS)
    assert found.is_absent(2, 16)
    assert found.late(0, 18)
