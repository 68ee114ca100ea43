"""Pick the runs that belong to a table or figure of the paper: one cell per column, algorithm and rate rule."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from feda2l.report.find_runs import IRRELEVANT, FoundRun
from feda2l.report.layout import default_settings
from feda2l.report.paper_numbers import PaperMatch, compare_with_paper, printed_target
from feda2l.report.paper_settings import USUAL, names_of, network_of
from feda2l.report.results import Cell
from feda2l.report.run_figures import Figures

RULES = ("Vanilla", "StepLR", "CAWR", "OCLR", "Hyperbolic", "FedA2L")
ALGORITHMS = ("FedAvg", "FedProx", "FedYogi", "FedNTD", "FedAWA", "DFedSAM")
SEARCHED = "DFedHPO"
# two runs of one setting may differ in these keys
IGNORED = ("seed", "data.partition_seed", "rates.paired", "runtime.checkpoint_seconds", *IRRELEVANT)
KEYS_SHOWN = 8
# of two settings that are equally near to the paper's, the one of the reading "paper" is shown
READING = {"model.init": "per_node", "algorithm.buffers": "local", "rates.preset": "paper"}
Setting = frozenset[tuple[str, str]]


class Column(NamedTuple):
    """One setting of the paper: what its runs have in common besides algorithm and rate rule."""

    title: str
    model: str | None
    data: str
    network: str | None = USUAL


@dataclass(frozen=True)
class Grid:
    """The cells of a table of the paper, by column, algorithm and rule; what was not run is missing."""

    cells: dict[tuple[Column, str, str], Cell]
    targets: dict[Column, float]
    notes: list[str] = field(default_factory=list)

    def rules(self, column: Column, algorithm: str) -> dict[str, Cell]:
        """The rules that were run with an algorithm in a setting, in the paper's order."""
        return {rule: cell for rule in RULES if (cell := self.cells.get((column, algorithm, rule))) is not None}


def make_grid(
    runs: Sequence[Figures], columns: Sequence[Column], algorithms: Sequence[str], *, numbers: bool = True
) -> Grid:
    """The cells of these columns and algorithms.

    A column has one target: the paper's, or if no run has it, that of most runs. Of several settings for one cell, the
    one nearest to the paper's is taken, and the notes say which settings are left out.
    """
    grid, left_out = Grid({}, {}), list[Figures]()
    keys: Counter[str] = Counter()
    for column in columns:
        own = [figures for figures in runs if _belongs(figures.run, column)]
        own = [figures for figures in own if names_of(figures.run)["algorithm"] in algorithms]
        if not own:
            continue
        grid.targets[column] = target = _target(own)
        others = [figures for figures in own if figures.run.target != target]
        left_out += others
        keys["evaluation.target"] += len(others)
        for (algorithm, rule), found in _by_method(f for f in own if f.run.target == target).items():
            chosen, others = _nearest(found)
            left_out += others
            keys.update(key for other in others for key, _ in _setting(other.run) - _setting(chosen[0].run))
            beside = compare_with_paper(chosen[0].run) if numbers else PaperMatch()
            grid.cells[column, algorithm, rule] = Cell(rule, chosen, beside.number, beside.differs)
    if left_out:
        differ = ", ".join(f"{key} ({count})" for key, count in keys.most_common(KEYS_SHOWN) if count)
        words = f"{len(left_out)} runs of the same cells in other settings; how many differ in what: {differ}"
        grid.notes.append(f"Left out of this table, {words}.")
    return grid


def _belongs(run: FoundRun, column: Column) -> bool:
    names = names_of(run)
    if names["method"] is None or run.target is None or names["dataset"] != column.data:
        return False
    return run.falls or (names["model"] == column.model and network_of(run) == column.network)


def _target(own: Sequence[Figures]) -> float:
    targets = [figures.run.target for figures in own if figures.run.target is not None]
    paper = {printed_target(figures.run) for figures in own}
    return next((target for target in targets if target in paper), Counter(targets).most_common(1)[0][0])


def _by_method(runs: Iterable[Figures]) -> dict[tuple[str, str], dict[Setting, list[Figures]]]:
    found: dict[tuple[str, str], dict[Setting, list[Figures]]] = defaultdict(lambda: defaultdict(list))
    for figures in runs:
        names = names_of(figures.run)
        found[str(names["algorithm"]), str(names["method"])][_setting(figures.run)].append(figures)
    return found


def _setting(run: FoundRun) -> Setting:
    """What all seeds of a method have in common; a key that an older record lacks has its default."""
    keys = {**default_settings(), **run.keys}
    return frozenset((key, repr(value)) for key, value in keys.items() if key not in IGNORED)


def _nearest(found: dict[Setting, list[Figures]]) -> tuple[list[Figures], list[Figures]]:
    """The seeds of the setting nearest to the paper's, and the runs of the other settings."""
    chosen, *others = sorted(found.values(), key=lambda own: (_distance(own[0].run), -len(own)))
    seeds = {figures.run.seed: figures for figures in reversed(chosen)}
    return [seeds[seed] for seed in sorted(seeds)], [figures for other in others for figures in other]


def _distance(run: FoundRun) -> tuple[int, int]:
    apart = sum(run.keys.get(key, value) != value for key, value in READING.items())
    return len(compare_with_paper(run).differs), apart
