"""The processes that torchrun started: how they join, and what they say to each other.

Small things (errors, records, decisions) travel as objects over gloo, rows as tensors: over gloo from a CPU, over nccl
from a GPU. Rank 0 leads: it alone reads and writes the run folder and talks to the user.
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
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from feda2l.errors import FedA2LError, RunFailed

T = TypeVar("T")

LEADER = 0
# A process that dies closes its connections, and the others know within a second. This is for one that hangs, or whose
# host is gone without a word; it must be longer than the slowest rank may train in a round.
PATIENCE = timedelta(minutes=30)
MEETING = timedelta(minutes=5)  # until all ranks have started


class RanksLost(RunFailed):
    """Ranks cannot talk to each other any more: the job is over."""


class _Mistake(NamedTuple):
    """An exception of one rank, as the others hear of it."""

    kind: type[BaseException]
    text: str
    notes: list[str]  # where there is more on it


class Call(NamedTuple):
    """What the leader tells those who wait: specs to run together; none: it is over, and this came of it."""

    specs: list[Any]
    result: list[Any]


class Ranks:
    """All ranks of the job, seen from one of them."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.agreed: BaseException | None = None  # the last exception that all ranks know of
        self.busy = False  # is a pack at work? else the others wait to be called

    @property
    def leads(self) -> bool:
        return self.rank == LEADER

    @property
    def restarted(self) -> bool:
        """Did torchrun start the job again after a failure?"""
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

    @cached_property
    def on_this_host(self) -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def processes(self, cores: int) -> int:
        """How many worker processes a rank may have: its part of the host's cores, or what OMP_NUM_THREADS says.

        torchrun sets OMP_NUM_THREADS to 1 where the user did not, so 1 says nothing.
        """
        asked = os.environ.get("OMP_NUM_THREADS", "1")
        if asked.isdigit() and int(asked) > 1:
            return int(asked)
        return max(1, cores // self.on_this_host) if cores else 0

    # --- what is said to all -------------------------------------------------------------------------------

    def together(self, do: Callable[[], T]) -> T:
        """Do something at every rank; where it fails at one, it fails at all, and nobody waits for anybody.

        A rank that did not fail raises the first failing rank's error; the leader is who prints it.
        """
        own: BaseException | None = None
        try:
            result = do()
        except RanksLost:
            raise
        except Exception as error:
            own = error
        mistakes = self.all(
            None if own is None else _Mistake(_known_kind(own), str(own), getattr(own, "__notes__", []))
        )
        found = [(rank, mistake) for rank, mistake in enumerate(mistakes) if mistake is not None]
        if not found:
            return result
        first, mistake = found[0]
        if own is None:
            own = mistake.kind(f"rank {first}: {mistake.text}")
            for note in mistake.notes:
                own.add_note(note)
        if isinstance(own, FedA2LError):
            own.said = not self.leads  # all know it, one says it
        self.agreed = own
        raise own

    def all(self, value: T) -> list[T]:
        """What every rank has, in their order."""
        found: list[Any] = [None] * self.world
        with _in_touch():
            dist.all_gather_object(found, value)
        return found

    def share(self, value: T) -> T:
        """What the leader has, at every rank."""
        shared = [value]
        with _in_touch():
            dist.broadcast_object_list(shared, src=LEADER)
        return shared[0]

    def gather(self, value: T) -> list[T] | None:
        """What every rank has, in their order, at the leader; None elsewhere."""
        found: list[Any] | None = [None] * self.world if self.leads else None
        with _in_touch():
            dist.gather_object(value, found, dst=LEADER)
        return found

    # --- tensors -------------------------------------------------------------------------------------------

    def largest(self, values: Tensor) -> Tensor:
        """The elementwise maximum over ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def least(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.MIN)

    def total(self, values: Tensor) -> Tensor:
        """The elementwise sum over ranks; its order is the backend's, so for bits it must be exact."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def _reduced(self, values: Tensor, how: Any) -> Tensor:
        values = values.contiguous()
        if self.world > 1:
            with _in_touch():
                dist.all_reduce(values, how)
        return values

    def start(self, sent: Sequence[tuple[int, Tensor]], received: Sequence[tuple[int, Tensor]]) -> "Flight":
        """Send a tensor to each of some ranks and receive one from each of some; `wait` before using either."""
        ops = [dist.P2POp(dist.irecv, tensor, rank) for rank, tensor in received]
        ops += [dist.P2POp(dist.isend, tensor, rank) for rank, tensor in sent]
        if not ops:
            return Flight([], [])
        with _in_touch():
            return Flight(dist.batch_isend_irecv(ops), [tensor for _, tensor in sent])


class Flight(NamedTuple):
    """Tensors on their way."""

    works: list[Any]
    sent: list[Tensor]  # kept until they have left

    def wait(self) -> None:
        with _in_touch():
            for work in self.works:
                work.wait()


def _known_kind(error: BaseException) -> type[BaseException]:
    """The kind of exception that the other ranks raise: one that they know how to handle."""
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
            f"another rank is gone ({why}); nothing before the last checkpoint is lost: start again with --resume, or "
            "let torchrun do it (--max-restarts)",
            see="torchrun",
        ) from error


_here: Ranks | None = None
_lost = False


def here() -> Ranks | None:
    """The ranks of this job; None in a process that torchrun did not start."""
    global _here
    if _here is None and "TORCHELASTIC_RUN_ID" in os.environ:
        _here = _join()
    return _here


def _join() -> Ranks:
    # not at the top: a torch without distributed runs in one process all the same
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
            # torchrun's static rendezvous keeps one store for all restarts, and the addresses of the dead in it
            store = PrefixStore(f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    except (KeyError, RuntimeError, ValueError) as error:
        raise RunFailed(f"torchrun's ranks cannot be joined ({str(error).splitlines()[0]})", see="torchrun") from error
    atexit.register(_leave)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    return Ranks()


def _leave() -> None:
    if not _lost and dist.is_initialized():
        dist.destroy_process_group()


def _end(number: int, _: object) -> None:
    """When one rank dies torchrun tells the others to end; those who know are about to, and say why."""
    if not _lost:
        raise KeyboardInterrupt


def everywhere(do: Callable[[], T]) -> T:
    """Do something at every rank, so that a mistake is said once; in a process of its own, just do it."""
    ranks = here()
    return do() if ranks is None else ranks.together(do)


@contextmanager
def leading(ranks: Ranks | None) -> Iterator[list[Any]]:
    """The leader's work; when it is over, or has failed, the others need not wait to be called any longer.

    What is put into the list goes to them.
    """
    result: list[Any] = []
    try:
        yield result
    finally:
        if ranks is not None and not ranks.busy:
            ranks.share(Call([], result))


def leads() -> bool:
    """Does this process talk to the user? Of the ranks of a job only one does."""
    ranks = here()
    return ranks is None or ranks.leads


def demand_device(ranks: Ranks, device: torch.device) -> None:
    """Every rank must have a device of the same kind, and on a GPU one of its own that nccl can reach."""
    kinds = ranks.all(device.type)
    if len(set(kinds)) > 1:
        where = ", ".join(f"rank {rank}: {kind}" for rank, kind in enumerate(kinds))
        raise FedA2LError(
            f'runtime.device is not the same everywhere ({where}); set runtime.device = "cpu" or "cuda"', see="torchrun"
        )
    if device.type == "cpu":
        return
    if not dist.is_nccl_available():
        raise FedA2LError(
            'runtime.device = "cuda" with several ranks needs nccl, which this torch is built without', see="torchrun"
        )
    count, on_this_host = torch.cuda.device_count(), ranks.on_this_host
    if on_this_host > count:
        raise FedA2LError(
            f"torchrun --nproc-per-node={on_this_host}: this host has {count} GPUs; start a rank a GPU", see="torchrun"
        )
    try:  # nccl connects now, and not when a round has been trained
        dist.all_reduce(torch.ones(1, device=device))
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise FedA2LError(
            f"nccl cannot connect the ranks' GPUs ({str(error).strip().splitlines()[0][:200]}); NCCL_DEBUG=INFO says "
            "more, NCCL_SOCKET_IFNAME names the network to use",
            see="torchrun",
        ) from error
