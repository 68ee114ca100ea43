"""Record the environment of a run: package versions, processor, and the commit of the code if known."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from feda2l.plain_values import PlainDict

PACKAGES = ("feda2l", "torch", "numpy", "scipy", "networkx", "safetensors", "pydantic", "polars", "scikit-learn")


def environment(**more: object) -> PlainDict:
    """Return the content of `environment.json`. It holds no host name, no path and no user name."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores(),
        "packages": {name: installed(name) for name in PACKAGES},
        "commit": _commit(),
        **more,
    }


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def installed(name: str) -> str | None:
    """Return a package's version, or None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


@cache
def _commit() -> str | None:
    """Return the commit of a source checkout, or None for an installed package."""
    folder = Path(__file__).parent
    if not any((parent / ".git").exists() for parent in folder.parents[:4]):
        return None
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
