"""Simulated time against hand calculations, and properties that hold for every network."""

import numpy as np
import pytest
import torch

from feda2l.errors import FedA2LError
from feda2l.network import Clock
from feda2l.network.draws import lognormal
from feda2l.network.links import DrawnLinks, LinkTime, ListedLinks
from feda2l.network.node_properties import speeds, uplinks
from feda2l.network.profiles import LINKS, SPEEDS, LinkProfile
from feda2l.topology import build

FREE = LinkProfile("no cost", 0.0)


class Same:
    """Links with equal cost."""

    def __init__(self, latency: float, per_byte: float = 0.0) -> None:
        self.latency, self.per_byte = latency, per_byte

    def cost(self, senders, listeners):
        return LinkTime(np.full(len(senders), self.latency), np.full(len(senders), self.per_byte))


def clock(name, work, links=None, uplink=None, **options):
    work = np.asarray(work, dtype=float)
    uplink = np.zeros(len(work)) if uplink is None else np.asarray(uplink, dtype=float)
    return Clock(build(name, len(work), **options), work, links or Same(0.0), uplink)


def times(clock, rounds, message=100, **more):
    """Return the time at which each node has completed each round."""
    found = []
    for round in range(1, rounds + 1):
        clock.round(round, message, **more)
        found.append(clock.now.tolist())
    return found


def listed(tmp_path, text, nodes=3):
    path = tmp_path / "links.csv"
    path.write_text(text)
    return ListedLinks.read(str(path), nodes)


THREE = """from,to,latency_ms,mbit
0,1,1000,0.0008
1,0,2000,0.0008
1,2,500,0.0004
"""


def test_three_nodes_and_three_rounds_match_a_hand_calculation(tmp_path):
    """A line 0 - 1 - 2. A message of 100 bytes is 800 bits: 1 s at 0.0008 Mbit/s, 2 s at 0.0004.

    Nodes train for 1, 2 and 6 s, then send for 1, 2 (the longer of 1 and 2) and 2 s. A message arrives after
    0 -> 1: 1 + 1 = 2 s, 1 -> 0: 1 + 2 = 3 s, 1 <-> 2: 2 + 0.5 = 2.5 s. c is the end of training. t is the time when all
    messages of a node have left and all messages to it have arrived. Nodes 0 and 2 do not wait for each other.

    round 1: c = 0+1, 0+2, 0+6                   = 1, 2, 6
             t0 = max(1+1, 2+3)                  = 5
             t1 = max(2+2, 1+2, 6+2.5)           = 8.5
             t2 = max(6+2, 2+2.5)                = 8
    round 2: c = 5+1, 8.5+2, 8+6                 = 6, 10.5, 14
             t0 = max(6+1, 10.5+3)               = 13.5
             t1 = max(10.5+2, 6+2, 14+2.5)       = 16.5
             t2 = max(14+2, 10.5+2.5)            = 16
    round 3: c = 13.5+1, 16.5+2, 16+6            = 14.5, 18.5, 22
             t0 = max(14.5+1, 18.5+3)            = 21.5
             t1 = max(18.5+2, 14.5+2, 22+2.5)    = 24.5
             t2 = max(22+2, 18.5+2.5)            = 24
    """
    graph = tmp_path / "line.txt"
    graph.write_text("0 1\n1 2\n")
    found = times(clock("file", [1, 2, 6], listed(tmp_path, THREE), file=str(graph)), 3)
    assert np.array(found) == pytest.approx(np.array([[5, 8.5, 8], [13.5, 16.5, 16], [21.5, 24.5, 24]]), rel=1e-12)


def test_messages_share_an_uplink():
    """Node 0 of a star sends three messages of 1 s at the same time, so each takes 3 s. The others send one each."""
    found = clock("star", [1, 1, 1, 1], Same(0.5), uplink=[0.01] * 4)
    found.round(1, 100)
    # 0 receives them at 1 + 1 + 0.5 and has sent its messages at 1 + 3; they receive its message at 1 + 3 + 0.5
    assert found.now.tolist() == [4, 4.5, 4.5, 4.5]


def test_the_slower_of_link_and_uplink_counts():
    found = clock("ring", [0, 0, 0], Same(1.0, per_byte=0.05), uplink=[0.01, 0.1, 0.01])
    found.round(1, 100)
    # two messages each: 0 and 2 need 2 s by their uplinks and 5 s by the link; 1 needs 20 s
    assert found.now.tolist() == [21, 20, 21]


def test_a_resting_node_neither_trains_nor_sends():
    """A ring of four nodes trains for 1, 2, 3, 4 s. The latency is 0.5 s and a message takes 1 s more. Node 3 rests.

    c = 1, 2, 3, 0. Node 0 receives from 1, node 1 from 0 and 2, node 2 from 1: messages arrive at c + 1.5, and node 2's
    own message has left at 3 + 1. Node 3 gets notices without a model from 0 and 2 at c + 0.5.
    """
    found = clock("ring", [1, 2, 3, 4], Same(0.5, per_byte=0.01))
    found.round(1, 100, present=[0, 1, 2])
    assert found.now.tolist() == [3.5, 4.5, 4, 3.5]


def test_only_sent_messages_share_the_uplink():
    """No messages are sent to resting nodes."""
    found = clock("full", [1, 1, 1, 1], uplink=[0.01] * 4)
    found.round(1, 100, present=[0, 1])
    assert found.now.tolist() == [2, 2, 1, 1]


def test_each_exchange_of_a_round_takes_time():
    found = clock("ring", [1, 1, 1, 5], Same(2.0))
    found.round(1, 0, exchanges=2)
    # c = 1, 1, 1, 5, then 7, 3, 7, 5, then the maximum over neighbours + 2
    assert found.now.tolist() == [7, 9, 7, 9]


def test_a_time_varying_graph_uses_the_edges_of_each_round():
    """One-peer graph of four nodes: node i receives from i - 1 in round 1 and from i - 2 in round 2.

    Node 0 trains for 1 s, and the latency is 10 s.
    round 1: c = 1, 0, 0, 0, and 1 receives from 0: t = 10, 11, 10, 10
    round 2: c = 11, 11, 10, 10, and 2 receives from 0, 3 from 1: t = 20, 20, 21, 21
    """
    found = times(clock("one_peer_exponential", [1, 0, 0, 0], Same(10.0)), 2)
    assert found == [[10, 11, 10, 10], [20, 20, 21, 21]]


@pytest.mark.parametrize("name", ["full", "ring", "exponential", "one_peer_exponential", "star"])
def test_equal_nodes_and_links_take_equal_time_per_round(name):
    found = times(clock(name, [0.5] * 8, Same(0.25, per_byte=1 / 128)), 7, message=32)
    assert found == [[round * 1.0] * 8 for round in range(1, 8)]


def test_isolated_nodes_do_not_wait():
    assert times(clock("isolated", [1, 2, 3], Same(9.0)), 2) == [[1, 2, 3], [2, 4, 6]]


@pytest.mark.parametrize("faster", ["latency", "bandwidth", "uplink", "speed"])
def test_faster_nodes_or_links_never_increase_the_time(faster):
    generator = np.random.default_rng(1)
    nodes = 30
    profile = LINKS["mobile"]._replace(bandwidth_mbit=5.0, bandwidth_spread=1.0)
    work, uplink = generator.uniform(0, 1, nodes), uplinks(None, profile, nodes, seed=3)

    def ends(work, uplink, profile):
        return times(clock("k_regular", work, DrawnLinks(profile, 3), uplink, k=4), 6, message=50_000)

    usual = np.array(ends(work, uplink, profile))
    better = {
        "latency": lambda: ends(work, uplink, profile._replace(latency_ms=10.0)),
        "bandwidth": lambda: ends(work, uplink, profile._replace(bandwidth_mbit=9.0)),
        "uplink": lambda: ends(work, uplink / 2, profile),
        "speed": lambda: ends(np.where(np.arange(nodes) == 7, work / 3, work), uplink, profile),
    }[faster]()
    assert (np.array(better) <= usual).all()
    assert (np.array(better) < usual).any()


def test_link_draws_do_not_depend_on_the_graph():
    drawn = DrawnLinks(LINKS["wan"], seed=1)
    some = drawn.cost(np.array([3, 7]), np.array([7, 3]))
    many = drawn.cost(np.arange(9), np.full(9, 7))
    assert some.latency[0] == some.latency[1] == many.latency[3]
    assert some.per_byte[0] == some.per_byte[1] == many.per_byte[3]
    assert len(set(many.latency.tolist())) == 9
    assert (DrawnLinks(LINKS["wan"], seed=2).cost(np.arange(9), np.full(9, 7)).latency != many.latency).any()


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_draws_are_lognormal_with_median_one(spread):
    pairs = np.divmod(np.arange(40_000), 200)
    logs = np.log(lognormal(5, "latency", spread, *pairs))
    assert np.median(logs) == pytest.approx(0, abs=0.02 * spread)
    assert logs.std() == pytest.approx(spread, rel=0.02)
    assert np.mean(logs < -1.96 * spread) == pytest.approx(0.025, abs=0.003)
    ordered = logs.reshape(200, 200)
    assert abs(np.corrcoef(ordered[:, 0], ordered[:, 1])[0, 1]) < 0.2


def test_the_summaries_of_the_speed_profiles_are_true():
    for name, third, fortieth in (("computers", 0.9, 0.55), ("phones", 0.8, 0.3)):
        drawn = np.sort(speeds(name, 40_000, seed=1))
        assert drawn[len(drawn) // 3] < third
        assert drawn[len(drawn) // 40] == pytest.approx(fortieth, abs=0.02)
    assert speeds("uniform", 3, seed=1).tolist() == [1, 1, 1]
    assert set(SPEEDS) == {"uniform", "computers", "phones"}


def test_draws_of_existing_nodes_do_not_depend_on_the_network_size():
    assert (speeds("phones", 100, seed=4)[:10] == speeds("phones", 10, seed=4)).all()
    profile = LINKS["home"]
    assert (uplinks(None, profile, 100, seed=4)[:10] == uplinks(None, profile, 10, seed=4)).all()


@pytest.mark.parametrize("name", ["ring", "one_peer_exponential"])
def test_cost_of_ten_thousand_nodes_grows_with_edges_only(name):
    nodes = 10_000
    network = clock(
        name, speeds("phones", nodes, 1), DrawnLinks(LINKS["mobile"], 1), uplinks(None, LINKS["mobile"], nodes, 1)
    )
    half = range(0, nodes, 2)
    for round in range(1, 101):
        network.round(round, 1_000_000, present=half if round % 2 else None)
    assert torch.isfinite(network.now).all()
    assert network.seconds == network.now.max()


# --- links from a file -----------------------------------------------------------------------------------------


def test_a_link_listed_in_one_direction_is_symmetric(tmp_path):
    found = listed(tmp_path, THREE).cost(np.array([0, 1, 1, 2]), np.array([1, 0, 2, 1]))
    assert found.latency.tolist() == [1.0, 2.0, 0.5, 0.5]
    assert found.per_byte.tolist() == pytest.approx([0.01, 0.01, 0.02, 0.02])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1,2,3\n", 'line 1: expected the header "from,to,latency_ms,mbit"'),
        ("from,to,latency_ms,mbit\n0,1,5\n", "line 2: expected 4 fields (from,to,latency_ms,mbit), got 3"),
        ("from,to,latency_ms,mbit\n0,3,5,1\n", 'line 2: to = "3": there is no such node; the nodes are 0 to 2'),
        ("from,to,latency_ms,mbit\n\na,1,5,1\n", 'line 3: from = "a"'),
        ("from,to,latency_ms,mbit\n1,1,5,1\n", "line 2: node 1 is linked to itself"),
        ("from,to,latency_ms,mbit\n0,1,-5,1\n", 'line 2: latency_ms = "-5": must be 0 or more'),
        ("from,to,latency_ms,mbit\n0,1,5,0\n", 'line 2: mbit = "0": must be above 0'),
        ("from,to,latency_ms,mbit\n0,1,5,nan\n", 'line 2: mbit = "nan"'),
        ("from,to,latency_ms,mbit\n0,1,5,1\n0,1,5,2\n", "line 3: the link from 0 to 1 is listed twice"),
    ],
)
def test_an_invalid_line_is_an_error_with_its_number(tmp_path, text, said):
    with pytest.raises(FedA2LError) as error:
        listed(tmp_path, text)
    assert said in str(error.value)
    assert "links.csv" in str(error.value)


def test_a_link_missing_from_the_file_is_an_error(tmp_path):
    links = listed(tmp_path, THREE)
    with pytest.raises(FedA2LError, match=r"the link from 2 to 0 \(and 1 more\) of the graph is missing"):
        clock("ring", [1, 1, 1], links)
