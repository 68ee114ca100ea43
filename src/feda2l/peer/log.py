"""A node's log: one JSON object per line in its state folder, readable lines on stderr.

A round never waits for the log. Every destination has its own thread and its own bounded queue, so a hung disk or a
reader that does not read costs lines, which are counted, and no time.
"""

import atexit
import contextlib
import json
import logging
import math
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal, Self, TextIO

from feda2l.errors import FedA2LError
from feda2l.plain_values import PlainDict

Level = Literal["debug", "info", "warning", "error"]
Event = Literal[
    "already_finished",
    "away",
    "back",
    "failed",
    "finished",
    "left",
    "listening",
    "log_cannot_be_written",
    "log_was_interrupted",
    "message",
    "met",
    "plaintext",
    "quarantined",
    "rejected",
    "rejoined",
    "reload_failed",
    "reloaded",
    "restart_needed",
    "resumed",
    "round",
    "searched",
    "stranger",
]
"""All events that a node logs; the chapter on deployment explains each."""
FILE = "log.jsonl"
INSECURE = "INSECURE (plaintext)"
WAITING = 4096  # lines that may wait for a destination; more are dropped
LONGEST = 2000  # characters of a value: messages of a neighbour must not fill the log
PATIENCE = 5.0  # seconds that `close` waits for each destination


class NodeLog:
    """The log of one node; every thread may write to it.

    Every line contains `round`, which the node updates. `lost` counts the lines that did not reach the file.
    """

    def __init__(
        self,
        node: str,
        folder: Path | None,
        *,
        megabytes: float = 10.0,
        files: int = 5,
        insecure: bool = False,
        json_lines: bool = False,
        level: Level = "info",
        stream: TextIO | None = None,
    ) -> None:
        """Open the log.

        Args:
            folder: the folder of the log file; None writes no file.
            megabytes, files: the size and the number of the files; their product bounds the disk space.
            json_lines: write JSON to stderr too, in place of readable lines.
        """
        self.node, self.insecure, self.round = node, insecure, 0
        self._adopted: list[tuple[logging.Logger, logging.Handler, bool]] = []
        # not from logging.getLogger: several nodes may share one process, and libraries must not write to this logger
        self._logger = logging.Logger("feda2l.node", level.upper())
        screen = logging.StreamHandler(stream or _stderr())
        screen.setFormatter(_JsonLine() if json_lines else _ReadableLine())
        self._screen = _Destination(screen, owned=screen.stream not in (stream, sys.stderr))
        self._file: _Destination | None = None
        if folder is not None:
            path = folder / FILE
            try:
                file = _BoundedFile(path, int(megabytes * 1e6), max(files, 1), self._file_failed, self._file_works)
            except OSError as error:
                self._screen.close()
                raise FedA2LError(f"state = {folder}: the log {path} cannot be written: {error.strerror}") from error
            file.setFormatter(_JsonLine())
            self._file = _Destination(file)
            self._logger.addHandler(self._file)
        self._logger.addHandler(self._screen)
        atexit.register(self.close)  # the last lines of a process that fails matter most

    @property
    def lost(self) -> int:
        return self._file.lost if self._file else 0

    def debug(self, event: Event, /, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: Event, /, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: Event, /, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: Event, /, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: Event, error: BaseException, /, **fields: object) -> None:
        """Log an unexpected error with its traceback."""
        self._write(logging.ERROR, event, {**fields, "error": error, "traceback": _where(error)})

    def adopt(self, name: str = "feda2l") -> None:
        """Redirect the lines of `logging.getLogger(name)` and its children to this log until `close`.

        If several nodes share one process, only one of them should do so.
        """
        logger = logging.getLogger(name)
        adopted = _Adopted(self)
        logger.addHandler(adopted)
        logger.setLevel(self._logger.level)
        # otherwise the handler of the root logger would print the line again
        propagates, logger.propagate = logger.propagate, False
        self._adopted.append((logger, adopted, propagates))

    def close(self) -> None:
        """Write the waiting lines and close the file; a destination that hangs is abandoned."""
        for logger, adopted, propagates in self._adopted:
            logger.removeHandler(adopted)
            logger.propagate = propagates
            logger.setLevel(logging.NOTSET)
        self._adopted.clear()
        atexit.unregister(self.close)
        for destination in (self._file, self._screen):
            if destination:
                destination.close()
        self._logger.disabled = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, level: int, event: Event, fields: PlainDict) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.handle(self._record(level, event, fields))

    def _record(self, level: int, event: Event, fields: PlainDict) -> logging.LogRecord:
        record = logging.LogRecord(self._logger.name, level, "", 0, event, None, None)
        line = {
            "time": _iso(record.created),
            "level": logging.getLevelName(level).lower(),
            "event": event,
            "node": self.node,
            "round": fields.pop("round", self.round),
        }
        if self.insecure:
            line["insecure"] = True
        for name, value in fields.items():  # a field never replaces one of the standard keys
            line.setdefault(name, _plain(value))  # not in the thread: the value may change before
        record.line = line
        return record

    def _file_failed(self, error: BaseException) -> None:
        """Tell the other destination, once per outage, that the file cannot be written."""
        fields = {
            "file": FILE,
            "error": error,
            "what_now": "the node continues; lines are lost until it works again",
        }
        self._screen.handle(self._record(logging.ERROR, "log_cannot_be_written", fields))

    def _file_works(self) -> None:
        self._logger.handle(self._record(logging.WARNING, "log_was_interrupted", {"lines_lost": self.lost}))


class _Adopted(logging.Handler):
    """Turns lines of modules that use the standard logging into lines of a node."""

    def __init__(self, log: NodeLog) -> None:
        super().__init__()
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields: PlainDict = {"source": record.name, "text": record.getMessage()}
            if record.exc_info and record.exc_info[1]:
                fields["traceback"] = _where(record.exc_info[1])
            self.log._write(record.levelno, "message", fields)
        except Exception:  # for example a format string that does not fit its arguments
            self.log.error("message", source=record.name, text=str(record.msg))


class _Destination(logging.Handler):
    """A handler behind a queue and a thread, so that logging never blocks.

    The standard QueueListener would wait forever for a hung handler when it stops.
    """

    def __init__(self, handler: logging.Handler, *, owned: bool = False) -> None:
        """`owned`: close the stream of the handler as well; the stream of a file is always closed."""
        super().__init__()
        self.handler, self.owned = handler, owned
        self.dropped = 0
        self.failed = 0
        handler.handleError = self._failed  # type: ignore[method-assign]  # the standard one prints a traceback
        self._queue: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        return self.dropped + self.failed

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=PATIENCE)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():  # it hangs with the lock of the handler, and logging would wait for it at exit
            self.handler.lock = None
            self.handler.flush = self.handler.close = lambda: None  # type: ignore[method-assign]
        super().close()

    def _work(self) -> None:
        while (record := self._queue.get()) is not None:
            self.handler.handle(record)
        with contextlib.suppress(OSError, ValueError):
            self.handler.close()
            if isinstance(self.handler, logging.StreamHandler) and self.owned:
                self.handler.stream.close()

    def _failed(self, record: logging.LogRecord) -> None:
        self.failed += 1
        if isinstance(self.handler, _BoundedFile):
            self.handler.fail(sys.exc_info()[1])


class _BoundedFile(RotatingFileHandler):
    """At most `count` files of `size` bytes; after a failed write the file is opened again."""

    stream: TextIOWrapper | None  # type: ignore[assignment]

    def __init__(
        self,
        path: Path,
        size: int,
        count: int,
        on_failure: Callable[[BaseException], None],
        on_success: Callable[[], None],
    ) -> None:
        self.on_failure, self.on_success = on_failure, on_success
        self.failing = False
        super().__init__(path, maxBytes=max(size, 1), backupCount=count - 1, encoding="ascii")

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if self.failing and self.stream is not None:  # a failure leaves no stream
            self.failing = False
            self.on_success()

    def doRollover(self) -> None:  # noqa: N802 - the name is the standard library's
        if self.backupCount:
            super().doRollover()
        elif self.stream:  # the standard handler lets a single file grow without a limit
            self.stream.truncate(0)

    def fail(self, error: BaseException | None) -> None:
        """Drop the stream with its unwritten part, so that the next line starts on its own."""
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
        if not self.failing:
            self.failing = True
            self.on_failure(error or OSError("unknown"))

    def _open(self) -> TextIOWrapper:
        stream: TextIOWrapper = super()._open()
        if _torn(self.baseFilename):
            stream.write("\n")
        return stream


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(record.__dict__["line"], allow_nan=False)


class _ReadableLine(logging.Formatter):
    """`2026-01-31T12:00:00.000Z WARNING n0 round 7: neighbour_away neighbour=n1`."""

    def format(self, record: logging.LogRecord) -> str:
        line = dict(record.__dict__["line"])
        warning = f"{INSECURE} " if line.pop("insecure", False) else ""
        start = f"{line.pop('time')} {line.pop('level').upper():7} {line.pop('node')} round {line.pop('round')}: "
        event, trace = line.pop("event"), line.pop("traceback", "")
        text = warning + start + " ".join([event, *(f"{name}={_word(value)}" for name, value in line.items())])
        # each line of a traceback is a line of the log
        return "\n".join([text, *(f"{warning}{start}  {part}" for part in trace.splitlines())])


def _stderr() -> TextIO:
    """A separate stream to the destination of stderr.

    A thread that hangs in `sys.stderr` holds its lock, and Python aborts at exit if it cannot take that lock.
    """
    try:
        return open(os.dup(sys.stderr.fileno()), "w", encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError):  # stderr is closed, or is not a file
        return sys.stderr


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03}Z"


def _plain(value: object) -> object:
    """A value for JSON: without infinity, without objects, and with bounded text."""
    if isinstance(value, int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key)[:LONGEST]: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _where(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-LONGEST:]


def _word(value: object) -> str:
    """A value in a readable line. Text from other nodes cannot start a new line or look like another field."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' ="\\'):
        return value
    return json.dumps(value)


def _torn(path: str) -> bool:
    """Does the file end within a line, for example after a crash or on a full disk?"""
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
