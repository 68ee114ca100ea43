"""Table of forecasts: every rule beside the naive forecasts, which a model must beat, and the paper's rounds."""

from pathlib import Path

from feda2l.report.paper_numbers import paper_series
from feda2l.report.results import Cell
from feda2l.report.words import naive_words, score_words
from reproduction.evidence import read_evidence
from reproduction.evidence_tables import by_seed, table


def series_table(results: Path, study: str) -> str:
    """Tabulate MSE and rounds of every cell, seed by seed, after the naive forecasts, which need no training."""
    evidence = read_evidence(results / study)
    run = next(iter(evidence.cells.values())).example.run
    target, naive = run.target, run.naive
    rows = [_untrained(naive_words(name), mse, target) for name, mse in naive.items()]
    best = min(naive.values(), default=None)
    rows += [_row(cell, best) for cell in evidence.cells.values()]
    header = ["optimizer", "algorithm", "rule", "the paper, rounds", "rounds, seed by seed"]
    header += ["best MSE, seed by seed", "last 10", "below the better naive forecast"]
    return f"{table(header, rows)}\n\nTarget: an MSE of {'none' if target is None else f'{target:.5g}'}."


def _untrained(name: str, mse: float, target: float | None) -> list[str]:
    reached = target is not None and mse <= target
    return ["none", "none", name, "", "0" if reached else "-", f"{mse:.4f}", f"{mse:.4f}", ""]


def _row(cell: Cell, naive: float | None) -> list[str]:
    keys = cell.example.run.keys
    rule = f"`{cell.row.split('-', 2)[-1]}`"
    best = [figures.best for figures in cell.seeds]
    below = "" if naive is None else f"{sum(mse is not None and mse < naive for mse in best)} of {len(best)}"
    return [
        f"{keys['training.optimizer']} {keys['rates.base']:g}",
        str(keys["algorithm.name"]),
        rule,
        _paper_rounds(cell),
        by_seed(cell),
        ", ".join("non-finite" if mse is None else f"{mse:.4f}" for mse in best),
        score_words(cell.over_seeds("last_10"), "mse") or "-",
        below,
    ]


def _paper_rounds(cell: Cell) -> str:
    """Return the paper's rounds, with the paper's target if it differs from ours."""
    if cell.paper is not None:
        return cell.paper.text
    paper = paper_series(cell.example.run)
    return "" if paper is None else f"{paper[0].text} (to {paper[1]:g})"
