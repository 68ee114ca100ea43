"""Build the Markdown tables of the evidence pages from the kept records."""

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from feda2l.report.find_runs import FoundRun
from feda2l.report.paper_numbers import PaperNumber, paper_number
from feda2l.report.results import NEVER, Cell
from feda2l.report.run_figures import Figures
from feda2l.report.run_records import records_at
from feda2l.report.significance import LEVEL, CensoredTest, EquivalenceTest, PairedTest
from feda2l.report.words import rounds_words, score_words
from reproduction.evidence import (
    SCORES,
    difference,
    difference_of_rounds,
    equivalence,
    layer_means,
    multipliers,
    read_evidence,
)

AGREES = 3  # rounds: the paper's own numbers for one setting differ by as much (spec G.6, G.7)
MARGIN = 0.5  # accuracy points, about the run-to-run noise of three seeds (docs/evidence/noise.md)
AGAINST_PAPER = ("the paper", "rounds, seed by seed", "mean ± std", "interpolated", "of the mean curve", "agree")
APART = ("best smoothed, points", "last 10, points")
WITHIN = f"within {MARGIN:g} points"
RULES = ("constant", "step", "cawr", "one_cycle", "hyperbolic", "feda2l")
SCHEDULES = ("step", "cawr", "one_cycle", "hyperbolic")
GAINS = ("constant: the paper", "constant: ours", "best schedule: the paper", "best schedule: ours")
PAPERS_ROUNDS = 500  # of its runs on images

# control -> the part of FedA2L that the comparison with it isolates
PARTS = {
    "constant": "the whole method",
    "decay_only": "all but the decay (every multiplier is 1)",
    "decay_only_matched": "the adaptation, at FedA2L's mean rate of each round",
    "random_multiplier": "the signals (replaced by noise)",
    "shuffled": "which layer gets which multiplier",
    "model_level": "layers (one multiplier per node)",
    "feda2l-sigma-only": "stability",
    "feda2l-zeta-only": "divergence",
    "feda2l-sign-minus": "the sign of the stability (less agreement raises the rate)",
    "cawr": "the paper's fastest schedule here",
    "one_cycle": "a schedule that rises first",
    "constant-0.003": "a smaller constant rate",
}
# from the constant rate to FedA2L, one part at a time
STEPS = (
    ("constant", "decay_only", "the decay after warm-up"),
    ("decay_only", "decay_only_matched", "FedA2L's mean rate of each round"),
    ("decay_only_matched", "model_level", "multipliers from the signals, one per node"),
    ("model_level", "feda2l", "one multiplier per layer"),
    ("shuffled", "feda2l", "each layer gets its own multiplier, not another layer's"),
    ("random_multiplier", "feda2l", "signals instead of noise"),
)
FAMILY = (
    "feda2l",
    "feda2l-reference",
    "random_multiplier",
    "shuffled",
    "model_level",
    "feda2l-sigma-only",
    "feda2l-zeta-only",
    "feda2l-sign-minus",
    "decay_only_matched",
    "decay_only",
)


def runs_table(results: Path) -> str:
    """Tabulate what is kept: one row per study."""
    rows = []
    for folder in sorted(path.parent for path in results.glob("*/study.toml")):
        own = read_evidence(folder)
        counts = sorted({len(cell.seeds) for cell in own.cells.values()}) or [0]  # 0: only a first stage is kept
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        devices = sorted({figures.run.machine for figures in own.runs})
        precisions = sorted({str(figures.run.keys.get("runtime.precision")) for figures in own.runs})
        missing = f"{len(own.missing)} ({', '.join(own.missing[:8])}{', ...' * (len(own.missing) > 8)})"
        words = [folder.name, own.study.reading, len(own.cells), seeds, len(own.runs)]
        rows.append([*map(str, words), missing if own.missing else "none", ", ".join(devices + precisions)])
    return table(["study", "reading", "cells", "seeds each", "runs", "cells not run yet", "on"], rows)


def cells_table(results: Path, study: str) -> str:
    """Tabulate every cell of a study beside the paper's number for it."""
    own = read_evidence(results / study)
    rows = [[f"`{cell.row}`", *_against_paper(cell), *scores(cell)] for cell in own.cells.values()]
    header = ["cell", *AGAINST_PAPER, "best, %", "best smoothed", "last 10"]
    return table(header, rows)


def sensitivity_table(results: Path, study: str, default: str) -> str:
    """Tabulate FedA2L with one parameter changed, beside the paper's numbers and minus the default setting."""
    own = read_evidence(results / study)
    rows = []
    for cell in own.cells.values():
        theirs, by_seed, _, _, curve, agree = _against_paper(cell)
        best = "" if cell.paper is None or cell.paper.best is None else f"{100 * cell.paper.best:.2f}"
        apart = [""] * 4 if cell.row == default else differences(cell, own.cells[default])
        shown = [theirs, by_seed, curve, agree, apart[0], best, *scores(cell)[:2], apart[1], apart[3]]
        rows.append([f"`{cell.row}`", *shown])
    header = ["cell", "the paper", "rounds, seed by seed", "of the mean curve", "agree", f"rounds minus `{default}`"]
    header += ["best, %: the paper", "best, %: ours", "best smoothed", f"best smoothed minus `{default}`, points"]
    header += [WITHIN]
    return f"{table(header, rows)}\n\n{_about_tests(own.cells[default])}"


def algorithms_table(results: Path, *studies: str) -> str:
    """Tabulate the paper's six rules under each algorithm; the cost of a search before round 1 follows the table."""
    rows, searches = [], []
    for algorithm, rules in _by_algorithm(results, studies).items():
        for rule, cell in rules.items():
            rows.append([algorithm, f"`{rule}`", *_against_paper(cell), *scores(cell)[1:]])
            searches += [_search_words(algorithm, cell)] if cell.over_seeds("search") else []
    header = [
        "algorithm",
        "rule",
        "the paper",
        "rounds, seed by seed",
        "mean ± std",
        "interpolated",
        "of the mean curve",
        "agree",
    ]
    return "\n\n".join([table([*header, "best smoothed, %", "last 10"], rows), *searches])


def gains_table(results: Path, *studies: str) -> str:
    """Tabulate the rounds that FedA2L saves under each algorithm: the paper's and ours, both from the mean curve."""
    rows = []
    for algorithm, rules in _by_algorithm(results, studies).items():
        if "feda2l" not in rules:
            continue
        rows.append([algorithm, *gains(rules, lambda run: paper_number(run, ("rates.name",)))])
    return table(["algorithm", *GAINS], rows)


def decay_table(results: Path, *studies: str) -> str:
    """Tabulate FedA2L minus its decay alone, under each algorithm."""
    rows, names = [], ("constant", "decay_only", "feda2l")
    for algorithm, rules in _by_algorithm(results, studies, names).items():
        if rules.keys() >= set(names):
            apart = differences(rules["feda2l"], rules["decay_only"])
            rows.append([algorithm, *(by_seed(rules[name]) for name in names), *apart])
    header = ["algorithm", *(f"rounds of `{name}`" for name in names)]
    return table([*header, "`feda2l` minus `decay_only`: rounds", *APART, WITHIN], rows)


def parts_table(results: Path, study: str, seeds: str = "") -> str:
    """Tabulate FedA2L minus each control over the seeds that both have.

    `seeds`, for example "4-8", restricts the table to a range of seeds, such as those that were run together.
    """
    cells = read_evidence(results / study).cells
    if seeds:
        first, last = map(int, seeds.split("-"))
        kept = {name: [own for own in cell.seeds if first <= own.run.seed <= last] for name, cell in cells.items()}
        cells = {name: replace(cells[name], seeds=own) for name, own in kept.items() if own}
    there = [name for name in PARTS if name in cells]
    rows = [[f"`{name}`", PARTS[name], *differences(cells["feda2l"], cells[name])] for name in there]
    header = ["FedA2L minus", "what it isolates", "rounds", *APART, WITHIN]
    return f"{table(header, rows)}\n\n{_about_tests(cells['feda2l'])}"


def steps_table(results: Path, study: str) -> str:
    """Tabulate what each part of FedA2L adds to the parts before it."""
    own = read_evidence(results / study)
    there = [step for step in STEPS if step[0] in own.cells and step[1] in own.cells]
    rows = [
        [f"`{start}` to `{end}`", what, *differences(own.cells[end], own.cells[start])] for start, end, what in there
    ]
    header = ["from, to", "what is added", "rounds", *APART, WITHIN]
    return f"{table(header, rows)}\n\n{_about_tests(own.cells['feda2l'])}"


def multipliers_table(results: Path, study: str) -> str:
    """Tabulate the statistics of the multipliers."""
    own = read_evidence(results / study)
    rows = []
    for name in FAMILY:
        if name in own.cells:
            found = multipliers(own.cells[name], _adapted(own.cells[name]))
            numbers = (found.mean, found.std, found.low, found.high, found.follow, found.layers, found.rates)
            rows.append([f"`{name}`", *(f"{number:.2f}" for number in numbers)])
    header = ["cell", "mean m", "std", "lowest", "highest", "correlation with the round before"]
    return table([*header, "std of the layers' means", "mean rate of all rounds / base"], rows)


def layers_table(results: Path, *studies: str) -> str:
    """Tabulate each layer's mean signal and multiplier under each algorithm, once rates are adapted."""
    rows = []
    for algorithm, rules in _by_algorithm(results, studies).items():
        if "feda2l" in rules:
            found = layer_means(rules["feda2l"], _adapted(rules["feda2l"]))
            for name, words in (("divergence", "divergence"), ("multiplier", "multiplier")):
                rows.append([algorithm, words, *(f"{value:.3f}" for value in found[name])])
            layers = found["layer"].to_list()
    return table(["algorithm", "mean of", *layers], rows)


def tuned_table(results: Path, study: str) -> str:
    """Tabulate the trials that chose each rule's base rate, on samples that no node trains on, and the runs with it."""
    own = read_evidence(results / study)
    rows, values = [], list[float]()
    for cell in own.cells.values():
        chosen = json.loads(records_at(own.folder / "stages" / "tune" / cell.row).text("chosen"))
        values = [value for value, _ in chosen["scores"]]
        words = [f"{100 * score:.1f}" if score is not None else "non-finite" for _, score in chosen["scores"]]
        marked = [
            f"**{text}**" if value == chosen["value"] else text for value, text in zip(values, words, strict=True)
        ]
        rows.append([f"`{cell.row}`", *marked, by_seed(cell), *scores(cell)[1:]])
    trials = [f"trial at {value:g}, %" for value in values]
    return table(["rule", *trials, "rounds, seed by seed", "best smoothed, %", "last 10"], rows)


def bytes_table(results: Path, study: str) -> str:
    """Tabulate the bytes that a run sends."""
    own = read_evidence(results / study)
    rows = []
    for name in ("constant", "decay_only", "feda2l"):
        sent = sorted({int(figures.run.summary["bytes_sent"]) for figures in own.cells[name].seeds})
        rows.append([f"`{name}`", ", ".join(f"{count:,}" for count in sent)])
    return table(["cell", "bytes sent in a run"], rows)


def repeats_table(results: Path, *studies: str) -> str:
    """Tabulate runs that were repeated in another pack: they differ by the order of a GPU's sums alone."""
    runs = [figures for study in studies for figures in read_evidence(results / study).runs]
    pairs = [(first, second) for first, second in itertools.combinations(runs, 2) if _same_run(first, second)]
    rows = [
        [
            f"`{first.run.path.parent.name}` of `{first.run.path.parents[1].name}`, seed {first.run.seed}",
            f"{first.reached}, {second.reached}",
            ", ".join(f"{100 * (own.best_smoothed or 0):.2f}" for own in (first, second)),
            ", ".join(f"{100 * (own.last_10 or 0):.2f}" for own in (first, second)),
        ]
        for first, second in pairs
    ]
    return table(["run", "rounds", "best smoothed, %", "last 10, %"], rows)


TABLES: dict[str, Callable[..., str]] = {
    "runs": runs_table,
    "cells": cells_table,
    "sensitivity": sensitivity_table,
    "algorithms": algorithms_table,
    "gains": gains_table,
    "decay": decay_table,
    "parts": parts_table,
    "steps": steps_table,
    "multipliers": multipliers_table,
    "layers": layers_table,
    "tuned": tuned_table,
    "bytes": bytes_table,
    "repeats": repeats_table,
}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _same_run(first: Figures, second: Figures) -> bool:
    """Compare spec and seed; a key that only one of the files has is from a later version and has its default there."""
    ours, theirs = dict(first.run.decides), dict(second.run.decides)
    return all(ours[key] == theirs[key] for key in ours.keys() & theirs.keys())


def differences(cell: Cell, other: Cell) -> list[str]:
    """Format the cell minus the other: interpolated rounds, both scores, and whether the scores are equivalent."""
    words = [_rounds_apart(difference_of_rounds(cell, other))]
    for measure in SCORES:
        test = difference(cell, other, measure)
        words.append("" if test is None else _apart(test, 100))
    return [*words, _equivalent(equivalence(cell, other, MARGIN))]


def _rounds_apart(test: PairedTest | CensoredTest | None) -> str:
    """Format a difference of rounds; both medians if a run did not reach the target."""
    if test is None or isinstance(test, PairedTest):
        return "" if test is None else _apart(test, 1)
    if test.medians == (None, None):
        return f"{test.reached[1]} and {test.reached[0]} of {test.seeds} reached it (p = {test.p:.2g})"
    theirs, ours = ("not reached" if value is None else f"{value:.2f}" for value in test.medians)
    return f"medians {ours} and {theirs} (p = {test.p:.2g})"


def _apart(test: PairedTest, scale: int) -> str:
    half = "" if test.interval is None else f" ± {scale * (test.interval[1] - test.difference):.2f}"
    return f"{scale * test.difference:+.2f}{half} (p = {test.p:.2g})"


def _equivalent(test: EquivalenceTest | None) -> str:
    if test is None or test.p is None:
        return ""
    return f"{'yes' if test.equivalent else 'no'} (p = {test.p:.2g})"


def _about_tests(cell: Cell) -> str:
    seeds = len(cell.seeds)
    name = "FedA2L" if cell.row == "feda2l" else f"`{cell.row}`"
    return (
        f"Mean differences over the seeds that both have ({name}: {seeds}). Rounds are interpolated. "
        "± is half the 95 % interval (Student's t). "
        f"p is from a paired permutation test; with {seeds} seeds it is at least {2 / 2**seeds:.2g}. "
        "If a run did not reach the target, the table has both medians and the p of the same test on ranks. "
        f"*Within {MARGIN:g} points*: two one-sided t tests (TOST) of the best smoothed accuracy; "
        f"yes if p <= {LEVEL:g}. All p are exploratory."
    )


def _by_algorithm(results: Path, studies: Sequence[str], names: Sequence[str] = RULES) -> dict[str, dict[str, Cell]]:
    found: dict[str, dict[str, Cell]] = {}
    for study in studies:
        for cell in read_evidence(results / study).cells.values():
            keys = cell.example.run.keys
            algorithm, rule = str(keys["algorithm.name"]), str(keys["rates.name"])
            # the unchanged rule: under the paper's usual algorithm, under another one, or the only rule of an algorithm
            if rule in names and cell.row in (rule, f"{algorithm}-{rule}", algorithm):
                found.setdefault(algorithm, {})[rule] = cell
    return found


def _search_words(algorithm: str, cell: Cell) -> str:
    """Describe the rounds to the target with the rounds of the search before round 1 included."""
    costs = [figures.search or 0.0 for figures in cell.seeds]
    totals = [None if f.reached is None else f.reached + cost for f, cost in zip(cell.seeds, costs, strict=True)]
    rates = [statistics.fmean(figures.run.summary["search"]["rates"]) for figures in cell.seeds]
    return (
        f"{algorithm} trains each node for the equivalent of {_each(costs)} rounds before round 1. This finds its base "
        f"rate ({', '.join(f'{rate:.4f}' for rate in rates)}). The table omits it. With it the target is reached "
        f"after {', '.join('-' if total is None else f'{total:g}' for total in totals)} rounds."
    )


def _each(values: Sequence[float]) -> str:
    """List the distinct values: one number if all are the same."""
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))


def _against_paper(cell: Cell) -> list[str]:
    theirs, agree = cell.paper, ""
    if theirs is not None and theirs.rounds is not None:
        low, high, ours = theirs.rounds, theirs.highest or theirs.rounds, _ours(cell)
        agree = "yes" if low - AGREES <= ours <= high + AGREES else "no"
        if ours == NEVER and theirs.rounds > cell.rounds:
            agree = "not run so long"
    spread = rounds_words(cell.reach, cell.rounds)
    return [theirs.text if theirs else "", by_seed(cell), spread, interpolated(cell), by_curve(cell), agree]


def interpolated(cell: Cell) -> str:
    """Return mean and spread of the interpolated rounds; the median if not every seed reached the target."""
    reach = cell.interpolated
    if reach.mean is None:
        return "-" if reach.median is None else f"median {reach.median:.2f}"
    return f"{reach.mean:.2f}" + ("" if reach.std is None else f" ± {reach.std:.2f}")


def by_seed(cell: Cell) -> str:
    """List the round at which each seed reached the target."""
    words = {True: "non-finite", False: "-"}
    return ", ".join(str(f.reached) if f.reached is not None else words[f.run.non_finite] for f in cell.seeds)


def by_curve(cell: Cell) -> str:
    """Return the round at which the mean of the seeds' curves reached the target."""
    average = cell.curve_averaged
    return "non-finite" if cell.non_finite else f"> {cell.rounds}" if average is None else str(average)


def scores(cell: Cell) -> list[str]:
    return [score_words(cell.over_seeds(name), "accuracy") or "-" for name in ("best", "best_smoothed", "last_10")]


def _adapted(cell: Cell) -> int:
    """Return the first round that every preset trains with adapted rates."""
    return int(cell.example.run.keys["rates.warmup_rounds"]) + 3


def gains(rules: Mapping[str, Cell], papers: Callable[[FoundRun], PaperNumber | None]) -> list[str]:
    """Compare FedA2L with the constant rate and the best schedule: the paper's rounds, and ours from the mean curve.

    The paper's best schedule may be one that was not run here.
    """
    feda2l = rules["feda2l"]

    def theirs(rule: str) -> float:
        number = papers(_with_rule(feda2l.example.run, rule))
        return NEVER if number is None or number.rounds is None else number.rounds

    words = []
    for rivals in (("constant",), SCHEDULES):
        words.append(_saved(theirs, rivals, PAPERS_ROUNDS))
        there = [rule for rule in rivals if rule in rules]
        words.append(_saved(lambda rule: _ours(rules[rule]), there, feda2l.rounds))
    return words


def _with_rule(run: FoundRun, rule: str) -> FoundRun:
    """Return the run with another rate rule, to look up the paper's number for a rule that was not run."""
    return replace(run, spec={**run.spec, "rates": {**run.spec["rates"], "name": rule}})


def _ours(cell: Cell) -> float:
    return NEVER if cell.curve_averaged is None else float(cell.curve_averaged)


def _saved(rounds: Callable[[str], float], rivals: Sequence[str], limit: int) -> str:
    """Format FedA2L's rounds beside the fastest rival's, and the share of them that it saves."""
    rival = min(rivals, key=rounds)
    own, best = rounds("feda2l"), rounds(rival)
    if own == NEVER:
        return f"> {limit} against " + (f"{best:g} (`{rival}`)" if best < NEVER else f"> {limit}")
    if best == NEVER:
        return f"{own:g} against > {limit}"
    return f"{own:g} against {best:g} (`{rival}`): {100 * (best - own) / best:+.0f} %"
