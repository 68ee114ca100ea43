"""Checks of `feda2l doctor`: what this machine has, what is missing and what to install."""

import os
import platform
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Literal

from feda2l.runs.environment import cores, installed

GIB = 2**30
LITTLE = GIB  # bytes of free disk below which doctor warns: the checkpoints of one study can fill it

# for each extra: its packages and its purpose
EXTRAS = {
    "peers": (
        ("eclipse-zenoh", "cryptography", "prometheus-client", "blake3"),
        "real nodes over TLS: feda2l node, swarm, certs",
    ),
    "plots": (("matplotlib", "plotly"), "figures and the report page"),
    "tensorboard": (("tensorboard",), "--track tensorboard, report --tensorboard"),
    "wandb": (("wandb",), "--track wandb"),
    "mlflow": (("mlflow-skinny", "sqlalchemy", "alembic"), "--track mlflow"),
    "watch": (("plotly",), "the live view: feda2l watch"),
    "lightning": (("pytorch-lightning",), "feda2l.integrations.lightning"),
    "transformers": (("transformers", "accelerate"), "feda2l.integrations.trainer"),
    "flower": (("flwr",), "feda2l.integrations.flower"),
    "hivemind": (("hivemind",), "feda2l.integrations.hivemind"),
    "notebooks": (("matplotlib", "ipykernel", "nbclient", "nbformat"), "docs/notebooks"),
    "images": (("pillow",), "your own image folders, Tiny ImageNet"),
    "hpo": (("optuna",), "the rate search of algorithm dfedhpo"),
}

State = Literal["ok", "absent", "broken"]  # an absent part is no error until a command needs it


@dataclass(frozen=True)
class Check:
    """The result of one check: what was checked, its state, what was found and how to fix it."""

    what: str
    state: State
    detail: str
    remedy: str = ""


def examine(data: Path | None = None) -> list[Check]:
    """All checks, the core first. A check that raises an unexpected exception becomes a finding."""
    checks: tuple[tuple[str, Callable[[], Iterator[Check]]], ...] = (
        ("core", _core),
        ("torch", _torch),
        ("GPU", _gpu),
        ("machine", _machine),
        ("disk", lambda: _disk(data)),
        ("extras", _extras),
        ("data", lambda: _data(data)),
        ("network", _network),
    )
    findings: list[Check] = []
    for what, check in checks:
        try:
            findings += check()
        except Exception as error:  # a broken installation may raise anything
            needed = what in ("core", "torch")
            detail = f"{type(error).__name__}: {error}".splitlines()[0]
            findings.append(Check(what, "broken" if needed else "absent", detail, _AGAIN if needed else ""))
    return findings


_AGAIN = "reinstall it: pip install --force-reinstall feda2l"


def _core() -> Iterator[Check]:
    good = sys.version_info >= (3, 11)
    remedy = "" if good else "feda2l needs Python 3.11 or newer"
    yield Check("Python", "ok" if good else "broken", platform.python_version(), remedy)
    yield Check("feda2l", "ok", installed("feda2l") or "a source tree, not installed")
    names = _required()
    missing = [name for name in names if installed(_bare(name)) is None]
    if missing:
        yield Check("packages", "broken", f"missing: {', '.join(missing)}", f"pip install '{missing[0]}'")
    else:
        yield Check("packages", "ok", f"all {len(names)} required packages")


def _required() -> list[str]:
    """The packages that an installed feda2l requires without any extra."""
    texts = requires("feda2l") if installed("feda2l") else None
    return [text.split(";")[0].strip() for text in texts or () if "extra ==" not in text]


def _torch() -> Iterator[Check]:
    import torch

    from feda2l.runs.device import cpu_has_bf16

    square = torch.full((8, 8), 0.5) @ torch.full((8, 8), 0.5)
    good = bool((square == 2).all())
    threads = torch.get_num_threads()
    kinds = "fp32, bf16" if cpu_has_bf16() else "fp32"
    detail = f"{torch.__version__}, {threads} thread{'s' * (threads != 1)}; {kinds} on this CPU"
    yield Check("torch", "ok" if good else "broken", detail, "" if good else _AGAIN)


def _gpu() -> Iterator[Check]:
    import torch

    from feda2l.runs.device import why_no_gpu

    if why := why_no_gpu():
        yield Check("GPU", "absent", "none; the CPU is used", why)
        return
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        kinds = "fp32, tf32, bf16" if about.major >= 8 else "fp32 (tf32 and bf16 need a newer GPU)"
        memory = f"{about.total_memory / GIB:.0f} GiB"
        yield Check(f"GPU {number}", "ok", f"{about.name}, {memory}; {kinds}; deterministic = true is possible")


def _machine() -> Iterator[Check]:
    count = cores()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Check("machine", "ok", f"{count} core{'s' * (count != 1)} for this process, {memory / GIB:.1f} GiB of memory")


def _disk(data: Path | None) -> Iterator[Check]:
    from feda2l.data.download import ENVIRONMENT, data_folder

    variable = ENVIRONMENT if os.environ.get(ENVIRONMENT) else f"{ENVIRONMENT} is not set: the cache"
    source = "--data" if data else variable
    for what, folder in (("folder of runs", Path.cwd()), (f"data folder ({source})", data_folder(data))):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
        detail = f"{folder}: {free / GIB:.1f} GiB free"
        if not os.access(existing, os.W_OK):
            yield Check(what, "absent", f"{detail}, not writable", "choose a folder with write permission")
        elif free < LITTLE:
            yield Check(what, "absent", detail, "free some disk space: a full disk ends a run")
        else:
            yield Check(what, "ok", detail)


def _extras() -> Iterator[Check]:
    for extra, (packages, purpose) in EXTRAS.items():
        missing = [name for name in packages if installed(name) is None]
        if missing:
            detail = f"{purpose}; not installed: {', '.join(missing)}"
            yield Check(f"extra {extra}", "absent", detail, _install(extra))
        else:
            yield Check(f"extra {extra}", "ok", ", ".join(f"{name} {installed(name)}" for name in packages))


def _install(extra: str, root: Path = Path(__file__).parents[3]) -> str:
    """The command that adds an extra. A checkout stays installed in place (`-e`), so that its sources are used."""
    if not (root / "lock.txt").is_file():
        return f"pip install 'feda2l[{extra}]'"
    folder, lock = (".", "lock.txt") if root == Path.cwd() else (root, root / "lock.txt")
    return f"pip install -c {lock} -e '{folder}[{extra}]'"


def _data(data: Path | None) -> Iterator[Check]:
    from feda2l.data import CATALOG
    from feda2l.data.download import data_folder

    folder = data_folder(data)
    option = f" --data {data}" if data else ""
    for name, entry in CATALOG.items():
        if entry.archive is None:
            yield Check(f"data {name}", "ok", "included in scikit-learn")
        elif entry.archive.missing(folder):
            yield Check(f"data {name}", "absent", "not found", f"feda2l data fetch {name}{option}")
        else:
            yield Check(f"data {name}", "ok", "found (feda2l data verify checks every byte)")


def _network() -> Iterator[Check]:
    """What real nodes need: a free port on this machine, TLS 1.3, and a zenoh session that opens a port."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        yield Check("network", "absent", f"cannot listen on 127.0.0.1: {error.strerror}", "real nodes need it")
        return
    if not ssl.HAS_TLSv1_3:
        yield Check("network", "absent", f"{ssl.OPENSSL_VERSION} has no TLS 1.3", "real nodes need it")
        return
    if installed("eclipse-zenoh") is None:
        yield Check("network", "ok", "can listen on 127.0.0.1; TLS 1.3 is available")
        return
    import zenoh

    settings = zenoh.Config.from_json5(
        '{mode: "peer", listen: {endpoints: ["tcp/127.0.0.1:0"]}, scouting: {multicast: {enabled: false}}}'
    )
    with zenoh.open(settings):
        yield Check("network", "ok", "zenoh can listen on 127.0.0.1; TLS 1.3 is available")


def _bare(requirement: str) -> str:
    """A package's name without its version constraints."""
    end = next((at for at, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end]
