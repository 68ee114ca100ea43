"""The commands of real peers: `feda2l node`, `swarm` and `certs`."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from feda2l.cli.options import DataFolder, Set
from feda2l.errors import FedA2LError

certs = App(name="certs", help="Certificates of real nodes: make an authority, issue, look at them.")


def node(
    *,
    config: Path,
    check: Annotated[bool, Parameter(negative=())] = False,
    insecure: Annotated[bool, Parameter(negative=())] = False,
    log_json: Annotated[bool, Parameter(negative=())] = False,
    data: DataFolder = None,
) -> None:
    """Run one node of a real network: its own data, its neighbours over TLS. A restarted node goes on where it was.

    Parameters
    ----------
    config
        the node's TOML file: who it is, what it learns, whom it talks to
    check
        say whether it could start (config, certificates, data, who answers), and stop
    insecure
        plaintext: no certificates, anybody may read and forge
    log_json
        JSON on stderr too
    """
    demand_peers()
    from feda2l.peer import start

    if check:
        start.check_node(config, insecure=insecure, data=data)
    else:
        start.start_node(config, insecure=insecure, data=data, log_json=log_json)
        sys.stderr.flush()
        # all is written; zenoh's threads may still be in Python, and an interpreter that ends under them aborts
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
    """Run a spec on real peers: a process a node on this machine, TLS between them, one run folder at the end.

    Parameters
    ----------
    spec
        TOML file, as for `feda2l run`; without one it is the default
    nodes
        how many nodes (data.nodes of the spec)
    out
        the run folder itself (default runs/NAME); the nodes' own folders are below its nodes/
    insecure
        plaintext: no certificates
    wire
        how parameters travel; bf16 halves the bytes and rounds what is sent
    faults
        a fault plan (the spec's `faults`): who crashes, hangs or is not heard, and when
    resume
        go on where the nodes in the folder stopped; also with more rounds
    quiet
        no table of the nodes
    keep
        keep the private keys; else they are deleted at the end
    """
    demand_peers()
    from feda2l.cli.run_view import summary_text
    from feda2l.runs.run import Run
    from feda2l.spec.spec import Spec
    from feda2l.swarm.swarm import SwarmOptions, swarm

    sets = list(set_ or [])
    if nodes is not None:
        if nodes < 2:
            raise FedA2LError(f"--nodes {nodes}: a swarm has at least 2 nodes")
        sets.append(f"data.nodes={nodes}")
    if faults is not None:
        sets.append(f"faults={json.dumps(str(faults))}")
    wanted = Spec.load(spec, sets) if spec else Spec.parse({}, "spec", sets)
    options = SwarmOptions(insecure=insecure, wire=wire, data=data, resume=resume, shown=not quiet, keep=keep)
    done: Run = swarm(wanted, out, options)
    print(summary_text(done.summary, done.path))


@certs.command
def init(folder: Path = Path("certs"), *, days: int = 3650) -> None:
    """Make a certificate authority: ca.pem for every node, ca.key for nobody else.

    Parameters
    ----------
    folder
        where both are written
    days
        how long it is valid
    """
    demand_peers()
    from feda2l.wire.certificates import AUTHORITY, make_authority, show

    print(show(make_authority(folder, days=days)))
    print(f"Give {AUTHORITY}.pem to every node; keep {folder / AUTHORITY}.key: whoever has it can be any node.")


@certs.command
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
        where the authority lies
    host
        a host name or address at which neighbours reach the node; may be repeated
    days
        how long it is valid
    out
        another folder to write to
    renew
        keep key and hosts of the certificate that is there
    """
    demand_peers()
    from feda2l.wire.certificates import AUTHORITY, issue, show

    certificate = issue(folder, name, hosts=host or [], days=days, out=out, renew=renew)
    print(show(certificate))
    key = "" if renew else f" and {certificate.with_suffix('.key')}, which nobody else may have"
    print(f"The node needs {folder / AUTHORITY}.pem, {certificate}{key}.")


@certs.command
def show(*paths: Path) -> None:
    """Say whose certificates these are and how long they are valid.

    Parameters
    ----------
    paths
        certificates, or folders of them (default certs)
    """
    demand_peers()
    from feda2l.wire.certificates import show

    paths = paths or (Path("certs"),)
    found = [file for path in paths for file in (sorted(path.glob("*.pem")) if path.is_dir() else [path])]
    if not found:
        raise FedA2LError(f"{', '.join(map(str, paths))}: no certificate (*.pem) there")
    print("\n".join(map(show, found)))


def demand_peers() -> None:
    missing = [name for name in ("cryptography", "zenoh", "blake3", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise FedA2LError(f"real peers need {' and '.join(missing)}: pip install 'feda2l[peers]'", see="missing-extra")
