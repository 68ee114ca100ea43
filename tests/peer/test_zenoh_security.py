"""Intruders in separate processes read and send nothing, and the honest nodes continue."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from test_transports import free_addresses, wait_for

from feda2l.wire.certificates import issue, make_authority
from feda2l.wire.transport import Reply
from feda2l.wire.zenoh_settings import Tls
from feda2l.wire.zenoh_transport import ZenohTransport

HOSTS = ["127.0.0.1"]

# Everything that zenoh allows, with any certificates and settings, without our code in between.
INTRUDER = """
import json, os, sys, time, zenoh
away = zenoh.Locality.REMOTE  # not itself
task = json.loads(sys.argv[1])
def start(zid=None):
    config = zenoh.Config()
    def put(key, value):
        config.insert_json5(key, json.dumps(value))
    if zid:
        put("id", zid)
    put("mode", "peer")
    put("scouting/multicast/enabled", False)
    put("listen/endpoints", [task["listen"]] if task["listen"] else [])
    put("connect/endpoints", task["connect"])
    put("connect/exit_on_failure", False)
    put("connect/retry", {"period_init_ms": 100, "period_max_ms": 100, "period_increase_factor": 1})
    put("transport/link/tls", task["tls"])
    return zenoh.open(config)
session = start()
if task["steal_id_at"]:  # read the id of the node at this address, and reconnect with that id
    ids, until = [], time.monotonic() + 5
    while not ids and time.monotonic() < until:
        ids = session.info.peers_zid()
        time.sleep(0.02)
    session.close()
    task["connect"] = [task["steal_id_at"]]
    session = start(str(ids[0]))
questions, samples, replies, links = [], [], [], 0
def forge(query):
    questions.append(str(query.key_expr))
    query.reply(query.key_expr, b"forged", attachment=(6).to_bytes(8, "little"))
    query.drop()
kept = [session.declare_queryable(key, forge, allowed_origin=away) for key in task["answer"]]
kept.append(session.declare_subscriber("**", lambda sample: samples.append(str(sample.key_expr)), allowed_origin=away))
print("ready", flush=True)
until = time.monotonic() + task["seconds"]
while time.monotonic() < until:
    links = max(links, len(session.info.links()))
    for key in task["ask"]:
        got = session.get(key, timeout=0.3, allowed_destination=away)
        replies += [reply.ok.payload.to_string() for reply in got if reply.ok]
    session.put("feda2l/run/anna/bert/head", b"noise")
    time.sleep(0.1)
print(json.dumps({"links": links, "questions": questions, "samples": samples, "replies": replies}), flush=True)
os._exit(0)
"""


class Intruder(NamedTuple):
    """An intruder: its files, and whether its connection can succeed."""

    authority: str | None  # the issuer of its certificate; None: no certificate
    name: str
    linked: bool  # a certificate of our CA opens a link, but nothing is allowed on it
    steals_id: bool = False
    scheme: str = "tls"


INTRUDERS = {
    "honest": Intruder("ours", "carl", True),  # the control: the same program gets an answer if it is allowed to
    "no certificate": Intruder(None, "bert", False),
    "no encryption": Intruder(None, "bert", False, scheme="tcp"),
    "another CA": Intruder("other", "bert", False),
    "expired": Intruder("expired", "bert", False),
    "not a neighbour": Intruder("ours", "eve", True),
    "not a neighbour, with a neighbour's zenoh id": Intruder("ours", "eve", False, steals_id=True),
    "a neighbour in another's name": Intruder("ours", "dora", True),
}


class Outcome(NamedTuple):
    reports: dict[str, dict[str, Any]]
    answers: list[bytes | None]  # the answers between anna and bert in the meantime
    silent: list[Any]  # anna's requests to fred, who is absent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authorities")
    for authority in ("ours", "other"):
        (folder / authority).mkdir()
        make_authority(folder / authority)
    for name in ("anna", "bert", "carl", "dora", "eve"):
        issue(folder / "ours", name, hosts=HOSTS)
    issue(folder / "other", "bert", hosts=HOSTS)
    (folder / "expired").mkdir()
    shutil.copy(folder / "ours" / "ca.pem", folder / "expired")
    past = datetime.now(UTC) - timedelta(days=3)
    issue(folder / "ours", "bert", hosts=HOSTS, out=folder / "expired", since=past, days=1)
    return folder


@pytest.fixture(scope="module")
def outcome(folder: Path) -> Iterator[Outcome]:
    """All intruders at once, for three seconds. Fred is an absent neighbour: intruders can try to use his name."""
    addresses = dict(zip(("anna", "bert", "fred"), free_addresses(3), strict=True))
    nodes = {name: node(folder, name, addresses) for name in ("anna", "bert")}
    processes = {
        kind: intrude(folder, intruder, addresses["anna"], addresses["bert"]) for kind, intruder in INTRUDERS.items()
    }
    answers, silent = [], []
    try:
        wait_for(lambda: nodes["anna"].alive("bert") and nodes["bert"].alive("anna"))
        while any(process.poll() is None for process in processes.values()):
            answers.append(nodes["anna"].ask("bert", "head/1/0", 5, 100))
            answers.append(nodes["bert"].ask("anna", "head/1/0", 5, 100))
            silent.append(nodes["anna"].alive("fred") or nodes["anna"].ask("fred", "head/1/0", 0.2, 100))
            time.sleep(0.02)
        reports = {}
        for kind, process in processes.items():
            output, errors = process.communicate()
            assert process.returncode == 0, f"{kind}: {errors}"
            reports[kind] = json.loads(output.splitlines()[-1])
        yield Outcome(reports, answers, silent)
    finally:
        for process in processes.values():
            process.kill()
        for one in nodes.values():
            one.close()


def node(folder: Path, name: str, addresses: dict[str, str]) -> ZenohTransport:
    # Only anna connects: a link made by bert would stop an intruder with his id, whatever the settings.
    neighbours = {**addresses, "carl": None, "dora": None, "anna": None}
    del neighbours[name]
    tls = Tls(folder / "ours" / "ca.pem", folder / "ours" / f"{name}.pem", folder / "ours" / f"{name}.key")
    transport = ZenohTransport(name, "run", addresses[name], neighbours, tls)

    def answer(key: str, reply: Reply) -> None:
        reply(f"secret of {name}".encode())

    transport.serve(answer)
    return transport


def intrude(
    folder: Path, intruder: Intruder, address: str, other: str, listen: str | None = None
) -> subprocess.Popen[str]:
    tls: dict[str, Any] = {"root_ca_certificate": str(folder / "ours" / "ca.pem"), "verify_name_on_connect": False}
    if intruder.authority:
        files = folder / intruder.authority / intruder.name
        tls |= {"enable_mtls": True}
        for side in ("listen", "connect"):
            tls |= {f"{side}_certificate": f"{files}.pem", f"{side}_private_key": f"{files}.key"}
    honest = intruder.name == "carl"
    task = {
        "tls": tls,
        "listen": f"tls/{listen}" if listen else None,
        "connect": [f"{intruder.scheme}/{other if intruder.steals_id else address}"],
        "steal_id_at": f"{intruder.scheme}/{address}" if intruder.steals_id else None,
        "answer": [] if honest else ["feda2l/run/bert/**", "feda2l/run/fred/**", "**"],
        "ask": ["feda2l/run/anna/carl/head"] if honest else ["feda2l/run/anna/bert/head", "feda2l/run/anna/**", "**"],
        "seconds": 3,
    }
    return subprocess.Popen(
        [sys.executable, "-c", INTRUDER, json.dumps(task)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_honest_nodes_keep_exchanging(outcome: Outcome) -> None:
    assert len(outcome.answers) > 20
    assert outcome.answers == [b"secret of bert", b"secret of anna"] * (len(outcome.answers) // 2)


def test_no_intruder_can_answer_for_an_absent_node(outcome: Outcome) -> None:
    assert set(outcome.silent) == {None}


def test_an_authorized_node_gets_an_answer(outcome: Outcome) -> None:
    assert set(outcome.reports["honest"]["replies"]) == {"secret of anna"}


@pytest.mark.parametrize("kind", [kind for kind in INTRUDERS if kind != "honest"])
def test_an_intruder_gets_nothing(outcome: Outcome, kind: str) -> None:
    report = outcome.reports[kind]
    assert report["replies"] == []
    assert report["questions"] == []  # it receives no request, so it cannot answer
    assert report["samples"] == []
    assert bool(report["links"]) == INTRUDERS[kind].linked


@pytest.mark.parametrize("intruder", [Intruder("other", "bert", False), Intruder("ours", "eve", True)], ids=str)
def test_an_impostor_at_a_neighbours_address(folder: Path, intruder: Intruder) -> None:
    """Bert is absent, an intruder listens at his address, and anna connects to it."""
    addresses = dict(zip(("anna", "bert"), free_addresses(2), strict=True))
    process = intrude(folder, intruder, addresses["anna"], addresses["bert"], listen=addresses["bert"])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    anna = node(folder, "anna", addresses)
    try:
        while process.poll() is None:
            assert not anna.alive("bert")
            assert anna.ask("bert", "head/1/0", 0.2, 100) is None
            time.sleep(0.02)
        report = json.loads(process.communicate()[0])
        assert report["replies"] == report["questions"] == report["samples"] == []
    finally:
        process.kill()
        anna.close()
