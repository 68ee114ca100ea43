"""The process of one node in a swarm: start it, follow its log, end it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from feda2l.peer.log import FILE
from feda2l.plain_values import PlainDict
from feda2l.records.growing_file import Tail
from feda2l.swarm.swarm_folder import NodeFolder

State = Literal["starting", "running", "hung", "crashed", "failed", "left", "done"]
TAIL = 8  # lines of a failed node's output that are shown

# On Linux the kernel kills the node when the swarm ends in any way. This setting survives exec. Starting a bare
# interpreter first is safer than running Python code between fork and exec in a process with threads.
BOUND = """
import os, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == parent:
    os.execv(command[0], command)
"""


class NodeProcess:
    """One node. `poll` updates the fields below from its log."""

    def __init__(self, member: NodeFolder, options: Sequence[str]) -> None:
        self.member, self.options = member, options
        self.process: subprocess.Popen[bytes] | None = None
        self.state: State = "starting"
        self.round = self.done_now = 0  # rounds completed in all, and since its process started
        self.met = False  # has the process met its neighbours?
        self.figures: PlainDict = {}  # scores of the last round
        self.rejected = 0
        self.pace: float | None = None  # seconds of the last round
        self.last = 0.0  # the time of its last completed round
        self.hung_since: float | None = None
        self._log = Tail(member.state.path / FILE)
        self.poll()

    def __str__(self) -> str:
        return self.member.name

    @property
    def id(self) -> int:
        return self.member.id

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def start(self) -> None:
        self.poll()
        self.state, self.done_now, self.met, self.hung_since = "starting", 0, False, None
        node = [sys.executable, "-m", "feda2l", "node", "--config", str(self.member.config), *self.options]
        with open(self.member.output, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", BOUND, str(os.getpid()), *node],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches only the swarm, which tells the nodes once
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},  # a node trains on one core
            )

    def poll(self) -> int | None:
        """Read new lines of its log; return its exit code if its process has just ended."""
        running = self.running
        code = self.process.poll() if self.process else None
        while lines := self._log.read():
            for line in lines:
                try:
                    entry = json.loads(line)
                except ValueError:  # cut off by a kill
                    continue
                self._read(entry)
        return code if running else None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    @property
    def stopped(self) -> bool:
        """Is its process stopped (SIGSTOP)?"""
        assert self.process is not None
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:  # the process is gone, or this is not Linux
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def rounds_written(self) -> int:
        """The number of rounds in its records, which are written earlier than its log."""
        path = self.member.state.rounds
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def last_lines(self) -> str:
        """The last lines of its output."""
        try:
            lines = self.member.output.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join(f"  {self}: {line}" for line in lines[-TAIL:])

    def _read(self, line: PlainDict) -> None:
        """Update the fields from one line of the log."""
        event = line.get("event")
        if event == "met":
            self.met = True
        elif event == "rejected":
            self.rejected += 1
        elif event in ("round", "rejoined") and "seconds" in line:
            self.round = int(line["round"])
            self.done_now += 1
            self.last, self.pace = time.monotonic(), line["seconds"]
            self.figures |= {key: line[key] for key in ("loss", "accuracy", "mse", "received") if key in line}
            if self.running and self.state == "starting":
                self.state = "running"
