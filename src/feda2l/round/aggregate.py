"""From the neighbours' trained states to the aggregated state (Algorithm 1, lines 5 to 7)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from feda2l.algorithms import Neighbourhood
from feda2l.round.compare import first_equal
from feda2l.round.exchange import NodeTensors
from feda2l.round.run import LiveRun


def aggregate(run: LiveRun, nodes: Sequence[int]) -> bool:
    """Aggregate T -> A at the present nodes, with all values sent with the parameters; absent nodes do not change.

    A round mixes `gossip` times. Weights that an algorithm chooses apply to the first exchange. Returns False if the
    exchange took over the network's state instead.
    """
    absent = [] if len(nodes) == run.plan.nodes else sorted(set(range(run.plan.nodes)) - set(nodes))
    before = [(values, values[absent]) for values in run.state.mixed()] if absent else []
    aggregated = _mix(run, nodes)
    for values, kept in before:
        values[absent] = kept
    return aggregated


def _mix(run: LiveRun, nodes: Sequence[int]) -> bool:
    """Aggregate the rows of all nodes in this process; rows of absent nodes are meaningless and restored afterwards."""
    exchange, algorithm, view = run.exchange, run.plan.algorithm, run.view(nodes)
    published = algorithm.publish(view)
    rows: NodeTensors = published | run.attached()
    # a plain average is written in place, which saves the memory of one state
    into = {"model": view.base} if algorithm.averages_plainly else {}
    for step in range(algorithm.gossip):
        if not exchange.publish(run, rows, step):
            return False
        if step == 0 and algorithm.overrides("weigh"):
            exchange.reweigh(dict(zip(nodes, _of_each(run, nodes, algorithm.weigh), strict=True)))
        combined = _combined(run, nodes) if algorithm.overrides("combine") else {}
        rows = exchange.mix(into) | combined
    average = algorithm.accept(view, published, {name: rows[name] for name in published})
    algorithm.observe(view, average)
    accepted = algorithm.outer_step(view, average)
    if accepted is not view.base:
        view.base.copy_(accepted)
    for name, values in run.attached().items():
        values.copy_(rows[name])
    if run.plan.momentum_state == "reset":
        run.state.reset_optimizer()
    return True


def _combined(run: LiveRun, nodes: Sequence[int]) -> NodeTensors:
    """Combine all received states with the algorithm's own rule, which replaces their weighted mean."""
    model = torch.zeros_like(run.state.trained)
    model[list(nodes)] = torch.stack(_of_each(run, nodes, run.plan.algorithm.combine))
    return {"model": model}


def _of_each(run: LiveRun, nodes: Sequence[int], hook: Callable[[Neighbourhood], Tensor]) -> list[Tensor]:
    """Return the hook's value at each node.

    Nodes with equal states that receive the same states have the same value, so on a full graph it is computed once.
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
