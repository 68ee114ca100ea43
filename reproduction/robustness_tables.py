"""Other skew, sizes and graphs: every rule in each setting, and FedA2L against the rest of them.

The paper does not say on what network its robustness table was made, and its targets are others than ours: its rounds
stand beside ours for what they save, not for what they are.
"""

from pathlib import Path

from feda2l.report.paper_numbers import paper_robustness
from feda2l.report.results import Cell
from reproduction.evidence import read_evidence
from reproduction.evidence_tables import GAINS, SCHEDULES, by_curve, by_seed, differences, gains, scores, table

Settings = dict[tuple[str, str], dict[str, Cell]]  # setting and algorithm -> rule -> cell


def robustness_gains_table(results: Path, study: str) -> str:
    """What FedA2L saves in each setting, in the paper and here, and how far it is from its decay alone."""
    rows = []
    for (setting, algorithm), rules in _settings(results, study).items():
        if not (rules.keys() >= {"constant", "decay_only", "feda2l"} and rules.keys() & set(SCHEDULES)):
            continue  # begun, and not yet to be compared
        target = rules["feda2l"].example.run.target
        assert target is not None
        saved = gains(rules, paper_robustness)
        apart = differences(rules["feda2l"], rules["decay_only"])[:2]
        rows.append([setting, algorithm, f"{100 * target:.1f}", *saved, *apart])
    header = ["setting", "algorithm", "target, %", *GAINS]
    return table([*header, "`feda2l` minus `decay_only`: rounds", "best smoothed, points"], rows)


def robustness_table(results: Path, study: str) -> str:
    """Every rule in every setting."""
    rows = []
    for (setting, algorithm), rules in _settings(results, study).items():
        for rule, cell in rules.items():
            paper = paper_robustness(cell.example.run)
            words = [setting, algorithm, f"`{rule}`", paper.text if paper else "", by_seed(cell), by_curve(cell)]
            rows.append([*words, *scores(cell)[1:]])
    header = ["setting", "algorithm", "rule", "the paper, to its own target", "rounds, seed by seed"]
    return table([*header, "of the mean curve", "best smoothed, %", "last 10"], rows)


def _settings(results: Path, study: str) -> Settings:
    """What was run of each setting."""
    own, found = read_evidence(results / study), Settings()
    for planned in own.study.cells:
        if planned.name in own.cells:
            cell, axes = own.cells[planned.name], planned.axes
            rules = found.setdefault((str(planned.variant), str(axes["algorithm.name"])), {})
            rules[str(axes["rates.name"])] = cell
    return found
