"""Results as text, the same in every table, page and message."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from feda2l.report.metrics import RoundsToTarget, mean_and_std
from feda2l.report.results import Cell, Contest, ResultTable
from feda2l.report.run_figures import Figures
from feda2l.report.significance import CensoredTest

T = TypeVar("T")


SETTING = {
    "data.name": "{}",
    "model.name": "{}",
    "algorithm.name": "{}",
    "rates.name": "rate rule {}",
    "topology.name": "graph {}",
    "data.nodes": "{} nodes",
    "rounds": "{} rounds",
}


def setting_of(table: ResultTable) -> str:
    """What all runs of a table have in common, in one line."""
    runs, parts = table.runs, []
    for key, words in SETTING.items():
        value = shared(run.keys.get(key) for run in runs)
        if value is not None:
            parts.append(words.format(value))
    if skew := shared((run.keys.get("data.partition"), run.keys.get("data.alpha")) for run in runs):
        parts.append(f"Dirichlet {skew[1]:g}" if skew[0] == "dirichlet" else str(skew[0]))
    target = shared(run.target for run in runs)
    if target is not None:
        parts.append(target_words(target, falls=runs[0].falls))
    seeds = sorted({run.seed for run in runs})
    return ", ".join(parts) + f"; {len(runs)} runs, seeds {', '.join(map(str, seeds[:10]))}{' ...' * (len(seeds) > 10)}"


def shared(values: Iterable[T]) -> T | None:
    """The value if all are the same, else None."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def scale_of(metric: str) -> int:
    """The factor for showing a score: accuracies are shown in percent."""
    return 100 if metric == "accuracy" else 1


def naive_words(name: str) -> str:
    """The name of a forecast without training."""
    return {"last_value": "last value", "window_mean": "mean of what is seen"}.get(name, name)


def target_words(target: float, *, falls: bool) -> str:
    return f"target MSE {target:g}" if falls else f"target {100 * target:g} %"


def rounds_words(reach: RoundsToTarget, rounds: int | str, digits: int = 1) -> str:
    """Mean and spread if every seed reached the target; otherwise the median, or that it is beyond the last round.

    >>> rounds_words(RoundsToTarget(reached=2, runs=3, median=14, mean=None, std=None), 100)
    'median 14 (2/3)'
    """
    share = f"({reach.reached}/{reach.runs})"
    if reach.reached == 0:
        return f"not reached {share}"
    if reach.mean is not None:
        spread = "" if reach.std is None else f" ± {reach.std:.{digits}f}"
        return f"{reach.mean:.{digits}f}{spread} {share}"
    return f"median > {rounds} {share}" if reach.median is None else f"median {round(reach.median, digits):g} {share}"


def beyond_words(value: float | None, rounds: int | str) -> str:
    """The round of a median or mean curve, or that it is beyond the last round."""
    return f"> {rounds}" if value is None else f"{value:g}"


def score_words(values: Sequence[float], metric: str) -> str:
    """Mean ± sample standard deviation; accuracies in percent."""
    return _mean_words(values, *((".2f", ".2f") if metric == "accuracy" else (".5g", ".2g")), scale_of(metric))


def seconds_words(values: Sequence[float], digits: int | None = None) -> str:
    """Mean ± sample standard deviation of seconds or minutes; without `digits`, short times keep three digits."""
    if digits is not None:
        return _mean_words(values, f".{digits}f", f".{digits}f")
    if not values:
        return ""
    mean, std = mean_and_std(values)
    return few_digits(mean) + (f" ± {few_digits(std)}" if len(values) > 1 else "")


def few_digits(value: float) -> str:
    """One decimal, or three digits where that would show too little.

    >>> [few_digits(value) for value in (0.0123, 4.5, 232.63, 0.0)]
    ['0.0123', '4.5', '232.6', '0']
    """
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def _mean_words(values: Sequence[float], mean_form: str, std_form: str, scale: int = 1) -> str:
    if not values:
        return ""
    mean, std = mean_and_std(values)
    return f"{scale * mean:{mean_form}}" + (f" ± {scale * std:{std_form}}" if len(values) > 1 else "")


def last_words(runs: Iterable[Figures]) -> str:
    """How many of the last evaluations a mean is over: 10, or all of a shorter run.

    >>> last_words([])
    'last 10'
    """
    counts = {min(10, figures.evaluations) for figures in runs if figures.last_10 is not None}
    count = shared(counts)
    if count is None and counts:
        return "last 10, or all if fewer"
    return f"last {count or 10}"


def speed_words(contest: Contest, cell: Cell) -> str:
    found = contest.speed_up(cell)
    return "" if found is None else f"{'> ' if found[1] else ''}{found[0]:.2f}x"


def significance_lines(contest: Contest) -> list[str]:
    """Whether the difference of FedA2L to the fastest other rule, and to the fastest control, is significant."""
    lines = []
    where = f"{contest.where}: " if contest.where else ""
    for cell in contest.cells:
        for kind, rival, test in contest.tests(cell):
            if test is None:
                lines.append(f"{where}{cell.row} and {rival.row} have no seed in common")
                continue
            against = f"{rival.row}, the fastest {kind}: {test.verdict}, exploratory"
            if isinstance(test, CensoredTest):
                order = {-1: "is earlier than", 0: "is level with", 1: "is later than"}[int(np.sign(test.direction))]
                lines.append(f"{where}{cell.row} {order} {against}")
                continue
            more = "fewer" if test.difference < 0 else "more"
            change = "as many rounds as" if test.difference == 0 else f"{abs(test.difference):.2f} rounds {more} than"
            lines.append(f"{where}{cell.row} needs {change} {against}")
    return lines
