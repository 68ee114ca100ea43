"""The commands on finished runs: `feda2l evaluate`, `forecast`, `export`, `report`, `watch`, `compare` and `bundle`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import track

from feda2l.cli.options import DataFolder
from feda2l.errors import FedA2LError, RunFailed


def evaluate(run: Path, *, node: int | None = None, data: DataFolder = None) -> None:
    """Score a run's models on the test set again: every node's and the mean model's.

    Parameters
    ----------
    run
        the run folder
    node
        this node only
    """
    from feda2l.cli.run_view import scores_table
    from feda2l.runs.evaluate import evaluate

    Console().print(scores_table(evaluate(run, data), node))


def forecast(
    run: Path, *, node: int | None = None, windows: int = 3, out: Path | None = None, data: DataFolder = None
) -> None:
    """Plot forecasts of a run's model beside what followed, for a few test windows of a series.

    Parameters
    ----------
    run
        the run folder
    node
        this node's model, on its own test windows, in place of the mean model
    windows
        how many windows, evenly spread over the test windows
    out
        the figure (default forecast.png or forecast-node-I.png in the run folder)
    """
    from feda2l.report.plots import plot_forecasts
    from feda2l.runs.forecast import forecasts

    found = forecasts(run, node=node, windows=windows, data=data)
    path = out or run / ("forecast.png" if node is None else f"forecast-node-{node}.png")
    plot_forecasts(found, path)
    print(f"figure: {path}")


def export(run: Path, *, node: int | None = None, out: Path | None = None) -> None:
    """Write a run's model as safetensors: the mean model, or one node's.

    Parameters
    ----------
    run
        the run folder
    node
        this node's model in place of the mean
    out
        the file (default model.safetensors or node-I.safetensors in the run folder)
    """
    from safetensors.torch import save

    from feda2l.runs.run import Run

    done = Run(run)
    # a copy each: safetensors wants no shared memory, and tied weights have it
    state = {name: value.clone().contiguous() for name, value in done.model(node).state_dict().items()}
    path = out or run / ("model.safetensors" if node is None else f"node-{node}.safetensors")
    try:
        path.write_bytes(save(state))
    except OSError as error:
        raise RunFailed(f"--out {path}: cannot be written: {error.strerror}", see="cannot-write") from error
    print(f"{path}: {sum(value.numel() for value in state.values()):,} values in {len(state)} tensors")


def report(
    *folders: Path,
    out: Path = Path("report"),
    tensorboard: bool = False,
    paper: bool = True,
) -> None:
    """Tables, figures and one self-contained page from run folders, found at any depth.

    Parameters
    ----------
    folders
        run folders, or folders that hold some
    out
        where table.md, table.tex, table.csv, figures and index.html go
    tensorboard
        write events for TensorBoard too
    paper
        set the paper's numbers beside ours where it has them
    """
    from feda2l.report.printed import print_report

    if not folders:
        raise FedA2LError("report: which folders? feda2l report DIR [DIR ...] [--out OUT]")
    print_report(list(folders), out, tensorboard=tensorboard, paper=paper)


def watch(
    folder: Path,
    *,
    port: int | None = None,
    open_: Annotated[bool, Parameter(name="--open", negative=())] = False,
) -> None:
    """Follow a run, a study or a swarm in a browser, on this machine alone; Ctrl-C ends the view, not the run.

    Parameters
    ----------
    folder
        a run's, a study's or a swarm's folder, or one in which they lie or will begin
    port
        of the page (default 8765, or the next that is free)
    open_
        open the page in the browser
    """
    from feda2l.watch.command import watch

    watch(folder, port, open_browser=open_)


def compare(a: Path, b: Path, /) -> None:
    """Say whether B beats A: rounds, time and accuracy, seed by seed.

    Parameters
    ----------
    a
        a run folder, or a folder of runs that differ in their seed only
    b
        the same for the other side
    """
    from feda2l.report.printed import print_comparison

    print_comparison(a, b)


def bundle(
    *runs: Path,
    out: Path,
    layers: Annotated[list[str] | None, Parameter(negative=())] = None,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Write runs as a few files to commit or share, which report, compare and watch read like run folders.

    Example: feda2l bundle runs/my-study --out shared/my-study

    Parameters
    ----------
    runs
        folders of runs, for example the folder of a study; or bundles, to join them
    out
        the folder of the bundle
    layers
        runs whose rows per layer are bundled too, by name: `feda2l/*`, or `*` for all; may be repeated
    overwrite
        replace the bundle in the folder
    """
    from feda2l.report.bundle_runs import bundle_runs

    if not runs:
        raise FedA2LError("bundle: which runs? feda2l bundle RUNS... --out DIR")
    console = Console(stderr=True)
    written, left_out = bundle_runs(
        list(runs),
        out,
        layers=layers or (),
        overwrite=overwrite,
        progress=lambda paths: track(paths, "reading runs", console=console, transient=True),
    )
    for line in left_out:
        print(line)
    size = sum(path.stat().st_size for path in out.iterdir())
    ended = sum("summary" in run.texts for run in written)
    of_layers = sum(run.layers is not None for run in written)
    print(f"{out}: {ended} runs, {size / 1e6:.2f} MB, rows per layer of {of_layers} runs")
    if not of_layers:
        print("rows per layer are not bundled; to bundle them add  --layers '*'")


def unbundle(bundle: Path, /, *, out: Path) -> None:
    """Write the runs of a bundle as run folders again, for example to add runs to a study.

    Example: feda2l unbundle shared/my-study --out runs/my-study

    Parameters
    ----------
    bundle
        the folder of the bundle
    out
        the folder of the run folders, which must be new
    """
    from feda2l.report.bundle_runs import unbundle

    print(f"{out}: {unbundle(bundle, out)} runs")
