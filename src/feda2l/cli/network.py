"""The commands of real networks: `feda2l node`, `swarm` and `certs`."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from feda2l.cli.options import NETWORK, DataFolder, Set
from feda2l.errors import FedA2LError

certs = App(
    name="certs",
    group=NETWORK,
    help="Make a certificate authority; issue and show certificates.",
    help_prologue="Example: feda2l certs init && feda2l certs issue node3 --host 10.0.0.3",
)


def node(
    *,
    config: Path,
    check: Annotated[bool, Parameter(negative=())] = False,
    insecure: Annotated[bool, Parameter(negative=())] = False,
    log_json: Annotated[bool, Parameter(negative=())] = False,
    data: DataFolder = None,
) -> None:
    """Run one node of a real network over TLS.

    The node trains on its own data and exchanges models with its neighbours.
    A restarted node resumes from its checkpoint.

    Parameters
    ----------
    config
        the node's TOML file: its name, its spec and its neighbours
    check
        check the config, certificates, data and neighbours, then stop
    insecure
        plaintext without certificates: anybody can read and forge messages
    log_json
        print the log on stderr as JSON
    """
    demand_peers()
    from feda2l.peer import start

    if check:
        start.check_node(config, insecure=insecure, data=data)
    else:
        start.start_node(config, insecure=insecure, data=data, log_json=log_json)
        sys.stderr.flush()
        # All files are written. zenoh's threads may still run Python code, and a normal interpreter exit would abort.
        os._exit(0)


def swarm(
    spec: Path | None = None,
    *,
    nodes: int | None = None,
    set_: Set = None,
    out: Path | None = None,
    insecure: Annotated[bool, Parameter(negative=())] = False,
    wire: Literal["fp32", "bf16"] = "fp32",
    faults: Path | None = None,
    data: DataFolder = None,
    resume: bool = False,
    quiet: bool = False,
    keep: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Run a spec on this machine with one process per node.

    The processes exchange models over TLS. The result is one run folder.

    Parameters
    ----------
    spec
        TOML file, as for `feda2l run` (default: the default spec)
    nodes
        the number of nodes (data.nodes of the spec)
    out
        the run folder (default runs/NAME); it holds the nodes' folders under nodes/
    insecure
        plaintext without certificates
    wire
        number format of sent parameters; bf16 halves the bytes and rounds the values
    faults
        a fault plan (the spec's `faults`): which node crashes, hangs or loses messages, and when
    resume
        resume all nodes from their checkpoints, also with more rounds
    quiet
        show no table of the nodes
    keep
        keep the private keys, which are otherwise deleted at the end
    """
    demand_peers()
    from feda2l.cli.run_view import summary_text
    from feda2l.runs.run import Run
    from feda2l.spec.spec import Spec
    from feda2l.swarm.swarm import SwarmOptions, swarm
    from feda2l.toml_files import parse_set

    sets = list(set_ or [])
    if nodes is not None:
        if nodes < 2:
            raise FedA2LError(f"--nodes {nodes}: a swarm needs at least 2 nodes")
        for text in sets:
            key, value = parse_set(text)
            if key == "data.nodes" and value != nodes:
                raise FedA2LError(f"--nodes {nodes} and --set {text} differ: give one of them")
        sets.append(f"data.nodes={nodes}")
    if faults is not None:
        sets.append(f"faults={json.dumps(str(faults))}")
    wanted = Spec.load(spec, sets) if spec else Spec.parse({}, "spec", sets)
    options = SwarmOptions(insecure=insecure, wire=wire, data=data, resume=resume, shown=not quiet, keep=keep)
    done: Run = swarm(wanted, out, options)
    print(summary_text(done.summary, done.path))


@certs.command(help_prologue="Example: feda2l certs init certs")
def init(folder: Path = Path("certs"), *, days: int = 3650) -> None:
    """Make a certificate authority: ca.pem is for every node, ca.key is secret.

    Parameters
    ----------
    folder
        the folder for both files
    days
        the days for which the authority is valid
    """
    demand_peers()
    from feda2l.wire.certificates import AUTHORITY, make_authority, show

    print(show(make_authority(folder, days=days)))
    print(
        f"Copy {AUTHORITY}.pem to every node. Keep {folder / AUTHORITY}.key secret: "
        "its owner can impersonate every node."
    )


@certs.command(help_prologue="Example: feda2l certs issue node3 --host 10.0.0.3")
def issue(
    name: str,
    *,
    folder: Path = Path("certs"),
    host: Annotated[list[str] | None, Parameter(negative=())] = None,
    days: int = 365,
    out: Path | None = None,
    renew: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Issue a node's certificate and key.

    Parameters
    ----------
    name
        the node's name
    folder
        the folder of the authority
    host
        a host name or address at which neighbours reach the node; can be repeated
    days
        the days for which the certificate is valid
    out
        another folder for the new files
    renew
        keep the key and the hosts of the existing certificate
    """
    demand_peers()
    from feda2l.wire.certificates import AUTHORITY, issue, show

    certificate = issue(folder, name, hosts=host or [], days=days, out=out, renew=renew)
    print(show(certificate))
    key = "" if renew else f" and {certificate.with_suffix('.key')}, which must stay secret"
    print(f"The node needs {folder / AUTHORITY}.pem, {certificate}{key}.")


@certs.command(help_prologue="Example: feda2l certs show certs")
def show(*paths: Path) -> None:
    """Show the owner, the authority and the validity of certificates.

    Parameters
    ----------
    paths
        certificates, or folders of certificates (default certs)
    """
    demand_peers()
    from feda2l.wire.certificates import show

    paths = paths or (Path("certs"),)
    files = [file for path in paths for file in (sorted(path.glob("*.pem")) if path.is_dir() else [path])]
    if not files:
        raise FedA2LError(
            f"{', '.join(map(str, paths))}: no certificate (*.pem) found; make one with `feda2l certs issue`",
            see="certificates",
        )
    print("\n".join(map(show, files)))


def demand_peers() -> None:
    missing = [name for name in ("cryptography", "zenoh", "blake3", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise FedA2LError(f"real nodes need {' and '.join(missing)}: pip install 'feda2l[peers]'", see="missing-extra")
