"""What a run ran on: versions, processor, the commit of the code where there is one."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("feda2l", "torch", "numpy", "scipy", "networkx", "safetensors", "pydantic", "polars", "scikit-learn")


def environment(**more: Any) -> dict[str, Any]:
    """Facts for `environment.json`; no host name, no path, no user."""
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
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def installed(name: str) -> str | None:
    """A package's version; None where it is not there."""
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
    """The commit of a source checkout; None for an installed package."""
    folder = Path(__file__).parent
    if not any((parent / ".git").exists() for parent in folder.parents[:4]):
        return None
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
