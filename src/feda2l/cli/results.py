"""The commands on existing runs: `feda2l evaluate`, `forecast`, `export`, `report`, `watch`, `compare` and `bundle`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import track

from feda2l.cli.options import DataFolder
from feda2l.errors import FedA2LError, RunFailed


def evaluate(run: Path, *, node: int | None = None, data: DataFolder = None) -> None:
    """Evaluate the models of a run on the test set.

    The table has one row per node and one for the mean model.

    Parameters
    ----------
    run
        the run folder
    node
        evaluate only this node's model
    """
    from feda2l.cli.run_view import scores_table
    from feda2l.runs.evaluate import evaluate

    Console().print(scores_table(evaluate(run, data), node))


def forecast(
    run: Path, *, node: int | None = None, windows: int = 3, out: Path | None = None, data: DataFolder = None
) -> None:
    """Plot a run's forecasts and the true values of a time series.

    Parameters
    ----------
    run
        the run folder
    node
        plot this node's model on its own test windows instead of the mean model
    windows
        how many test windows, evenly spaced
    out
        the figure (default forecast.png or forecast-node-I.png in the run folder)
    """
    from feda2l.report.plots import plot_forecasts
    from feda2l.runs.forecast import forecasts

    scored = forecasts(run, node=node, windows=windows, data=data)
    path = out or run / ("forecast.png" if node is None else f"forecast-node-{node}.png")
    plot_forecasts(scored, path)
    print(f"figure: {path}")


def export(run: Path, *, node: int | None = None, out: Path | None = None) -> None:
    """Export a run's model as safetensors.

    Parameters
    ----------
    run
        the run folder
    node
        export this node's model instead of the mean model
    out
        the file (default model.safetensors or node-I.safetensors in the run folder)
    """
    from safetensors.torch import save

    from feda2l.runs.run import Run

    done = Run(run)
    # copy each tensor: safetensors rejects shared memory, which tied weights have
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
    holm: Annotated[list[str] | None, Parameter(negative=())] = None,
) -> None:
    """Write tables, figures and one page from run folders.

    Parameters
    ----------
    folders
        run folders, or folders that contain run folders at any depth
    out
        the folder for table.md, table.tex, table.csv, the figures and index.html
    tensorboard
        also write events for TensorBoard
    paper
        also show the paper's numbers where it reports them
    holm
        a primary test, "CELL against CELL: MEASURE", corrected for their number by Holm's method; may be repeated. A
        study registers its primary tests in `[report] primary`
    """
    from feda2l.report.printed import print_report

    if not folders:
        raise FedA2LError("report: no folder given; use: feda2l report DIR [DIR ...] [--out OUT]")
    print_report(list(folders), out, tensorboard=tensorboard, paper=paper, holm=holm or ())


def watch(
    folder: Path,
    *,
    port: int | None = None,
    open_: Annotated[bool, Parameter(name="--open", negative=())] = False,
) -> None:
    """Follow a run, a study or a swarm live in a browser.

    The page is served on this machine only. Ctrl-C ends the view, not the run.

    Parameters
    ----------
    folder
        the folder of a run, a study or a swarm, or a folder that contains them or will
    port
        the port of the page (default 8765, or the next free one)
    open_
        open the page in the browser
    """
    from feda2l.watch.command import watch

    watch(folder, port, open_browser=open_)


def compare(
    a: Path,
    b: Path,
    /,
    *,
    equivalent_within: float | None = None,
    holm: Annotated[list[str] | None, Parameter(negative=())] = None,
) -> None:
    """Compare run B with run A, paired by seed.

    The comparison covers rounds, time and accuracy.

    Parameters
    ----------
    a
        a run folder, or a folder of runs that differ only in their seed
    b
        the same for the other method
    equivalent_within
        the largest difference that does not matter, in rounds for interpolated rounds and in accuracy points (or MSE)
        for scores: test whether the difference is smaller (TOST)
    holm
        a measure that is a primary test, for example `interpolated_rounds` or `last_10`; the p values of these are
        corrected by Holm's method, and all others are exploratory; may be repeated
    """
    from feda2l.report.printed import print_comparison

    print_comparison(a, b, equivalent_within=equivalent_within, holm=holm or ())


def bundle(
    *runs: Path,
    out: Path,
    layers: Annotated[list[str] | None, Parameter(negative=())] = None,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
    unpack: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Write runs as a few files to commit or share.

    The commands report, compare and watch read a bundle like run folders.

    Parameters
    ----------
    runs
        folders of runs, for example the folder of a study; or bundles, to join them
    out
        the folder of the bundle; with --unpack the folder of the run folders, which must be new
    layers
        runs whose rows per layer are bundled too, by name: `feda2l/*`, or `*` for all; may be repeated
    overwrite
        replace the bundle in the folder
    unpack
        write the runs of one bundle as run folders again, for example to add runs to a study
    """
    from feda2l.report.bundle_runs import bundle_runs, unbundle

    if not runs:
        raise FedA2LError("bundle: which runs? feda2l bundle RUNS... --out DIR")
    if unpack:
        if len(runs) != 1 or layers or overwrite:
            raise FedA2LError("bundle --unpack takes one bundle: feda2l bundle BUNDLE --unpack --out DIR")
        print(f"{out}: {unbundle(runs[0], out)} runs")
        return
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
