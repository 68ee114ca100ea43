"""Tables as values: the methods of each setting, which is first, by how much, and whether it is significant."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from feda2l.rates import RULES
from feda2l.rates.base import Role
from feda2l.report.curves import mean_curve
from feda2l.report.find_runs import FoundRun, Notes
from feda2l.report.layout import StudyRuns, TableLayout, label, lay_out, order, usual_values
from feda2l.report.metrics import RoundsToTarget, rounds_over_seeds
from feda2l.report.paper_numbers import PaperMatch, PaperNumber, compare_with_paper
from feda2l.report.run_figures import Figures, first_rounds, smooth
from feda2l.report.significance import CensoredTest, PairedTest, times_test

NEVER = math.inf
RIVALS: dict[str, tuple[Role, ...]] = {"other rule": ("constant", "baseline"), "control": ("control",)}
_Groups = dict[tuple[str, str], dict[tuple[str, ...], dict[str, list[Figures]]]]


@dataclass(frozen=True)
class Cell:
    """A method in a setting, with its seeds."""

    row: str
    seeds: list[Figures]
    paper: PaperNumber | None = None
    differs: tuple[str, ...] = ()  # the settings that keep the paper's number away

    @property
    def example(self) -> Figures:
        return self.seeds[0]

    @cached_property
    def role(self) -> Role:
        """The role of its rule in a comparison; a user's rule is a baseline."""
        kind = RULES.get(str(self.example.run.keys.get("rates.name")))
        return kind.role if kind is not None else "baseline"

    @property
    def rounds(self) -> int:
        """The rounds of each seed; if they differ, the fewest."""
        return min(figures.run.rounds for figures in self.seeds)

    @property
    def non_finite(self) -> int:
        return sum(figures.run.non_finite for figures in self.seeds)

    @cached_property
    def sound(self) -> list[Figures]:
        """The finite seeds; if no seed is finite, all of them."""
        return [figures for figures in self.seeds if not figures.run.non_finite] or self.seeds

    @cached_property
    def reach(self) -> RoundsToTarget:
        return rounds_over_seeds([figures.reached for figures in self.seeds])

    @cached_property
    def interpolated(self) -> RoundsToTarget:
        return rounds_over_seeds([figures.interpolated for figures in self.seeds])

    @cached_property
    def simulated(self) -> RoundsToTarget | None:
        """Simulated seconds to the target; None if a seed has no simulated time."""
        if any(figures.curve.seconds is None for figures in self.seeds):
            return None
        return rounds_over_seeds([figures.simulated for figures in self.seeds])

    @cached_property
    def curve_averaged(self) -> int | None:
        """The first round at which the smoothed mean curve of the seeds reaches the target, as the paper counts.

        None if a seed is non-finite, as its curve ends early.
        """
        run = self.example.run
        if run.target is None or self.non_finite:
            return None
        mean = mean_curve([figures.curve.score for figures in self.seeds])
        return first_rounds(smooth(mean, run.window), [run.target], falls=run.falls)[0]

    def over_seeds(self, what: str) -> list[float]:
        """The value of an attribute for each seed that has it."""
        return [value for figures in self.seeds if (value := getattr(figures, what)) is not None]

    @cached_property
    def grid(self) -> dict[float, RoundsToTarget]:
        targets = self.example.grid
        return {target: rounds_over_seeds([figures.grid.get(target) for figures in self.seeds]) for target in targets}


@dataclass(frozen=True)
class Contest:
    """The methods of one setting, which differ only in the row."""

    block: str
    column: str
    cells: list[Cell]

    @property
    def where(self) -> str:
        """The setting in words; empty if the table has one setting only."""
        return " / ".join(word for word in (self.block, self.column) if word != "all")

    @property
    def target(self) -> float | None:
        return self.cells[0].example.run.target

    @property
    def naive(self) -> tuple[str, float] | None:
        """The better forecast without training and its MSE; None if nothing is forecast."""
        naive = self.cells[0].example.run.naive
        return min(naive.items(), key=lambda item: item[1], default=None)

    @cached_property
    def by(self) -> Literal["mean", "median"]:
        """What rounds are ranked by: the mean, or the median if only some seeds of a method reached the target."""
        partly = any(0 < cell.reach.reached < cell.reach.runs for cell in self.cells)
        return "median" if partly else "mean"

    def rounds(self, cell: Cell) -> float:
        """The value for ranking; infinite if the target was not reached."""
        return self._ranked(cell.reach)

    def place(self, cell: Cell) -> int | None:
        """1 for the fastest, 2 for the next; ties share a place; None for all others."""
        return place_of(self.rounds(cell), map(self.rounds, self.cells))

    def simulated_place(self, cell: Cell) -> int | None:
        """The same for simulated seconds."""
        return place_of(self._ranked(cell.simulated), [self._ranked(other.simulated) for other in self.cells])

    def _ranked(self, reach: RoundsToTarget | None) -> float:
        value = reach and (reach.median if self.by == "median" else reach.mean)
        return NEVER if value is None else float(value)

    def best_place(self, cell: Cell) -> int | None:
        """The same for the best score."""
        falls = cell.example.run.falls
        means = [_mean_score(other, falls) for other in self.cells]
        return place_of(_mean_score(cell, falls), means)

    def fastest(self, roles: Sequence[Role]) -> Cell | None:
        """The fastest cell with one of these roles; None if there is none."""
        own = [cell for cell in self.cells if cell.role in roles]
        return min(own, key=self.rounds) if own else None

    def improvement(self, cell: Cell, roles: Sequence[Role] = RIVALS["other rule"]) -> tuple[float, bool] | None:
        """Rounds saved against the fastest of the others, in percent; True: a lower bound, as none of them reached it.

        In that case the paper prints 100 %. All that is known is that they need more rounds than they had.
        """
        rival = self.fastest(roles)
        if rival is None or self.target is None:
            return None
        ours, theirs = self.rounds(cell), self.rounds(rival)
        if ours == NEVER:
            return None
        never = theirs == NEVER
        theirs = rival.rounds if never else theirs
        return 100 * (theirs - ours) / theirs, never

    def speed_up(self, cell: Cell) -> tuple[float, bool] | None:
        """How many times as fast as the fastest constant rate; True: a lower bound, as that missed the target."""
        constant = self.fastest(["constant"])
        if constant is None or self.rounds(cell) == NEVER:
            return None
        never = self.rounds(constant) == NEVER
        return (constant.rounds if never else self.rounds(constant)) / self.rounds(cell), never

    def test(self, cell: Cell, rival: Cell) -> PairedTest | CensoredTest | None:
        """Test the interpolated rounds of two cells, paired by seed; by ranks if a run missed the target."""
        theirs = {figures.run.seed: figures.interpolated for figures in rival.seeds}
        pairs = [(theirs[f.run.seed], f.interpolated) for f in cell.seeds if f.run.seed in theirs]
        if not pairs or self.target is None:
            return None
        return times_test([first for first, _ in pairs], [second for _, second in pairs])

    def tests(self, cell: Cell) -> Iterator[tuple[str, Cell, PairedTest | CensoredTest | None]]:
        """Test FedA2L against the fastest rival of each kind, unless neither reached the target."""
        for kind, roles in RIVALS.items() if cell.role == "ours" else ():
            rival = self.fastest(roles)
            if rival and not self.rounds(cell) == self.rounds(rival) == NEVER:
                yield kind, rival, self.test(cell, rival)


@dataclass(frozen=True)
class ResultTable:
    """Settings with the same rows, in blocks and columns."""

    title: str
    study: str
    layout: TableLayout
    contests: list[Contest]

    @property
    def metric(self) -> str:
        return self.contests[0].cells[0].example.run.metric

    @cached_property
    def cells(self) -> list[tuple[Contest, Cell]]:
        """All methods of all settings."""
        return [(contest, cell) for contest in self.contests for cell in contest.cells]

    @cached_property
    def placed(self) -> dict[tuple[str, str, str], tuple[Contest, Cell]]:
        """Setting and method by block, column and row."""
        return {(contest.block, contest.column, cell.row): (contest, cell) for contest, cell in self.cells}

    @cached_property
    def runs(self) -> list[FoundRun]:
        return [figures.run for _, cell in self.cells for figures in cell.seeds]

    @cached_property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for _, cell in self.cells))

    @cached_property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(contest.column for contest in self.contests))

    @cached_property
    def blocks(self) -> list[str]:
        return list(dict.fromkeys(contest.block for contest in self.contests))

    def races(self, *, controls: bool) -> list[tuple[Contest, list[Cell]]]:
        """The settings with two methods or more of which one reached the target, and these methods."""
        runners = [(c, [cell for cell in c.cells if controls or cell.role != "control"]) for c in self.contests]
        return [(c, cells) for c, cells in runners if len(cells) > 1 and min(map(c.rounds, cells)) < NEVER]

    def firsts(self, *, controls: bool) -> dict[str, tuple[int, int]]:
        """In how many settings each row was fastest: with ties, and alone."""
        count: dict[str, tuple[int, int]] = {}
        for contest, cells in self.races(controls=controls):
            best = min(map(contest.rounds, cells))
            first = [cell.row for cell in cells if contest.rounds(cell) == best]
            for cell in cells:
                tied, alone = count.get(cell.row, (0, 0))
                count[cell.row] = tied + (cell.row in first), alone + (first == [cell.row])
        return count


def tables_of(
    study: StudyRuns, figures: Mapping[Path, Figures], notes: Notes, *, paper: bool = True
) -> list[ResultTable]:
    """The tables of a study; runs with different data or targets share one only if the study asks for it."""
    runs = [run for run in study.runs if run.path in figures]
    if not runs:
        return []
    layout = lay_out(runs, study.wishes, notes)
    varied = (*layout.rows, *layout.columns, *layout.blocks)
    tables = _grouped([figures[run.path] for run in runs], layout.tables, layout.blocks, layout.columns, layout.rows)
    several = len({run.metric for run in runs}) > 1
    found = []
    for (title, metric), contests in tables.items():
        made = [
            Contest(block, column, [_cell(row, seeds, varied, paper, notes) for row, seeds in rows.items()])
            for (block, column), rows in contests.items()
        ]
        words = " / ".join(filter(None, (study.name, title * (title != "all"), metric * several)))
        found.append(ResultTable(words or "results", study.name, layout, made))
    return found


def _grouped(every: Sequence[Figures], *directions: tuple[str, ...]) -> _Groups:
    """Group runs by table and metric, then by block and column, then by row; everything in the order of its keys."""
    usual = [usual_values([figures.run for figures in every], keys) for keys in directions]
    groups: _Groups = {}
    for figures in sorted(every, key=lambda figures: [order(figures.run, keys) for keys in directions]):
        run = figures.run
        table, *setting, row = (label(run, keys, values) for keys, values in zip(directions, usual, strict=True))
        contests = groups.setdefault((table, run.metric), {})
        contests.setdefault(tuple(setting), defaultdict(list))[row].append(figures)
    return groups


def _cell(row: str, seeds: list[Figures], varied: tuple[str, ...], paper: bool, notes: Notes) -> Cell:
    by_seed: dict[int, Figures] = {}
    for figures in seeds:
        if figures.run.seed in by_seed:
            notes.add(
                "several runs of one method in one setting have the same seed; all count, paired tests use the first",
                figures.run.path,
            )
        by_seed.setdefault(figures.run.seed, figures)
    seeds = sorted(seeds, key=lambda figures: figures.run.seed)
    beside = compare_with_paper(seeds[0].run, varied) if paper else PaperMatch()
    return Cell(row, seeds, beside.number, beside.differs)


def place_of(value: float, values: Iterable[float]) -> int | None:
    """1 for the lowest of the values, 2 for the next; equal values share a place; None for all others and `NEVER`."""
    distinct = sorted({other for other in values if other < NEVER})
    return next((place for place, other in enumerate(distinct[:2], start=1) if other == value), None)


def _mean_score(cell: Cell, falls: bool) -> float:
    best = cell.over_seeds("best")
    if not best:
        return NEVER
    return round((1 if falls else -1) * sum(best) / len(best), 12)
