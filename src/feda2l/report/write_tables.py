"""The tables as Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence

from feda2l.report.results import Cell, Contest, ResultTable
from feda2l.report.sheets import Sheet, SheetEntry, sheets_of
from feda2l.report.significance import PairedTest
from feda2l.report.words import setting_of

ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    ">": "$>$",
    "<": "$<$",
}
FIGURES = ("best", "best_smoothed", "last_10", "seconds", "seconds_with_evaluation", "sent", "search")


def markdown(tables: Sequence[ResultTable], extra: Sequence[Sheet], left_out: Sequence[str]) -> str:
    """All tables, the related work, and what was left out."""
    parts = ["# Results"]
    for table in tables:
        parts += [f"## {table.title}", setting_of(table)]
        for sheet in sheets_of(table):
            parts += [f"### {sheet.title}", sheet_markdown(sheet)]
    for sheet in extra:
        parts += [f"## {sheet.title}", sheet_markdown(sheet)]
    if left_out:
        parts += ["## Left out, or worth knowing", "\n".join(f"- {line}" for line in left_out)]
    return "\n\n".join(parts) + "\n"


def sheet_markdown(sheet: Sheet) -> str:
    lines = [_line(sheet.header), "|" + "---|" * len(sheet.header)]
    lines += [_line([_mark(entry) for entry in row]) for row in sheet.rows]
    return "\n".join(lines) + "".join(f"\n\n{note}" for note in sheet.notes)


def latex(tables: Sequence[ResultTable], extra: Sequence[Sheet] = ()) -> str:
    """A `table` environment for each sheet, for `\\input` in a paper that loads booktabs."""
    parts = ["% needs \\usepackage{booktabs}; made by `feda2l report`"]
    for table in tables:
        for sheet in sheets_of(table):
            if sheet.title != "All figures":
                parts.append(_sheet_latex(sheet, f"{sheet.title}. {table.title}: {setting_of(table)}"))
    parts += [_sheet_latex(sheet, sheet.title) for sheet in extra]
    return "\n\n".join(parts) + "\n"


def comma_separated(tables: Sequence[ResultTable]) -> str:
    """Long form: one line per method and setting, with raw numbers (accuracies as fractions)."""
    lines = [_csv_line(table, contest, cell) for table in tables for contest, cell in table.cells]
    header = list(dict.fromkeys(key for line in lines for key in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _csv_line(table: ResultTable, contest: Contest, cell: Cell) -> dict[str, object]:
    run, reach = cell.example.run, cell.reach
    line: dict[str, object] = {
        "study": table.study,
        "table": table.title,
        "block": contest.block,
        "column": contest.column,
        "row": cell.row,
        "kind": cell.role,
        "metric": run.metric,
        "target": contest.target,
        "rounds": cell.rounds,
        "runs": reach.runs,
        "non_finite": cell.non_finite,
        "reached": reach.reached,
        "median": reach.median if reach.median or contest.target is None else f"> {cell.rounds}",
        "mean": reach.mean,
        "std": reach.std,
        "std_population": reach.population_std,
        "interpolated_median": cell.interpolated.median,
        "interpolated_mean": cell.interpolated.mean,
        "interpolated_std": cell.interpolated.std,
        "of_mean_curve": cell.curve_averaged,
        "ranked_by": contest.by,
        "place": contest.place(cell),
    }
    line |= _comparisons(contest, cell)
    for name in FIGURES:
        values = cell.over_seeds(name)
        line[name] = mean = sum(values) / max(len(values), 1)
        if not values:
            line[name] = None
        elif len(values) > 1:
            line[f"{name}_std"] = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    if cell.simulated:
        line |= {"simulated_seconds_mean": cell.simulated.mean, "simulated_seconds_std": cell.simulated.std}
        line |= {"simulated_seconds_median": cell.simulated.median, "simulated_place": contest.simulated_place(cell)}
        in_all = cell.over_seeds("simulated_in_all")
        line["simulated_seconds_in_all"] = sum(in_all) / len(in_all)
    line |= {f"median_to_{target:g}": reach.median for target, reach in cell.grid.items()}
    if cell.paper:
        line |= {"paper_rounds": cell.paper.rounds, "paper_std": cell.paper.std, "paper_minutes": cell.paper.minutes}
        line |= {"paper_best": cell.paper.best, "paper_flags": " ".join(cell.paper.flags)}
    return line


def _comparisons(contest: Contest, cell: Cell) -> dict[str, object]:
    """The comparison of a method with the constant rate and, for FedA2L, with its rivals."""
    line: dict[str, object] = {}
    if speed := contest.speed_up(cell):
        line |= {"speed_up": speed[0], "speed_up_is_at_least": speed[1]}
    if cell.role == "ours" and (gain := contest.improvement(cell)):
        line |= {"improvement_percent": gain[0], "improvement_is_more": gain[1]}
    for kind, rival, test in contest.tests(cell):
        if test:
            front = "control_" if kind == "control" else ""
            difference = test.difference if isinstance(test, PairedTest) else None  # no mean includes "never"
            line |= {f"{front}rival": rival.row, f"{front}difference": difference, f"{front}p": test.p}
            line[f"{front}smallest_p"] = test.smallest
    return line


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _mark(entry: SheetEntry) -> str:
    return {1: f"**{entry.text}**", 2: f"<u>{entry.text}</u>"}.get(entry.place or 0, entry.text)


def _sheet_latex(sheet: Sheet, caption: str) -> str:
    columns = "l" + "r" * (len(sheet.header) - 1)
    rows = [" & ".join(map(escape, sheet.header)) + r" \\"]
    rows.append(r"\midrule")
    for row in sheet.rows:
        if len(row) > 1 and not any(entry.text for entry in row[1:]):
            rows.append(rf"\multicolumn{{{len(row)}}}{{l}}{{\emph{{{escape(row[0].text)}}}}} \\")
            continue
        if any(entry.text.startswith("Improv.") for entry in row[:2]):
            rows.append(r"\addlinespace")
        rows.append(" & ".join(map(_latex_entry, row)) + r" \\")
    body = "\n".join(rows)
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{escape(caption)}}}\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}"
    )


def _latex_entry(entry: SheetEntry) -> str:
    text = escape(entry.text)
    return {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(entry.place or 0, text)


def escape(text: str) -> str:
    """
    >>> escape("decay_only 5 %")
    'decay\\\\_only 5 \\\\%'
    """
    return re.sub("[" + re.escape("".join(ESCAPES)) + "]", lambda found: ESCAPES[found[0]], text)
