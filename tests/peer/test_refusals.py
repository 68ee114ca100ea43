"""Three honest nodes reject a hostile fourth and strangers, and their run continues."""

import re
import shutil
import socket
import ssl
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hostile import LIES, Hostile
from processes import HOSTS, Network, NodeProcess, check_lines, free_addresses, wait_for

from feda2l.wire.certificates import Identity, issue, make_authority
from feda2l.wire.zenoh_settings import Tls
from feda2l.wire.zenoh_transport import ZenohTransport

ROUNDS, STRIKES, QUARANTINE = 40, 5, 2  # enough rounds for every bad message outside a quarantine
SPEC: dict[str, Any] = {
    "name": "rejected_messages",
    "rounds": ROUNDS,
    "data": {"name": "digits", "nodes": 4, "partition": "iid"},
    "topology": {"name": "full"},
    "training": {"epochs": 3},
    "rates": {"name": "feda2l", "warmup_rounds": 2, "window": 3, "base": 0.05},
}
STRANGERS = {
    "no certificate": "CERTIFICATE_REQUIRED",
    "another CA": "UNKNOWN_CA",
    "expired": "CERTIFICATE_EXPIRED",
}


class Outcome(NamedTuple):
    honest: list[NodeProcess]
    metrics: list[str]  # of each honest node, shortly before the end
    alerts: dict[str, str]  # the TLS alert that a stranger gets from a node
    learned: dict[str, Any]  # what a node with a certificate that is not a neighbour gets
    insecure: NodeProcess


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """One network for all tests, because starting four processes takes most of the time."""
    folder = tmp_path_factory.mktemp("rejected_messages")
    limits = {"strikes": STRIKES, "quarantine_rounds": QUARANTINE, "samples": 100_000}
    network = Network(folder, SPEC, monitors=True, limits=limits)
    honest, member = network.nodes[:3], network.nodes[3]
    certificates = strangers(network)
    stolen = {
        "other": Identity.load(certificates["another CA"], certificates["another CA"].with_suffix(".key")),
        "expired": expired_identity(certificates["expired"]),
    }
    insecure = plaintext(network)
    network.nodes = [*honest, insecure]
    hostile = Hostile(member.file, stolen)
    try:
        with network:
            honest[0].reach(3)
            alerts = {kind: knock(network, certificates.get(kind)) for kind in STRANGERS}
            learned = look_around(network, certificates["no neighbour"])
            for node in honest:
                node.reach(ROUNDS - 2)  # they end shortly after the last round
            metrics = [scrape(node) for node in honest]
            for node in honest:
                assert node.end() == 0, node.said[-3000:]
            insecure.reach(1)
            insecure.clean_up()
        yield Outcome(honest, metrics, alerts, learned, insecure)
    finally:
        hostile.close()


def strangers(network: Network) -> dict[str, Path]:
    """Invalid certificates: all except the last have the name of a neighbour."""
    other, past = network.folder / "other", datetime.now(UTC) - timedelta(days=3)
    make_authority(other)
    return {
        "another CA": issue(other, "n3", hosts=HOSTS),
        "expired": issue(network.certs, "n3", hosts=HOSTS, out=network.folder / "expired", since=past, days=1),
        "no neighbour": issue(network.certs, "eve", hosts=HOSTS),
    }


def expired_identity(path: Path) -> Identity:
    """Build an identity that `Identity.load` would reject."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(path.with_suffix(".key").read_bytes(), None)
    return Identity(x509.load_pem_x509_certificate(path.read_bytes()), key)  # type: ignore[arg-type]


def plaintext(network: Network) -> NodeProcess:
    """A node that takes n3's place without certificates and has short deadlines."""
    config = {key: value for key, value in network.nodes[3].config.items() if key not in ("security", "monitor")}
    config |= {"listen": free_addresses(1)[0], "state": "insecure", "deadline": {"least": 0.2, "most": 1.0}}
    folder = network.folder / "plain"
    folder.mkdir()
    shutil.copy(network.folder / "spec.toml", folder)
    return NodeProcess(folder, config, "--insecure")


def knock(network: Network, certificate: Path | None) -> str:
    """The TLS alert for a client that connects to an honest node."""
    host, port = network.addresses[0].split(":")
    context = ssl.create_default_context(cafile=str(network.certs / "ca.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if certificate is not None:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    try:
        with (
            socket.create_connection((host, int(port)), 10) as link,
            context.wrap_socket(link, server_hostname=host) as secure,
        ):
            return f"let in: {secure.recv(100)!r}"
    except ssl.SSLError as error:
        return str(error.reason)


def look_around(network: Network, certificate: Path) -> dict[str, Any]:
    """The answers for a node with a certificate of our CA that is not a neighbour.

    It tries for three rounds of the node while it is linked. A transport does not wait for its links, and a request
    without a link ends at once. A stranger that leaves immediately may be gone before TLS, and then nothing is
    rejected or logged.
    """
    node, asked, answers, alive = network.nodes[0], list[str](), list[Any](), list[bool]()
    tls = Tls(network.certs / "ca.pem", certificate, certificate.with_suffix(".key"))
    eve = ZenohTransport("eve", "rejected_messages", free_addresses(1)[0], {"n0": network.addresses[0]}, tls)

    def try_until(round: int) -> bool:
        answers.extend(eve.ask("n0", key, 1.0, 1 << 20) for key in ("head/newest", "load/3/0"))
        alive.append(eve.alive("n0"))
        return node.round >= round

    try:
        eve.serve(lambda key, reply: asked.append(key))
        wait_for(lambda: eve.session.info.links(), "eve is linked to n0")
        last = node.round + 3
        wait_for(lambda: try_until(last), f"n0 at round {last}")
        return {"linked": bool(eve.session.info.links()), "answers": set(answers), "alive": set(alive), "asked": asked}
    finally:
        eve.close()


def scrape(node: NodeProcess) -> str:
    with urllib.request.urlopen(f"http://{node.config['monitor']['address']}/metrics", timeout=10) as page:
        return str(page.read().decode())


def counted(metrics: str) -> Counter[str]:
    """The rejected messages of n3 by reason."""
    line = re.compile(r'feda2l_rejected_messages_total\{[^}]*neighbour="n3"[^}]*reason="([^"]*)"[^}]*\} ([0-9.]+)')
    return Counter({reason: int(float(count)) for reason, count in line.findall(metrics)})


def test_honest_nodes_finish_every_round_together(outcome):
    for node in outcome.honest:
        others = [id for id in (0, 1, 2) if id != node.config["id"]]
        assert len(check_lines(node, ROUNDS)) == ROUNDS
        received = [line["received"] for line in node.rounds()]
        assert all(3 not in line for line in received)
        assert received.count(others) >= ROUNDS - 5  # on a busy machine one node may miss a deadline
        assert node.accuracy > 0.9
        assert "Traceback" not in node.said


@pytest.mark.parametrize("reason", LIES)
def test_every_bad_message_is_rejected_with_its_reason_and_sender(outcome, reason):
    for node in outcome.honest:
        found = [line for line in node.log("rejected") if line["reason"] == reason]
        assert found, f"{node.name} refused {Counter(line['reason'] for line in node.log('rejected'))}"
        assert {line["neighbour"] for line in found} == {"n3"}
        assert {line["level"] for line in found} == {"warning"}


def test_no_other_node_is_rejected_and_the_metrics_agree(outcome):
    for node, metrics in zip(outcome.honest, outcome.metrics, strict=True):
        logged = Counter(line["reason"] for line in node.log("rejected") if line["round"] < ROUNDS - 2)
        shown = counted(metrics)
        assert set(logged) == set(LIES)
        assert all(logged[reason] <= shown[reason] for reason in logged), (logged, shown)
        assert shown.total() <= len(node.log("rejected"))


def test_the_hostile_node_is_quarantined_after_the_configured_strikes(outcome):
    """There is one bad message per round; after five of them the node is ignored for two rounds."""
    for node in outcome.honest:
        quarantined = [line["round"] for line in node.log("quarantined")]
        refused = [line["round"] for line in node.log("rejected")]
        assert len(quarantined) == len(refused) // STRIKES
        for round in quarantined:
            assert not {round + 1, round + QUARANTINE} & set(refused)


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_get_no_link(outcome, kind):
    assert STRANGERS[kind] in outcome.alerts[kind]


def test_a_certificate_alone_is_not_enough(outcome):
    assert outcome.learned == {"linked": True, "answers": {None}, "alive": {False}, "asked": []}


def test_an_insecure_node_says_so_on_every_line_and_gets_no_answer(outcome):
    node = outcome.insecure
    lines = node.said.splitlines()
    assert len(lines) > 3
    assert all("INSECURE" in line for line in lines)
    assert all(line["insecure"] for line in node.log())
    assert all(line["received"] == [] for line in node.rounds())  # it receives nothing either


def test_strangers_are_logged_with_the_reason(outcome):
    refused = " ".join(line["refused"] for line in outcome.honest[0].log("stranger"))
    for words in ("no certificates", "UnknownIssuer", "expired", "not a neighbour's certificate"):
        assert words in refused
    assert "verification time" not in refused  # otherwise every moment would be a new reason
