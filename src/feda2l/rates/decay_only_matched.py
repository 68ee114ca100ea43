"""A control for the mean rate: the decay alone times the mean multiplier of a FedA2L run in the same round."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feda2l.equations import Signals
from feda2l.errors import FedA2LError
from feda2l.rates.base import Setting
from feda2l.rates.feda2l import FedA2LRates, FedA2LRule
from feda2l.records.round_record import from_line


@dataclass(frozen=True, kw_only=True)
class DecayOnlyMatched(FedA2LRule):
    """decay_only times the mean m (over nodes and layers) of the paired FedA2L run in the same round.

    FedA2L raises the mean rate by about 14 % even on noise; this control has the same mean and no adaptation. `paired`
    is the run folder of the finished FedA2L run.
    """

    summary = "control: decay_only times the mean multiplier of a paired FedA2L run"
    role = "control"

    paired: str = ""

    def start(self, setting: Setting) -> FedA2LRates:
        return _MatchedRates(self.resolved(len(setting.layers)), setting, mean_multipliers(self.paired))


class _MatchedRates(FedA2LRates):
    def __init__(self, rule: FedA2LRule, setting: Setting, means: list[float]) -> None:
        super().__init__(rule, setting)
        self.means = means

    def multiplied(self, round: int, history: Signals) -> Tensor:
        # the multiplier set at the end of round r is used and recorded in round r + 1: 0-based index r
        # the last round sets rates that no round trains with, so its mean may be missing
        if round > len(self.means):
            raise FedA2LError(
                f"rates.paired: the paired run has {len(self.means)} rounds and no round {round + 1}: "
                "pair with a run of at least as many rounds"
            )
        return torch.full_like(self.rates, self.means[min(round, len(self.means) - 1)])


def mean_multipliers(folder: str) -> list[float]:
    """Return the mean multiplier of each round of a finished run, from `rounds.jsonl` or else from its table."""
    if not folder:
        raise FedA2LError("rates.paired is missing: decay_only_matched needs the folder of a finished FedA2L run")
    records = Path(folder) / "rounds.jsonl"
    try:
        if not records.exists() and (means := _from_tables(Path(folder))):
            return means
        rounds = [from_line(line) for line in records.read_text().splitlines()]
        # a node that was absent in a round has no multiplier in it
        adapted = [[row for row in round["layers"]["multiplier"] if None not in row] for round in rounds]
        return [float(torch.tensor(rows, dtype=torch.float64).mean()) for rows in adapted]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FedA2LError(
            f"rates.paired = {folder!r}: {records} cannot be read as the record of a run: {error}"
        ) from error


def _from_tables(folder: Path) -> list[float]:
    """The means from the rows per layer, or those that a bundle keeps of them; empty where there are neither."""
    import polars  # on use: where runs train there may be none

    per_round = {
        "layers.parquet": polars.col("multiplier").mean(),
        "rounds.parquet": polars.col("multiplier_mean").first(),  # it is the same on each node's row
    }
    for name, mean in per_round.items():
        if (table := folder / name).exists() and set(mean.meta.root_names()) <= set(polars.read_parquet_schema(table)):
            means = polars.read_parquet(table).group_by("round").agg(mean.alias("mean")).sort("round")
            return [float(value) for value in means["mean"]]
    return []
