"""Evaluate the models of a finished run from its checkpoint."""

from pathlib import Path

from feda2l.records.round_record import Evaluation
from feda2l.runs.assemble import assemble, populate
from feda2l.runs.datasets import Loaded, load_data
from feda2l.runs.device import find_device
from feda2l.runs.listed_files import from_copies
from feda2l.runs.run import Run
from feda2l.simulate.checkpoint import restore
from feda2l.simulate.loop import RoundLoop


def evaluate(path: str | Path, data: str | Path | None = None) -> Evaluation:
    """Return accuracy and loss of each node's aggregated model and of the mean model, and accuracy per class."""
    done = Run(path)
    checkpoint = done.checkpoint
    dataset = load_data(done.spec.data, data)
    spec = done.spec
    if spec.faults:  # use the copy in the run folder, since the original file may have been deleted
        spec = spec.model_copy(update={"faults": str(done.folder.faults)})
    assembled = assemble(from_copies(spec, done.folder), Loaded.of(dataset, find_device(done.spec.runtime)))
    engine = populate([assembled])
    restore(assembled.live, checkpoint)
    engine.start(done.spec.runtime.workers)
    try:
        return RoundLoop(engine, [assembled.live]).evaluate(assembled.live)
    finally:
        engine.close()
