"""A bundle: the records of many runs in a few files that can be committed or shared.

`runs.parquet` has one row per run, `rounds.parquet` one row per run, node and round, and `layers.parquet`, where it
was asked for, one row per run, node, layer and round. The column `run` is the number of the run in `runs.parquet`.
Of each run's rows per layer, `rounds.parquet` has `multiplier_mean`, `divergence_mean` and `stability_mean`: the means
over nodes and layers in that round, on the row of each node.
`study.toml` is there for the runs of a study, and `MANIFEST` has the SHA-256 of each file.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

import polars

from feda2l.errors import FedA2LError, RunFailed
from feda2l.records.manifest import MANIFEST, check_manifest, manifest_of
from feda2l.records.signal_columns import select_present, with_new_names

RUNS, ROUNDS, LAYERS, STUDY = "runs.parquet", "rounds.parquet", "layers.parquet", "study.toml"
FILES = (STUDY, RUNS, ROUNDS, LAYERS, MANIFEST)
# text columns of runs.parquet, and the file of a run folder that each one holds
TEXTS = {
    "spec": "spec.toml",
    "environment": "environment.json",
    "summary": "summary.json",
    "search": "search.json",
    "target": "target.json",
    "chosen": "chosen.json",
    "timings": "timings.jsonl",
}
SHORT = ("divergence_mean", "stability_mean")
LEVEL = 19  # of zstd: a bundle is written once and copied often


@dataclass(frozen=True)
class BundledRun:
    """One row of `runs.parquet` with its tables.

    Attributes:
        name: Path of the run folder within the bundled folder, with "/".
        texts: Content of the run folder's text files, by the keys of `TEXTS`.
        written: When the run's summary was written, in ns since 1970.
        rounds: One row per node and round; None for a trial of which only the result is kept.
        layers: One row per node, layer and round, where they are bundled.
    """

    name: str
    texts: Mapping[str, str]
    written: int
    rounds: polars.DataFrame | None = field(default=None, repr=False)
    layers: polars.DataFrame | None = field(default=None, repr=False)


class Bundle:
    """A bundle whose files are as the MANIFEST says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = check_manifest(path)
        self._rows = {row["name"]: row for row in _read(path / RUNS).to_dicts()}
        if outside := [name for name in self._rows if PurePosixPath(name).is_absolute() or ".." in name.split("/")]:
            raise FedA2LError(f"{path / RUNS}: the run {outside[0]!r} lies outside the bundle; do not use this file")

    @property
    def names(self) -> list[str]:
        """The runs' paths."""
        return list(self._rows)

    @property
    def study(self) -> str | None:
        """The text of `study.toml`, for the runs of a study."""
        return (self.path / STUDY).read_text(encoding="utf-8") if STUDY in self._files else None

    def texts(self, name: str) -> dict[str, str]:
        """A run's text files, by the keys of `TEXTS`; those that it has."""
        row = self._rows[name]
        return {key: row[key] for key in TEXTS if row.get(key) is not None}

    def written(self, name: str) -> int:
        """When a run's summary was written, in ns since 1970."""
        return int(self._rows[name]["written"])

    def rounds(self, name: str) -> polars.DataFrame | None:
        """A run's rows per node and round."""
        return _without_empty_columns(self._rounds.get(self._rows[name]["run"]))

    def layers(self, name: str, columns: Sequence[str] | None = None) -> polars.DataFrame | None:
        """A run's rows per node, layer and round, in double precision; None where they are not bundled."""
        if LAYERS not in self._files:
            return None
        rows = polars.scan_parquet(self.path / LAYERS).filter(polars.col("run") == self._rows[name]["run"])
        frame = select_present(rows, columns or with_new_names(rows.drop("run")).collect_schema().names())
        if frame is None or frame.is_empty():
            return None
        return _doubles(frame)

    def run(self, name: str) -> BundledRun:
        """Everything about a run."""
        return BundledRun(name, self.texts(name), self.written(name), self.rounds(name), self.layers(name))

    @cached_property
    def _rounds(self) -> dict[int, polars.DataFrame]:
        rows = _doubles(_read(self.path / ROUNDS))
        if rows.is_empty():
            return {}
        return {int(key[0]): part for key, part in rows.partition_by("run", as_dict=True, include_key=False).items()}


def is_bundle(path: Path) -> bool:
    """Is the folder a bundle?"""
    return (path / MANIFEST).exists() and any((path / name).exists() for name in (RUNS, ROUNDS))


def check_has_manifest(path: Path) -> None:
    """Raise a FedA2LError if a folder has the tables of a bundle without the MANIFEST that they are checked by."""
    if (path / RUNS).exists() and (path / ROUNDS).exists() and not (path / MANIFEST).exists():
        raise FedA2LError(
            f"{path / MANIFEST}: is missing, so the files of this bundle cannot be checked; restore it from a copy, or "
            "make the bundle again",
            see="records-damaged",
        )


def bundle_above(path: Path) -> tuple[Path, str] | None:
    """The bundle that a path leads into, and the path of the run or folder within it; None for any other path.

    A run of a bundle is named like its folder: `results/my-study/feda2l/seed-1`.
    """
    if path.is_dir() and not is_bundle(path):
        return None
    for folder in (path, *path.parents):
        if is_bundle(folder):
            within = path.relative_to(folder).as_posix()
            return folder, "" if within == "." else within
        if folder.exists():
            return None
    return None


def open_bundle(path: Path) -> Bundle:
    """Read a bundle; again only if a file has changed since."""
    files = [path / name for name in FILES]
    stamps = tuple((file.stat().st_mtime_ns, file.stat().st_size) if file.exists() else None for file in files)
    return _open(path, stamps)


@lru_cache(maxsize=32)
def _open(path: Path, stamps: tuple[tuple[int, int] | None, ...]) -> Bundle:
    return Bundle(path)


def write_bundle(out: Path, runs: Sequence[BundledRun], study: str | None) -> None:
    """Write the files of a bundle; those of an earlier one are replaced, the MANIFEST last."""
    partial = {name: out / f"{name}.partial" for name in FILES}
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = _write_parts(partial, runs, study)
        manifest = manifest_of(out, [partial[name].name for name in written])
        partial[MANIFEST].write_text(manifest.replace(".partial\n", "\n"), encoding="utf-8")
        (out / MANIFEST).unlink(missing_ok=True)  # between the files of two bundles there is none
        for name in set(FILES) - set(written):
            (out / name).unlink(missing_ok=True)
        for name in (*written, MANIFEST):
            os.replace(partial[name], out / name)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise RunFailed(f"--out {out}: the bundle cannot be written: {error}", see="cannot-write") from error
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)


def _write_parts(partial: Mapping[str, Path], runs: Sequence[BundledRun], study: str | None) -> list[str]:
    """Write every file but the MANIFEST; return their names."""
    written = [RUNS, ROUNDS]
    rows = [{"run": at, "name": run.name, "written": run.written, **run.texts} for at, run in enumerate(runs)]
    texts = [key for key in TEXTS if any(key in run.texts for run in runs)]
    schema = {
        "run": polars.Int32,
        "name": polars.String,
        "written": polars.Int64,
        **dict.fromkeys(texts, polars.String),
    }
    _write(polars.DataFrame(rows, schema=schema), partial[RUNS])
    rounds = _joined([(at, run.rounds) for at, run in enumerate(runs) if run.rounds is not None])
    # a control follows the means of the multipliers, which therefore keep double precision
    short = [polars.col(name).cast(polars.Float32) for name in SHORT if name in rounds.columns]
    _write(rounds.with_columns(short), partial[ROUNDS])
    if any(run.layers is not None for run in runs):
        # float32 has seven digits, more than any page prints, at half the size
        layers = _joined([(at, run.layers) for at, run in enumerate(runs) if run.layers is not None])
        layers = with_new_names(layers.lazy().with_columns(polars.col(polars.Float64).cast(polars.Float32))).collect()
        _write(layers, partial[LAYERS])
        written.append(LAYERS)
    if study is not None:
        partial[STUDY].write_text(study, encoding="utf-8")
        written.append(STUDY)
    return written


def _joined(tables: Sequence[tuple[int, polars.DataFrame]]) -> polars.DataFrame:
    """All runs' rows, with the number of the run as the first column."""
    if not tables:
        return polars.DataFrame(schema={"run": polars.Int32})
    numbered = [rows.select(polars.lit(at, dtype=polars.Int32).alias("run"), polars.all()) for at, rows in tables]
    return polars.concat(numbered, how="diagonal_relaxed")


def _write(rows: polars.DataFrame, path: Path) -> None:
    # with statistics of each group of rows, a reader skips those of other runs
    rows.write_parquet(path, compression="zstd", compression_level=LEVEL, row_group_size=1 << 17)


def _read(path: Path) -> polars.DataFrame:
    try:
        return polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise FedA2LError(
            f"{path}: cannot be read as a table ({error}); make the bundle again", see="records-damaged"
        ) from error


def _doubles(rows: polars.DataFrame) -> polars.DataFrame:
    return rows.with_columns(polars.col(polars.Float32).cast(polars.Float64))


def _without_empty_columns(rows: polars.DataFrame | None) -> polars.DataFrame | None:
    """Leave out the columns that only other runs of the bundle have."""
    if rows is None:
        return None
    return rows.select(column.name for column in rows.get_columns() if column.null_count() < len(rows))
