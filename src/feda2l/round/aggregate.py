"""Neighbours' trained states -> aggregated (Algorithm 1, lines 5 to 7)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from feda2l.algorithms import Neighbourhood
from feda2l.round.compare import first_equal
from feda2l.round.exchange import Rows
from feda2l.round.run import LiveRun


def aggregate(run: LiveRun, nodes: Sequence[int]) -> bool:
    """T -> A at the nodes that act, and what travels beside the parameters; all others stay as they are.

    A round mixes `gossip` times; weights that an algorithm chooses are those of its first exchange. False where the
    exchange took over the network's state instead.
    """
    absent = [] if len(nodes) == run.plan.nodes else sorted(set(range(run.plan.nodes)) - set(nodes))
    before = [(values, values[absent]) for values in run.state.mixed()] if absent else []
    aggregated = _mix(run, nodes)
    for values, kept in before:
        values[absent] = kept
    return aggregated


def _mix(run: LiveRun, nodes: Sequence[int]) -> bool:
    """The same for the rows of all nodes here; those of absent ones mean nothing."""
    exchange, algorithm, view = run.exchange, run.plan.algorithm, run.view(nodes)
    published = algorithm.publish(view)
    rows: Rows = published | run.beside()
    # a plain average is written where it belongs: one state less in memory
    into = {"model": view.base} if algorithm.averages_plainly else {}
    for step in range(algorithm.gossip):
        if not exchange.publish(run, rows, step):
            return False
        if step == 0 and algorithm.overrides("weigh"):
            exchange.reweigh(dict(zip(nodes, _of_each(run, nodes, algorithm.weigh), strict=True)))
        combined = _combined(run, nodes) if algorithm.overrides("combine") else {}
        rows = exchange.mix(into) | combined
    accepted = algorithm.accept(view, published, {name: rows[name] for name in published})
    if accepted is not view.base:
        view.base.copy_(accepted)
    for name, values in run.beside().items():
        values.copy_(rows[name])
    if run.plan.momentum_state == "reset":
        run.state.reset_optimizer()
    return True


def _combined(run: LiveRun, nodes: Sequence[int]) -> Rows:
    """The model that the algorithm makes of all received states, in place of their weighted mean."""
    model = torch.zeros_like(run.state.trained)
    model[list(nodes)] = torch.stack(_of_each(run, nodes, run.plan.algorithm.combine))
    return {"model": model}


def _of_each(run: LiveRun, nodes: Sequence[int], hook: Callable[[Neighbourhood], Tensor]) -> list[Tensor]:
    """The hook's value at each node.

    Nodes that receive the same from the same state have the same value: on a full graph one computes it for all.
    """
    state = run.state
    small_state = [values.nan_to_num(nan=-torch.inf) for values in state.small_state.values()]  # NaN equals nothing
    same = first_equal([state.base, *small_state])
    seen: dict[tuple[int, tuple[int, ...]], int] = {}
    values: dict[int, Tensor] = {}
    for near in run.exchange.received(nodes):
        node = near.node
        twin = seen.setdefault((same[node], near.ids), node)
        if twin != node:
            for kept in state.small_state.values():
                kept[node] = kept[twin]
            values[node] = values[twin]
            continue
        own = {name: kept[node] for name, kept in state.small_state.items()}
        movement = run.all_reductions.movement
        values[node] = hook(
            Neighbourhood(
                run.plan.ids[node], near.ids, near.weights, near.samples, state.base[node], own, near.states, movement
            )
        )
    return [values[node] for node in nodes]
