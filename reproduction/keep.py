"""Add the runs of a study to its bundle in `results/`: `python -m reproduction.keep runs/NAME results/NAME`.

A run that the bundle already holds is replaced. Rows per layer are stored for the runs that `LAYERS` names, because a
page tabulates them.
"""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.records.bundle import BundledRun, is_bundle, write_bundle
from feda2l.report.bundle_runs import check_free, joint_study, read_source
from feda2l.report.find_runs import Notes
from feda2l.studies.cells import STAGES
from feda2l.studies.study import Study
from reproduction.evidence_tables import FAMILY

FAMILIES = ("evidence-cnn-cifar100", "evidence-cnn-cifar10")  # a page tabulates the multipliers of these studies
# study -> patterns of runs
LAYERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(FAMILIES, tuple(f"{cell}/*" for cell in FAMILY)),
    "evidence-cnn-cifar100-algorithms": ("*-feda2l/*",),
}


def keep(study: Path, into: Path) -> int:
    """Add every finished run and the result of every trial; return the number of runs that were added."""
    notes, layers = Notes(), LAYERS.get(into.name, ())
    if not (study / "study.toml").exists():
        raise FedA2LError(f"{study}: has no study.toml; name the folder of a study")
    check_free(into, overwrite=True)
    sources = [read_source(folder, notes, layers) for folder in ([into] if is_bundle(into) else []) + [study]]
    runs = {name: _without_trial_rows(run) for source in sources for name, run in source.runs.items()}
    text = joint_study(sources)
    assert text is not None
    seeds = {int(name.rpartition("-")[2]) for name in runs if not name.startswith(STAGES + "/")}
    # a study of which only the first stage is finished, for example the target, keeps its planned seeds
    if seeds:
        text = _with_seeds(text, sorted(seeds))
    write_bundle(into, [runs[name] for name in sorted(runs)], text)
    return len(sources[-1].runs)


def _without_trial_rows(run: BundledRun) -> BundledRun:
    return replace(run, rounds=None, layers=None) if run.name.startswith(STAGES + "/") else run


def _with_seeds(text: str, seeds: list[int]) -> str:
    return Study.parse(tomllib.loads(text)).model_copy(update={"seeds": tuple(seeds)}).to_toml()


if __name__ == "__main__":
    count = keep(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{count} runs added to {sys.argv[2]}")
