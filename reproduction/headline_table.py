"""Table of the summary page: one row per setting, with FedA2L beside `decay_only` and two simpler rules."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from feda2l.report.results import Cell
from reproduction.evidence import read_evidence
from reproduction.evidence_tables import by_curve, table


@dataclass(frozen=True)
class Headline:
    """One setting: the study that holds it and the cells that its columns show."""

    label: str
    study: str
    feda2l: str = "feda2l"
    decay: str = "decay_only"
    constant: str = "constant"
    cawr: str = "cawr"

    @property
    def names(self) -> tuple[str, str, str, str]:
        return self.feda2l, self.decay, self.constant, self.cawr


def _released(label: str, suffix: str = "") -> Headline:
    """Return the row of a ResNet-18 with FedA2L as released. Its decay-only control is `hidden_schedule`."""
    names = (f"{name}{suffix}" for name in ("feda2l-reference", "hidden_schedule", "constant", "cawr"))
    return Headline(label, "evidence-resnet18-cifar100-long", *names)


def _series(label: str, study: str) -> Headline:
    return Headline(label, study, *(f"sgd-fedavg-{name}" for name in ("feda2l", "decay_only", "constant", "cawr")))


HEADLINES = (
    Headline("CNN, CIFAR-100", "evidence-cnn-cifar100"),
    Headline("the same, one common start", "evidence-cnn-cifar100-fair"),
    Headline("CNN, CIFAR-10", "evidence-cnn-cifar10"),
    _released("ResNet-18, CIFAR-100, as released"),
    _released("the same, BatchNorm statistics averaged", "-average"),
    _series("Timer, exchange rates (MSE)", "evidence-series-exchange-rate"),
    _series("Timer, Beijing's air quality (MSE)", "evidence-series-beijing"),
)
HEADER = ("setting", "seeds", "target", "paper: FedA2L", "FedA2L", "decay alone", "constant", "CAWR")
LAST_TEN = "last 10: FedA2L, decay alone, constant"


def headline_table(results: Path) -> str:
    """Tabulate the mean curve's rounds to the target and the mean score of the last ten rounds in every setting."""
    return table([*HEADER, LAST_TEN], [_row(results, headline) for headline in HEADLINES])


def _row(results: Path, headline: Headline) -> list[str]:
    cells = read_evidence(results / headline.study).cells
    chosen = [cells[name] for name in headline.names]
    run, paper = chosen[0].example.run, chosen[0].paper
    assert run.target is not None, f"{headline.study} has a target"
    target = f"{run.target:.4f}" if run.metric == "mse" else f"{100 * run.target:g} %"
    theirs = "none" if paper is None or paper.rounds is None else f"{paper.rounds:g}"
    last_ten = ", ".join(_mean_score(cell, run.metric) for cell in chosen[:3])
    return [headline.label, _seeds(chosen), target, theirs, *map(by_curve, chosen), last_ten]


def _mean_score(cell: Cell, metric: str) -> str:
    mean = fmean(cell.over_seeds("last_10"))
    return f"{mean:.4f}" if metric == "mse" else f"{100 * mean:.1f}"


def _seeds(cells: Iterable[Cell]) -> str:
    counts = sorted({len(cell.seeds) for cell in cells})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
