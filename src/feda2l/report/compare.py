"""`feda2l compare A B`: is B better than A? The answer in words and in numbers."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.names import look_up
from feda2l.report.curves import read_curves
from feda2l.report.find_runs import Notes, find_runs
from feda2l.report.layout import label, varying_keys
from feda2l.report.metrics import RoundsToTarget, rounds_over_seeds
from feda2l.report.run_figures import Figures, figures_of
from feda2l.report.significance import (
    LEVEL,
    CensoredTest,
    EquivalenceTest,
    PairedTest,
    equivalence_test,
    log_rank_p,
    paired_test,
    seeds_needed,
    times_test,
)
from feda2l.report.significance import holm as correct_by_holm
from feda2l.report.words import last_words, rounds_words, scale_of, score_words, seconds_words, target_words
from feda2l.studies.primary_tests import MEASURES

SAME = ("data.name", "evaluation.target", "evaluation.on", "rounds")  # keys that must be equal for comparable scores
# why a measure has no test, by its key; the other measures are times to the target
UNTESTED = {
    "seconds": "no seed has timings up to the target on both sides",
    "best": "no seed has a finite run on both sides",
    "last_10": "no seed has a finite run on both sides",
}
Pairs = Sequence[tuple[Figures, Figures]]


@dataclass(frozen=True)
class MeasureComparison:
    """One figure of both sides, paired by seed."""

    key: str  # of feda2l.studies.primary_tests.MEASURES
    name: str
    first: str
    second: str
    test: PairedTest | CensoredTest | None
    less_is_better: bool
    unit: str
    log_rank: float | None = None  # the p of the unpaired test, where some runs did not reach the target
    equivalence: EquivalenceTest | None = None  # where the user states a margin and all runs have the figure
    primary: bool | None = None  # None: no measure was registered as primary
    corrected: float | None = None  # the p of a primary test, corrected by Holm's method
    caveat: str = ""  # what makes the sides unequal in this measure

    @property
    def better(self) -> str:
        """The better side; empty if both are equal."""
        if self.test is None or self.test.direction == 0:
            return ""
        return "B" if (self.test.direction < 0) == self.less_is_better else "A"

    @property
    def amount(self) -> str:
        """How far the sides are apart, with the unit: of runs that did not all reach the target, both medians."""
        if isinstance(self.test, CensoredTest):
            first, second = ("not reached" if value is None else f"{value:.4g}" for value in self.test.medians)
            return f"median A {first}, B {second}"
        return "" if self.test is None else f"{abs(self.test.difference):.4g}{self.unit}"

    @property
    def p(self) -> float:
        """The p that decides: corrected if the test is primary."""
        assert self.test is not None
        return self.test.p if self.corrected is None else self.corrected

    @property
    def words(self) -> str:
        """The better side, the difference, its interval and its significance; then equivalence, if it was asked for."""
        if self.test is None:
            return f"not compared: {UNTESTED.get(self.key, 'no run reached the target')}"
        parts = [self._comparison, *([self.equivalence.verdict] if self.equivalence else [])]
        if self.corrected is not None:
            parts.append(f"primary, Holm-corrected p = {self.corrected:.2g}")
        elif self.primary is not None:
            parts.append("exploratory")
        parts += [self.caveat] * bool(self.caveat)
        return "; ".join(parts)

    @property
    def difference(self) -> str:
        """B minus A with its interval, or both medians if some runs did not reach the target."""
        if isinstance(self.test, CensoredTest) or self.test is None:
            return self.amount
        interval = ""
        if self.test.interval:
            low, high = self.test.interval
            interval = f" (95 % t interval {low:+.4g} to {high:+.4g})"
        return f"B - A = {self.test.difference:+.4g}{self.unit}{interval}"

    @property
    def _comparison(self) -> str:
        if self.test is None or not self.better:
            return "equal"
        unpaired = "" if self.log_rank is None else f", log-rank p = {self.log_rank:.2g}"
        return f"{self.difference}: {self.better} better, {self.test.verdict}{unpaired}"


@dataclass(frozen=True)
class Comparison:
    """A comparison of two methods."""

    first: str
    second: str
    seeds: list[int]
    measures: list[MeasureComparison]
    notes: list[str]

    @property
    def about_p(self) -> str:
        """How the p values were corrected for their number."""
        primary = sum(measure.primary is True for measure in self.measures)
        if primary:
            tests = f"{primary} primary test{'s' * (primary > 1)}"
            return f"Holm's correction counts the {tests}; other p values are exploratory."
        return "No test was registered as primary (--holm), so every p is exploratory."

    @property
    def about_intervals(self) -> str:
        """Why an interval and a p value can disagree; empty if no interval is shown."""
        if not any(isinstance(measure.test, PairedTest) and measure.test.interval for measure in self.measures):
            return ""
        return (
            "The t intervals assume that the differences are normally distributed. The p values do not, so a p value "
            "can be above 0.05 although the interval does not contain 0. The p value decides."
        )

    @property
    def verdict(self) -> str:
        """A sentence about the first figure that differs, one about those that favour the other side, and equivalence.

        Primary tests come first. A caveat of a measure that is named follows its sentence.
        """
        telling = [measure for measure in self.measures if measure.better]
        sentences = ["Neither is better in anything that was measured."]
        if telling:
            main = next((measure for measure in telling if measure.primary), telling[0])
            against = [measure for measure in telling if measure.better != main.better]
            sentences = [_sentence(main)]
            if against:
                figures = " and ".join(f"{measure.name} ({_by(measure)})" for measure in against)
                sentences.append(f"{against[0].better} is ahead in {figures}.")
            sentences += _caveats([main, *against])
        return " ".join([*sentences, *_equivalence_sentences(self.measures)])


def _sentence(main: MeasureComparison) -> str:
    """The better side in the main figure, and whether the difference is significant."""
    test, other = main.test, "A" if main.better == "B" else "B"
    assert test is not None
    apart = f"in {main.name} {_by(main)}" if isinstance(test, PairedTest) else f"in {main.name} ({main.amount})"
    if test.smallest > LEVEL:
        return (
            f"{main.better} is ahead of {other} {apart}, but {test.seeds} "
            f"{'seed is' if test.seeds == 1 else 'seeds are'} too few to tell that from chance "
            f"(at least {seeds_needed()} are needed)."
        )
    p = f"{'p' if main.corrected is None else 'Holm-corrected p'} = {main.p:.2g}"
    if main.p > LEVEL:
        return f"{main.better} is ahead of {other} {apart}, but the difference is within chance ({p})."
    return f"{main.better} beats {other} {apart} ({p}, {test.seeds} seeds)."


def _caveats(named: Sequence[MeasureComparison]) -> list[str]:
    """One sentence per caveat, with the measures that it is about."""
    caveats = dict.fromkeys(measure.caveat for measure in named if measure.caveat)
    return [
        f"The sides are not equal in {' and '.join(one.name for one in named if one.caveat == caveat)}: {caveat}."
        for caveat in caveats
    ]


def _by(measure: MeasureComparison) -> str:
    return measure.amount if isinstance(measure.test, CensoredTest) else f"by {measure.amount}"


def _equivalence_sentences(measures: Sequence[MeasureComparison]) -> list[str]:
    tested = [(measure.name, measure.equivalence) for measure in measures if measure.equivalence]
    sentences = []
    for words, shown in (("A and B are equivalent", True), ("Equivalence is not shown", False)):
        names = [name for name, test in tested if test.equivalent is shown]
        if names:
            sentences.append(f"{words} within {tested[0][1].margin:g} in {', '.join(names)}.")
    return sentences


def compare(
    first: Path, second: Path, *, equivalent_within: float | None = None, holm: Sequence[str] = ()
) -> Comparison:
    """Compare run folders, or folders of runs that differ in their seed only. Runs with equal seeds are paired.

    Args:
        first: Side A.
        second: Side B.
        equivalent_within: The margin of an equivalence test, in rounds for rounds and in points (or MSE) for scores.
        holm: The measures that are primary tests, by their key in MEASURES.
    """
    if equivalent_within is not None and not 0 < equivalent_within < math.inf:
        raise FedA2LError(
            f"--equivalent-within {equivalent_within:g}: the margin must be positive, for example 0.5", see="compare"
        )
    for key in holm:
        look_up(key, MEASURES, "measure")
    notes = Notes()
    sides = [_side(path, notes) for path in (first, second)]
    pairs = pair_by_seed(sides[0], sides[1], notes)
    keys = varying_keys([figures.run for figures in itertools.chain(*sides)], Notes())
    one, other = (
        f"{path} ({label(side[0].run, keys)})" if keys else str(path)
        for path, side in zip((first, second), sides, strict=True)
    )
    measures = _with_holm(compare_pairs(pairs, equivalent_within), holm)
    return Comparison(one, other, [a.run.seed for a, _ in pairs], measures, notes.lines())


def pair_by_seed(first: Sequence[Figures], second: Sequence[Figures], notes: Notes) -> Pairs:
    """The runs of both sides, for each seed that both have; sides that cannot be compared are an error."""
    _check_alike((first, second), notes)
    a, b = ({figures.run.seed: figures for figures in side} for side in (first, second))
    seeds, alone = (", ".join(map(str, sorted(own))) for own in (a.keys() & b.keys(), a.keys() ^ b.keys()))
    if not seeds:
        found = [", ".join(map(str, sorted(own))) for own in (a, b)]
        raise FedA2LError(
            f"A has seeds {found[0]}, B has seeds {found[1]}; no seed is on both sides, so nothing can be paired",
            see="compare",
        )
    if alone:
        notes.add("left out, seeds that only one side has", alone)
    pairs = [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]
    for one, other in pairs if _same_target(pairs) else ():
        if (one.reached is None) != (other.reached is None):
            who = f"{'A' if one.reached is None else 'B'} with seed {one.run.seed}"
            notes.add("never at the target, ranked later than all that reached it", who)
    return pairs


def _with_holm(measures: list[MeasureComparison], keys: Sequence[str]) -> list[MeasureComparison]:
    """Mark the measures as primary or exploratory, and correct the primary p values for their number."""
    if not keys:
        return measures
    tested = {measure.key: measure.test.p for measure in measures if measure.test is not None}
    if missing := [key for key in keys if key not in tested]:
        raise FedA2LError(
            f"--holm {missing[0]}: these runs have no test of it; they have {', '.join(tested)}", see="compare"
        )
    primary = list(dict.fromkeys(keys))
    corrected = dict(zip(primary, correct_by_holm([tested[key] for key in primary]), strict=True))
    return [
        replace(measure, primary=measure.key in corrected, corrected=corrected.get(measure.key)) for measure in measures
    ]


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
            values = f"{first.keys.get(key, 'none')} and {second.keys.get(key, 'none')}"
            if key == "data.name":
                raise FedA2LError(
                    f"A and B learn different data ({values}), so their scores cannot be compared", see="compare"
                )
            notes.add("differs, so the figures that depend on it are not comparable", f"{key} ({values})")


def _same_target(pairs: Pairs) -> bool:
    """Do all runs have the same target, so that rounds can be compared?"""
    return all(a.run.target == b.run.target and a.run.target is not None for a, b in pairs)


def compare_pairs(pairs: Pairs, margin: float | None = None) -> list[MeasureComparison]:
    """Every figure that both sides have. Where all runs have it, the means are compared, else ranks and medians.

    Args:
        pairs: The runs of both sides with equal seeds.
        margin: Of the equivalence tests; None for no such test.
    """
    run = pairs[0][0].run
    measures = _to_target(pairs, run.target, margin) if _same_target(pairs) and run.target is not None else []
    unit, scale = " points" * (run.metric == "accuracy"), scale_of(run.metric)
    score = functools.partial(score_words, metric=run.metric)
    last = last_words(itertools.chain(*pairs))
    for name, key in ((f"best {run.metric}", "best"), (f"{run.metric} of the {last}", "last_10")):
        measure = _of(pairs, name, key, score, run.falls, unit, scale, margin)
        measures.append(replace(measure, caveat=_unequal_rounds(pairs)))
    return measures


def _unequal_rounds(pairs: Pairs) -> str:
    """That one side trained longer, which changes its scores; empty if both trained equally long."""
    first, second = (", ".join(map(str, sorted({pair[side].run.rounds for pair in pairs}))) for side in (0, 1))
    return "" if first == second else f"rounds differ (A {first}, B {second})"


def _to_target(pairs: Pairs, target: float, margin: float | None) -> list[MeasureComparison]:
    """Simulated seconds where both sides have them, interpolated and whole rounds, and seconds to the target."""
    run, every = pairs[0][0].run, list(itertools.chain(*pairs))
    goal = target_words(target, falls=run.falls).removeprefix("target ")
    measures = []
    if all(figures.simulated_in_all is not None for figures in every):
        # on a simulated network these seconds are the main figure
        last = max(figures.simulated_in_all or 0.0 for figures in every)
        words = functools.partial(rounds_words, rounds=f"{last:.2f}", digits=2)
        name = f"simulated seconds to {goal}"
        measures.append(_times(pairs, "simulated_seconds", name, "simulated", words, " s"))
    words = functools.partial(rounds_words, rounds=run.rounds, digits=2)
    name = f"interpolated rounds to {goal}"
    measures.append(_times(pairs, "interpolated_rounds", name, "interpolated", words, " rounds", margin))
    words = functools.partial(rounds_words, rounds=run.rounds)
    measures.append(_times(pairs, "rounds", f"rounds to {goal}", "reached", words, " rounds"))
    measures.append(_of(pairs, f"seconds to {goal}", "seconds", lambda v: f"{seconds_words(v)} s", True, " s"))
    return measures


def _times(
    pairs: Pairs,
    key: str,
    name: str,
    what: str,
    words: Callable[[RoundsToTarget], str],
    unit: str,
    margin: float | None = None,
) -> MeasureComparison:
    """Rounds or simulated seconds to the target. A run that misses it has no time, and is ranked last."""
    first, second = ([getattr(pair[side], what) for pair in pairs] for side in (0, 1))
    shown = [words(rounds_over_seeds(times)) for times in (first, second)]
    test: PairedTest | CensoredTest | None = times_test(first, second)
    log_rank, equivalence = None, None
    if isinstance(test, CensoredTest):
        ends = [[_end(pair[side], what) for pair in pairs] for side in (0, 1)]
        log_rank = log_rank_p(first, second, ends[0], ends[1])
        test = test if any(test.reached) else None
    elif margin is not None:
        equivalence = equivalence_test(first, second, margin)
    return MeasureComparison(key, name, shown[0], shown[1], test, True, unit, log_rank, equivalence)


def _end(figures: Figures, what: str) -> float:
    """Until when a run without a time is known not to have reached the target."""
    return figures.run.rounds if what != "simulated" else figures.simulated_in_all or 0.0


def _of(
    pairs: Pairs,
    name: str,
    key: str,
    words: Callable[[list[float]], str],
    less_is_better: bool,
    unit: str,
    scale: float = 1.0,
    margin: float | None = None,
) -> MeasureComparison:
    both = [(getattr(first, key), getattr(second, key)) for first, second in pairs]
    known = [pair for pair in both if None not in pair]
    if not known:
        return MeasureComparison(key, name, "", "", None, less_is_better, unit)
    first, second = map(list, zip(*known, strict=True))
    ours, theirs = ([scale * value for value in side] for side in (first, second))
    equivalence = None if margin is None else equivalence_test(ours, theirs, margin)
    test = paired_test(ours, theirs)
    return MeasureComparison(
        key, name, words(first), words(second), test, less_is_better, unit, equivalence=equivalence
    )
