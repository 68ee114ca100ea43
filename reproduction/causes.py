"""Decompose the released code's gain on ResNets: from its constant rate to its FedA2L, one change at a time."""

from pathlib import Path
from typing import NamedTuple

from reproduction.evidence import Evidence, of_common_seeds, pairs, read_evidence, with_longer
from reproduction.evidence_tables import by_seed, table


class Cause(NamedTuple):
    """Two cells that differ in one thing, or, if `whole`, in the sum of the causes listed above it."""

    name: str
    start: str
    end: str
    what: str
    whole: bool = False


CAUSES = (
    # from the released code's constant rate to its FedA2L
    Cause("momentum", "constant", "constant-momentum-0", "no momentum instead of 0.9"),
    Cause("decay", "constant-momentum-0", "hidden_schedule-base-warm-up", "the rate falls from round 44 on"),
    Cause("hidden warm-up", "hidden_schedule-base-warm-up", "hidden_schedule", "a tenth of the rate for 42 rounds"),
    Cause("warm-up and decay", "constant-momentum-0", "hidden_schedule", "both of these", whole=True),
    Cause("all but the signal", "constant", "hidden_schedule", "momentum, warm-up and decay", whole=True),
    Cause("layer-wise signal", "hidden_schedule", "feda2l-reference", "multipliers from divergence and stability"),
    Cause("the released gain", "constant", "feda2l-reference", "all of these", whole=True),
    # the paper's rule with the same optimizer as all other rules
    Cause("decay", "constant", "decay_only", "the rate falls from round 42 on, momentum stays"),
    Cause("layer-wise signal", "decay_only", "feda2l", "multipliers from divergence and stability"),
    Cause("signal against noise", "random_multiplier", "feda2l", "divergence and stability instead of white noise"),
    Cause("momentum", "feda2l", "feda2l-momentum-0", "no momentum instead of 0.9"),
    Cause("lower rate", "constant", "constant-0.003", "a constant 0.003"),
    # BatchNorm statistics
    Cause("BatchNorm policy", "constant", "constant-average", "statistics averaged like parameters"),
    Cause("BatchNorm policy", "cawr", "cawr-average", "the same under CAWR"),
    Cause("BatchNorm policy", "decay_only", "decay_only-average", "the same under the decay"),
    Cause("BatchNorm policy", "feda2l", "feda2l-average", "the same under FedA2L"),
    Cause("BatchNorm policy", "feda2l-reference", "feda2l-reference-average", "the same under the released FedA2L"),
    Cause("BatchNorm policy", "one_cycle", "one_cycle-average", "the same under OneCycle"),
    Cause("BatchNorm policy", "constant-0.003", "constant-0.003-average", "the same under a constant 0.003"),
    Cause("BatchNorm policy", "constant-momentum-0", "constant-momentum-0-average", "the same without momentum"),
    Cause("BatchNorm policy", "constant", "constant-recalibrate", "statistics re-estimated after mixing"),
    Cause("BatchNorm policy", "constant", "constant-group-norm", "GroupNorm, which has no statistics"),
    # what a rate rule adds once the statistics are averaged
    Cause("momentum", "constant-average", "constant-momentum-0-average", "no momentum instead of 0.9, averaged"),
    Cause("lower rate", "constant-average", "constant-0.003-average", "a constant 0.003, averaged"),
    Cause("CAWR", "constant-average", "cawr-average", "a cosine with restarts, averaged"),
    Cause("decay", "constant-average", "decay_only-average", "the rate falls from round 42 on, averaged"),
    Cause(
        "layer-wise signal",
        "decay_only-average",
        "feda2l-average",
        "multipliers from divergence and stability, averaged",
    ),
    Cause("signal against noise", "random_multiplier-average", "feda2l-average", "signals instead of noise, averaged"),
    Cause("layer-wise signal", "hidden_schedule-average", "feda2l-reference-average", "as released, averaged"),
)


def causes_table(results: Path, study: str, *longer: str) -> str:
    """Tabulate every cause whose two cells both have records, over the seeds that both cells share.

    The first rounds of the studies in `longer` count as more seeds.
    """
    own = read_evidence(results / study)
    for name in longer:
        own = with_longer(own, read_evidence(results / name))
    there = [cause for cause in CAUSES if cause.start in own.cells and cause.end in own.cells]
    rows = [[_name(cause), f"`{cause.start}` to `{cause.end}`", cause.what, *_change(own, cause)] for cause in there]
    return table(["cause", "from, to", "what changes", "rounds", "best smoothed, %", "last 10, %"], rows)


def _name(cause: Cause) -> str:
    return f"**{cause.name}**" if cause.whole else cause.name


def _change(own: Evidence, cause: Cause) -> list[str]:
    """Format both cells' means over their common seeds; for scores add the difference, and that of each seed."""
    start, end = of_common_seeds(own.cells[cause.start], own.cells[cause.end])
    if not start.seeds:
        return ["no seed in common", "", ""]
    words = [f"{by_seed(start)} to {by_seed(end)}"]
    for measure in ("best_smoothed", "last_10"):
        means = " to ".join(_mean(cell.over_seeds(measure)) for cell in (start, end))
        apart = [100 * (after - before) for before, after in pairs(end, start, measure)]
        each = ": " + ", ".join(f"{points:+.2f}" for points in apart) if len(apart) > 1 else ""
        words.append(f"{means} ({sum(apart) / len(apart):+.2f}{each})" if apart else means)
    return words


def _mean(values: list[float]) -> str:
    return f"{100 * sum(values) / len(values):.2f}" if values else "non-finite"
