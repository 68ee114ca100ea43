"""Run a study: the first stages, then every run, in packs, with progress; a stopped study resumes."""

import fnmatch
import math
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feda2l.distributed.ranks import RanksLost
from feda2l.errors import Busy, FedA2LError, RunFailed
from feda2l.names import nearest
from feda2l.runs.assemble import assemble, pack_key
from feda2l.runs.datasets import Loaded, data_key, load_data
from feda2l.runs.device import find_device
from feda2l.runs.pack import RunCallbacks, run_packed
from feda2l.runs.process_group import OutOfTime
from feda2l.runs.run import Run
from feda2l.runs.start_ranks import group_here
from feda2l.spec.spec import Spec
from feda2l.studies.cells import StudyCell
from feda2l.studies.cost import RoundTime, by_kind, calibrate, grouped, pace_so_far, pack_rows, statement
from feda2l.studies.progress_table import StudyView
from feda2l.studies.stages import Stages
from feda2l.studies.study import Study
from feda2l.studies.study_folder import Job, State, StudyFolder
from feda2l.trackers.observers import Observers

DONE = ("finished", "non_finite")


@dataclass(frozen=True)
class Outcome:
    """The state of the selected runs after a call."""

    jobs: list[tuple[Job, State]]

    @property
    def runs(self) -> list[Run]:
        """The finished runs."""
        return [Run(job.folder.path) for job, state in self.jobs if state == "finished"]

    @property
    def failed(self) -> list[str]:
        """The runs that failed or became non-finite, with the reason."""
        return [f"{job.spec.name}: {job.error()}" for job, state in self.jobs if state in ("failed", "non_finite")]

    @property
    def left(self) -> list[str]:
        """The runs that are not finished, as the time was over or another process runs them."""
        return [job.spec.name for job, state in self.jobs if state not in (*DONE, "failed")]


class StudyRun:
    """A study, or a selected part of it, that runs in a folder."""

    def __init__(
        self,
        study: Study,
        folder: StudyFolder,
        *,
        data: str | Path | None = None,
        only: Sequence[str] = (),
        shard: tuple[int, int] = (1, 1),
        timing: bool = False,
        limit_minutes: float | None = None,
        shown: bool = True,
        observers: Observers | None = None,
    ) -> None:
        self.study, self.folder, self.data = study, folder, data
        self.timing, self.shown = timing or study.timing, shown
        self.observers = observers or Observers()
        self.deadline = None if limit_minutes is None else time.monotonic() + 60 * limit_minutes
        self.chosen = choose(study, only, shard)
        self.stages = Stages(study, folder)
        self.found: dict[str, dict[str, Any]] = {}  # results of the first stages, by cell
        self.broken: dict[str, FedA2LError] = {}  # why they failed, by cell
        self.loaded: tuple[object, Loaded] | None = None

    @property
    def jobs(self) -> list[Job]:
        """The selected runs, with what the first stages have found so far."""
        return [self._job(cell, seed) for cell, seed in self.chosen]

    @property
    def cells(self) -> list[StudyCell]:
        return list({cell.name: cell for cell, _ in self.chosen}.values())

    def cost(self) -> list[str]:
        """Describe what is left to do; a few steps are measured if the folder has no timings."""
        trials = [job for cell in self.cells for job in self.stages.trials(cell)]
        jobs = [job for job in (*trials, *self.jobs) if job.state() not in DONE]
        lines = statement(jobs, [(own, self._pace(own)) for own in by_kind(jobs)])
        if trials:
            lines[0] += f" ({len(trials)} are trials of the first stage)"
        return lines

    def run(self) -> Outcome:
        """Run what is not finished; a failure is recorded, and the other runs continue."""
        with StudyView(self.study.name, self.jobs, shown=self.shown) as view:
            try:
                self._tune(view)
                self._find_targets(view)
                self._wave([self._job(cell, seed) for cell, seed in self.chosen if self._can_start(cell, seed)], view)
                self._wave(self._followers(view), view)
            except OutOfTime:
                pass
        return Outcome([(job, view.rows[job.spec.name].state) for job in self.jobs])

    # --- the first stages ----------------------------------------------------------------------------------

    def _tune(self, view: StudyView) -> None:
        cells = {cell.name: cell for cell in (*self.cells, *self._target_cells()) if cell.tuned}
        self._stage([job for cell in cells.values() for job in self.stages.trials(cell)], view)
        for cell in cells.values():
            try:
                self.found[cell.name] = self.stages.tuned(cell)
            except FedA2LError as error:
                self.broken[cell.name] = error

    def _find_targets(self, view: StudyView) -> None:
        if self.study.target_from is None:
            return
        sources = [cell for cell in self._target_cells() if cell.name not in self.broken]
        jobs = {cell.name: self.stages.target_job(cell, self.found.get(cell.name, {})) for cell in sources}
        self._stage(list(jobs.values()), view)
        for cell in self.cells:
            name = self.stages.source(cell).name
            try:
                if name in self.broken:
                    raise self.broken[name]
                target = self.stages.target(jobs[name])
                self.found[cell.name] = self.found.get(cell.name, {}) | {"evaluation.target": target}
            except FedA2LError as error:
                self.broken.setdefault(cell.name, error)

    def _target_cells(self) -> list[StudyCell]:
        if self.study.target_from is None:
            return []
        return list({source.name: source for source in map(self.stages.source, self.cells)}.values())

    def _stage(self, jobs: list[Job], view: StudyView) -> None:
        """Run trials until they are finished; wait for those that another shard runs."""
        view.add(jobs)
        while self._wave(jobs, view):
            time.sleep(1)
            self._check_time()

    # --- runs ----------------------------------------------------------------------------------------------

    def _job(self, cell: StudyCell, seed: int) -> Job:
        changes = {**self.found.get(cell.paired or "", {}), **self.found.get(cell.name, {})}
        if pair := self._pair(cell):
            changes["rates.paired"] = str(self.folder.run(pair, seed).path.resolve())
        return Job(cell.spec(seed, **changes), self.folder.run(cell, seed), cell)

    def _pair(self, cell: StudyCell) -> StudyCell | None:
        return next((other for other in self.study.cells if other.name == cell.paired), None)

    def _can_start(self, cell: StudyCell, seed: int) -> bool:
        """Whether a run follows no other run, or one that an earlier call has finished."""
        pair = self._pair(cell)
        return pair is None or self._job(pair, seed).state() == "finished"

    def _followers(self, view: StudyView) -> list[Job]:
        """The runs that follow a finished run; if that run failed, they fail as well."""
        ready = []
        for cell, seed in self.chosen:
            if pair := self._pair(cell):
                job, state = self._job(cell, seed), self._job(pair, seed).state()
                if state == "finished":
                    ready.append(job)
                elif state != "waiting":
                    job.fail(RunFailed(f"{pair.name}-{seed}, which it follows, {state}"))
                    view.settle(job)
        return ready

    def _wave(self, jobs: list[Job], view: StudyView) -> bool:
        """Run these in packs; True if another process runs some of them."""
        for job in jobs:
            if job.cell.name in self.broken and job.state() not in DONE:
                job.fail(self.broken[job.cell.name])
                view.settle(job)
        ready = [job for job in jobs if job.cell.name not in self.broken and job.state() not in DONE]
        for kind in by_kind(ready):
            for pack in self._packs(kind):
                self._check_time()
                self._pack(pack, view)
        return any(view.rows[job.spec.name].state == "busy" for job in ready)

    def _packs(self, jobs: list[Job]) -> Iterator[list[Job]]:
        """Split jobs of one kind into packs that use the whole machine; the jobs of a seed share one if possible.

        On a GPU, runs of one pack with the same start are equal to the bit until their rates differ, so compared runs
        have the same start. Also, a study that is stopped early has whole seeds.
        """
        if self.timing:
            yield from ([job] for job in jobs)
            return
        rows, pack, filled = self._rows(jobs), list[Job](), 0
        for own in grouped(jobs, lambda job: job.spec.seed):
            nodes = sum(job.spec.data.nodes for job in own)
            if pack and filled + nodes > rows:
                yield pack
                pack, filled = [], 0
            if nodes > rows:
                yield from _parts(own, math.ceil(nodes / rows))
            else:
                pack, filled = pack + own, filled + nodes
        if pack:
            yield pack

    def _rows(self, jobs: list[Job]) -> int:
        for job in jobs:
            try:
                return pack_rows(job.spec, assemble(job.spec, self._load(job.spec)))
            except FedA2LError:  # this one will fail; the others tell
                continue
        return 1

    def _pack(self, pack: list[Job], view: StudyView) -> None:
        for job in pack:
            job.error_file.unlink(missing_ok=True)
        view.begin(pack)
        members = [(job.spec, job.folder) for job in pack]
        callbacks = RunCallbacks(
            view.round,
            progress=False,
            print_note=lambda text: self._note(text, view),
            over=self._over,
            observers=self.observers,
            last_checkpoint=self.study.keep_checkpoints,
        )
        busy: State | None = None
        try:
            run_packed(members, self._load(pack[0].spec), resume=True, callbacks=callbacks, group=group_here())
        except OutOfTime:
            for job in pack:
                view.settle(job)
            raise
        except RanksLost:
            raise
        except Exception as error:  # a user's model may raise anything; the other runs go on
            if len(pack) > 1:
                self._halve(pack, error, view)
                return
            if isinstance(error, Busy):
                busy = "busy"
            else:
                pack[0].fail(error)
        self._settle(pack, view, busy)

    def _settle(self, pack: list[Job], view: StudyView, state: State | None) -> None:
        for job in pack:
            if not self.study.keep_checkpoints and job.state() == "finished":
                job.folder.checkpoint.unlink(missing_ok=True)
            view.settle(job, state)

    def _halve(self, pack: list[Job], error: Exception, view: StudyView) -> None:
        why = textwrap.shorten(f"{type(error).__name__}: {error}", 400)
        view.say(f"{len(pack)} runs failed together, so they are tried in two packs ({why})")
        middle = len(pack) // 2
        for half in (pack[:middle], pack[middle:]):
            self._pack(half, view)

    def _load(self, spec: Spec) -> Loaded:
        """The data set of a spec; only the last one is kept."""
        with spec.at_fault():
            device = find_device(spec.runtime)
            key = data_key(spec.data), device
            if self.loaded is None or self.loaded[0] != key:
                self.loaded = None  # two large sets may not fit side by side
                self.loaded = key, Loaded.of(load_data(spec.data, self.data), device)
        return self.loaded[1]

    def _pace(self, jobs: list[Job]) -> RoundTime | FedA2LError:
        spec = jobs[0].spec
        alike = [job for job in self.jobs if pack_key(job.spec) == pack_key(spec)]
        if known := pace_so_far([*jobs, *alike]):
            return known
        data = self._load(spec)
        if data.device.type != "cpu":  # a pack's steps are compiled and captured: a few of one run's tell nothing
            return FedA2LError("on a GPU it is known when the first pack has trained")
        try:
            return calibrate([job.spec for job in jobs[: 1 if self.timing else None]], data)
        except FedA2LError as error:
            return error

    def _over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _check_time(self) -> None:
        if self._over():
            raise OutOfTime

    def _note(self, text: str, view: StudyView) -> None:
        # where each run goes on is in the table
        if not text.startswith(str(self.folder.path)):
            view.say(text)


def choose(study: Study, only: Sequence[str], shard: tuple[int, int]) -> list[tuple[StudyCell, int]]:
    """The runs of a shard that match a pattern, and those that they follow. A cell is always whole in one shard."""
    mine = _cells_of(shard, study.cells)
    wanted = [(cell, seed) for cell, seed in _matching(study, only) if cell.name in mine]
    names = {(name, seed) for cell, seed in wanted for name in (cell.name, cell.paired)}
    return [(cell, seed) for cell in study.cells for seed in study.seeds if (cell.name, seed) in names]


def _cells_of(shard: tuple[int, int], cells: Sequence[StudyCell]) -> set[str]:
    """The names of the cells of a shard; a cell that follows another is in the same shard."""
    number, count = shard
    first = [cell.name for cell in cells if cell.paired is None][number - 1 :: count]
    return {cell.name for cell in cells if (cell.paired or cell.name) in first}


def _matching(study: Study, only: Sequence[str]) -> list[tuple[StudyCell, int]]:
    """The runs whose name, or whose cell's name, matches a pattern; all runs if there is no pattern."""
    pairs = [(cell, seed) for cell in study.cells for seed in study.seeds]
    if not only:
        return pairs
    matching = [(cell, seed) for cell, seed in pairs if _matches(only, cell.name, seed)]
    if not matching:
        names = [cell.name for cell in study.cells]
        raise FedA2LError(f"--only {' '.join(only)}: no run of {study.name} has such a name; {nearest(only[0], names)}")
    return matching


def _matches(only: Sequence[str], cell: str, seed: int) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (cell, f"{cell}-{seed}") for pattern in only)


def _parts(jobs: list[Job], count: int) -> list[list[Job]]:
    """Split the jobs into `count` parts of nearly equal size."""
    each = math.ceil(len(jobs) / count)
    return [jobs[start : start + each] for start in range(0, len(jobs), each)]
