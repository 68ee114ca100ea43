"""The log of a node: the content of a line, its cost, and failures that must not stop the node."""

import ast
import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from feda2l.errors import FedA2LError
from feda2l.peer import log as module
from feda2l.peer.log import FILE, INSECURE, NodeLog

LOG_CALL = re.compile(r"\blog\.(debug|info|warning|error|exception)$")


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_a_line_of_the_file_is_an_object_with_the_fields_of_its_event(tmp_path: Path) -> None:
    with NodeLog("n0", tmp_path, stream=io.StringIO()) as log:
        log.info("started", listen="0.0.0.0:7450")
        log.round = 7
        log.warning("neighbour_away", neighbour="n1", waited=1.5)
        log.info("late", round=6)
    first, second, third = lines_of(tmp_path)
    assert list(first) == ["time", "level", "event", "node", "round", "listen"]
    assert (second["level"], second["event"], second["node"], second["round"]) == ("warning", "neighbour_away", "n0", 7)
    assert second["neighbour"] == "n1"
    assert second["waited"] == 1.5
    assert third["round"] == 6
    assert first["time"].endswith("Z")


def test_stderr_gets_readable_lines_unless_json_is_requested(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with NodeLog("n0", tmp_path) as log:
        log.info("started", listen="0.0.0.0:7450")
    readable = capsys.readouterr().err
    assert readable.endswith("INFO    n0 round 0: started listen=0.0.0.0:7450\n")
    with NodeLog("n0", None, json_lines=True) as log:
        log.info("started")
    assert json.loads(capsys.readouterr().err)["event"] == "started"


@pytest.mark.parametrize("json_lines", [False, True])
def test_every_line_of_a_plaintext_node_says_so(tmp_path: Path, json_lines: bool) -> None:
    stream = io.StringIO()
    with NodeLog("n0", tmp_path, insecure=True, json_lines=json_lines, level="debug", stream=stream) as log:
        log.debug("a")
        log.info("b", insecure=False)  # no field can override it
        log.error("c", note="two\nlines")
        try:
            raise ValueError("deep")
        except ValueError as error:
            log.exception("d", error)
    assert [line["insecure"] for line in lines_of(tmp_path)] == [True] * 4
    for line in stream.getvalue().splitlines():
        assert json.loads(line)["insecure"] is True if json_lines else line.startswith(INSECURE + " ")


def test_lines_of_a_secure_node_do_not_say_it(tmp_path: Path) -> None:
    stream = io.StringIO()
    with NodeLog("n0", tmp_path, stream=stream) as log:
        log.info("a")
    assert "insecure" not in lines_of(tmp_path)[0]
    assert "INSECURE" not in stream.getvalue()


def test_text_from_a_stranger_stays_within_its_field(tmp_path: Path) -> None:
    stream = io.StringIO()
    evil = "x level=error\n2026-01-31T12:00:00.000Z ERROR n0 round 1: forged \x1b[2J" + "y" * 1_000_000
    with NodeLog("n0", tmp_path, stream=stream) as log:
        log.warning("message_rejected", reason=evil)
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()
    (line,) = lines_of(tmp_path)
    assert line["reason"].startswith("x level=error\n")
    assert len(line["reason"]) < 3000


def test_values_json_does_not_have(tmp_path: Path) -> None:
    with NodeLog("n0", tmp_path, stream=io.StringIO()) as log:
        log.info("odd", loss=float("nan"), path=Path("a"), error=OSError(5, "broken"), many={"a": (1, float("inf"))})
    (line,) = lines_of(tmp_path)
    assert (line["loss"], line["path"], line["many"]) == ("nan", "a", {"a": [1, "inf"]})
    assert line["error"] == "OSError: [Errno 5] broken"


def test_levels_below_the_chosen_one_are_left_out(tmp_path: Path) -> None:
    with NodeLog("n0", tmp_path, level="warning", stream=io.StringIO()) as log:
        log.debug("a")
        log.info("b")
        log.warning("c")
    assert [line["event"] for line in lines_of(tmp_path)] == ["c"]


@pytest.mark.parametrize("files", [1, 3])
def test_the_disk_is_bounded_by_size_times_count(tmp_path: Path, files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 10_000)
    with NodeLog("n0", tmp_path, megabytes=0.01, files=files, stream=io.StringIO()) as log:
        for number in range(2000):
            log.info("tick", number=number)
    found = sorted(tmp_path.iterdir())
    assert len(found) == files
    assert sum(path.stat().st_size for path in found) <= 10_000 * files
    assert lines_of(tmp_path)[-1]["number"] == 1999
    assert log.lost == 0


def test_a_line_cut_by_a_crash_does_not_damage_the_next(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"event": "whole"}\n{"event": "to')
    with NodeLog("n0", tmp_path, stream=io.StringIO()) as log:
        log.info("back")
    assert json.loads((tmp_path / FILE).read_text().splitlines()[2])["event"] == "back"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_reported_once_and_counted(tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to("/dev/full")
    stream = io.StringIO()
    with NodeLog("n0", tmp_path, insecure=True, stream=stream) as log:
        for number in range(50):
            log.info("tick", number=number)
    said = [line for line in stream.getvalue().splitlines() if "log_cannot_be_written" in line]
    assert len(said) == 1
    assert os.strerror(errno.ENOSPC) in said[0]
    assert said[0].startswith(INSECURE)
    assert log.lost == 50
    assert stream.getvalue().count("tick") == 50


def test_with_free_space_again_the_log_continues_and_counts_the_missing_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    written = module._JsonLine.format

    def format(self: Any, record: Any) -> str:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(self, record)

    monkeypatch.setattr(module._JsonLine, "format", format)
    stream = io.StringIO()

    def until(condition: Callable[[], bool]) -> None:
        for _ in range(6000):
            if condition():
                return
            time.sleep(0.01)
        pytest.fail("nothing happened")

    with NodeLog("n0", tmp_path, stream=stream) as log:
        log.info("before")
        until(lambda: (tmp_path / FILE).stat().st_size > 0)
        full.set()
        log.info("missing")
        log.info("missing")
        until(lambda: log.lost == 2)
        full.clear()
        log.info("after")
        until(lambda: "log_was_interrupted" in (tmp_path / FILE).read_text())
    events = [line["event"] for line in lines_of(tmp_path)]
    assert events == ["before", "after", "log_was_interrupted"]
    assert lines_of(tmp_path)[-1]["lines_lost"] == 2
    assert stream.getvalue().count("log_cannot_be_written") == 1


def test_a_reader_that_does_not_read_blocks_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            go_on.wait(60)
            return super().write(text)

    stream = Stuck()
    log = NodeLog("n0", tmp_path, stream=stream)
    for number in range(module.WAITING + 100):
        log.info("tick", number=number)
    log._file.close()  # waits only for the file
    assert len(lines_of(tmp_path)) + log.lost == module.WAITING + 100
    assert log._screen.dropped >= 99  # one line may be in flight
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    log.close()  # does not wait for it
    assert log._screen._thread.is_alive()
    go_on.set()


@pytest.mark.parametrize("end", ["node.close()", ""], ids=["closed", "not closed"])
def test_a_process_with_a_blocked_stderr_still_exits_normally(end: str) -> None:
    script = f"""
from feda2l.peer import log
log.PATIENCE = 0.2
node = log.NodeLog("n0", None)
for number in range(3000):
    node.info("tick", number=number, padding="x" * 100)  # more than a pipe holds
{end}
raise SystemExit(7)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    assert process.stderr
    try:
        assert process.wait(60) == 7  # no process reads the pipe
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_the_last_lines_of_a_failing_process_are_kept(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from feda2l.peer.log import NodeLog
node = NodeLog("n0", Path({str(tmp_path)!r}))
for number in range(1000):
    node.info("tick", number=number)
raise ValueError
"""
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1
    assert lines_of(tmp_path)[-1]["number"] == 999
    assert done.stderr.count(b"tick") == 1000


def test_a_closed_stderr_is_no_error(tmp_path: Path) -> None:
    stream = io.StringIO()
    stream.close()
    with NodeLog("n0", tmp_path, stream=stream) as log:
        log.info("alive")
    assert lines_of(tmp_path)[0]["event"] == "alive"
    log.info("after the end")  # of no effect


def test_lines_of_the_standard_logging_become_lines_of_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("feda2l.peer.some_transport")
    with NodeLog("n0", tmp_path, insecure=True) as log:
        log.adopt()
        logger.warning("link to %s lost", "n1")
        logger.warning("%d", "no number")
        logger.debug("too fine")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.startswith(INSECURE) for line in said)
    first = lines_of(tmp_path)[0]
    assert (first["event"], first["source"], first["text"]) == ("message", logger.name, "link to n1 lost")
    assert not logging.getLogger("feda2l").handlers
    assert logging.getLogger("feda2l").propagate


def test_many_threads_can_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 10_000)
    with NodeLog("n0", tmp_path, stream=io.StringIO()) as log:
        speakers = [
            threading.Thread(target=lambda name=name: [log.info("tick", speaker=name, i=i) for i in range(200)])
            for name in range(8)
        ]
        for speaker in speakers:
            speaker.start()
        for speaker in speakers:
            speaker.join()
    assert len(lines_of(tmp_path)) == 1600


def test_an_unwritable_folder_is_reported_as_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(FedA2LError, match=r"state .*missing.*cannot be written"):
        NodeLog("n0", tmp_path / "missing")


def test_every_event_of_a_node_is_listed_and_explained() -> None:
    """The events in the code, the list in `feda2l.peer.log` and the table in the documentation are the same."""
    root = Path(module.__file__).parents[1]
    used = {"log_cannot_be_written", "log_was_interrupted", "message"}  # the log's own
    for path in [*(root / "peer").glob("*.py"), *(root / "swarm").glob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and LOG_CALL.search(ast.unparse(call.func)):
                first = call.args[0]
                choices = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
                used |= {choice.value for choice in choices if isinstance(choice, ast.Constant)}
    events = set(get_args(module.Event))
    assert used == events
    chapter = (root.parents[1] / "docs" / "deploy.md").read_text(encoding="utf-8")
    table = chapter.partition("| event | meaning |")[2].partition("\n\n")[0]
    named = [event for row in table.splitlines()[2:] for event in re.findall(r"`([a-z_]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(events)
