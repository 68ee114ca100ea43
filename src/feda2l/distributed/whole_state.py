"""A run's state is one, however many ranks hold it: gathered for a checkpoint, dealt out when the run goes on."""

from pathlib import Path

import torch
from torch import Tensor

from feda2l.distributed.ranks import LEADER
from feda2l.distributed.sharded import Sharded
from feda2l.errors import FedA2LError
from feda2l.simulate.checkpoint import load, read_checkpoint, tensors

RATES = "rates."
Contents = list[tuple[str, torch.Size, torch.dtype]]


def gather_state(simulation: Sharded) -> dict[str, Tensor] | None:
    """What a checkpoint of one process holds, at the leader; None elsewhere. Tensor by tensor: no rank sends it all."""
    whole: dict[str, Tensor] = {}
    for name, own in tensors(simulation).items():
        axis = _node_axis(simulation, name)
        if axis is None:
            whole[name] = own
        elif (joined := _gather(simulation, own.movedim(axis, 0).contiguous())) is not None:
            whole[name] = joined.movedim(0, axis).contiguous()
    return whole if simulation.ranks.leads else None


def restore_part(simulation: Sharded, path: Path) -> bool:
    """Bring every rank's rows to the state of the leader's checkpoint; False if there is none."""
    ranks, whole = simulation.ranks, dict[str, Tensor]()

    def read() -> Contents | None:
        if not ranks.leads or not path.exists():
            return None
        whole.update(read_checkpoint(path))
        for name, values in whole.items():
            axis = _node_axis(simulation, name)
            if axis is not None and (axis >= values.dim() or values.shape[axis] != simulation.network):
                raise FedA2LError(
                    f"{path}: {name} is {list(values.shape)}, not of {simulation.network} nodes: it is of another run"
                )
        return [(name, values.shape, values.dtype) for name, values in whole.items()]

    contents: Contents | None = ranks.share(ranks.together(read))
    if contents is None:
        return False
    own: dict[str, Tensor] = {}
    for name, shape, dtype in contents:
        own[name] = _deal(simulation, name, whole.get(name), shape, dtype)
    ranks.together(lambda: load(simulation, own, path))
    return True


def _node_axis(simulation: Sharded, name: str) -> int | None:
    """Along which axis of a checkpoint's tensor the nodes lie."""
    if name in ("round", "clock"):  # every rank has the whole network's time
        return None
    return simulation.rate_axes.get(name.removeprefix(RATES)) if name.startswith(RATES) else 0


def _gather(simulation: Sharded, own: Tensor) -> Tensor | None:
    """All ranks' rows in the order of their ids, at the leader."""
    ranks, ids = simulation.ranks, simulation.placement.ids
    if not ranks.leads:
        ranks.start([(LEADER, own)] if own.numel() else [], []).wait()
        return None
    parts = [own if rank == LEADER else own.new_empty(len(mine), *own.shape[1:]) for rank, mine in enumerate(ids)]
    ranks.start([], [(rank, part) for rank, part in enumerate(parts) if rank != LEADER and part.numel()]).wait()
    whole = own.new_empty(simulation.network, *own.shape[1:])
    for mine, part in zip(ids, parts, strict=True):
        whole[torch.from_numpy(mine)] = part
    return whole


def _deal(simulation: Sharded, name: str, whole: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Our rows of a tensor that the leader has."""
    ranks, ids, axis = simulation.ranks, simulation.placement.ids, _node_axis(simulation, name)
    sizes = list(shape)
    if whole is not None:
        parts = [
            whole if axis is None else whole.index_select(axis, torch.from_numpy(mine)).contiguous() for mine in ids
        ]
        ranks.start([(rank, part) for rank, part in enumerate(parts) if rank != LEADER and part.numel()], []).wait()
        return parts[LEADER]
    if axis is not None:
        sizes[axis] = len(ids[ranks.rank])
    own = torch.empty(sizes, dtype=dtype)
    if own.numel():
        ranks.start([], [(LEADER, own)]).wait()
    return own
