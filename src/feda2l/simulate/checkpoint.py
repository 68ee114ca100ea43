"""A run's state on disk, as safetensors: written to a temporary file, synced and renamed; nothing is unpickled."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from feda2l.errors import FedA2LError, RunFailed
from feda2l.round.run import LiveRun


def tensors(run: LiveRun) -> dict[str, Tensor]:
    """Return everything that the next round depends on, by name; no time, host, path or rank is part of it.

    - `model.NAME`, `optimizer.KIND.NAME` and `algorithm.KIND.NAME`: states [nodes, *shape];
    - `algorithm.KEY`: the algorithm's scalar state; `rates.KEY`: the rate rule's state;
    - `rates.NODE.KEY` and `message.NAME`, under a fault plan: each node's rates and the message that it sent last. An
      absent node keeps the state of its last round.
    - `clock`, if time is simulated: when each node begins the coming round.
    """
    state = {name: values.contiguous().cpu() for name, values in _views(run)}
    state |= {f"rates.{key}": value.contiguous() for key, value in run.state.rates.state_dict().items()}
    return state | {"round": torch.tensor(run.state.round)}


def save_checkpoint(run: LiveRun, path: Path) -> None:
    """Write a run's checkpoint."""
    write_checkpoint(tensors(run), path)


def write_checkpoint(state: dict[str, Tensor], path: Path) -> None:
    """Replace the checkpoint atomically and durably: a crash leaves the old one or the new one."""
    temporary = path.with_suffix(".partial")
    try:
        with open(temporary, "wb") as file:
            file.write(save(state, {"sha256": _digest(state)}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunFailed(f"{path}: the checkpoint cannot be written: {error.strerror}", see="cannot-write") from error


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, or raise an error that says what is wrong with the file."""
    try:
        with safe_open(path, "pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            written = (file.metadata() or {}).get("sha256")
        if written != _digest(state):
            raise ValueError("its bytes differ from those that were written")
        return state
    except (SafetensorError, OSError, ValueError) as error:
        raise FedA2LError(
            f"{path}: is not a readable checkpoint ({error}); restore it from a copy, or start again in another folder",
            see="records-damaged",
        ) from error


def _digest(state: dict[str, Tensor]) -> str:
    """Hash names and values with sha256; safetensors itself checks only its header."""
    total = hashlib.sha256()
    for name in sorted(state):
        total.update(name.encode())
        total.update(state[name].numpy().tobytes())
    return total.hexdigest()


def restore(run: LiveRun, path: Path) -> None:
    """Restore a run from a checkpoint."""
    load(run, read_checkpoint(path), path)


def load(run: LiveRun, state: dict[str, Tensor], path: Path) -> None:
    """Restore a run from the tensors of the checkpoint at `path`."""
    for name, values in _views(run):
        if name not in state or state[name].shape != values.shape:
            shape = list(state[name].shape) if name in state else "nothing"
            raise FedA2LError(
                f"{path}: {name} should be {list(values.shape)}, found {shape}: the checkpoint is of another run",
                see="records-damaged",
            )
        values.copy_(state[name])
    if run.plan.algorithm.rate_search:
        run.restart_rates(run.state.small_state["found"].tolist())
    prefix = "rates."
    try:
        run.state.rates.load_state_dict(
            {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        )
        run.state.round = int(state["round"])
    except (KeyError, RuntimeError) as error:
        raise FedA2LError(
            f"{path}: is not a complete checkpoint of this run: {error} is missing or damaged", see="records-damaged"
        ) from error


def _views(run: LiveRun) -> Iterator[tuple[str, Tensor]]:
    """Yield every matrix of the run's state as named tensors, and the state of its exchange."""
    state = run.state
    matrices = {"model": state.base} | {f"optimizer.{kind}": rows for kind, rows in state.optimizer_state.items()}
    matrices |= {f"algorithm.{name}": rows for name, rows in state.algorithm_state.items()}
    for kind, matrix in matrices.items():
        for slot in state.population.layout.slots:
            yield f"{kind}.{slot.name}", slot.view(matrix)
    yield "optimizer.steps", state.steps
    for name, values in state.small_state.items():
        yield f"algorithm.{name}", values
    for name, values in state.buffers.items():
        yield f"buffers.{name}", values
    yield from run.exchange.checkpoint_state().items()
