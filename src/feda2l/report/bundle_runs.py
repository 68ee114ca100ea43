"""`feda2l bundle` and `feda2l bundle --unpack`: run folders to a bundle, and back."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import polars

from feda2l.errors import FedA2LError, RunFailed
from feda2l.records.bundle import (
    FILES,
    STUDY,
    TEXTS,
    BundledRun,
    bundle_above,
    check_has_manifest,
    is_bundle,
    open_bundle,
    write_bundle,
)
from feda2l.records.run_folder import RunFolder
from feda2l.report.find_runs import Notes
from feda2l.report.run_records import ENDED, FolderRecords, summary_of
from feda2l.studies.cells import STAGES
from feda2l.studies.study import Study
from feda2l.studies.study_folder import StudyFolder

Progress = Callable[[Sequence[Path]], Iterable[Path]]
SIGNALS = ("divergence", "stability")
PAIRED = re.compile(r'^paired = "(.+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """The runs of one folder or bundle, and the text of its study."""

    path: Path
    runs: dict[str, BundledRun]
    study: str | None


def bundle_runs(
    folders: Sequence[Path],
    out: Path,
    *,
    layers: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress = iter,
) -> tuple[list[BundledRun], list[str]]:
    """Write the finished runs of folders or bundles as one bundle.

    Args:
        folders: Run folders, folders of runs, the folder of one study, or bundles.
        out: The folder of the bundle.
        layers: Patterns of run names whose rows per layer are bundled too; "*" for all.
        overwrite: Replace the bundle that is in `out`.
        progress: Wraps the list of run folders while they are read.

    Returns:
        The runs, and what was left out.

    Raises:
        FedA2LError: `out` is in use, two folders hold a run of the same name, or they belong to different studies.
    """
    check_free(out, overwrite=overwrite)
    notes = Notes()
    sources = [read_source(folder, notes, layers, progress) for folder in folders]
    runs: dict[str, BundledRun] = {}
    for source in sources:
        if twice := sorted(runs.keys() & source.runs.keys()):
            raise FedA2LError(f"{source.path}: another folder has a run {twice[0]} too; bundle the folders one by one")
        runs |= source.runs
    if not any("summary" in run.texts for run in runs.values()):
        why = "".join(f"\n  {line}" for line in notes.lines())
        raise FedA2LError(f"{', '.join(map(str, folders))}: no finished run to bundle{why}", see="no-run")
    rows = [runs[name] for name in sorted(runs)]
    write_bundle(out, rows, joint_study(sources))
    return rows, notes.lines()


def unbundle(bundle: Path, out: Path) -> int:
    """Write the runs of a bundle as run folders, in which a study can add runs; return their number."""
    if not is_bundle(bundle):
        raise FedA2LError(f"{bundle}: is not a bundle (a folder with runs.parquet and MANIFEST)", see="no-run")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FedA2LError(f"--out {out}: already exists; name a new folder", see="folder-not-empty")
    whole = open_bundle(bundle)
    try:
        for name in whole.names:
            _write_run(whole.run(name), out / name)
        if whole.study is not None:
            (out / STUDY).write_text(whole.study, encoding="utf-8")
    except (OSError, polars.exceptions.PolarsError) as error:
        raise RunFailed(f"--out {out}: the run folders cannot be written: {error}", see="cannot-write") from error
    return len(whole.names)


def check_free(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds anything else, and a bundle unless it may be replaced."""
    if not out.exists():
        return
    names = {path.name for path in out.iterdir()} if out.is_dir() else {""}
    if not names <= set(FILES):
        raise FedA2LError(
            f"--out {out}: holds other files than those of a bundle; name a new folder", see="folder-not-empty"
        )
    if names and not overwrite:
        raise FedA2LError(
            f"--out {out}: holds a bundle already; name a new folder, or replace the bundle with --overwrite",
            see="folder-not-empty",
        )


def read_source(folder: Path, notes: Notes, layers: Sequence[str], progress: Progress = iter) -> Source:
    """Read all finished runs of a folder, the results of its trials, and its study."""
    found = bundle_above(folder)
    if found is not None:
        return _bundle_source(*found, layers)
    if not folder.is_dir():
        raise FedA2LError(f"{folder}: is not a folder", see="no-run")
    check_has_manifest(folder)
    paths = list(_folders_of(folder))
    studies = {path.parent for path in folder.rglob(STUDY)} - {folder}
    if studies:
        names = ", ".join(sorted(path.relative_to(folder).as_posix() for path in studies)[:6])
        raise FedA2LError(f"{folder}: holds studies ({names}); bundle each study by itself")
    runs = {}
    for path in progress(paths):
        name = path.relative_to(folder).as_posix() if path != folder else folder.resolve().name
        run = _read_run(path, name, folder, notes, layers)
        if run is not None:
            runs[name] = run
    study = (folder / STUDY).read_text(encoding="utf-8") if (folder / STUDY).exists() else None
    return Source(folder, runs, study)


def joint_study(sources: Sequence[Source]) -> str | None:
    """The study of all sources, with the seeds of each; None where none belongs to a study."""
    texts = [source.study for source in sources]
    if len(set(texts)) == 1:
        return texts[0]
    if None in texts:
        raise FedA2LError("some of the folders belong to a study, others do not; bundle them by themselves")
    first, *others = (Study.load(source.path / STUDY) for source in sources)
    seeds = list(first.seeds)
    for source, other in zip(sources[1:], others, strict=True):
        StudyFolder(source.path).check(other, first)
        seeds += other.seeds
    return first.model_copy(update={"seeds": tuple(sorted(set(seeds)))}).to_toml()


def _bundle_source(folder: Path, within: str, layers: Sequence[str]) -> Source:
    bundle = open_bundle(folder)
    if within:
        raise FedA2LError(f"{folder / within}: is a part of a bundle; name the bundle, {folder}")
    runs = {name: _without_layers(bundle.run(name), layers) for name in bundle.names}
    return Source(folder, runs, bundle.study)


def _without_layers(run: BundledRun, patterns: Sequence[str]) -> BundledRun:
    return run if _matches(run.name, patterns) else replace(run, layers=None)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _folders_of(folder: Path) -> Iterator[Path]:
    """Every run folder, and every folder with the result of trials."""
    for name, below, files in os.walk(folder):
        below.sort()
        if {TEXTS["spec"], TEXTS["chosen"], TEXTS["target"]} & set(files):
            yield Path(name)
        if TEXTS["spec"] in files:
            below.clear()  # a run has no runs in it


def _read_run(path: Path, name: str, top: Path, notes: Notes, layers: Sequence[str]) -> BundledRun | None:
    records = FolderRecords(path)
    texts = _texts(path, top)
    if "spec" not in texts:
        return BundledRun(name, texts, 0)
    try:
        summary = summary_of(texts.get("summary", ""))
    except ValueError:
        summary = {}
    if summary.get("status") not in ENDED:
        notes.add("left out, not finished", path)
        return None
    if summary.get("pack") != 1:
        texts.pop("timings", None)  # a run that shared the machine has no times of its own
    try:
        rounds: polars.DataFrame | None = records.rounds().collect()
    except (OSError, polars.exceptions.PolarsError):
        rounds = records.lines()
    if rounds is None and name.startswith(STAGES + "/"):
        return BundledRun(name, texts, records.written)  # of a trial the result counts
    if rounds is None:
        notes.add("left out, neither rounds.parquet nor rounds.jsonl can be read", path)
        return None
    of_layers = records.layers(("round", "node", "layer", "rate", "multiplier", *SIGNALS))
    if of_layers is not None and "multiplier_mean" not in rounds.columns:  # a run of a bundle has those of before
        rounds = _with_means(rounds, of_layers)
    return BundledRun(name, texts, records.written, rounds, of_layers if _matches(name, layers) else None)


def _with_means(rounds: polars.DataFrame, layers: polars.DataFrame) -> polars.DataFrame:
    """Add to each round the means over nodes and layers, for runs whose rows per layer are not bundled."""
    named = [polars.col(name).mean().alias(f"{name}_mean") for name in ("multiplier", *SIGNALS)]
    means = layers.group_by("round", maintain_order=True).agg(named)
    return rounds.join(means, on="round", how="left", maintain_order="left")


def _texts(path: Path, top: Path) -> dict[str, str]:
    """The text files of a run folder; the path of a paired run is made relative, to be valid on every machine."""
    texts = {key: (path / name).read_text(encoding="utf-8") for key, name in TEXTS.items() if (path / name).exists()}
    if "spec" in texts:
        texts["spec"] = PAIRED.sub(lambda found: f'paired = "{_relative(found[1], path, top)}"', texts["spec"])
    return texts


def _relative(paired: str, path: Path, top: Path) -> str:
    """The path from a run to the run that it is paired with, where both are below `top`.

    The folder may have been copied from another machine, so only the end of the path has to agree: cell and seed.
    """
    parts = Path(paired).parts
    ends = [top.joinpath(*parts[start:]) for start in range(1, len(parts) - 1)] if Path(paired).is_absolute() else []
    beside = next((end for end in ends if (end / TEXTS["spec"]).exists()), None)
    return paired if beside is None else Path(os.path.relpath(beside, path)).as_posix()


def _write_run(run: BundledRun, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(into)
    for key, text in run.texts.items():
        (into / TEXTS[key]).write_text(text, encoding="utf-8")
    if run.rounds is not None:
        run.rounds.write_parquet(folder.rounds_table, statistics=False)
    if run.layers is not None:
        run.layers.write_parquet(folder.layers_table, statistics=False)
    if "summary" in run.texts:
        os.utime(folder.summary, ns=(run.written, run.written))
