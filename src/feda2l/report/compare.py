"""`feda2l compare A B`: is B better than A? The answer in words and in numbers."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.report.curves import read_curves
from feda2l.report.find_runs import Notes, find_runs
from feda2l.report.layout import label, varying_keys
from feda2l.report.metrics import RoundsToTarget, rounds_over_seeds
from feda2l.report.run_figures import Figures, figures_of
from feda2l.report.significance import LEVEL, PairedTest, paired_test, seeds_needed
from feda2l.report.words import rounds_words, scale_of, score_words, seconds_words, target_words

SAME = ("data.name", "evaluation.target", "evaluation.on")  # keys that must be equal for comparable scores


@dataclass(frozen=True)
class MeasureComparison:
    """One figure of both sides, paired by seed."""

    name: str
    first: str
    second: str
    test: PairedTest | None
    less_is_better: bool
    unit: str

    @property
    def better(self) -> str:
        """The better side; empty if both are equal."""
        if self.test is None or self.test.difference == 0:
            return ""
        return "B" if (self.test.difference < 0) == self.less_is_better else "A"

    @property
    def amount(self) -> str:
        """The absolute difference of the sides, with its unit."""
        return "" if self.test is None else f"{abs(self.test.difference):.4g}{self.unit}"

    @property
    def words(self) -> str:
        """The better side, the difference, its interval and its significance."""
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
    """A comparison of two methods."""

    first: str
    second: str
    seeds: list[int]
    measures: list[MeasureComparison]
    notes: list[str]

    @property
    def verdict(self) -> str:
        """A sentence about the first figure that differs, and one about the figures that favour the other side."""
        telling = [measure for measure in self.measures if measure.better]
        if not telling:
            return "Neither is better in anything that was measured."
        main, against = telling[0], [measure for measure in telling if measure.better != telling[0].better]
        sentences = [_sentence(main)]
        if against:
            figures = " and ".join(f"{measure.name} (by {measure.amount})" for measure in against)
            sentences.append(f"{against[0].better} is ahead in {figures}.")
        return " ".join(sentences)


def _sentence(main: MeasureComparison) -> str:
    """The better side in the main figure, and whether the difference is significant."""
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
    """Compare run folders, or folders of runs that differ in their seed only. Runs with equal seeds are paired."""
    notes = Notes()
    sides = [_side(path, notes) for path in (first, second)]
    _check_alike(sides, notes)
    pairs = _pairs(sides, notes)
    if _same_target(pairs):
        for a, b in pairs:
            if (a.reached is None) != (b.reached is None):
                who = f"{'A' if a.reached is None else 'B'} with seed {a.run.seed}"
                notes.add("never at the target, counted as one round more than it ran", who)
    keys = varying_keys([figures.run for figures in itertools.chain(*sides)], Notes())
    one, other = (
        f"{path} ({label(side[0].run, keys)})" if keys else str(path)
        for path, side in zip((first, second), sides, strict=True)
    )
    return Comparison(one, other, [a.run.seed for a, _ in pairs], _measures(pairs), notes.lines())


def _pairs(sides: Sequence[Sequence[Figures]], notes: Notes) -> list[tuple[Figures, Figures]]:
    """The runs of both sides, for each seed that both have."""
    a, b = ({figures.run.seed: figures for figures in side} for side in sides)
    seeds, alone = (", ".join(map(str, sorted(own))) for own in (a.keys() & b.keys(), a.keys() ^ b.keys()))
    if not seeds:
        found = [", ".join(map(str, sorted(own))) for own in (a, b)]
        raise FedA2LError(
            f"A has seeds {found[0]}, B has seeds {found[1]}; no seed is on both sides, so nothing can be paired",
            see="compare",
        )
    if alone:
        notes.add("left out, seeds that only one side has", alone)
    return [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]


def _side(path: Path, notes: Notes) -> list[Figures]:
    runs = find_runs([path], notes)
    curves = read_curves(runs, notes)
    usable = [figures_of(run, curves[run.path]) for run in runs if run.path in curves]
    if not usable:
        raise FedA2LError("no run could be used\n" + "\n".join(notes.lines()), file=path, see="compare")
    keys = varying_keys([figures.run for figures in usable], Notes())
    if keys:
        kinds = sorted({label(figures.run, keys) for figures in usable})
        raise FedA2LError(
            f"its runs differ in {', '.join(keys)} ({'; '.join(kinds[:6])}{' ...' * (len(kinds) > 6)}); "
            "compare needs one method with its seeds on each side, feda2l report shows many",
            file=path,
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
                    f"A and B learn different data ({values}), so their scores cannot be compared", see="compare"
                )
            notes.add("differs, so the figures that depend on it are not comparable", f"{key} ({values})")


def _same_target(pairs: list[tuple[Figures, Figures]]) -> bool:
    """Do all runs have the same target, so that rounds can be compared?"""
    return all(a.run.target == b.run.target and a.run.target is not None for a, b in pairs)


def _measures(pairs: list[tuple[Figures, Figures]]) -> list[MeasureComparison]:
    run = pairs[0][0].run
    measures = []
    if _same_target(pairs) and run.target is not None:
        goal = target_words(run.target, falls=run.falls).removeprefix("target ")
        sides = [*zip(*pairs, strict=True)]
        if all(figures.curve.seconds is not None for figures in itertools.chain(*sides)):
            in_all = max(figures.simulated_in_all or 0.0 for figures in itertools.chain(*sides))
            words = functools.partial(rounds_words, rounds=f"{in_all:.2f}", digits=2)
            # on a simulated network these seconds are the main figure
            measures.append(_to_target(sides, f"simulated seconds to {goal}", "simulated", words, " s"))
        words = functools.partial(rounds_words, rounds=run.rounds)
        measures.append(_to_target(sides, f"rounds to {goal}", "rounds", words, " rounds"))
        measures.append(_of(pairs, "seconds to it", "seconds", lambda v: f"{seconds_words(v)} s", True, " s"))
    unit, scale = " points" * (run.metric == "accuracy"), scale_of(run.metric)
    score = functools.partial(score_words, metric=run.metric)
    for name, what in ((f"best {run.metric}", "best"), (f"{run.metric} of the last 10", "last_10")):
        measures.append(_of(pairs, name, what, score, run.falls, unit, scale))
    return measures


def _to_target(
    sides: Sequence[Sequence[Figures]], name: str, what: str, words: Callable[[RoundsToTarget], str], unit: str
) -> MeasureComparison:
    """Rounds or simulated seconds to the target; a seed that misses it counts as one round more than it ran."""
    reached = "reached" if what == "rounds" else what
    first, second = (words(rounds_over_seeds([getattr(figures, reached) for figures in side])) for side in sides)
    came = any(figures.reached is not None for figures in itertools.chain(*sides))
    counted = [[getattr(figures, f"{what}_to_target") for figures in side] for side in sides]
    return MeasureComparison(name, first, second, paired_test(*counted) if came else None, True, unit)


def _of(
    pairs: list[tuple[Figures, Figures]],
    name: str,
    what: str,
    words: Callable[[list[float]], str],
    less_is_better: bool,
    unit: str,
    scale: float = 1.0,
) -> MeasureComparison:
    both = [(getattr(first, what), getattr(second, what)) for first, second in pairs]
    known = [pair for pair in both if None not in pair]
    if not known:
        return MeasureComparison(name, "", "", None, less_is_better, unit)
    first, second = map(list, zip(*known, strict=True))
    test = paired_test([scale * value for value in first], [scale * value for value in second])
    return MeasureComparison(name, words(first), words(second), test, less_is_better, unit)
