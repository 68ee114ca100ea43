"""A result table in words: what stands in which cell and which cell stands out, whatever it is printed as."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from feda2l.report.metrics import RoundsToTarget
from feda2l.report.paper_numbers import flag_texts
from feda2l.report.results import NEVER, Cell, Contest, ResultTable
from feda2l.report.run_figures import Figures
from feda2l.report.words import rounds_words, score_words, seconds_words, significance_lines, speed_words, target_words

GRID_SHOWN = 7
TESTS_SHOWN = 8


class Entry(NamedTuple):
    """One cell: place 1 is printed bold, place 2 underlined."""

    text: str
    place: int | None = None


@dataclass(frozen=True)
class Sheet:
    """A header and rows of the same length, a title above and sentences below."""

    title: str
    header: list[str]
    rows: list[list[Entry]]
    notes: list[str] = field(default_factory=list)


def sheets_of(table: ResultTable) -> list[Sheet]:
    """Rounds to the target, scores, every figure of every method, and rounds to a grid of targets."""
    sheets = [rounds_sheet(table)] if _has_target(table) else []
    times = [*simulated_sheets(table), *time_sheets(table)]
    return [*sheets, scores_sheet(table), *times, details_sheet(table), *grid_sheets(table)]


def rounds_sheet(table: ResultTable) -> Sheet:
    """Rules down, settings across, as the paper prints it; the paper's own numbers beside ours."""
    paper = {
        column: any(cell.paper for contest in table.contests if contest.column == column for cell in contest.cells)
        for column in table.columns
    }
    header = [_row_title(table)]
    for column in table.columns:
        name = _column_title(table, column)
        header += [name, f"{name}: the paper"] if paper[column] else [name]
    rows: list[list[Entry]] = []
    for block in table.blocks:
        if len(table.blocks) > 1:
            rows.append([Entry(block), *[Entry("")] * (len(header) - 1)])
        for row in _rows_of(table, block):
            rows.append([Entry(row)])
            for column in table.columns:
                contest, cell = _find(table, block, column, row)
                rows[-1].append(_rounds_entry(contest, cell))
                if paper[column]:
                    rows[-1].append(Entry(cell.paper.text if cell and cell.paper else ""))
        rows += _improvement_rows(table, block, paper)
    return Sheet("Rounds to target", header, rows, _rounds_notes(table))


def scores_sheet(table: ResultTable) -> Sheet:
    """The best score of each method, mean and spread over seeds."""
    what = "Best accuracy, %" if table.metric == "accuracy" else f"Lowest test {table.metric.upper()}"
    rows: list[list[Entry]] = []
    for block in table.blocks:
        if len(table.blocks) > 1:
            rows.append([Entry(block), *[Entry("")] * len(table.columns)])
        for row in _rows_of(table, block):
            rows.append([Entry(row)])
            for column in table.columns:
                contest, cell = _find(table, block, column, row)
                if contest is None or cell is None:
                    rows[-1].append(Entry(""))
                    continue
                text = score_words(cell.over_seeds("best"), table.metric)
                rows[-1].append(
                    Entry(text or f"diverged ({cell.diverged}/{len(cell.seeds)})", contest.best_place(cell))
                )
    notes = ["Of the raw curve, mean over nodes, mean ± sample standard deviation over seeds."]
    header = [_row_title(table), *(table.metric if column == "all" else column for column in table.columns)]
    return Sheet(what, header, rows, notes)


def simulated_sheets(table: ResultTable) -> list[Sheet]:
    """Seconds on the network that was simulated, where one was: to the target, a round, and in all."""
    cells = [(contest, cell) for contest in table.contests for cell in contest.cells]
    if not any(cell.simulated for _, cell in cells):
        return []
    header = ["setting", _row_title(table), "seconds to target", "seconds a round", "seconds in all"]
    rows = []
    for contest, cell in cells:
        where = " / ".join(word for word in (contest.block, contest.column) if word != "all")
        first = Entry("" if cell.simulated else "no simulated time")
        if cell.simulated and contest.target is None:
            first = Entry("no target")
        elif cell.simulated:
            in_all = max(figures.simulated_in_all or 0.0 for figures in cell.seeds)
            first = Entry(rounds_words(cell.simulated, f"{in_all:.2f}", digits=2), contest.simulated_place(cell))
        rest = [seconds_words(cell.over_seeds(name), 2) for name in ("simulated_a_round", "simulated_in_all")]
        rows.append([Entry(where), Entry(cell.row), first, *map(Entry, rest)])
    notes = [
        "Simulated: what the rounds would have taken on the network of the spec ([network]); a round counts when its "
        "last node has completed it. Mean ± sample standard deviation over seeds. **First**, <u>second</u>."
    ]
    return [Sheet("Simulated time", header, rows, notes)]


def time_sheets(table: ResultTable) -> list[Sheet]:
    """Minutes to the target beside the paper's, where runs had the machine to themselves."""
    cells = [(contest, cell) for contest in table.contests for cell in contest.cells]
    if not any(cell.over_seeds("seconds_with_evaluation") for _, cell in cells):
        return []
    header = ["setting", _row_title(table), "minutes", "minutes with evaluation", "the paper, minutes"]
    rows = []
    for contest, cell in cells:
        where = " / ".join(word for word in (contest.block, contest.column) if word != "all")
        minutes = [[value / 60 for value in cell.over_seeds(name)] for name in ("seconds", "seconds_with_evaluation")]
        theirs = "" if cell.paper is None or cell.paper.minutes is None else f"{cell.paper.minutes:.1f}"
        rows.append([Entry(text) for text in (where, cell.row, *map(seconds_words, minutes), theirs)])
    notes = ["Of the seeds that reached the target. The paper counts evaluation in, on an RTX 4090."]
    return [Sheet("Time to target", header, rows, notes)]


def details_sheet(table: ResultTable) -> Sheet:
    """Every figure of every method in every setting."""
    header = [
        *(["block"] if len(table.blocks) > 1 else []),
        *(["setting"] if len(table.columns) > 1 else []),
        _row_title(table),
        "reached",
        "median",
        "mean ± std",
        "population std",
        "of the mean curve",
        "against constant",
        "best",
        "best smoothed",
        "last 10",
        "s to target",
        "s with evaluation",
        "MB sent",
    ]
    rows = []
    for contest in table.contests:
        for cell in contest.cells:
            front = ([contest.block] if len(table.blocks) > 1 else []) + (
                [contest.column] if len(table.columns) > 1 else []
            )
            texts = [*front, cell.row, *_details(contest, cell, table.metric)]
            rows.append([Entry(text) for text in texts])
    notes = [
        "of the mean curve: the seeds' curves averaged first, as the paper counts; against constant: rounds of the "
        "constant rate over those of the method; seconds: train, mix and adapt, only of runs that had the machine to "
        "themselves.",
    ]
    return Sheet("All figures", header, rows, notes)


def grid_sheets(table: ResultTable) -> list[Sheet]:
    """Rounds to several targets; for tables of many settings the CSV has them."""
    if len(table.contests) > 4:
        return []
    sheets = []
    for contest in table.contests:
        targets = shown_targets(contest)
        if not targets:
            continue
        falls = contest.cells[0].example.run.falls
        rows = []
        for cell in contest.cells:
            entries = [Entry(cell.row)]
            for target in targets:
                reach = cell.grid[target]
                text = "-" if reach.median is None else f"{reach.median:g}"
                entries.append(Entry(text if reach.reached == reach.runs else f"{text} ({reach.reached}/{reach.runs})"))
            rows.append(entries)
        where = " / ".join(word for word in (contest.block, contest.column) if word != "all")
        header = [_row_title(table), *(f"{target:g}" if falls else f"{100 * target:g} %" for target in targets)]
        notes = ["Median over seeds; a seed that never came counts as later than all; -: not reached."]
        sheets.append(Sheet("Rounds to a grid of targets" + (f": {where}" if where else ""), header, rows, notes))
    return sheets


def shown_targets(contest: Contest) -> list[float]:
    """The hardest targets of the grid that anyone reached: the easy ones tell nothing apart."""
    reached = [
        target
        for target in contest.cells[0].grid
        if any(cell.grid.get(target, RoundsToTarget(0, 0, None, None, None)).reached for cell in contest.cells)
    ]
    falls = contest.cells[0].example.run.falls
    return sorted(sorted(reached, reverse=not falls)[:GRID_SHOWN], reverse=falls)


def _details(contest: Contest, cell: Cell, metric: str) -> list[str]:
    reach = cell.reach
    none = contest.target is None
    population = None if reach.std is None else reach.std * ((reach.runs - 1) / reach.runs) ** 0.5
    median = f"> {cell.rounds}" if reach.median is None else f"{reach.median:g}"
    average = f"> {cell.rounds}" if cell.curve_averaged is None else str(cell.curve_averaged)
    sent = cell.over_seeds("sent")
    diverged = f", {cell.diverged} diverged" if cell.diverged else ""
    return [
        f"{'no target' if none else f'{reach.reached} of {reach.runs}'}{diverged}",
        "" if none else median,
        "" if reach.mean is None else f"{reach.mean:.1f}" + (f" ± {reach.std:.2f}" if reach.std is not None else ""),
        "" if population is None else f"{population:.2f}",
        "" if none or cell.diverged else average,
        "" if none else speed_words(contest, cell),
        score_words(cell.over_seeds("best"), metric),
        score_words(cell.over_seeds("best_smoothed"), metric),
        score_words(cell.over_seeds("last_10"), metric),
        seconds_words(cell.over_seeds("seconds")),
        seconds_words(cell.over_seeds("seconds_with_evaluation")),
        f"{sum(sent) / len(sent) / 1e6:,.1f}" if sent else "",
    ]


def _rounds_entry(contest: Contest | None, cell: Cell | None) -> Entry:
    if contest is None or cell is None:
        return Entry("")
    if contest.target is None:
        return Entry("no target")
    return Entry(rounds_words(cell.reach, cell.rounds), contest.place(cell))


def _improvement_rows(table: ResultTable, block: str, paper: dict[str, bool]) -> list[list[Entry]]:
    rows = []
    contests = [contest for contest in table.contests if contest.block == block]
    ours = list(dict.fromkeys(cell.row for contest in contests for cell in contest.cells if cell.role == "ours"))
    for row in ours:
        name = "Improv." if len(ours) == 1 else f"Improv. of {row}"
        for roles, words in ((["constant", "baseline"], name), (["control"], f"{name} on controls")):
            entries, any_rival = [Entry(words)], False
            for column in table.columns:
                contest, cell = _find(table, block, column, row)
                text = ""
                if contest and cell and (rival := contest.fastest(roles)):  # type: ignore[arg-type]
                    any_rival = True
                    gain = contest.improvement(cell, roles)  # type: ignore[arg-type]
                    none = "not reached" if contest.rounds(cell) == NEVER else ""
                    alone = " (none of them came)" if gain and gain[1] else f" ({rival.row})"
                    text = none if gain is None else f"{'> ' if gain[1] else ''}{gain[0]:+.1f} %{alone}"
                entries += [Entry(text), *([Entry("")] if paper[column] else [])]
            rows += [entries] if any_rival else []
    return rows


def _rounds_notes(table: ResultTable) -> list[str]:
    windows = {(f.run.window, int(f.run.keys.get("evaluation.every", 1))) for f in _every(table)}
    notes = ["Mean ± sample standard deviation over seeds (seeds that reached it / seeds). **First**, <u>second</u>."]
    for window, every in sorted(windows):
        how = "the unsmoothed curve" if window == 1 else f"the trailing mean over {window} evaluations"
        sparse = f", one every {every} rounds, so it spans {window * every} rounds" if every > 1 else ""
        notes.append(f"First round, counted from 1, at which {how}{sparse} reaches the target.")
    if any(contest.by == "median" for contest in table.contests):
        notes.append("Where a method reached it with some seeds only, all are ranked by the median, never is last.")
    searches = {
        cell.row if len(table.blocks) == 1 else contest.block: cost[0]
        for contest in table.contests
        for cell in contest.cells
        if (cost := cell.over_seeds("search"))
    }
    notes += [f"{name}: its search before round 1 cost {cost:.0f} rounds more." for name, cost in searches.items()]
    notes += _firsts(table, controls=False)
    if any(cell.role == "control" for contest in table.contests for cell in contest.cells):
        notes += _firsts(table, controls=True)
    tests = [line for contest in table.contests for line in significance_lines(contest)]
    notes += [f"{line}." for line in tests[:TESTS_SHOWN]]
    if len(tests) > 1:
        notes.append(f"These are {len(tests)} tests, not corrected for their number.")
    if len(tests) > TESTS_SHOWN:
        notes.append(f"{len(tests) - TESTS_SHOWN} more tests are in table.csv.")
    papers = [cell.paper for contest in table.contests for cell in contest.cells if cell.paper]
    if papers:
        notes.append(
            "The paper's rounds are those of the seed-averaged curve, its spread the population's: set them beside "
            "`of the mean curve` and `population std` below."
        )
        flags = dict.fromkeys(flag for number in papers for flag in number.flags)
        notes += [f"[{flag}] {flag_texts()[flag]}." for flag in flags]
    return notes


def _firsts(table: ResultTable, *, controls: bool) -> list[str]:
    """Who was fastest how often; who runs alone wins nothing."""
    races = len(table.races(controls=controls))
    firsts = table.firsts(controls=controls).items()
    words = ", ".join(f"{row} {tied} ({alone} alone)" for row, (tied, alone) in firsts if tied)
    what = "The same with the controls in the race" if controls else "Fastest where two ran or more and anyone came"
    return [f"{what}, {races} setting{'s' * (races != 1)}, ties counted: {words}."] if races else []


def _row_title(table: ResultTable) -> str:
    words = {"rates.name": "rate rule", "algorithm.name": "algorithm", "topology.name": "graph"}
    return ", ".join(words.get(key, key.rpartition(".")[2].replace("_", " ")) for key in table.layout.rows)


def _column_title(table: ResultTable, column: str) -> str:
    contests = [contest for contest in table.contests if contest.column == column]
    targets = {contest.target for contest in contests}
    name = "" if column == "all" else column
    if len(targets) == 1 and (target := targets.pop()) is not None and _has_target(table):
        words = target_words(target, falls=table.metric == "mse").removeprefix("target ")
        return f"{name} ({words})" if name else f"to {words}"
    return name or table.metric


def _rows_of(table: ResultTable, block: str) -> list[str]:
    cells = (cell.row for contest in table.contests if contest.block == block for cell in contest.cells)
    there = set(cells)
    return [row for row in table.rows if row in there]


def _find(table: ResultTable, block: str, column: str, row: str) -> tuple[Contest | None, Cell | None]:
    contest = table.contest(block, column)
    return contest, next((cell for cell in contest.cells if cell.row == row), None) if contest else None


def _has_target(table: ResultTable) -> bool:
    return any(contest.target is not None for contest in table.contests)


def _every(table: ResultTable) -> Iterable[Figures]:
    return (figures for contest in table.contests for cell in contest.cells for figures in cell.seeds)
