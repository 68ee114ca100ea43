"""From the folders of a network's nodes to one run folder, as the simulator writes it for the same spec."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feda2l.engines.engine import Engine
from feda2l.errors import RunFailed
from feda2l.faults.plan import FaultPlan
from feda2l.records.round_record import MEAN_MODEL, Evaluation, RoundRecord, update_scores
from feda2l.records.run_folder import RunFolder
from feda2l.round.compare import distances
from feda2l.round.run import LiveRun
from feda2l.runs.assemble import Assembled, ModelShape, assemble, populate
from feda2l.runs.datasets import Loaded, load_data
from feda2l.runs.device import find_device
from feda2l.runs.environment import environment
from feda2l.runs.listed_files import copy_files
from feda2l.runs.pack import device_name
from feda2l.runs.summary import searched_rates, write_summary
from feda2l.simulate.checkpoint import read_checkpoint, restore, tensors, write_checkpoint
from feda2l.simulate.loop import RoundLoop
from feda2l.spec.spec import Spec
from feda2l.swarm.join_records import Records, join_round, join_timings, read_records
from feda2l.swarm.observed_faults import observed_fault_plan
from feda2l.swarm.rejected_messages import rejected_messages
from feda2l.swarm.swarm_folder import name_of
from feda2l.topology import Topology


def collect(
    folder: RunFolder,
    states: Sequence[RunFolder],
    spec: Spec,
    graph: Topology,
    *,
    plan: FaultPlan | None = None,
    data: Path | None = None,
    **facts: Any,
) -> None:
    """Write the run folder of a network whose nodes' folders are `states`, in the order of their ids.

    Not all nodes need to have come to the end. Who did not is written down as crashed, and who was not heard as
    dropped: the folder gets a fault plan of what happened, unless there was a plan before.
    """
    records = [read_records(state, spec.rounds) for state in states]
    text = plan.text if plan else observed_fault_plan(records, graph, spec.rounds)
    folder.faults.unlink(missing_ok=True)
    if text:
        folder.write(folder.faults, text.encode())
    own = spec.model_copy(update={"faults": str(folder.faults) if text else None})
    assembled = assemble(own, Loaded.of(load_data(spec.data, data), find_device(spec.runtime)))
    engine = populate([assembled])
    # as it was given, where it was: the folder's copy is found by its name
    given = assembled.spec.model_copy(update={"faults": spec.faults if plan else own.faults})
    folder.write(folder.spec, given.to_toml().encode())
    copy_files(given, folder)
    shape = ModelShape.of(assembled.dataset)._asdict()
    described = environment(engine="peers", device=device_name(assembled.device), pack=1, **shape, **facts)
    folder.write_json(folder.environment, described)
    write_checkpoint(join_checkpoints(assembled, states), folder.checkpoint)
    restore(assembled.live, folder.checkpoint)
    engine.start(spec.runtime.workers)
    try:
        by_class = _write_rounds(folder, states, assembled, engine, records, graph)
    finally:
        engine.close()
    write_summary(assembled, folder, by_class, searched_rates(assembled.live))


def join_checkpoints(assembled: Assembled, states: Sequence[RunFolder]) -> dict[str, Tensor]:
    """The nodes' checkpoints as the simulator's: along the axis that is as long as there are nodes.

    A node that has none stands at its start. Where nodes missed rounds, their histories differ in length: then
    each node's rates stay its own, under `rates.NODE.KEY`, as the simulator has them under a fault plan.
    """
    whole, nodes = tensors(assembled.live), assembled.live.plan.nodes
    found = {id: read_checkpoint(state.checkpoint) for id, state in enumerate(states) if state.checkpoint.exists()}
    parts: dict[str, dict[int, Tensor]] = {}
    for id, own in found.items():
        for key, value in own.items():
            by_node = f"rates.{id}.{key.removeprefix('rates.')}"
            if by_node in whole:
                whole[by_node] = value
            elif key in whole:
                parts.setdefault(key, {})[id] = value
    return whole | {key: _joined(values, whole[key], nodes) for key, values in parts.items()}


def _joined(values: dict[int, Tensor], start: Tensor, nodes: int) -> Tensor:
    """The nodes' values along the axis of nodes, a missing node's from the start; the largest if there is no axis."""
    shapes = enumerate(zip(next(iter(values.values())).shape, start.shape, strict=True))
    axis = next((place for place, lengths in shapes if lengths == (1, nodes)), None)
    if axis is None:  # one for all: the round, how often rates were adapted
        return torch.stack(list(values.values())).max()
    return torch.cat([values[id] if id in values else start.narrow(axis, id, 1) for id in range(nodes)], axis)


def _write_rounds(
    folder: RunFolder,
    states: Sequence[RunFolder],
    assembled: Assembled,
    engine: Engine,
    records: Sequence[Records],
    graph: Topology,
) -> list[float | None] | None:
    """Write all rounds, the last one with the scores of all models together; their accuracy by class is returned."""
    run = assembled.live
    timings = [state.read_timings() for state in states]
    message_log = MessageLog(states, records, graph) if assembled.faults else None
    scores = RoundLoop(engine, [run]).evaluate(run)
    for path in (folder.rounds, folder.timings):
        path.unlink(missing_ok=True)
    for round in range(1, run.plan.rounds + 1):
        own = [each[round - 1] for each in records]
        if not any(own):
            raise RunFailed(f"{folder.path}: no node has a record of round {round}")
        record = join_round(round, own)
        if message_log:
            message_log.add(round, record, run.message * run.plan.algorithm.gossip)
        if round == run.plan.rounds:
            _add_joint_figures(record, own, run, scores)
        folder.append(record, join_timings(round, timings))
    return scores.get("class_accuracy")


def _add_joint_figures(
    record: RoundRecord, own: Sequence[RoundRecord | None], run: LiveRun, scores: Evaluation
) -> None:
    """Add the figures that need all models, if the checkpoint has the models of all nodes that took part."""
    if [node for node, there in enumerate(own) if there] != list(run.present):
        return
    disagreement = distances(run).mean(dim=0)
    record["disagreement"] = float(disagreement.sum())
    layers = record["layers"]
    record["layers"] = {"name": layers["name"], "disagreement": disagreement.tolist(), **layers}
    update_scores(record, {name: scores[name] for name in MEAN_MODEL if name in scores})


class MessageLog:
    """Who heard and refused whom, where not all went well."""

    def __init__(self, states: Sequence[RunFolder], records: Sequence[Records], graph: Topology) -> None:
        self.records, self.near = records, graph.period[0]
        self.refused = [rejected_messages(state.path) for state in states]

    def add(self, round: int, record: RoundRecord, size: int) -> None:
        """Put a round's mail into its record: messages heard and refused, and as sent those that arrived."""
        own = [each[round - 1] for each in self.records]
        refused = [self._refused(round, node) for node in range(len(own))]
        arrived = Counter(j for there, counts in zip(own, refused, strict=True) for j in {*_heard(there), *counts})
        nodes = record["nodes"]
        nodes["bytes_sent"] = [size * arrived[node] for node in range(len(own))]
        nodes["received"] = [there and len(_heard(there)) for there in own]
        nodes["rejected"] = [there and sum(counts.values()) for there, counts in zip(own, refused, strict=True)]
        record["bytes_sent"] = sum(nodes["bytes_sent"])

    def _refused(self, round: int, node: int) -> dict[int, int]:
        """How many messages a node refused, by neighbour; only neighbours of whom it refused some."""
        counts = {j: self.refused[node][round, name_of(j)] for j in self.near[node]}
        return {j: count for j, count in counts.items() if count}


def _heard(record: RoundRecord | None) -> list[int]:
    return record["received"] if record else []
