"""Figures of runs in words, the same in every table, page and message."""

from collections.abc import Sequence

from feda2l.report.metrics import RoundsToTarget, mean_and_std
from feda2l.report.results import NEVER, Cell, Contest, ResultTable


def setting_of(table: ResultTable) -> str:
    """What all runs of the table have in common, in one line."""
    runs = [figures.run for contest in table.contests for cell in contest.cells for figures in cell.seeds]
    parts = []
    for key, words in (
        ("data.name", "{}"),
        ("model.name", "{}"),
        ("algorithm.name", "{}"),
        ("rates.name", "rate rule {}"),
        ("topology.name", "graph {}"),
        ("data.nodes", "{} nodes"),
        ("rounds", "{} rounds"),
    ):
        values = {run.keys.get(key) for run in runs}
        if len(values) == 1 and (value := values.pop()) is not None:
            parts.append(words.format(value))
    skew = {(run.keys.get("data.partition"), run.keys.get("data.alpha")) for run in runs}
    if len(skew) == 1:
        partition, alpha = skew.pop()
        parts.append(f"Dirichlet {alpha:g}" if partition == "dirichlet" else str(partition))
    targets = {run.target for run in runs}
    if len(targets) == 1 and (target := targets.pop()) is not None:
        parts.append(target_words(target, falls=runs[0].falls))
    seeds = sorted({run.seed for run in runs})
    return ", ".join(parts) + f"; {len(runs)} runs, seeds {', '.join(map(str, seeds[:10]))}{' ...' * (len(seeds) > 10)}"


def naive_words(name: str) -> str:
    """What a forecast without training repeats."""
    return {"last_value": "last value", "window_mean": "mean of what is seen"}.get(name, name)


def target_words(target: float, *, falls: bool) -> str:
    return f"target MSE {target:g}" if falls else f"target {100 * target:g} %"


def rounds_words(reach: RoundsToTarget, rounds: int | str, digits: int = 1) -> str:
    """Mean and spread where every seed came; else the median, or that it is beyond the last round.

    >>> rounds_words(RoundsToTarget(reached=2, runs=3, median=14, mean=None, std=None), 100)
    'median 14 (2/3)'
    """
    share = f"({reach.reached}/{reach.runs})"
    if reach.reached == 0:
        return f"not reached {share}"
    if reach.mean is not None:
        spread = "" if reach.std is None else f" ± {reach.std:.{digits}f}"
        return f"{reach.mean:.{digits}f}{spread} {share}"
    return f"median > {rounds} {share}" if reach.median is None else f"median {reach.median:g} {share}"


def score_words(values: Sequence[float], metric: str) -> str:
    """Mean ± sample standard deviation; accuracies in percent."""
    if not values:
        return ""
    mean, std = mean_and_std(values)
    spread = len(values) > 1
    if metric == "accuracy":
        return f"{100 * mean:.2f}" + (f" ± {100 * std:.2f}" if spread else "")
    return f"{mean:.5g}" + (f" ± {std:.2g}" if spread else "")


def speed_words(contest: Contest, cell: Cell) -> str:
    found = contest.speed_up(cell)
    return "" if found is None else f"{'> ' if found[1] else ''}{found[0]:.2f}x"


def seconds_words(values: list[float], digits: int = 1) -> str:
    if not values:
        return ""
    mean, std = mean_and_std(values)
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if len(values) > 1 else "")


def significance_lines(contest: Contest) -> list[str]:
    """Whether FedA2L's difference to the fastest other rule, and to the fastest control, is more than chance."""
    lines = []
    where = " / ".join(word for word in (contest.block, contest.column) if word != "all")
    for cell in contest.cells:
        for what, rival in (
            ("the fastest other rule", contest.fastest(["constant", "baseline"])),
            ("the fastest control", contest.fastest(["control"])),
        ):
            if cell.role != "ours" or rival is None or contest.rounds(cell) == contest.rounds(rival) == NEVER:
                continue
            test = contest.test(cell, rival)
            if test is None:
                lines.append(f"{where + ': ' if where else ''}{cell.row} and {rival.row} have no seed in common")
                continue
            more = "fewer" if test.difference < 0 else "more"
            change = "as many rounds as" if test.difference == 0 else f"{abs(test.difference):.1f} rounds {more} than"
            lines.append(
                f"{where + ': ' if where else ''}{cell.row} needs {change} {rival.row}, {what}: {test.verdict}"
            )
    return lines
