"""Gather the state of a run on several ranks for a checkpoint, and scatter it when the run resumes."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from feda2l.distributed.collectives import NodesOnRanks
from feda2l.distributed.ranks import LEADER
from feda2l.errors import FedA2LError
from feda2l.round.run import LiveRun
from feda2l.simulate.checkpoint import load, read_checkpoint, tensors

Contents = list[tuple[str, torch.Size, torch.dtype]]


def gather_state(run: LiveRun) -> dict[str, Tensor] | None:
    """Gather the content of a single-process checkpoint at the leader, one tensor at a time; return None elsewhere."""
    full: dict[str, Tensor] = {}
    axis_of = _node_axes(run)
    for name, local in tensors(run).items():
        axis = axis_of(name)
        if axis is None:
            full[name] = local
        elif (joined := _gather(run, local.movedim(axis, 0).contiguous())) is not None:
            full[name] = joined.movedim(0, axis).contiguous()
    return full if _shared(run).ranks.leads else None


def restore_part(run: LiveRun, path: Path) -> bool:
    """Restore every rank's rows from the leader's checkpoint. Return False if there is no checkpoint."""
    ranks, axis_of, full = _shared(run).ranks, _node_axes(run), dict[str, Tensor]()

    def read() -> Contents | None:
        if not ranks.leads or not path.exists():
            return None
        full.update(read_checkpoint(path))
        for name, values in full.items():
            axis = axis_of(name)
            if axis is not None and (axis >= values.dim() or values.shape[axis] != run.plan.network):
                raise FedA2LError(
                    f"{path}: {name} has shape {list(values.shape)}, which does not fit {run.plan.network} nodes; the "
                    "checkpoint is from another run"
                )
        return [(name, values.shape, values.dtype) for name, values in full.items()]

    contents: Contents | None = ranks.share(ranks.together(read))
    if contents is None:
        return False
    local: dict[str, Tensor] = {}
    for name, shape, dtype in contents:
        local[name] = _scatter(run, axis_of(name), full.get(name), shape, dtype)
    ranks.together(lambda: load(run, local, path))
    return True


def _node_axes(run: LiveRun) -> Callable[[str], int | None]:
    """Return a function from a checkpoint tensor's name to its node axis, or None if every rank holds all of it.

    In the state of a rate rule, the node axis is the one that is shorter for fewer nodes.
    """
    full = run.exchange.start_rates(run.network_plan.rule, run.network_plan.setting).state_dict()
    local = run.exchange.start_rates(run.plan.rule, run.plan.setting).state_dict()
    axes: dict[str, int | None] = {"round": None, "clock": None}
    for key, values in local.items():
        sizes = enumerate(zip(values.shape, full[key].shape, strict=True))
        axes[f"rates.{key}"] = next((axis for axis, (here, all_) in sizes if here != all_), None)
    return lambda name: axes.get(name, None if name.startswith("rates.") else 0)


def _shared(run: LiveRun) -> NodesOnRanks:
    assert isinstance(run.collectives, NodesOnRanks)
    return run.collectives


def _gather(run: LiveRun, local: Tensor) -> Tensor | None:
    """Gather the rows of all ranks at the leader, in the order of node ids."""
    ranks, ids = _shared(run).ranks, _shared(run).placement.ids
    if not ranks.leads:
        ranks.start([(LEADER, local)] if local.numel() else [], []).wait()
        return None
    parts = [local if rank == LEADER else local.new_empty(len(mine), *local.shape[1:]) for rank, mine in enumerate(ids)]
    ranks.start([], [(rank, part) for rank, part in enumerate(parts) if rank != LEADER and part.numel()]).wait()
    full = local.new_empty(run.plan.network, *local.shape[1:])
    for mine, part in zip(ids, parts, strict=True):
        full[torch.from_numpy(mine)] = part
    return full


def _scatter(run: LiveRun, axis: int | None, full: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return the local rows of a tensor that the leader holds."""
    ranks, ids = _shared(run).ranks, _shared(run).placement.ids
    sizes = list(shape)
    if full is not None:
        parts = [full if axis is None else full.index_select(axis, torch.from_numpy(mine)).contiguous() for mine in ids]
        ranks.start([(rank, part) for rank, part in enumerate(parts) if rank != LEADER and part.numel()], []).wait()
        return parts[LEADER]
    if axis is not None:
        sizes[axis] = len(ids[ranks.rank])
    local = torch.empty(sizes, dtype=dtype)
    if local.numel():
        ranks.start([], [(LEADER, local)]).wait()
    return local
