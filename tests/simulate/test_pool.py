"""Worker processes: they execute jobs, report errors, and never outlive their parent."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from feda2l.errors import FedA2LError, RunFailed
from feda2l.round.population import shared_zeros
from feda2l.worker_pool import Pool


class Target:
    """The object that the workers inherit."""

    def __init__(self) -> None:
        self.shared = shared_zeros(4)

    def add(self, a: int, b: int) -> tuple[int, int]:
        return a + b, os.getpid()

    def write(self, at: int, value: float) -> None:
        self.shared[at] = value

    def threads(self) -> int:
        return torch.get_num_threads()

    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    def break_(self, kind: str) -> None:
        if kind == "mistake":
            raise FedA2LError("rates.base = -1: must be above 0")
        raise ZeroDivisionError("a bug")


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(Target(), 2)
    yield pool
    pool.close()


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_results_are_in_the_order_of_the_jobs(processes):
    pool = Pool(Target(), processes)
    try:
        results = pool.map("add", [(i, 10 * i) for i in range(20)])
        assert [value for value, _ in results] == [11 * i for i in range(20)]
        pids = {pid for _, pid in results}
        assert (pids == {os.getpid()}) == (processes == 0)
        assert len(pids) <= max(1, processes)
        assert pool.map("add", []) == []
    finally:
        pool.close()


def test_workers_share_the_populations_memory_and_use_one_thread(pool):
    pool.map("write", [(i, i + 0.5) for i in range(4)])
    assert pool.target.shared.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert pool.map("threads", [()] * 4) == [1] * 4


def test_a_killed_worker_raises_run_failed(pool):
    victim = pool.workers[1].pid
    threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"exit code -9 \(killed, perhaps out of memory\).*--resume"):
        pool.map("sleep", [(20.0,), (20.0,)])
    assert time.monotonic() - began < 10


def test_a_worker_killed_between_two_calls_is_detected(pool):
    pool.workers[0].kill()
    pool.workers[0].join()
    with pytest.raises(RunFailed, match="a worker process ended with exit code -9"):
        pool.map("add", [(1, 2)] * 6)


def test_an_error_in_a_worker_is_raised_in_the_parent(pool):
    with pytest.raises(FedA2LError, match=r"^rates.base = -1: must be above 0$") as caught:
        pool.map("break_", [("mistake",)])
    assert caught.value.exit_code == 2


def test_a_bug_in_a_worker_has_its_traceback(pool):
    with pytest.raises(RunFailed, match=r"(?s)a worker process failed.*in break_.*ZeroDivisionError: a bug"):
        pool.map("break_", [("bug",)])


def test_close_ends_all_processes():
    pool = Pool(Target(), 2)
    pids = [worker.pid for worker in pool.workers]
    pool.close()
    assert not any(running(pid) for pid in pids)
    pool.close()  # closing twice is not an error


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


PARENT = """
import sys, time
from feda2l.worker_pool import Pool

class Target:
    def sleep(self, seconds):
        time.sleep(seconds)

pool = Pool(Target(), 2)
print(*(worker.pid for worker in pool.workers), flush=True)
if sys.argv[1] == "busy":
    pool.map("sleep", [(60,), (60,)])
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forked workers are for Linux")
@pytest.mark.parametrize("state", ["busy", "idle"])
def test_workers_end_when_the_parent_is_killed(state):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, state], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(running(pid) for pid in pids)
        time.sleep(0.2)
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 5
    while any(running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(running(pid) for pid in pids)
