"""A result table as text: the entry of each cell and its mark, independent of the output format."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from feda2l.rates.base import Role
from feda2l.report.metrics import RoundsToTarget
from feda2l.report.paper_numbers import flag_texts
from feda2l.report.results import NEVER, RIVALS, Cell, Contest, ResultTable
from feda2l.report.words import (
    beyond_words,
    last_words,
    rounds_words,
    score_words,
    seconds_words,
    shared,
    significance_lines,
    speed_words,
    target_words,
)

Found = tuple[Contest, Cell] | None
GRID_SHOWN = 7
TESTS_SHOWN = 8
NAMES_SHOWN = 6


class SheetEntry(NamedTuple):
    """One cell: place 1 is printed bold, place 2 underlined."""

    text: str
    place: int | None = None


@dataclass(frozen=True)
class Sheet:
    """A header and rows of the same length, with a title and notes."""

    title: str
    header: list[str]
    rows: list[list[SheetEntry]]
    notes: list[str] = field(default_factory=list)


def sheets_of(table: ResultTable) -> list[Sheet]:
    """All sheets of a table: rounds to the target, scores, times, all figures, and rounds to a grid of targets."""
    sheets = [rounds_sheet(table)] if any(contest.target is not None for contest in table.contests) else []
    times = [*simulated_sheets(table), *time_sheets(table)]
    return [*sheets, scores_sheet(table), *times, details_sheet(table), *grid_sheets(table)]


def rounds_sheet(table: ResultTable) -> Sheet:
    """One row per rule and one column per setting, as in the paper, with the paper's numbers beside ours."""
    paper = {contest.column for contest, cell in table.cells if cell.paper}
    header = [_row_title(table)]
    for column in table.columns:
        name = _column_title(table, column)
        header += [name, f"{name}: the paper"][: 1 + (column in paper)]
    rows: list[list[SheetEntry]] = []
    for block in table.blocks:
        rows += _block_rows(table, block, _rounds_entries, paper)
        rows += _improvement_rows(table, block, paper)
    return Sheet("Rounds to target", header, rows, _rounds_notes(table))


def scores_sheet(table: ResultTable) -> Sheet:
    """The best score of each method, mean and spread over seeds."""

    def entries(found: Found) -> list[SheetEntry]:
        if found is None:
            return [SheetEntry("")]
        contest, cell = found
        text = score_words(cell.over_seeds("best"), table.metric)
        return [SheetEntry(text or f"diverged ({cell.non_finite}/{len(cell.seeds)})", contest.best_place(cell))]

    what = "Best accuracy, %" if table.metric == "accuracy" else f"Lowest test {table.metric.upper()}"
    header = [_row_title(table), *(table.metric if column == "all" else column for column in table.columns)]
    rows = [row for block in table.blocks for row in _block_rows(table, block, entries, ())]
    notes = [
        "From the raw curve of the mean over nodes; mean ± sample standard deviation over seeds.",
        *unequal_notes(table),
    ]
    return Sheet(what, header, rows, notes)


def simulated_sheets(table: ResultTable) -> list[Sheet]:
    """Seconds on the simulated network, if there is one: to the target, per round and in total."""
    if not any(cell.simulated for _, cell in table.cells):
        return []
    rows = []
    for contest, cell in table.cells:
        first = SheetEntry("no target" if cell.simulated else "no simulated time")
        if cell.simulated and contest.target is not None:
            in_all = max(figures.simulated_in_all or 0.0 for figures in cell.seeds)
            first = SheetEntry(rounds_words(cell.simulated, f"{in_all:.2f}", digits=2), contest.simulated_place(cell))
        rest = [seconds_words(cell.over_seeds(name), 2) for name in ("simulated_a_round", "simulated_in_all")]
        rows.append([SheetEntry(contest.where), SheetEntry(cell.row), first, *map(SheetEntry, rest)])
    header = ["setting", _row_title(table), "seconds to target", "seconds per round", "seconds in total"]
    notes = [
        "The time that the rounds would take on the network of the spec ([network]); a round is complete when its last "
        "node is. Mean ± sample standard deviation over seeds. **First**, <u>second</u>."
    ]
    return [Sheet("Simulated time", header, rows, notes)]


def time_sheets(table: ResultTable) -> list[Sheet]:
    """Minutes to the target beside the paper's, of runs that had the machine to themselves."""
    if not any(cell.over_seeds("seconds_with_evaluation") for _, cell in table.cells):
        return []
    rows = []
    for contest, cell in table.cells:
        minutes = [[value / 60 for value in cell.over_seeds(name)] for name in ("seconds", "seconds_with_evaluation")]
        theirs = "" if cell.paper is None or cell.paper.minutes is None else f"{cell.paper.minutes:.1f}"
        rows.append([SheetEntry(text) for text in (contest.where, cell.row, *map(seconds_words, minutes), theirs)])
    header = ["setting", _row_title(table), "minutes", "minutes with evaluation", "the paper, minutes"]
    notes = ["Of the seeds that reached the target. The paper includes evaluation, on an RTX 4090."]
    return [Sheet("Time to target", header, rows, notes)]


def details_sheet(table: ResultTable) -> Sheet:
    """All results of each method in each setting."""
    header = [*_told(table, "block", "setting"), _row_title(table), "reached", "median", "mean ± std", "population std"]
    header += ["interpolated", "of the mean curve", "against constant", "best", "best smoothed"]
    header += [last_words(itertools.chain(*(cell.seeds for _, cell in table.cells)))]
    header += ["s to target", "s with evaluation", "MB sent"]
    rows = [
        [*_told(table, contest.block, contest.column), cell.row, *_details(contest, cell, table.metric)]
        for contest, cell in table.cells
    ]
    notes = [
        "Interpolated: where the line between two rounds crosses the target. "
        "Of the mean curve: from the mean of the seeds' curves, as the paper counts. Against constant: rounds of the "
        "constant rate divided by those of the method. Seconds: training, mixing and adapting, only of runs that had "
        "the machine to themselves.",
    ]
    return Sheet("All figures", header, [[SheetEntry(text) for text in row] for row in rows], notes)


def unequal_notes(table: ResultTable) -> list[str]:
    """In which settings the methods were not run for equally many rounds, or not to the same target."""
    notes = []
    for contest in table.contests:
        where = f"{contest.where}: " if contest.where else ""
        runs = [figures.run for cell in contest.cells for figures in cell.seeds]
        rounds, targets = {run.rounds for run in runs}, {run.target for run in runs}
        if len(rounds) > 1:
            shown = ", ".join(map(str, sorted(rounds)))
            notes.append(f"{where}rounds differ: {shown}. A longer run has more rounds to reach its best score.")
        if len(targets) > 1:
            shown = ", ".join(_target_shown(target, table.metric) for target in sorted(targets, key=str))
            notes.append(f"{where}targets differ: {shown}. The rounds to different targets are not comparable.")
    return notes


def _target_shown(target: float | None, metric: str) -> str:
    return "no target" if target is None else target_words(target, falls=metric == "mse").removeprefix("target ")


def grid_sheets(table: ResultTable) -> list[Sheet]:
    """Rounds to several targets; for tables with many settings, only the CSV has them."""
    if len(table.contests) > 4:
        return []
    sheets = []
    for contest in table.contests:
        targets = shown_targets(contest)
        if not targets:
            continue
        falls = contest.cells[0].example.run.falls
        rows = [
            [SheetEntry(cell.row), *(_grid_entry(cell.grid[target]) for target in targets)] for cell in contest.cells
        ]
        header = [_row_title(table), *(f"{target:g}" if falls else f"{100 * target:g} %" for target in targets)]
        notes = [
            "Median over seeds; a seed that does not reach the target counts as later than all others; -: not reached."
        ]
        where = f": {contest.where}" if contest.where else ""
        sheets.append(Sheet(f"Rounds to a grid of targets{where}", header, rows, notes))
    return sheets


def _grid_entry(reach: RoundsToTarget) -> SheetEntry:
    text = "-" if reach.median is None else f"{reach.median:g}"
    return SheetEntry(text if reach.reached == reach.runs else f"{text} ({reach.reached}/{reach.runs})")


def shown_targets(contest: Contest) -> list[float]:
    """The hardest targets of the grid that a method reached, as all methods reach the easy ones alike."""
    reached = [
        target
        for target in contest.cells[0].grid
        if any(target in cell.grid and cell.grid[target].reached for cell in contest.cells)
    ]
    falls = contest.cells[0].example.run.falls
    return sorted(sorted(reached, reverse=not falls)[:GRID_SHOWN], reverse=falls)


def _details(contest: Contest, cell: Cell, metric: str) -> list[str]:
    reach, sent = cell.reach, cell.over_seeds("sent")
    rounds = ["no target", *[""] * 6]
    if contest.target is not None:
        spread = "" if reach.std is None else f" ± {reach.std:.2f}"
        rounds = [
            f"{reach.reached} of {reach.runs}",
            beyond_words(reach.median, cell.rounds),
            "" if reach.mean is None else f"{reach.mean:.1f}{spread}",
            "" if reach.population_std is None else f"{reach.population_std:.2f}",
            rounds_words(cell.interpolated, cell.rounds, digits=2),
            "" if cell.non_finite else beyond_words(cell.curve_averaged, cell.rounds),
            speed_words(contest, cell),
        ]
    rounds[0] += f", {cell.non_finite} diverged" * (cell.non_finite > 0)
    return [
        *rounds,
        *(score_words(cell.over_seeds(name), metric) for name in ("best", "best_smoothed", "last_10")),
        *(seconds_words(cell.over_seeds(name)) for name in ("seconds", "seconds_with_evaluation")),
        f"{sum(sent) / len(sent) / 1e6:,.1f}" if sent else "",
    ]


def _told(table: ResultTable, block: str, column: str) -> list[str]:
    """The block and the column, each only if the table has several."""
    return [word for word, words in ((block, table.blocks), (column, table.columns)) if len(words) > 1]


def _block_rows(
    table: ResultTable, block: str, entries: Callable[[Found], list[SheetEntry]], paper: Collection[str]
) -> list[list[SheetEntry]]:
    """One row per method, below the name of the block if there are several; `paper` names columns with two entries."""
    blank = [SheetEntry("")] * (len(table.columns) + len(paper))
    rows = [[SheetEntry(block), *blank]] if len(table.blocks) > 1 else []
    for row in _rows_of(table, block):
        rows.append([SheetEntry(row)])
        for column in table.columns:
            rows[-1] += entries(table.placed.get((block, column, row)))[: 1 + (column in paper)]
    return rows


def _rounds_entries(found: Found) -> list[SheetEntry]:
    """Our rounds and the paper's rounds."""
    if found is None:
        return [SheetEntry(""), SheetEntry("")]
    contest, cell = found
    ours = SheetEntry("no target")
    if contest.target is not None:
        searched = " [search]" * bool(cell.over_seeds("search"))
        ours = SheetEntry(rounds_words(cell.reach, cell.rounds) + searched, contest.place(cell))
    return [ours, SheetEntry(cell.paper.text if cell.paper else "")]


def _improvement_rows(table: ResultTable, block: str, paper: set[str]) -> list[list[SheetEntry]]:
    ours = list(dict.fromkeys(cell.row for c, cell in table.cells if c.block == block and cell.role == "ours"))
    rows = []
    for row, (kind, roles) in itertools.product(ours, RIVALS.items()):
        name = "Improv." + f" of {row}" * (len(ours) > 1) + " on controls" * (kind == "control")
        texts = [_improvement_words(table.placed.get((block, column, row)), roles) for column in table.columns]
        if texts.count(None) < len(texts):
            rows.append([SheetEntry(name)])
            for column, text in zip(table.columns, texts, strict=True):
                rows[-1] += [SheetEntry(text or ""), SheetEntry("")][: 1 + (column in paper)]
    return rows


def _improvement_words(found: Found, roles: Sequence[Role]) -> str | None:
    """The rounds saved against the fastest of these rivals; None if there is no rival."""
    if found is None or (rival := found[0].fastest(roles)) is None:
        return None
    contest, cell = found
    gain = contest.improvement(cell, roles)
    if gain is None:
        return "not reached" if contest.rounds(cell) == NEVER else ""
    return f"> {gain[0]:+.1f} % (none of them reached it)" if gain[1] else f"{gain[0]:+.1f} % ({rival.row})"


def _rounds_notes(table: ResultTable) -> list[str]:
    windows = {(run.window, int(run.keys.get("evaluation.every", 1))) for run in table.runs}
    median = "If only some seeds of a method reached the target, all methods are ranked by the median."
    return [
        "Mean ± sample standard deviation over seeds (seeds that reached it / seeds). **First**, <u>second</u>.",
        *(_window_note(*each) for each in sorted(windows)),
        *[median] * any(contest.by == "median" for contest in table.contests),
        *(note for contest, cell in table.cells for note in search_notes(contest.where, cell)),
        *_firsts(table, controls=False),
        *_firsts(table, controls=True),
        *_test_notes(table),
        *_paper_notes(table),
        *unequal_notes(table),
    ]


def search_notes(where: str, cell: Cell) -> list[str]:
    """What the search of a method cost before its first round, where it searched."""
    cost = cell.over_seeds("search")
    if not cost:
        return []
    who = ", ".join(filter(None, (where, cell.row)))
    words = f"its search before round 1 cost as much as {sum(cost) / len(cost):.0f} rounds, which are not counted"
    return [f"[search] {who}: {words}."]


def _window_note(window: int, every: int) -> str:
    how = "the unsmoothed curve" if window == 1 else f"the trailing mean over {window} evaluations"
    sparse = f", one every {every} rounds, so it spans {window * every} rounds" if every > 1 else ""
    return f"First round, counted from 1, at which {how}{sparse} reaches the target."


def _test_notes(table: ResultTable) -> list[str]:
    tests = [line for contest in table.contests for line in significance_lines(contest)]
    return [
        *(f"{line}." for line in tests[:TESTS_SHOWN]),
        *[
            "Rounds are interpolated. No exploratory p is corrected for the number of tests, and the rival was chosen "
            "after the runs: it is the fastest. Register primary tests in the study's [report]."
        ]
        * bool(tests),
        *[f"{len(tests) - TESTS_SHOWN} more tests are in table.csv."] * (len(tests) > TESTS_SHOWN),
    ]


def _paper_notes(table: ResultTable) -> list[str]:
    papers = [cell.paper for _, cell in table.cells if cell.paper]
    flags = dict.fromkeys(flag for number in papers for flag in number.flags)
    how = (
        "The paper's rounds are from the mean curve of the seeds, with the population standard deviation. Compare them "
        "with `of the mean curve` and `population std` below."
    )
    apart = [(", ".join(filter(None, (c.where, cell.row))), cell.differs) for c, cell in table.cells]
    return [*[how] * bool(papers), *(f"[{flag}] {flag_texts()[flag]}." for flag in flags), *difference_notes(apart)]


def difference_notes(apart: Iterable[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Say for which methods the paper's number is not shown, and which of their settings differ from the paper's."""
    by_words: dict[str, list[str]] = {}
    for name, differs in apart:
        if differs:
            by_words.setdefault(", ".join(differs), []).append(name)
    return [f"The paper's number is not shown for {_listed(names)}: {words}." for words, names in by_words.items()]


def _listed(names: Sequence[str]) -> str:
    more = f"; and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return "; ".join(names[:NAMES_SHOWN]) + more


def _firsts(table: ResultTable, *, controls: bool) -> list[str]:
    """How often each method was fastest; a method without a rival does not count."""
    if controls and all(cell.role != "control" for _, cell in table.cells):
        return []
    races = len(table.races(controls=controls))
    firsts = table.firsts(controls=controls).items()
    words = ", ".join(_wins(row, *wins) for row, wins in firsts if wins[0])
    included = ", controls included" * controls
    where = f"{races} setting{'s' * (races != 1)} with at least two methods, one of which reached the target"
    return [f"How often each method was the fastest{included}, in {where}: {words}."] if races else []


def _wins(row: str, wins: int, alone: int) -> str:
    tied = wins - alone
    return f"{row} {wins}" + f" (tied in {tied})" * bool(tied)


def _row_title(table: ResultTable) -> str:
    words = {"rates.name": "rate rule", "algorithm.name": "algorithm", "topology.name": "graph"}
    return ", ".join(words.get(key, key.rpartition(".")[2].replace("_", " ")) for key in table.layout.rows)


def _column_title(table: ResultTable, column: str) -> str:
    target = shared(contest.target for contest in table.contests if contest.column == column)
    name = "" if column == "all" else column
    if target is not None:
        words = target_words(target, falls=table.metric == "mse").removeprefix("target ")
        return f"{name} ({words})" if name else f"to {words}"
    return name or table.metric


def _rows_of(table: ResultTable, block: str) -> list[str]:
    there = {cell.row for contest, cell in table.cells if contest.block == block}
    return [row for row in table.rows if row in there]
