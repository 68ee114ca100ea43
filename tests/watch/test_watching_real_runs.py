"""`feda2l watch` with real runs, studies and swarms in separate processes, in a real browser."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from live_page import curve, state, status, wait

pytestmark = pytest.mark.long
PATIENCE = 240  # timeout in seconds; a few seconds suffice on an idle machine
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start("run", ...)` starts a command in the test's folder. The process ends with the test."""
    with ExitStack() as stack:

        def begin(*words: str) -> "subprocess.Popen[str]":
            pipe = subprocess.PIPE if words[0] == "watch" else subprocess.DEVNULL
            command = [sys.executable, "-m", "feda2l", *words]
            process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield begin


@pytest.fixture
def opened(start: Start, browser: Any) -> Iterator[Callable[[str], Any]]:
    def at(folder: str) -> Any:
        process = start("watch", folder, "--port", "0")
        assert process.stdout is not None
        browser.get(process.stdout.readline().split(": ", 1)[1].strip())
        browser.execute_script("window.first = true")
        browser.process = process
        return browser

    yield at
    browser.get("about:blank")


RUN = ("run", "--quiet", "--set", "rounds=300", "--set", "runtime.checkpoint_seconds=1", "--out")


def test_a_run_is_watched_while_it_is_killed_and_resumed(
    start: Start, opened: Callable[[str], Any], tmp_path: Path
) -> None:
    (tmp_path / "watched").mkdir()
    page = opened("watched")
    wait(page, f"return {status}.includes('There is no run here yet')", PATIENCE)
    run = start(*RUN, "watched/one")
    wait(page, f"return {curve}.length > 20 && {status}.startsWith('Running: round')", PATIENCE)
    seen = page.execute_script(f"return {curve}.length")
    wait(page, f"return {curve}.length > {seen}", PATIENCE)
    while not (tmp_path / "watched" / "one" / "checkpoint.safetensors").exists():
        assert run.poll() is None
    run.kill()
    run.wait()
    wait(page, f"return {state('one')} === 'stopped'", PATIENCE)
    run = start(*RUN, "watched/one", "--resume")
    wait(page, f"return {state('one')} === 'running'", PATIENCE)
    wait(page, f"return {status} === 'The run is finished.' && told.get('one').round === 300", PATIENCE)
    x = page.execute_script("return told.get('one').x")
    assert x == sorted(set(x))
    assert page.execute_script("return window.first")
    assert run.wait() == 0
    assert start(*RUN, "alone").wait() == 0
    for name in ("rounds.jsonl", "rounds.parquet", "layers.parquet", "checkpoint.safetensors", "spec.toml"):
        assert (tmp_path / "watched" / "one" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()

    page.process.send_signal(signal.SIGINT)
    assert page.process.wait(60) == 0
    wait(page, f"return {status}.startsWith('The connection to feda2l watch is lost')", PATIENCE)


def test_a_study_fills_its_table(start: Start, opened: Callable[[str], Any], tmp_path: Path) -> None:
    axes = '[axes]\n"rates.name" = ["constant", "feda2l"]\n'
    (tmp_path / "rules.toml").write_text(f'name = "rules"\nseeds = 2\n[base]\nrounds = 60\n{axes}')
    (tmp_path / "study").mkdir()
    page = opened("study")
    study = start("study", "rules.toml", "--out", "study")
    wait(page, f"return {status}.startsWith('4 running') || {status} === 'All 4 runs are finished.'", PATIENCE)
    wait(page, f"return {status} === 'All 4 runs are finished.'", PATIENCE)
    assert page.execute_script(
        "return [...document.querySelectorAll('#runs tbody tr')].map(row => row.dataset.key)"
    ) == [f"{rule}/seed-{seed}" for rule in ("constant", "feda2l") for seed in (1, 2)]
    legend = "return [...document.querySelectorAll('#curves .legend button')].map(button => button.textContent)"
    assert page.execute_script(legend) == ["constant", "feda2l"]
    assert study.wait() == 0


def test_a_swarm_shows_its_nodes_before_it_is_collected(
    start: Start, opened: Callable[[str], Any], tmp_path: Path
) -> None:
    pytest.importorskip("zenoh", reason="needs the peers: pip install 'feda2l[peers]'")
    (tmp_path / "ring.toml").write_text('rounds = 40\n[data]\nnodes = 3\n[topology]\nname = "ring"\n')
    (tmp_path / "swarms").mkdir()
    page = opened("swarms")
    swarm = start("swarm", "ring.toml", "--out", "swarms/one")
    nodes = "[...document.querySelectorAll('#swarm tbody tr')].map(row => row.cells[1].textContent).join()"
    wait(page, f"return {nodes} === 'running,running,running' && {curve}.length > 1", PATIENCE)
    assert not (tmp_path / "swarms" / "one" / "summary.json").exists() or swarm.poll() is None
    wait(page, f"return {status} === 'The run is finished.'", PATIENCE)
    wait(page, f"return {nodes} === 'finished,finished,finished'", PATIENCE)
    assert page.execute_script("return told.get('one').round") == 40
    assert swarm.wait() == 0


def test_a_port_in_use_prints_a_message(start: Start, tmp_path: Path) -> None:
    first = start("watch", ".", "--port", "0")
    assert first.stdout is not None
    port = first.stdout.readline().strip().removesuffix("/").rpartition(":")[2]
    command = [sys.executable, "-m", "feda2l", "watch", ".", "--port", port]
    second = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert second.returncode == 2
    assert second.stderr.startswith(f"feda2l: --port {port}: cannot be used")
    assert "Traceback" not in second.stderr
