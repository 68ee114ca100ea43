"""Checks of the files for operators that need no container engine."""

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from feda2l.peer.config import NodeConfig
from feda2l.peer.monitor import Monitor
from feda2l.spec.spec import Spec
from feda2l.topology import build

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
NODES = [f"n{number}" for number in range(5)]
TOMLS = [DEPLOY / "node.toml", *(DEPLOY / "nodes" / name / "node.toml" for name in NODES)]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest), with joined lines and without comments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "feda2l-node.service").read_text())
    return parser


@pytest.mark.parametrize("path", TOMLS, ids=lambda path: path.parent.name)
def test_every_configuration_is_valid_and_secure(path: Path) -> None:
    config = NodeConfig.load(path)  # rejects a config without [security]
    assert config.security
    assert config.security.key.name == f"{config.name}.key"
    assert config.monitor.address
    assert config.faults is None


def test_the_example_shows_every_key_with_its_default() -> None:
    text = (DEPLOY / "node.toml").read_text()
    # a commented key or table, not a sentence
    whole = re.sub(r"^# (?=\[|[a-z_]+ = )", "", text, flags=re.MULTILINE)
    shown = tomllib.loads(whole)
    shown.pop("data")
    config = NodeConfig.parse(shown, DEPLOY, "node.toml")
    for section in ("deadline", "limits", "log"):
        kind = NodeConfig.model_fields[section].annotation
        assert kind is not None
        assert getattr(config, section) == kind(), section
        assert set(shown[section]) == set(kind.model_fields), section
    for key in ("wire", "checkpoint_rounds"):
        assert shown[key] == NodeConfig.model_fields[key].default


def test_the_five_nodes_are_the_ring_of_their_spec() -> None:
    spec = Spec.load(DEPLOY / "spec.toml")
    ring = build(spec.topology.name, spec.data.nodes)
    configs = [NodeConfig.load(path) for path in TOMLS[1:]]
    assert spec.data.nodes == len(configs)
    for place, config in enumerate(configs):
        assert (config.name, config.id) == (NODES[place], place)
        assert sorted(neighbour.id for neighbour in config.neighbours) == list(ring.neighbours(place))
        for neighbour in config.neighbours:
            port = configs[neighbour.id].listen.rpartition(":")[2]
            assert (
                neighbour.address == f"{NODES[neighbour.id]}:{port}"
            )  # the name of its service, which is in its certificate
        assert str(config.spec) == "/srv/feda2l/spec.toml"
        assert str(config.state) == "/var/lib/feda2l"


def test_the_image_runs_without_privileges_and_holds_no_secret() -> None:
    found = instructions()
    last = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    final = found[last:]
    assert ("USER", "10001:10001") in final
    assert "root" not in dict(final)["USER"]
    assert [name for name, _ in found].count("FROM") == 2
    assert all(":latest" not in rest and ":" in rest for name, rest in found if name == "FROM")
    copied = " ".join(rest for name, rest in found if name in ("COPY", "ADD"))
    assert not re.search(r"\.key|\.pem|cert|node\.toml", copied)
    assert [rest for name, rest in found if name == "ARG"] == ['TORCH_INDEX=""']  # arguments stay in an image's history
    assert not any(re.search(r"(?i)password|token|secret", rest) for _, rest in found)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored  # everything except the named files
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert kept == {"pyproject.toml", "lock.txt", "README.md", "LICENSE", "src", "docs/troubleshooting.md"}
    assert all((ROOT / name).exists() for name in kept)


def test_the_image_uses_the_pinned_versions() -> None:
    installs = [
        part for name, rest in instructions() if name == "RUN" for part in rest.split("&&") if "install -" in part
    ]
    pips = [part for part in installs if "pip install" in part]
    assert pips
    assert all("-c lock.txt" in part for part in pips)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "lock.txt").read_text().splitlines()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted in (*project["dependencies"], *project["optional-dependencies"]["peers"], "hatchling"):
        assert re.split(r"[<>=\[]", wanted)[0].lower() in pinned, wanted


def test_health_checks_use_the_port_of_the_monitor() -> None:
    found = dict(instructions())
    check = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
    compile(check[-1], "HEALTHCHECK", "exec")
    ports = {NodeConfig.load(path).monitor.address.rpartition(":")[2] for path in TOMLS}  # type: ignore[union-attr]
    assert ports == {"9450"}
    assert "'127.0.0.1', 9450" in check[-1]
    assert set(found["EXPOSE"].split()) == {"7450", "9450"}
    for service in compose()["services"].values():
        test = service["healthcheck"]["test"]
        compile(test[-1], "healthcheck", "exec")
        assert "'127.0.0.1', 9450" in test[-1]


def test_nothing_is_started_in_plaintext() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert "--insecure" not in path.read_text(), path


def test_compose_runs_five_confined_nodes() -> None:
    found = compose()
    assert list(found["services"]) == NODES
    published = set()
    for name, service in found["services"].items():
        assert service["restart"] == "unless-stopped"
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert not service.get("privileged")
        assert "user" not in service  # the user of the image
        assert service["stop_grace_period"] == "15m"
        assert service["deploy"]["resources"]["limits"].keys() >= {"cpus", "memory", "pids"}
        (port,) = service["ports"]  # the port of the metrics; neighbours need no published port
        address, host, inside = port.split(":")
        assert (address, inside) == ("127.0.0.1", "9450")
        published.add(host)
        volumes = {volume.split(":")[1]: volume for volume in service["volumes"]}
        assert volumes["/etc/feda2l"] == f"./nodes/{name}:/etc/feda2l:ro"  # only its own certificate
        assert volumes["/srv/feda2l/spec.toml"].endswith(":ro")
        state = volumes["/var/lib/feda2l"].split(":")[0]
        assert state == f"{name}-state"
        assert state in found["volumes"]
    assert len(published) == 5


def test_no_certificate_or_key_can_be_committed() -> None:
    assert {"*.key", "*.pem"} <= set((DEPLOY / ".gitignore").read_text().splitlines())
    assert not [path for path in DEPLOY.rglob("*") if b"PRIVATE KEY" in (path.read_bytes() if path.is_file() else b"")]


def test_the_service_is_confined_and_restarts() -> None:
    service = unit()["Service"]
    assert service["User"] == "feda2l"
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert service["StateDirectory"] == "feda2l"
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert service["KillSignal"] == "SIGTERM"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "node --config /etc/feda2l/node.toml" in service["ExecStart"]


def test_a_stop_waits_for_the_longest_round() -> None:
    most = NodeConfig.model_fields["deadline"].default_factory().most  # type: ignore[call-arg,misc]
    assert unit()["Service"]["TimeoutStopSec"] == "15min"
    assert most < 15 * 60


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "feda2l-node.service"
    text = (DEPLOY / copy.name).read_text()
    copy.write_text(
        text.replace("/opt/feda2l/bin/feda2l", "/bin/true")
    )  # the program must exist, and feda2l may not be installed here
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if copy.name in line]  # ignore the other units of this machine
    assert ours == []


def test_the_guide_names_every_metric_and_every_file() -> None:
    guide = (ROOT / "docs" / "deploy.md").read_text()
    metrics = Monitor(None, "n0").collect()
    served = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in metrics}
    assert set(re.findall(r"`(feda2l_\w+)`", guide)) == served
    for file in ("Dockerfile", "compose.yaml", "feda2l-node.service", "node.toml"):
        assert f"deploy/{file}" in guide


def test_the_guides_example_is_a_valid_configuration() -> None:
    guide = (ROOT / "docs" / "deploy.md").read_text()
    blocks = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", guide, flags=re.DOTALL)]
    spec, node = blocks  # tests/acceptance/test_docs.py parses the fault plans of the other pages
    assert Spec.parse(spec).data.nodes == 2
    assert NodeConfig.parse(node, DEPLOY, "node.toml").name == "n0"


def test_every_link_of_the_guide_has_a_target() -> None:
    guide = ROOT / "docs" / "deploy.md"
    for link in re.findall(r"\]\(([^)]+)\)", guide.read_text()):
        path, _, anchor = link.partition("#")
        page = guide.parent / path if path else guide
        assert page.exists(), link
        headings = re.findall(r"^## (.*)$", page.read_text(), flags=re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, link
