"""A run's state on disk: safetensors, written to a temporary file, synced and renamed; nothing is unpickled."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from feda2l.errors import FedA2LError, RunFailed
from feda2l.simulate.simulation import Simulation


def tensors(simulation: Simulation) -> dict[str, Tensor]:
    """Everything the next round depends on, by name: no time, host, path or rank in it.

    `model.NAME`, `optimizer.KIND.NAME` and `algorithm.KIND.NAME` are [nodes, *shape]; `algorithm.KEY` is the
    algorithm's small state, `rates.KEY` the rule's. Under a fault plan `rates.NODE.KEY` is each node's own and
    `message.NAME` what it published last; a node that is away stands as it was at the end of its last round. Where time
    is simulated, `clock` is when each node begins the coming round.
    """
    state = {name: values.contiguous().cpu() for name, values in _views(simulation)}
    state |= {f"rates.{key}": value.contiguous() for key, value in simulation.rates.state_dict().items()}
    return state | {"round": torch.tensor(simulation.round)}


def save_checkpoint(simulation: Simulation, path: Path) -> None:
    """Write down where a run is."""
    write_checkpoint(tensors(simulation), path)


def write_checkpoint(state: dict[str, Tensor], path: Path) -> None:
    """Replace the checkpoint at once and for good: after a crash there is the old one or the new one."""
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
    """The tensors of a checkpoint, or an error that says what is wrong with the file."""
    try:
        with safe_open(path, "pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            written = (file.metadata() or {}).get("sha256")
        if written != _digest(state):
            raise ValueError("its bytes are not those that were written")
        return state
    except (SafetensorError, OSError, ValueError) as error:
        raise FedA2LError(
            f"{path}: is not a readable checkpoint ({error}); restore it from a copy, or start anew in another folder",
            see="records-damaged",
        ) from error


def _digest(state: dict[str, Tensor]) -> str:
    """sha256 over names and values: safetensors checks its header, not its data."""
    total = hashlib.sha256()
    for name in sorted(state):
        total.update(name.encode())
        total.update(state[name].numpy().tobytes())
    return total.hexdigest()


def restore(simulation: Simulation, path: Path) -> None:
    """Bring a simulation to the state of a checkpoint."""
    load(simulation, read_checkpoint(path), path)


def load(simulation: Simulation, state: dict[str, Tensor], path: Path) -> None:
    """The same from the tensors of the checkpoint at `path`."""
    for name, values in _views(simulation):
        if name not in state or state[name].shape != values.shape:
            found = list(state[name].shape) if name in state else "nothing"
            raise FedA2LError(
                f"{path}: {name} should be {list(values.shape)}, found {found}: it is of another run",
                see="records-damaged",
            )
        values.copy_(state[name])
    if simulation.algorithm.searches:
        simulation.rebase(simulation.notes["found"].tolist())
    prefix = "rates."
    try:
        simulation.rates.load_state_dict(
            {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        )
        simulation.round = int(state["round"])
    except (KeyError, RuntimeError) as error:
        raise FedA2LError(
            f"{path}: is not a whole checkpoint of this run: {error} is missing or damaged", see="records-damaged"
        ) from error


def _views(simulation: Simulation) -> Iterator[tuple[str, Tensor]]:
    """Every matrix of the population as named tensors, the run's rows of each."""
    population, rows = simulation.population, simulation.rows
    matrices = {"model": population.base} | {f"optimizer.{kind}": m for kind, m in population.memory.items()}
    matrices |= {f"algorithm.{name}": population.state[name] for name in simulation.algorithm.memory}
    for kind, matrix in matrices.items():
        for slot in population.layout.slots:
            yield f"{kind}.{slot.name}", slot.view(matrix[rows])
    yield "optimizer.steps", population.steps[rows]
    for name, values in simulation.notes.items():
        yield f"algorithm.{name}", values
    for name, values in population.buffers.items():
        yield f"buffers.{name}", values[rows]
    yield from simulation.kept().items()
