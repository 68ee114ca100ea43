"""`feda2l compare A B`: does B beat A? In words, with the numbers behind them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.report.curves import read_curves
from feda2l.report.find_runs import FoundRun, Notes, find_runs
from feda2l.report.layout import label, varying_keys
from feda2l.report.metrics import mean_and_std, rounds_over_seeds
from feda2l.report.run_figures import Figures, figures_of
from feda2l.report.significance import LEVEL, PairedTest, paired_test, seeds_needed
from feda2l.report.words import rounds_words, score_words, target_words

SAME = ("data.name", "evaluation.target", "evaluation.on")  # what makes two scores one thing


@dataclass(frozen=True)
class Measure:
    """One figure of both sides, seed by seed."""

    name: str
    first: str
    second: str
    test: PairedTest | None
    less_is_better: bool
    unit: str

    @property
    def better(self) -> str:
        """The side that is ahead; empty where neither is."""
        if self.test is None or self.test.difference == 0:
            return ""
        return "B" if (self.test.difference < 0) == self.less_is_better else "A"

    @property
    def amount(self) -> str:
        """How far apart the sides are."""
        return "" if self.test is None else f"{abs(self.test.difference):.4g}{self.unit}"

    @property
    def words(self) -> str:
        """Which side is better and how sure that is."""
        if self.test is None:
            return "no seed has it on both sides"
        if not self.better:
            return "equal"
        interval = ""
        if self.test.interval:
            low, high = self.test.interval
            interval = f" (95 % if normal: {low:+.4g} to {high:+.4g})"
        return f"B - A = {self.test.difference:+.4g}{self.unit}{interval}: {self.better} better, {self.test.verdict}"


@dataclass(frozen=True)
class Comparison:
    """Two methods side by side."""

    first: str
    second: str
    seeds: list[int]
    measures: list[Measure]
    notes: list[str]

    @property
    def verdict(self) -> str:
        """By the first figure in which the sides differ; where others point the other way, a sentence that says so."""
        telling = [measure for measure in self.measures if measure.better]
        if not telling:
            return "Neither is better in anything that was measured."
        main, against = telling[0], [measure for measure in telling if measure.better != telling[0].better]
        sentences = [_sentence(main)]
        if against:
            figures = " and ".join(f"{measure.name} (by {measure.amount})" for measure in against)
            sentences.append(f"{against[0].better} is ahead in {figures}.")
        return " ".join(sentences)


def _sentence(main: Measure) -> str:
    """Who is ahead, and whether that is more than chance."""
    test, other = main.test, "A" if main.better == "B" else "B"
    assert test is not None
    if test.smallest > LEVEL:
        return (
            f"{main.better} is ahead of {other} in {main.name} by {main.amount}, but {test.seeds} "
            f"{'seed is' if test.seeds == 1 else 'seeds are'} too few to tell that from chance "
            f"(at least {seeds_needed()} are needed)."
        )
    if test.p > LEVEL:
        return f"No: {main.better} is ahead in {main.name} by {main.amount}, which is within chance (p = {test.p:.2g})."
    return f"{main.better} beats {other} in {main.name} by {main.amount} (p = {test.p:.2g}, {test.seeds} seeds)."


def compare(first: Path, second: Path) -> Comparison:
    """Run folders, or folders of runs that differ in their seed only; seeds are paired."""
    notes = Notes()
    sides = [_side(path, notes) for path in (first, second)]
    _check_alike(sides, notes)
    by_seed = [{figures.run.seed: figures for figures in side} for side in sides]
    seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
    if not seeds:
        found = [", ".join(map(str, sorted(own))) for own in by_seed]
        raise FedA2LError(
            f"A has seeds {found[0]}, B has seeds {found[1]}: none in common, so nothing can be paired", see="compare"
        )
    alone = sorted(by_seed[0].keys() ^ by_seed[1].keys())
    if alone:
        notes.add("left out, seeds that only one side has", ", ".join(map(str, alone)))
    pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in seeds]
    if _same_target(pairs):
        for seed, (a, b) in zip(seeds, pairs, strict=True):
            if (a.reached is None) != (b.reached is None):
                who = f"{'A' if a.reached is None else 'B'} with seed {seed}"
                notes.add("never at the target, counted as one round more than it ran", who)
    runs = [side[0].run for side in sides]
    keys = varying_keys([figures.run for side in sides for figures in side], Notes())
    names = [
        f"{path} ({label(run, keys)})" if keys else str(path) for path, run in zip((first, second), runs, strict=True)
    ]
    return Comparison(names[0], names[1], seeds, list(_measures(pairs)), notes.lines())


def _side(path: Path, notes: Notes) -> list[Figures]:
    runs = find_runs([path], notes)
    curves = read_curves(runs, notes)
    usable = [figures_of(run, curves[run.path]) for run in runs if run.path in curves]
    if not usable:
        raise FedA2LError(f"{path}: no run could be used\n" + "\n".join(notes.lines()), see="compare")
    keys = varying_keys([figures.run for figures in usable], Notes())
    if keys:
        kinds = sorted({label(figures.run, keys) for figures in usable})
        raise FedA2LError(
            f"{path}: its runs differ in {', '.join(keys)} ({'; '.join(kinds[:6])}{' ...' * (len(kinds) > 6)}); "
            "compare needs one method with its seeds on each side, feda2l report shows many",
            see="compare",
        )
    return usable


def _check_alike(sides: Sequence[Sequence[Figures]], notes: Notes) -> None:
    first, second = (side[0].run for side in sides)
    if first.metric != second.metric:
        raise FedA2LError(
            f"A is scored by {first.metric}, B by {second.metric}: they cannot be compared", see="compare"
        )
    for key in SAME:
        if first.keys.get(key) != second.keys.get(key):
            values = f"{first.keys.get(key)} and {second.keys.get(key)}"
            if key == "data.name":
                raise FedA2LError(
                    f"A and B learn different data ({values}): their scores are not one thing", see="compare"
                )
            notes.add("differs, so the figures that hang on it are not comparable", f"{key} ({values})")


def _same_target(pairs: list[tuple[Figures, Figures]]) -> bool:
    """Can rounds be compared?"""
    return all(a.run.target == b.run.target and a.run.target is not None for a, b in pairs)


def _measures(pairs: list[tuple[Figures, Figures]]) -> list[Measure]:
    run: FoundRun = pairs[0][0].run
    metric, falls = run.metric, run.falls
    measures = []
    if _same_target(pairs) and run.target is not None:
        reached = [[side.reached for side in sides] for sides in zip(*pairs, strict=True)]
        words = [rounds_words(rounds_over_seeds(own), run.rounds) for own in reached]
        never = [[side.rounds_to_target for side in sides] for sides in zip(*pairs, strict=True)]
        came = any(value is not None for own in reached for value in own)
        test = paired_test(never[0], never[1]) if came else None
        name = f"rounds to {target_words(run.target, falls=falls)}".replace("to target ", "to ")
        measures += _simulated(pairs, f"simulated seconds to {name.removeprefix('rounds to ')}", test is not None)
        measures.append(Measure(name, words[0], words[1], test, True, " rounds"))
        measures.append(_of(pairs, "seconds to it", lambda f: f.seconds, lambda v: _mean_words(v, " s"), True, " s"))
    scale = 100 if metric == "accuracy" else 1
    unit = " points" if metric == "accuracy" else ""
    for name, what in ((f"best {metric}", "best"), (f"{metric} of the last 10", "last_10")):
        get: Callable[[Figures], float | None] = lambda f, what=what: getattr(f, what)  # type: ignore[misc]  # noqa: E731
        measures.append(_of(pairs, name, get, lambda v: score_words(v, metric), falls, unit, scale))
    return measures


def _simulated(pairs: list[tuple[Figures, Figures]], name: str, came: bool) -> list[Measure]:
    """Seconds on the simulated network, where both sides have one: there they are what faster means, so they are first.

    As with rounds, a seed that never came counts as one round too many.
    """
    if any(side.curve.seconds is None for sides in pairs for side in sides):
        return []
    sides = [list(side) for side in zip(*pairs, strict=True)]
    reach = [rounds_over_seeds([figures.simulated for figures in side]) for side in sides]
    in_all = max(figures.simulated_in_all or 0.0 for side in sides for figures in side)
    words = [rounds_words(own, f"{in_all:.2f}", digits=2) for own in reach]
    never = [[_simulated_or_never(figures) for figures in side] for side in sides]
    test = paired_test(never[0], never[1]) if came else None
    return [Measure(name, words[0], words[1], test, True, " s")]


def _of(
    pairs: list[tuple[Figures, Figures]],
    name: str,
    get: Callable[[Figures], float | None],
    words: Callable[[list[float]], str],
    less_is_better: bool,
    unit: str,
    scale: float = 1.0,
) -> Measure:
    there = [(a, b) for first, second in pairs if (a := get(first)) is not None and (b := get(second)) is not None]
    if not there:
        return Measure(name, "", "", None, less_is_better, unit)
    first, second = ([side[place] for side in there] for place in (0, 1))
    test = paired_test([scale * value for value in first], [scale * value for value in second])
    return Measure(name, words(first), words(second), test, less_is_better, unit)


def _mean_words(values: list[float], unit: str) -> str:
    mean, std = mean_and_std(values)
    return f"{mean:.1f}" + (f" ± {std:.1f}" if len(values) > 1 else "") + unit


def _simulated_or_never(figures: Figures) -> float:
    if figures.simulated is not None:
        return figures.simulated
    return (figures.simulated_in_all or 0.0) + (figures.simulated_a_round or 0.0)
