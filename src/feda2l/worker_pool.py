"""A pool of worker processes with one thread each, forked so that they share the population."""

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from feda2l.errors import FedA2LError, RunFailed


class Pool:
    """Run methods of one object in forked processes, or in this process if there are none.

    A worker ends when its parent ends for any reason: the kernel kills it (Linux), or its pipe closes.
    """

    def __init__(self, target: object, processes: int) -> None:
        self.target = target
        self.pipes: list[Connection] = []
        self.workers: list[multiprocessing.process.BaseProcess] = []
        try:
            for _ in range(processes):
                self._fork()
        except BaseException:  # Ctrl-C while the workers start
            self.close()
            raise

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        arguments = (self.target, theirs, [*self.pipes, ours], os.getpid())
        worker = context.Process(target=_work, args=arguments, daemon=True)
        worker.start()
        theirs.close()
        self.pipes.append(ours)
        self.workers.append(worker)

    def map(self, method: str, jobs: Sequence[tuple[object, ...]]) -> list[Any]:
        """Return `[target.method(*job) for job in jobs]`, each by the next free worker; put long jobs first."""
        if not self.pipes:
            with torch.random.fork_rng(devices=[]):  # a worker seeds its own generator; this is the user's
                return [getattr(self.target, method)(*job) for job in jobs]
        results: list[Any] = [None] * len(jobs)
        waiting = enumerate(jobs)
        busy: dict[Connection, int] = {}
        while True:
            free = [pipe for pipe in self.pipes if pipe not in busy]
            for pipe, (number, job) in zip(free, waiting, strict=False):
                self._send(pipe, (method, job))
                busy[pipe] = number
            if not busy:
                return results
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                results[busy.pop(ready)] = self._receive(ready)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for worker in self.workers:
            worker.kill()
            worker.join()
        self.pipes, self.workers = [], []

    def _send(self, pipe: Connection, message: object) -> None:
        try:
            pipe.send(message)
        except OSError:
            self._dead(pipe)

    def _receive(self, pipe: Connection) -> Any:
        try:
            kind, value = pipe.recv()
        except (EOFError, OSError):
            self._dead(pipe)
        if kind == "mistake":
            raise FedA2LError(value)
        if kind == "error":
            raise RunFailed(f"a worker process failed:\n{value}", see="worker-failed")
        return value

    def _dead(self, pipe: Connection) -> None:
        worker = self.workers[self.pipes.index(pipe)]
        worker.join(timeout=5)
        why = " (killed, perhaps out of memory)" if worker.exitcode == -signal.SIGKILL else ""
        raise RunFailed(
            f"a worker process ended with exit code {worker.exitcode}{why}. Everything up to the last checkpoint is "
            "saved: run the command again with --resume",
            see="worker-ended",
        ) from None


def default_processes() -> int:
    """Return one worker per core that this process may use, or 0 if forking is not safe.

    Forking is not safe on macOS and Windows, or after CUDA was initialized: a fork does not copy CUDA's threads.
    """
    if sys.platform != "linux" or torch.cuda.is_initialized():
        return 0
    return len(os.sched_getaffinity(0))


def _work(target: object, pipe: Connection, inherited: list[Connection], parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, signal.SIG_IGN
        )  # both signals reach every process; the parent handles them and ends its workers
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    while True:
        try:
            method, job = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            reply: tuple[str, object] = ("result", getattr(target, method)(*job))
        except FedA2LError as error:
            reply = ("mistake", str(error))
        except BaseException:
            reply = ("error", traceback.format_exc())
        pipe.send(reply)
