"""Read the kept records of one study, cell by cell, in the order of its file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars

from feda2l.errors import FedA2LError
from feda2l.report.curves import read_curves
from feda2l.report.find_runs import Notes, find_any_runs, flatten
from feda2l.report.paper_numbers import paper_number
from feda2l.report.paper_settings import PARAMETER
from feda2l.report.results import Cell
from feda2l.report.run_figures import Figures, figures_of
from feda2l.report.significance import (
    CensoredTest,
    EquivalenceTest,
    PairedTest,
    equivalence_test,
    paired_test,
    times_test,
)
from feda2l.studies.cells import StudyCell
from feda2l.studies.study import Study

SCORES = ("best_smoothed", "last_10")
# the keys that define a setting of the paper's main table
SETTING = ("rates.name", "algorithm.name", "data.", "topology.", "runtime.", "training.optimizer")
# keys whose value decides whether the paper has a number; `paper_number` checks them
VALUED = ("rates.base", "rates.consensus_sign", "training.momentum")


@dataclass(frozen=True)
class Evidence:
    """A study with the results of its kept runs; `missing` names the cells without any."""

    folder: Path
    study: Study
    cells: dict[str, Cell]

    @cached_property
    def missing(self) -> list[str]:
        return [cell.name for cell in self.study.cells if cell.name not in self.cells]

    @property
    def runs(self) -> list[Figures]:
        return [figures for cell in self.cells.values() for figures in cell.seeds]


def with_longer(own: Evidence, longer: Evidence) -> Evidence:
    """Add the seeds that only a longer study of the same cells has, each cut to this study's rounds."""

    def added(cell: Cell) -> Cell:
        there = {figures.run.seed for figures in cell.seeds}
        others = longer.cells[cell.row].seeds if cell.row in longer.cells else []
        more = [_cut(figures, cell.rounds) for figures in others if figures.run.seed not in there]
        return replace(cell, seeds=sorted([*cell.seeds, *more], key=lambda figures: figures.run.seed))

    return replace(own, cells={name: added(cell) for name, cell in own.cells.items()})


def _cut(figures: Figures, rounds: int) -> Figures:
    """Return a run's results after its first rounds; a shorter run has the same, as schedules depend on the horizon."""
    run, curve = figures.run, figures.curve
    shorter = replace(
        curve,  # except `last`, which remains that of the whole run
        score=curve.score[:rounds],
        disagreement=curve.disagreement[:rounds],
        bytes_sent=curve.bytes_sent[:rounds],
        seconds=None if curve.seconds is None else curve.seconds[:rounds],
    )
    return figures_of(replace(run, spec={**run.spec, "rounds": rounds}), shorter)


def of_common_seeds(first: Cell, second: Cell) -> tuple[Cell, Cell]:
    """Restrict two cells to the seeds that both have."""
    seeds = {f.run.seed for f in first.seeds} & {f.run.seed for f in second.seeds}
    one, other = (replace(cell, seeds=[f for f in cell.seeds if f.run.seed in seeds]) for cell in (first, second))
    return one, other


def pairs(first: Cell, second: Cell, measure: str) -> list[tuple[float, float]]:
    """Pair the values of the second cell and the first, for every seed for which both have one."""
    ours, theirs = of_common_seeds(first, second)
    both = zip((getattr(f, measure) for f in theirs.seeds), (getattr(f, measure) for f in ours.seeds), strict=True)
    return [(before, after) for before, after in both if before is not None and after is not None]


def difference(first: Cell, second: Cell, measure: str) -> PairedTest | None:
    """Test a score of the first cell minus the second over the seeds that both have; None without common seeds."""
    known = pairs(first, second, measure)
    return paired_test([before for before, _ in known], [after for _, after in known]) if known else None


def difference_of_rounds(first: Cell, second: Cell) -> PairedTest | CensoredTest | None:
    """Test interpolated rounds of the first cell minus the second; ranks if a run did not reach the target."""
    ours, theirs = of_common_seeds(first, second)
    if not ours.seeds:
        return None
    return times_test([f.interpolated for f in theirs.seeds], [f.interpolated for f in ours.seeds])


def equivalence(first: Cell, second: Cell, margin: float) -> EquivalenceTest | None:
    """Test whether the best smoothed accuracies are closer than a margin in points; None without common seeds."""
    known = pairs(first, second, "best_smoothed")
    if not known:
        return None
    return equivalence_test([100 * before for before, _ in known], [100 * after for _, after in known], margin)


@cache
def read_evidence(folder: Path) -> Evidence:
    """Read every run kept in a study's folder, once per page: `fill` clears the cache."""
    study, notes = Study.load(folder / "study.toml"), Notes()
    runs = find_any_runs([folder], notes)  # none where only a first stage is kept, for example a target
    curves = read_curves(runs, notes)
    by_cell: dict[str, list[Figures]] = {}
    for run in runs:
        if run.path in curves:
            by_cell.setdefault(run.path.parent.name, []).append(figures_of(run, curves[run.path]))
    cells = {}
    for cell in study.cells:
        if seeds := sorted(by_cell.get(cell.name, []), key=lambda figures: figures.run.seed):
            varied = varied_keys(study, cell)
            paper = None if varied is None else paper_number(seeds[0].run, varied)
            cells[cell.name] = Cell(cell.name, seeds, paper)
    return Evidence(folder, study, cells)


def varied_keys(study: Study, cell: StudyCell) -> tuple[str, ...] | None:
    """Return the keys that vary in the paper's table of a cell; None for a cell that is in no table.

    A cell that changes one of FedA2L's own parameters belongs to the sensitivity table. So does the unchanged cell of
    such a study. For a deep model, both presets are compared with the paper's number, as it may be of either.
    """
    own = _keys(study.variants | study.extra, cell.variant) | cell.axes.keys()
    free = (*SETTING, *VALUED, *(["rates.preset"] if cell.spec(1).model.name != "cnn" else []))
    changed = {key for key in own if not key.startswith(free)}
    if cell.block or not changed <= PARAMETER.keys():
        return None
    beside = {key for variant in study.variants for key in _keys(study.variants, variant)}
    if changed or (not own and beside & PARAMETER.keys()):
        return tuple(PARAMETER)
    return ("rates.name",)


def _keys(tables: Mapping[str, Mapping[str, Any]], name: str | None) -> set[str]:
    return set(flatten(tables.get(name or "", {})))


@dataclass(frozen=True)
class Multipliers:
    """Statistics of a cell's multipliers over all nodes, layers, seeds and rounds with adapted rates."""

    mean: float
    std: float
    low: float
    high: float
    follow: float  # correlation of a multiplier with that of the same layer one round earlier
    layers: float  # standard deviation of the layers' means, each over all nodes, rounds and seeds
    rates: float  # mean rate of all rounds divided by the base rate


def multipliers(cell: Cell, first: int) -> Multipliers:
    """Compute the statistics from the records of all seeds, from round `first` on."""
    table = _layers(cell)
    rates = float(np.array(table["rate"]).mean()) / float(cell.example.run.keys["rates.base"])
    table = table.filter(polars.col("round") >= first).sort("seed", "node", "layer", "round")
    one_back = polars.col("multiplier").shift(1).over("seed", "node", "layer")
    before = table.with_columns(before=one_back).drop_nulls("before")
    spread = np.array(table.group_by("layer").agg(polars.col("multiplier").mean())["multiplier"]).std(ddof=1)
    values = np.array(table["multiplier"])
    follow = np.corrcoef(np.array(before["before"]), np.array(before["multiplier"]))[0, 1] if values.std() else 0.0
    return Multipliers(
        mean=float(values.mean()),
        std=float(values.std(ddof=1)),
        low=float(values.min()),
        high=float(values.max()),
        follow=float(follow),
        layers=float(spread),
        rates=rates,
    )


def layer_means(cell: Cell, first: int) -> polars.DataFrame:
    """Mean divergence and multiplier of each layer, over seeds, nodes and the rounds from `first` on."""
    table = _layers(cell).filter(polars.col("round") >= first)
    return table.group_by("layer").agg(polars.col("divergence", "multiplier").mean()).sort("layer")


def _layers(cell: Cell) -> polars.DataFrame:
    wanted = ("round", "node", "layer", "rate", "multiplier", "divergence")
    frames = [figures.run.records.layers(wanted) for figures in cell.sound]
    kept = [frame.with_columns(seed=polars.lit(seed)) for seed, frame in enumerate(frames) if frame is not None]
    if len(kept) < len(frames):
        path = cell.example.run.path.parent
        raise FedA2LError(f"{path}: a page needs the rows per layer of these runs, which the bundle does not hold")
    return polars.concat(kept)
