"""Run the command line as a user does: in this process where start-up time matters, otherwise in a new process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


class Outcome(NamedTuple):
    """The exit code and the output of a command."""

    code: int | None
    out: str
    err: str


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`cli("run", "spec.toml")` in this process, with `tmp_path` as the current folder."""
    from feda2l.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # importing a user's module adds the current folder

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["feda2l", *map(str, arguments)])
        capsys.readouterr()
        code: int | None = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if stop.code is None else int(stop.code)
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start("run", "spec.toml")` as a process in a new session, with `tmp_path` as the current folder."""
    started: list[subprocess.Popen[str]] = []

    def launch(*arguments: object, **options: object) -> subprocess.Popen[str]:
        usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        command = [sys.executable, "-m", "feda2l", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=tmp_path, **(usual | options))
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def process(start: Callable[..., "subprocess.Popen[str]"]) -> Callable[..., Outcome]:
    """`process("run", "spec.toml")` as a real process; waits until it ends."""

    def call(*arguments: object, **options: object) -> Outcome:
        running = start(*arguments, **options)
        out, err = running.communicate(timeout=120)
        return Outcome(running.returncode, out, err)

    return call
