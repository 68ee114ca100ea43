"""The processes that torchrun started: how they join and communicate.

Small objects (errors, records, decisions) are sent over gloo. Rows are sent as tensors: over gloo from a CPU, over nccl
from a GPU. Rank 0 leads: only it reads and writes the run folder and prints messages.
"""

import atexit
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from feda2l.errors import FedA2LError, RunFailed

T = TypeVar("T")

LEADER = 0
# A process that dies closes its connections, so the others notice within a second. This timeout is for a process that
# hangs or whose host disappears; it must be longer than the slowest rank trains in a round.
PATIENCE = timedelta(minutes=30)
MEETING = timedelta(minutes=5)  # time for all ranks to start


class RanksLost(RunFailed):
    """Raised when the ranks have lost contact. The job ends."""


class _RemoteError(NamedTuple):
    """An exception of one rank, in the form that is sent to the others."""

    kind: type[BaseException]
    text: str
    notes: list[str]  # the exception's notes, such as links to the documentation


class Call(NamedTuple):
    """The leader's message to the waiting ranks: specs to run as a pack, or None with the results at the end."""

    specs: list[Any]
    result: list[Path]


class Ranks:
    """All ranks of the job, as seen from one of them."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.agreed: BaseException | None = None  # the last exception that all ranks know
        self.busy = False  # True while a pack trains; otherwise the other ranks wait for a call

    @property
    def leads(self) -> bool:
        return self.rank == LEADER

    @property
    def restarted(self) -> bool:
        """True if torchrun restarted the job after a failure."""
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

    @cached_property
    def on_this_host(self) -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def processes(self, cores: int) -> int:
        """Return the number of worker processes of a rank: its share of the host's cores, or OMP_NUM_THREADS.

        torchrun sets OMP_NUM_THREADS to 1 if the user did not set it, so the value 1 is ignored.
        """
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        if threads.isdigit() and int(threads) > 1:
            return int(threads)
        return max(1, cores // self.on_this_host) if cores else 0

    # --- objects -------------------------------------------------------------------------------------------

    def together(self, do: Callable[[], T]) -> T:
        """Call a function at every rank. If it fails at one rank, it fails at all, so that no rank waits forever.

        A rank that did not fail raises the error of the first failing rank. Only the leader prints it.
        """
        failure: BaseException | None = None
        try:
            result = do()
        except RanksLost:
            raise
        except Exception as error:
            failure = error
        remotes = self.all(
            None
            if failure is None
            else _RemoteError(_known_kind(failure), str(failure), getattr(failure, "__notes__", []))
        )
        failures = [(rank, remote) for rank, remote in enumerate(remotes) if remote is not None]
        if not failures:
            return result
        first, remote = failures[0]
        if failure is None:
            failure = remote.kind(f"rank {first}: {remote.text}")
            for note in remote.notes:
                failure.add_note(note)
        if isinstance(failure, FedA2LError):
            failure.printed = not self.leads  # all ranks raise it, only the leader prints it
        self.agreed = failure
        raise failure

    def all(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        values = [value] * self.world  # all of them are overwritten
        with _in_touch():
            dist.all_gather_object(values, value)
        return values

    def share(self, value: T) -> T:
        """Return the leader's value at every rank."""
        shared = [value]
        with _in_touch():
            dist.broadcast_object_list(shared, src=LEADER)
        return shared[0]

    def gather(self, value: T) -> list[T] | None:
        """Return the values of all ranks, in rank order, at the leader; None at the other ranks."""
        values = [value] * self.world if self.leads else None
        with _in_touch():
            dist.gather_object(value, values, dst=LEADER)
        return values

    # --- tensors -------------------------------------------------------------------------------------------

    def largest(self, values: Tensor) -> Tensor:
        """Return the elementwise maximum over ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def least(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.MIN)

    def total(self, values: Tensor) -> Tensor:
        """Return the elementwise sum over ranks.

        The backend decides the order of the sum, so the result is reproducible only if the sum is exact.
        """
        return self._reduced(values, dist.ReduceOp.SUM)

    def _reduced(self, values: Tensor, how: Any) -> Tensor:
        values = values.contiguous()
        if self.world > 1:
            with _in_touch():
                dist.all_reduce(values, how)
        return values

    def start(self, sent: Sequence[tuple[int, Tensor]], received: Sequence[tuple[int, Tensor]]) -> "Flight":
        """Start to send tensors to ranks and to receive tensors from ranks. Call `wait` before using them."""
        ops = [dist.P2POp(dist.irecv, tensor, rank) for rank, tensor in received]
        ops += [dist.P2POp(dist.isend, tensor, rank) for rank, tensor in sent]
        if not ops:
            return Flight([], [])
        with _in_touch():
            return Flight(dist.batch_isend_irecv(ops), [tensor for _, tensor in sent])


class Flight(NamedTuple):
    """Tensors in transfer."""

    works: list[dist.Work]
    sent: list[Tensor]  # kept alive until they are sent

    def wait(self) -> None:
        with _in_touch():
            for work in self.works:
                work.wait()


def _known_kind(error: BaseException) -> type[BaseException]:
    """Return the exception type that the other ranks raise: a type that they can handle."""
    for kind in (RunFailed, FedA2LError, torch.OutOfMemoryError):
        if isinstance(error, kind):
            return kind
    return RunFailed


@contextmanager
def _in_touch() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        global _lost
        _lost = True
        first = str(error).strip().splitlines()[0]
        why = re.sub(r"^\[\S+\] |\. This is typically.*|\. Check the logs.*", "", first)[:200]
        raise RanksLost(
            f"another rank is gone ({why}); start again with --resume to continue from the last checkpoint, or let "
            "torchrun restart the job (--max-restarts)",
            see="torchrun",
        ) from error


_here: Ranks | None = None
_lost = False


def here() -> Ranks | None:
    """Return the ranks of this job, or None in a process that torchrun did not start."""
    global _here
    if _here is None and "TORCHELASTIC_RUN_ID" in os.environ:
        _here = _join()
    return _here


def _join() -> Ranks:
    # imported here, because a torch build without distributed can still train in one process
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    local = int(os.environ.get("LOCAL_RANK", "0"))
    backend = "gloo"
    if torch.cuda.is_available() and local < torch.cuda.device_count():
        torch.cuda.set_device(local)
        if dist.is_nccl_available():
            backend = "cpu:gloo,cuda:nccl"  # nccl connects in `demand_device`
    try:
        store, rank, world = next(rendezvous("env://", timeout=MEETING))
        if os.environ["TORCHELASTIC_RUN_ID"] == "none":
            # torchrun's static rendezvous keeps one store for all restarts, with addresses of dead processes in it
            store = PrefixStore(f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    except (KeyError, RuntimeError, ValueError) as error:
        raise RunFailed(f"cannot join torchrun's ranks ({str(error).splitlines()[0]})", see="torchrun") from error
    atexit.register(_leave)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    return Ranks()


def _leave() -> None:
    if not _lost and dist.is_initialized():
        dist.destroy_process_group()


def _end(number: int, _: object) -> None:
    """Handle torchrun's signal to end after another rank died. A rank that noticed it reports the reason itself."""
    if not _lost:
        raise KeyboardInterrupt


def everywhere(do: Callable[[], T]) -> T:
    """Call a function at every rank, so that an error is printed once. Without torchrun, just call it."""
    ranks = here()
    return do() if ranks is None else ranks.together(do)


@contextmanager
def leading(ranks: Ranks | None) -> Iterator[list[Path]]:
    """Context of the leader's work. At its end, or at a failure, the waiting ranks are released.

    The content of the list is sent to them.
    """
    result: list[Path] = []
    try:
        yield result
    finally:
        if ranks is not None and not ranks.busy:
            ranks.share(Call([], result))


def leads() -> bool:
    """True if this process prints messages. Only one rank of a job does."""
    ranks = here()
    return ranks is None or ranks.leads


def demand_device(ranks: Ranks, device: torch.device) -> None:
    """Raise an error unless all ranks have the same device type, and each GPU rank its own GPU that nccl can reach."""
    kinds = ranks.all(device.type)
    if len(set(kinds)) > 1:
        where = ", ".join(f"rank {rank}: {kind}" for rank, kind in enumerate(kinds))
        raise FedA2LError(
            f'runtime.device differs between ranks ({where}); set runtime.device = "cpu" or "cuda"', see="torchrun"
        )
    if device.type == "cpu":
        return
    if not dist.is_nccl_available():
        raise FedA2LError(
            'runtime.device = "cuda" with several ranks needs nccl, but this torch build lacks it', see="torchrun"
        )
    count, on_this_host = torch.cuda.device_count(), ranks.on_this_host
    if on_this_host > count:
        raise FedA2LError(
            f"torchrun --nproc-per-node={on_this_host}: this host has {count} GPUs; start one rank per GPU",
            see="torchrun",
        )
    try:  # connect nccl now and not after the first round
        dist.all_reduce(torch.ones(1, device=device))
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise FedA2LError(
            f"nccl cannot connect the ranks' GPUs ({str(error).strip().splitlines()[0][:200]}); set NCCL_DEBUG=INFO "
            "for details, and NCCL_SOCKET_IFNAME to choose the network",
            see="torchrun",
        ) from error
