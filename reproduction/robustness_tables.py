"""Tables for other data skews, network sizes and graphs: every rule in each setting, and what FedA2L saves.

The paper does not say on which network its robustness table was made, and its targets differ from ours. Compare the
saved rounds of both, not the rounds themselves.
"""

from pathlib import Path

from feda2l.report.paper_numbers import paper_robustness
from feda2l.report.results import Cell
from reproduction.evidence import read_evidence
from reproduction.evidence_tables import GAINS, SCHEDULES, WITHIN, by_curve, by_seed, differences, gains, scores, table

Settings = dict[tuple[str, str], dict[str, Cell]]  # setting and algorithm -> rule -> cell


def robustness_gains_table(results: Path, study: str) -> str:
    """Tabulate the rounds that FedA2L saves in each setting, and its difference to its decay alone."""
    rows = []
    for (setting, algorithm), rules in _settings(results, study).items():
        if not (rules.keys() >= {"constant", "decay_only", "feda2l"} and rules.keys() & set(SCHEDULES)):
            continue  # started, but without enough rules to compare
        target = rules["feda2l"].example.run.target
        assert target is not None
        saved = gains(rules, paper_robustness)
        rounds, best, _, within = differences(rules["feda2l"], rules["decay_only"])
        rows.append([setting, algorithm, f"{100 * target:.1f}", *saved, rounds, best, within])
    header = ["setting", "algorithm", "target, %", *GAINS]
    return table([*header, "`feda2l` minus `decay_only`: rounds", "best smoothed, points", WITHIN], rows)


def robustness_table(results: Path, study: str) -> str:
    """Tabulate every rule in every setting."""
    rows = []
    for (setting, algorithm), rules in _settings(results, study).items():
        for rule, cell in rules.items():
            paper = paper_robustness(cell.example.run)
            words = [setting, algorithm, f"`{rule}`", paper.text if paper else "", by_seed(cell), by_curve(cell)]
            rows.append([*words, *scores(cell)[1:]])
    header = ["setting", "algorithm", "rule", "the paper, to its own target", "rounds, seed by seed"]
    return table([*header, "of the mean curve", "best smoothed, %", "last 10"], rows)


def _settings(results: Path, study: str) -> Settings:
    """Group the cells that have runs by setting and algorithm."""
    own, found = read_evidence(results / study), Settings()
    for planned in own.study.cells:
        if planned.name in own.cells:
            cell, axes = own.cells[planned.name], planned.axes
            rules = found.setdefault((str(planned.variant), str(axes["algorithm.name"])), {})
            rules[str(axes["rates.name"])] = cell
    return found
