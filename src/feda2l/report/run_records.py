"""The records of one run, from its folder or from a bundle."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import polars

from feda2l.old_names import current_summary
from feda2l.records.bundle import TEXTS, Bundle, bundle_above, open_bundle
from feda2l.records.round_record import layer_columns, round_columns
from feda2l.records.run_folder import RunFolder
from feda2l.records.signal_columns import select_present

ENDED = ("finished", "non_finite")  # the status of a run that goes into a report


class RunRecords(Protocol):
    """What a report reads of a run."""

    @property
    def written(self) -> int:
        """When the run's summary was written, in ns since 1970."""

    def text(self, name: str) -> str:
        """A text file, by its key in `feda2l.records.bundle.TEXTS`; an OSError where there is none."""

    def rounds(self) -> polars.LazyFrame:
        """One row per node and round; an OSError or PolarsError where they cannot be read."""

    def lines(self) -> polars.DataFrame | None:
        """The same rows from `rounds.jsonl`; None where that file cannot be read."""

    def layers(self, columns: Sequence[str]) -> polars.DataFrame | None:
        """These columns of the rows per node, layer and round; None where the records lack one of them."""


@dataclass(frozen=True)
class FolderRecords:
    """The records in a run folder."""

    path: Path

    @property
    def written(self) -> int:
        return self._folder.summary.stat().st_mtime_ns

    def text(self, name: str) -> str:
        return (self.path / TEXTS[name]).read_text(encoding="utf-8")

    def rounds(self) -> polars.LazyFrame:
        polars.read_parquet_schema(self._folder.rounds_table)  # where the file is missing or cut off, this fails
        return polars.scan_parquet(self._folder.rounds_table)

    def lines(self) -> polars.DataFrame | None:
        try:
            records = self._folder.read()
            return polars.DataFrame(round_columns(records)) if records else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def layers(self, columns: Sequence[str]) -> polars.DataFrame | None:
        try:
            if self._folder.layers_table.exists():
                found = select_present(polars.scan_parquet(self._folder.layers_table), columns)
                if found is not None:
                    return found
            records = layer_columns(self._folder.read())
            return select_present(polars.LazyFrame(records), columns) if records["round"] else None
        except (OSError, ValueError, KeyError, polars.exceptions.PolarsError):
            return None

    @property
    def _folder(self) -> RunFolder:
        return RunFolder(self.path)


@dataclass(frozen=True)
class BundledRecords:
    """The records of one run of a bundle."""

    bundle: Bundle
    name: str

    @property
    def written(self) -> int:
        return self.bundle.written(self.name)

    def text(self, name: str) -> str:
        try:
            return self.bundle.texts(self.name)[name]
        except KeyError as error:
            raise FileNotFoundError(2, f"no {TEXTS[name]}", f"{self.bundle.path / self.name}") from error

    def rounds(self) -> polars.LazyFrame:
        rows = self.bundle.rounds(self.name)
        if rows is None:
            raise FileNotFoundError(2, "no rows", f"{self.bundle.path / self.name}")
        return rows.lazy()

    def lines(self) -> polars.DataFrame | None:
        return None

    def layers(self, columns: Sequence[str]) -> polars.DataFrame | None:
        return self.bundle.layers(self.name, columns)


def summary_of(text: str) -> dict[str, Any]:
    """The summary of a run that has ended, from the text of its `summary.json`; a ValueError for any other text."""
    summary = json.loads(text)
    if not isinstance(summary, dict) or "status" not in summary:
        raise ValueError("it has no status")
    return current_summary(summary)


def records_at(path: Path) -> RunRecords:
    """The records of the run with this path, which may lead into a bundle."""
    found = bundle_above(path)
    if found is None:
        return FolderRecords(path)
    folder, name = found
    bundle = open_bundle(folder)
    return BundledRecords(bundle, name) if name in bundle.names else FolderRecords(path)
