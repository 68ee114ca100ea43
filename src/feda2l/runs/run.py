"""Run specs and read run folders. The command line and notebooks use this module."""

import json
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch
from torch import nn

from feda2l.distributed.ranks import everywhere, here, leading
from feda2l.errors import FedA2LError, RunFailed
from feda2l.faults.plan import FaultPlan
from feda2l.old_names import current_summary
from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.records.run_folder import RunFolder
from feda2l.runs.assemble import ModelShape, fine_tuned, new_model, pack_key
from feda2l.runs.datasets import Loaded, data_key, load_data
from feda2l.runs.device import find_device
from feda2l.runs.pack import OnRound, RunCallbacks, run_packed
from feda2l.runs.resume import flat
from feda2l.runs.start_ranks import demand_out, demand_same, failed_elsewhere, group_here
from feda2l.simulate.checkpoint import read_checkpoint
from feda2l.spec.spec import Spec
from feda2l.trackers import TrackerLike
from feda2l.trackers.observers import Observers

if TYPE_CHECKING:
    import polars

SpecLike = Spec | PlainMapping | str | Path


class Run:
    """A run folder on disk: its spec, its records and its models."""

    def __init__(self, path: str | Path, *, here: bool = True) -> None:
        self.folder = RunFolder(Path(path))
        if here and not self.folder.started:  # a rank on another host may not have the folder
            raise FedA2LError(f"{path}: is not a run folder (it has no {self.folder.spec.name})", see="no-run")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def checkpoint(self) -> Path:
        """Path of the last checkpoint."""
        if not self.folder.checkpoint.exists():
            raise FedA2LError(f"{self.path}: there is no checkpoint yet; finish the run with --resume", see="no-run")
        return self.folder.checkpoint

    @cached_property
    def spec(self) -> Spec:
        """The resolved spec: every default filled in."""
        return Spec.load_saved(self.folder.spec)

    @property
    def summary(self) -> PlainDict:
        """The content of `summary.json`; empty until the run is finished."""
        return current_summary(json.loads(self.folder.summary.read_text())) if self.folder.summary.exists() else {}

    @cached_property
    def rounds(self) -> "polars.DataFrame":
        """One row per node and round."""
        return self._table(self.folder.rounds_table)

    @cached_property
    def layers(self) -> "polars.DataFrame":
        """One row per node, layer and round: learning rate and multiplier used, divergence and stability measured."""
        return self._table(self.folder.layers_table)

    def model(self, node: int | None = None) -> nn.Module:
        """Return the aggregated model of one node, or the mean model of all nodes, from the last checkpoint."""
        state = self.state(node)
        facts = self._facts
        shape = ModelShape(tuple(facts["input"]), facts["classes"], facts.get("horizon"))
        model = new_model(self.spec.model.name, self.spec.seed, shape)
        if self.spec.model.freeze or not all(parameter.requires_grad for parameter in model.parameters()):
            fine_tuned(model, self.spec.model)  # frozen parameters are not in the checkpoint
        model.load_state_dict(state, strict=False)  # frozen parameters keep the values of the new model
        return model.eval()

    def state(self, node: int | None = None) -> PlainDict:
        """Return the parameters and buffers of one node's model, or of the mean model, by name."""
        saved = read_checkpoint(self.checkpoint)
        nodes, alone = self.spec.data.nodes, self._facts.get("node")
        if alone is not None:  # the folder of one real node
            if node not in (None, alone):
                raise FedA2LError(f"--node {node}: this folder holds node {alone} only")
            node = 0
        if node is not None and not 0 <= node < nodes:
            raise FedA2LError(f"--node {node}: must be 0 to {nodes - 1}")
        present = [0] if alone is not None else self._present(int(saved["round"]))
        state = {}
        for key, value in saved.items():
            kind, _, name = key.partition(".")
            if kind in ("model", "buffers"):
                rows = value if len(present) == len(value) else value[present]
                mean = rows.double().mean(dim=0).to(value.dtype) if value.is_floating_point() else rows[0]
                state[name] = mean if node is None else value[node].clone()
        return state

    @property
    def _facts(self) -> PlainDict:
        facts: PlainDict = json.loads(self.folder.environment.read_text())
        return facts

    def _present(self, round: int) -> list[int]:
        """Return the nodes that took part in a round. The mean model excludes the models of absent nodes."""
        nodes = self.spec.data.nodes
        plan = FaultPlan.load(self.folder.faults, nodes) if self.folder.faults.exists() else FaultPlan()
        return [node for node in range(nodes) if not round or not plan.is_absent(node, round)]

    def _table(self, path: Path) -> "polars.DataFrame":
        import polars

        from feda2l.records.signal_columns import with_new_names

        if not path.exists():
            self.folder.write_tables()
        return with_new_names(polars.scan_parquet(path)).collect()


@overload
def run(
    specs: SpecLike,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    data: str | Path | None = None,
    on_round: OnRound | None = None,
    trackers: Sequence[TrackerLike] = (),
    progress: bool = True,
) -> Run: ...
@overload
def run(
    specs: Sequence[Spec | PlainMapping],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    data: str | Path | None = None,
    on_round: OnRound | None = None,
    trackers: Sequence[TrackerLike] = (),
    progress: bool = True,
) -> list[Run]: ...
def run(
    specs: SpecLike | Sequence[Spec | PlainMapping],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    data: str | Path | None = None,
    on_round: OnRound | None = None,
    trackers: Sequence[TrackerLike] = (),
    progress: bool = True,
) -> Run | list[Run]:
    """Run one spec, or a list of specs, and return the finished `Run` or runs.

    Specs of a list that share data and model are packed: they train as one population and use the machine better.

    Args:
        specs: A `Spec`, a mapping or the path of a TOML file; or a sequence of specs and mappings.
        out: The run folder; for a list, the parent of the run folders. Default: `runs/NAME`.
        resume: Continue from the checkpoints in existing run folders.
        data: The folder of downloaded datasets.
        on_round: Called after every round of every run with its record: a line of `rounds.jsonl` plus the run's `name`.
        trackers: Names (tensorboard, wandb, mlflow) or your own classes, see `feda2l.trackers.Tracker`. An error in a
            tracker does not affect the run.
        progress: Show a progress bar.

    Raises:
        FedA2LError: The spec, the data or the folder cannot be used.
        RunFailed: A single run failed, for example with a non-finite value. Failures in a list are not raised.
    """
    single = isinstance(specs, Spec | Mapping | str | Path)
    listed = [specs] if isinstance(specs, Spec | Mapping | str | Path) else list(specs)
    specs_to_run = everywhere(lambda: [_spec(spec) for spec in listed])
    if not specs_to_run:
        raise FedA2LError("run() needs at least one spec")
    if ranks := here():
        everywhere(lambda: demand_out(out))
        resume = resume or ranks.restarted
        given = [flat(spec) for spec in specs_to_run]
        demand_same(ranks, {f"{i}.{key}": value for i, one in enumerate(given) for key, value in one.items()}, "spec")
        if not ranks.leads:
            from feda2l.runs.follow import follow

            runs = [Run(path, here=False) for path in follow(ranks, data)]
            if not runs:
                raise failed_elsewhere()
            return runs[0] if single else runs
    with leading(ranks) as result, Observers(trackers) as observers:
        callbacks = RunCallbacks(on_round, progress, observers=observers)
        folders, failures = _run(specs_to_run, out, single=single, resume=resume, data=data, callbacks=callbacks)
        result.extend(folder.path for folder in folders)
    if failures and single:
        raise failures[0]
    runs = [Run(folder.path) for folder in folders]
    return runs[0] if single else runs


def _run(
    specs_to_run: list[Spec],
    out: str | Path | None,
    *,
    single: bool,
    resume: bool,
    data: str | Path | None,
    callbacks: RunCallbacks,
) -> tuple[list[RunFolder], list[RunFailed]]:
    """Run specs, grouped into packs. Return their folders and the failures."""
    folders = _folders(specs_to_run, out, single=single, resume=resume)
    group = group_here()
    packs: dict[object, list[int]] = {}
    for number, spec in enumerate(specs_to_run):
        packs.setdefault(pack_key(spec), []).append(number)
    loaded: dict[tuple[Hashable, torch.device], Loaded] = {}
    failures: list[RunFailed] = []
    for numbers in packs.values():
        first = specs_to_run[numbers[0]]
        with first.at_fault():
            device = find_device(first.runtime)
            place = data_key(first.data), device
            if place not in loaded:
                loaded[place] = Loaded.of(load_data(first.data, data), device)
        members = [(specs_to_run[i], folders[i]) for i in numbers]
        failures += run_packed(members, loaded[place], resume=resume, callbacks=callbacks, group=group)
    return folders, failures


def _spec(spec: SpecLike) -> Spec:
    if isinstance(spec, Spec):
        return spec
    return Spec.parse(spec) if isinstance(spec, Mapping) else Spec.load(spec)


def _folders(specs: list[Spec], out: str | Path | None, *, single: bool, resume: bool) -> list[RunFolder]:
    """Return the folder of each run: `out`, or `runs/NAME`. A number makes equal names unique."""
    if single and out is not None:
        return [RunFolder(Path(out))]
    taken: set[Path] = set()
    folders = []
    for spec in specs:
        parent = Path("runs" if out is None else out)
        names = (parent / (spec.name if n == 1 else f"{spec.name}-{n}") for n in range(1, 1 << 30))
        fresh = out is None and not resume
        path = next(path for path in names if path not in taken and not (fresh and path.exists()))
        taken.add(path)
        folders.append(RunFolder(path))
    return folders
