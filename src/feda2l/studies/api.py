"""Studies from a notebook or the command line: load, estimate the cost, run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from feda2l.distributed.ranks import everywhere, here, leading
from feda2l.errors import FedA2LError
from feda2l.runs.start_ranks import demand_same
from feda2l.studies.protocols import Reading
from feda2l.studies.run_study import Outcome, StudyRun
from feda2l.studies.study import Study
from feda2l.studies.study_folder import StudyFolder
from feda2l.trackers import TrackerLike
from feda2l.trackers.observers import Observers


def load_study(
    name: str | Path, *, sets: Sequence[str] = (), reading: Reading | None = None, seeds: int | None = None
) -> Study:
    """Load a study by name or from a file, with overrides."""
    more = [f'reading="{reading}"'] * bool(reading) + ([] if seeds is None else [f"seeds={seeds}"])
    return Study.load(name, [*sets, *more])


def study(
    name: str | Path,
    *,
    sets: Sequence[str] = (),
    reading: Reading | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    shard: str | None = None,
    timing: bool = False,
    limit_minutes: float | None = None,
    out: str | Path | None = None,
    data: str | Path | None = None,
    dry_run: bool = False,
    trackers: Sequence[TrackerLike] = (),
    progress: bool = True,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Run or resume a study: finished runs are skipped, partial ones are resumed.

    `out` is the study's folder (default `runs/NAME`, with a reading `runs/NAME-READING`). `outcome.runs` are the
    finished runs, `.failed` and `.left` name the others. `say` receives the estimated cost before the first run.
    `trackers` are those of `feda2l.run`.
    """
    wanted = everywhere(lambda: load_study(name, sets=sets, reading=reading, seeds=seeds))
    folder = StudyFolder(Path(out or Path("runs") / "-".join(filter(None, (wanted.name, reading)))))
    part = _shard(shard)
    _demand_above_zero(limit_minutes)
    observers = Observers(trackers)
    work = StudyRun(
        wanted,
        folder,
        data=data,
        only=only,
        shard=part,
        timing=timing,
        limit_minutes=limit_minutes,
        shown=progress,
        observers=observers,
    )
    tell = say or (lambda text: None)
    if dry_run:
        for line in (*_plan(work), *_cost(work)):
            tell(line)
        return Outcome([(job, job.state()) for job in work.jobs])
    if ranks := here():
        demand_same(ranks, {"study": wanted.to_toml()}, "study")
        if not ranks.leads:
            from feda2l.runs.follow import follow

            follow(ranks, data)
            return Outcome([])
    with leading(ranks), folder.claimed(wanted, part), observers:
        for line in (*_plan(work)[:1], *work.cost()):
            tell(line)
        return work.run()


def _plan(work: StudyRun) -> list[str]:
    study, cells = work.study, work.cells
    reading = f", reading {study.reading}" if study.reading else ""
    title = f"{study.name}: {study.title or 'a study'} ({len(cells)} cells, {len(work.chosen)} runs{reading})"
    return [title, *(f"  {job.spec.name}: {job.state()}" for job in work.jobs)]


def _cost(work: StudyRun) -> list[str]:
    try:
        return work.cost()
    except FedA2LError as error:  # the plan is useful without the data too
        return [f"time unknown: {error}"]


def _demand_above_zero(limit_minutes: float | None) -> None:
    if limit_minutes is not None and limit_minutes <= 0:
        raise FedA2LError(f"--limit-minutes {limit_minutes:g}: must be above 0")


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise FedA2LError(f"--shard {text}: write it as I/K, for example 2/8: the second of eight")
    return int(number), int(count)
