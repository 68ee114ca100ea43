"""Train several runs as one population, from the first round to the last file of each run folder."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from feda2l.engines.engine import Engine
from feda2l.errors import FedA2LError, RunFailed
from feda2l.records.round_record import NamedRecord, RoundRecord
from feda2l.records.round_timings import round_timings
from feda2l.records.run_folder import RunFolder
from feda2l.round.layout import Layout
from feda2l.round.population import OPTIMIZER_STATE
from feda2l.round.record import mean
from feda2l.round.round import Completed
from feda2l.round.run import LiveRun
from feda2l.runs.assemble import Assembled, ModelShape, assemble, populate
from feda2l.runs.datasets import Loaded
from feda2l.runs.environment import environment
from feda2l.runs.listed_files import check_same_files, copy_files
from feda2l.runs.process_group import Decision, OutOfTime, ProcessGroup, SingleProcess
from feda2l.runs.progress import RunProgress
from feda2l.runs.resume import check_same_faults, check_same_run, continued, finished, saved_spec
from feda2l.runs.summary import searched_rates, write_summary
from feda2l.simulate.checkpoint import write_checkpoint
from feda2l.simulate.loop import RoundLoop, one_thread
from feda2l.simulate.search import search
from feda2l.spec.spec import Spec
from feda2l.trackers.observers import Observers

OnRound = Callable[[NamedRecord], None]


@dataclass(frozen=True)
class RunCallbacks:
    """The callbacks and options of the caller of a pack: what to report, when to stop, what to keep."""

    on_round: OnRound | None = None
    progress: bool = True  # show a progress bar
    print_note: Callable[[str], None] | None = None  # prints notes; None prints them above the progress bar
    over: Callable[[], bool] = lambda: False  # called after every round; True stops the pack (time limit)
    observers: Observers = field(default_factory=Observers)
    last_checkpoint: bool = True  # keep the checkpoint of a finished run, to extend the run or to use its models

    def tell(self, text: str) -> None:
        if self.print_note:
            self.print_note(text)
        else:
            RunProgress("", 0, shown=self.progress).print_note(text)


def run_packed(
    runs: list[tuple[Spec, RunFolder]],
    data: Loaded,
    *,
    resume: bool,
    callbacks: RunCallbacks,
    group: ProcessGroup | None = None,
) -> list[RunFailed]:
    """Train runs as one pack. While they do not fit into GPU memory, split the pack into halves."""
    try:
        return Pack(runs, data, resume, callbacks, group or SingleProcess()).run()
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        if len(runs) == 1:
            raise RunFailed(
                f"{runs[0][0].name}: the run does not fit into GPU memory ({error})", see="gpu-memory"
            ) from error
    callbacks.tell(f"{len(runs)} runs do not fit into GPU memory together; training them as two packs")
    middle = len(runs) // 2
    halves = (runs[:middle], runs[middle:])
    # the completed rounds are in the run folders, so each half resumes from there
    return [
        failure for half in halves for failure in run_packed(half, data, resume=True, callbacks=callbacks, group=group)
    ]


class Pack:
    """Runs that train as one population. Each run has its own folder."""

    def __init__(
        self,
        runs: list[tuple[Spec, RunFolder]],
        data: Loaded,
        resume: bool,
        callbacks: RunCallbacks,
        group: ProcessGroup,
    ) -> None:
        self.resume, self.callbacks, self.group = resume, callbacks, group
        self.members: list[tuple[Assembled, RunFolder]] = []
        self.specs: list[Spec] = []
        self.messages: list[str] = []
        for spec, folder in runs:
            saved = saved_spec(folder) if resume else None
            spec = continued(spec, saved)
            with spec.at_fault():
                assembled = assemble(spec, data)
            if saved is not None:
                check_same_run(assembled.spec, saved, folder)
                check_same_faults(assembled.faults, folder)
                check_same_files(assembled.spec, folder)
                if finished(folder, assembled.spec):
                    self.messages.append(f"{folder.path}: already finished")
                    continue
            elif folder.occupied:
                what = "is not a run folder (it has no spec.toml);" if resume else "is not empty; add --resume or"
                raise FedA2LError(f"--out {folder.path}: the folder {what} choose another", see="folder-not-empty")
            self.members.append((assembled, folder))
            self.specs.append(spec)

    def run(self) -> list[RunFailed]:
        """Train to the end. Failures are returned and not raised, so that other packs continue."""
        if not self.members:
            self._print_notes()
            return []
        with ExitStack() as stack:
            folders = [folder for _, folder in self.members]
            for folder in folders:
                folder.open()
                stack.callback(folder.close)
            stack.enter_context(self.group.at_work())
            runs = self.group.begin(self.specs, [assembled for assembled, _ in self.members])
            self.members = list(zip(runs, folders, strict=True))
            engine = self.group.together(lambda: self._populate(runs))
            for assembled, folder in self.members:
                self.group.together(partial(self._begin, assembled, folder, engine.name))
            with self.callbacks.observers.at_rest():
                engine.start(self.group.workers(runs[0].spec.runtime.workers))
            stack.callback(engine.close)
            stack.enter_context(self._observed())
            loop = self.group.loop(engine, [assembled.live for assembled in runs])
            try:
                self._search(engine)
                self._loop(loop, stack)
                return self._end(loop)
            except torch.AcceleratorError as error:
                raise RunFailed(
                    f"the GPU failed ({str(error).splitlines()[0]}); add --resume to continue from the last checkpoint",
                    see="gpu-failed",
                ) from error

    def _populate(self, runs: list[Assembled]) -> Engine:
        check_memory(runs)
        return populate(runs)

    def _begin(self, assembled: Assembled, folder: RunFolder, engine: str) -> None:
        if self.group.restore(assembled.live, folder.checkpoint):
            self.messages.append(f"{folder.path}: resuming after round {assembled.live.state.round}")
        elif self.resume:
            self.messages.append(f"{folder.path}: no checkpoint yet, starting at round 1")
        begin_folder(assembled, folder, engine=engine, pack=len(self.members), ranks=self.group.ranks)

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """Report the start of every run to its trackers, and also a stop after which the run can be resumed."""
        observers = self.callbacks.observers
        for assembled, folder in self.members:
            observers.begin(assembled.spec, folder, assembled.live.state.round)
        try:
            yield
        except BaseException:
            for _, folder in self.members:
                observers.end(folder, {"status": "stopped"})
            raise

    def _search(self, engine: Engine) -> None:
        """Search the base rate of the runs that ask for it. An interrupted search starts again from its beginning."""
        for assembled, folder in self.members:
            run = assembled.live
            if run.plan.algorithm.rate_search and not run.state.round:
                self.messages.append(f"{run.plan.name}: searching for the base rate")
                self._print_notes()
                with one_thread():
                    result = search(engine, run)
                folder.write_json(folder.search, result)
                low, high = min(result["rates"]), max(result["rates"])
                rates = f"{low:.3g}" if high < 1.02 * low else f"{low:.3g} to {high:.3g}"
                cost = mean(result["epochs"]) / assembled.spec.training.epochs
                self.messages.append(
                    f"{run.plan.name}: base rate {rates} (the search cost as much as {cost:.0f} rounds)"
                )

    def _loop(self, loop: RoundLoop, stack: ExitStack) -> None:
        lead = max((assembled.live for assembled, _ in self.members), key=_rounds_left)
        title = lead.plan.name if len(self.members) == 1 else f"{len(self.members)} runs"
        progress = stack.enter_context(
            RunProgress(title, lead.plan.rounds, lead.state.round, shown=self.callbacks.progress)
        )
        self._print_notes()
        every = min(assembled.spec.runtime.checkpoint_seconds for assembled, _ in self.members)
        saved, took = time.monotonic(), 0.0
        print_note = self.callbacks.print_note or progress.print_note
        with _interruptions(print_note) as interrupted:
            for completed in loop.rounds():
                for done in completed:
                    self._record(done)
                    if self.group.leads and done.record and done.run is lead:
                        progress.update(done.record, _mean_rate(done.record))
                stop, over = interrupted(), self.callbacks.over()
                due = stop or over or time.monotonic() - saved >= time_between(every, took)
                stop, over, due = self.group.decide(Decision(stop, over, due))
                if due:
                    began = time.monotonic()
                    self._save()
                    saved = time.monotonic()
                    took = saved - began
                if stop:
                    raise KeyboardInterrupt
                if over and any(assembled.live.active for assembled, _ in self.members):
                    raise OutOfTime

    def _record(self, done: Completed) -> None:
        if done.record is None or not self.group.leads:
            return
        folder = self.members[done.run.number][1]
        timing = round_timings(done.run.state.round, done.seconds, len(self.members))
        folder.append(done.record, timing)
        self.callbacks.observers.round(folder, done.record, timing)
        if self.callbacks.on_round:
            self.callbacks.on_round({"name": done.run.plan.name, **done.record})

    def _save(self) -> None:
        for assembled, folder in self.members:
            # a run with non-finite values keeps its last finite checkpoint
            if assembled.live.non_finite is None and assembled.live.state.round:
                state = self.group.state(assembled.live)
                if state is not None:
                    folder.sync()
                    write_checkpoint(state, folder.checkpoint)

    def _end(self, loop: RoundLoop) -> list[RunFailed]:
        if self.group.decide(Decision(stop=False, over=False, save=self.callbacks.last_checkpoint)).save:
            self._save()
        failures = []
        for assembled, folder in self.members:
            run, searched = assembled.live, searched_rates(assembled.live)
            by_class = run.class_accuracy
            if run.non_finite is None and by_class is None:
                # the last round was evaluated, unless this process only writes the summary
                by_class = loop.evaluate(run).get("class_accuracy")
            if not self.group.leads:
                continue
            if run.non_finite:
                failures.append(RunFailed(why_non_finite(run), see="non-finite"))
            folder.sync()
            summary = write_summary(assembled, folder, by_class, searched, pack=len(self.members))
            self.callbacks.observers.end(folder, summary)
        return failures

    def _print_notes(self) -> None:
        for note in self.messages:
            self.callbacks.tell(note)
        self.messages = []


def time_between(every: float, took: float) -> float:
    """Return the seconds of training before the next checkpoint: max(every, 20 took), or 0 if `every` is 0.

    `took` is the time that the last checkpoint took; writing twenty ResNets (18 GB) must not dominate a run.
    With `every` = 0 a checkpoint is written after every round.

    >>> time_between(60.0, 0.4), time_between(60.0, 15.0), time_between(0.0, 15.0)
    (60.0, 300.0, 0.0)
    """
    return max(every, 20 * took) if every else 0.0


def check_memory(runs: list[Assembled]) -> None:
    """Raise `torch.OutOfMemoryError` before the start if a pack needs more than the GPU's free memory.

    A row needs its parameters twice, the optimizer state, the algorithm state and the half-precision copy. The engines
    need the same amount again for copies and gradients. The activations of a batch are small in comparison.
    """
    first = runs[0]
    if first.device.type == "cpu":
        return
    width = Layout.of(first.model).width
    names = {name for run in runs for name in run.live.plan.algorithm.state}
    states = 2 + len(OPTIMIZER_STATE[first.spec.training.optimizer]) + len(names)
    need = sum(run.live.plan.nodes for run in runs) * width * (4 * states + 2) * 2
    free, _ = torch.cuda.mem_get_info(first.device)
    if need > free:
        raise torch.OutOfMemoryError(f"{need / 2**30:.1f} GiB needed, {free / 2**30:.1f} GiB free")


def why_non_finite(run: LiveRun) -> str:
    where, rates = run.non_finite, run.state.rates
    assert where is not None
    return (
        f"{run.plan.name}: the run became non-finite in round {where.round}: node {where.node}, layer {where.layer} "
        f"has infinite or NaN values; try a smaller rates.base (now {float(rates.base.max()):g})"
    )


def _rounds_left(run: LiveRun) -> int:
    return run.plan.rounds - run.state.round


def begin_folder(assembled: Assembled, folder: RunFolder, *, engine: str, pack: int, **more: object) -> None:
    """Prepare a run folder: cut its records back to the run's round, and write its spec and its environment."""
    folder.cut_back(assembled.live.state.round, assembled.live.plan.due_in)
    folder.summary.unlink(missing_ok=True)
    folder.write(folder.spec, assembled.spec.to_toml().encode())
    if assembled.faults is not None:
        folder.write(folder.faults, assembled.faults.text.encode())
    copy_files(assembled.spec, folder)
    device, shape = device_name(assembled.device), ModelShape.of(assembled.dataset)._asdict()
    folder.write_json(folder.environment, environment(engine=engine, device=device, pack=pack, **more, **shape))


def device_name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def _mean_rate(record: RoundRecord) -> float:
    """Return the mean learning rate over all layers of the nodes that took part."""
    rates = [rate for row in record["layers"]["rate"] for rate in row if rate is not None]
    return sum(rates) / len(rates)


@contextmanager
def _interruptions(print_note: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Stop after the current round and save on Ctrl-C or SIGTERM. A second signal stops immediately."""
    stopping = False

    def handle(number: int, _: object) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True
        print_note("stopping after this round; press Ctrl-C again to stop immediately")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
