"""Combine the folders of a network's nodes into one run folder, like the simulator's folder for the same spec."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

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
from feda2l.swarm.rejection_counts import count_rejections
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
    **facts: object,
) -> None:
    """Write the run folder of a network from the folders of its nodes, `states`, in the order of their ids.

    Not all nodes need to have finished. Without a fault plan, the folder gets a plan of the observed faults: a node
    that did not finish counts as crashed, and a message that was not received counts as dropped.
    """
    records = [read_records(state, spec.rounds) for state in states]
    text = plan.text if plan else observed_fault_plan(records, graph, spec.rounds)
    folder.faults.unlink(missing_ok=True)
    if text:
        folder.write(folder.faults, text.encode())
    collected = spec.model_copy(update={"faults": str(folder.faults) if text else None})
    assembled = assemble(collected, Loaded.of(load_data(spec.data, data), find_device(spec.runtime)))
    engine = populate([assembled])
    # keep the path of the given plan: the copy in the folder has a fixed name
    given = assembled.spec.model_copy(update={"faults": spec.faults if plan else collected.faults})
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
    """Join the nodes' checkpoints into one of the simulator, along the axis whose length is the number of nodes.

    A node without a checkpoint has its initial state. If nodes missed rounds, the lengths of their histories differ.
    Then the rates of each node stay separate under `rates.NODE.KEY`, like those of the simulator under a fault plan.
    """
    full, nodes = tensors(assembled.live), assembled.live.plan.nodes
    checkpoints = {
        id: read_checkpoint(state.checkpoint) for id, state in enumerate(states) if state.checkpoint.exists()
    }
    parts: dict[str, dict[int, Tensor]] = {}
    for id, checkpoint in checkpoints.items():
        for key, value in checkpoint.items():
            by_node = f"rates.{id}.{key.removeprefix('rates.')}"
            if by_node in full:
                full[by_node] = value
            elif key in full:
                parts.setdefault(key, {})[id] = value
    return full | {key: _joined(values, full[key], nodes) for key, values in parts.items()}


def _joined(values: dict[int, Tensor], start: Tensor, nodes: int) -> Tensor:
    """Join the values along the axis of nodes; a missing node keeps its initial value. Without an axis: the maximum."""
    shapes = enumerate(zip(next(iter(values.values())).shape, start.shape, strict=True))
    axis = next((place for place, lengths in shapes if lengths == (1, nodes)), None)
    if axis is None:  # one value for all nodes: the round, the number of rate updates
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
    """Write all rounds, the last one with the scores of all models; return their accuracy by class."""
    run = assembled.live
    timings = [state.read_timings() for state in states]
    message_log = MessageLog(states, records, graph) if assembled.faults else None
    scores = RoundLoop(engine, [run]).evaluate(run)
    for path in (folder.rounds, folder.timings):
        path.unlink(missing_ok=True)
    for round in range(1, run.plan.rounds + 1):
        by_node = [each[round - 1] for each in records]
        if not any(by_node):
            raise RunFailed(
                f"{folder.path}: no node has a record of round {round}; run the same command with --resume", see="swarm"
            )
        record = join_round(round, by_node)
        if message_log:
            message_log.add(round, record, run.message * run.plan.algorithm.gossip)
        if round == run.plan.rounds:
            _add_joint_figures(record, by_node, run, scores)
        folder.append(record, join_timings(round, timings))
    return scores.get("class_accuracy")


def _add_joint_figures(
    record: RoundRecord, by_node: Sequence[RoundRecord | None], run: LiveRun, scores: Evaluation
) -> None:
    """Add the values that need all models, if the checkpoint has the models of all nodes that took part."""
    if [node for node, entry in enumerate(by_node) if entry] != list(run.present):
        return
    disagreement = distances(run).mean(dim=0)
    record["disagreement"] = float(disagreement.sum())
    layers = record["layers"]
    record["layers"] = {"name": layers["name"], "disagreement": disagreement.tolist(), **layers}
    update_scores(record, {name: scores[name] for name in MEAN_MODEL if name in scores})


class MessageLog:
    """Counts of received and rejected messages, for a run with faults."""

    def __init__(self, states: Sequence[RunFolder], records: Sequence[Records], graph: Topology) -> None:
        self.records, self.neighbours = records, graph.period[0]
        self.refused = [count_rejections(state.path) for state in states]

    def add(self, round: int, record: RoundRecord, size: int) -> None:
        """Add a round's counts to its record: received and rejected messages; a message that arrived counts as sent."""
        by_node = [each[round - 1] for each in self.records]
        refused = [self._refused(round, node) for node in range(len(by_node))]
        arrived = Counter(
            j for record_of, counts in zip(by_node, refused, strict=True) for j in {*_received(record_of), *counts}
        )
        nodes = record["nodes"]
        nodes["bytes_sent"] = [size * arrived[node] for node in range(len(by_node))]
        nodes["received"] = [record_of and len(_received(record_of)) for record_of in by_node]
        nodes["rejected"] = [
            record_of and sum(counts.values()) for record_of, counts in zip(by_node, refused, strict=True)
        ]
        record["bytes_sent"] = sum(nodes["bytes_sent"])

    def _refused(self, round: int, node: int) -> dict[int, int]:
        """The number of messages that a node rejected, for every neighbour with at least one."""
        counts = {j: self.refused[node][round, name_of(j)] for j in self.neighbours[node]}
        return {j: count for j, count in counts.items() if count}


def _received(record: RoundRecord | None) -> list[int]:
    return record["received"] if record else []
