"""Copy a study's records in a form small enough to commit: tables instead of JSON lines, no checkpoints.

`python -m reproduction.keep runs/NAME results/NAME` adds the study's seeds and cells to those already kept.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.records.run_folder import RunFolder
from feda2l.studies.cells import STAGES
from feda2l.studies.study import Study
from feda2l.studies.study_folder import StudyFolder

FACTS = ("summary.json", "environment.json", "search.json", "chosen.json", "target.json")
TIMES = "timings.jsonl"  # kept for studies that run one run at a time; other timings have no meaning
TABLES = ("rounds.parquet", "layers.parquet")


def keep(study: Path, into: Path) -> int:
    """Copy the tables of every finished run and the results of every trial; return the number of runs."""
    source, kept = Study.load(study / "study.toml"), StudyFolder(into)
    if kept.file.exists():
        kept.check(source, Study.load(kept.file))
    summaries = sorted(study.rglob("summary.json"))
    facts = (*FACTS, TIMES) if source.timing else FACTS
    for summary in summaries:
        _keep_run(summary.parent, into / summary.parent.relative_to(study), facts, tables=STAGES not in summary.parts)
    for chosen in (study / STAGES).rglob("chosen.json"):
        shutil.copy(chosen, into / chosen.relative_to(study))
    seeds = sorted({int(path.parent.name.removeprefix("seed-")) for path in into.glob("*/seed-*/summary.json")})
    # a study with only its first stage finished, for example the target, has its planned seeds and no others
    known = tuple(seeds) or source.seeds
    RunFolder(into).write(kept.file, source.model_copy(update={"seeds": known}).to_toml().encode())
    return len(summaries)


def _keep_run(run: Path, into: Path, facts: Sequence[str], *, tables: bool) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for name in facts:
        if (run / name).exists():
            shutil.copy(run / name, into / name)
    spec = re.sub(r'^paired = "(.*)"$', lambda found: _beside(found[1]), (run / "spec.toml").read_text(), flags=re.M)
    (into / "spec.toml").write_text(spec)
    if not tables:
        return
    if (run / "rounds.jsonl").exists():
        lines = shutil.copy(run / "rounds.jsonl", into / "rounds.jsonl")
        if not RunFolder(into).write_tables():
            raise FedA2LError("records are kept as tables, which need polars; pip install polars")
        os.remove(lines)
    else:
        for name in TABLES:
            shutil.copy(run / name, into / name)


def _beside(paired: str) -> str:
    """Make the path of a paired run relative to the study, because an absolute path is valid on one machine only."""
    cell, seed = Path(paired).parts[-2:]
    return f'paired = "../../{cell}/{seed}"'


if __name__ == "__main__":
    count = keep(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{count} runs kept in {sys.argv[2]}")
