"""Scoring a run's models again, from its checkpoint."""

from pathlib import Path
from typing import Any

from feda2l import data as datasets
from feda2l.errors import FedA2LError
from feda2l.experiment.assemble import Loaded, assemble, populate
from feda2l.experiment.device import find_device
from feda2l.experiment.run import Run
from feda2l.simulate.checkpoint import restore
from feda2l.simulate.pool import default_processes
from feda2l.simulate.simulator import Simulator


def evaluate(path: str | Path, data: str | Path | None = None) -> dict[str, Any]:
    """Accuracy and loss of every node's aggregated model and of the mean model, and the accuracy by class."""
    done = Run(path)
    if not done.folder.checkpoint.exists():
        raise FedA2LError(f"{path}: has no checkpoint yet; finish the run with --resume")
    images = datasets.load(done.spec.data.name, data)
    assembled = assemble(done.spec, Loaded.of(images, find_device(done.spec.runtime)))
    engine = populate([assembled])
    restore(assembled.simulation, done.folder.checkpoint)
    engine.start(default_processes() if done.spec.runtime.workers is None else done.spec.runtime.workers)
    try:
        return Simulator(engine, [assembled.simulation]).evaluate(assembled.simulation)
    finally:
        engine.close()
