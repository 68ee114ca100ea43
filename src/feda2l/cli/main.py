"""The commands of `feda2l`: parse options, call the other packages, print the result."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError
from rich.console import Console

import feda2l
from feda2l.cli.network import certs, node, swarm
from feda2l.cli.options import COMPARE, FIRST, LOOK_UP, MORE, NETWORK, RUN, DataFolder, Set, StudySet, Track
from feda2l.cli.results import bundle, compare, evaluate, export, forecast, report, watch
from feda2l.errors import FedA2LError, RunFailed

if TYPE_CHECKING:
    from feda2l.studies.run_study import Outcome

app = App(
    name="feda2l",
    version=feda2l.__version__,
    help="Decentralized federated learning with layer-wise learning rates.",
    suppress_keyboard_interrupt=False,  # `main` prints how to resume
)
app["--help"].group = app["--version"].group = MORE
data_app = App(
    name="data",
    group=LOOK_UP,
    help="Download a data set, or verify its files.",
    help_prologue="Example: feda2l data fetch cifar10",
)
app.command(data_app)
for command, group, example in (
    (report, FIRST, "feda2l report runs/demo --out report"),
    (watch, RUN, "feda2l watch runs --open"),
    (evaluate, RUN, "feda2l evaluate runs/demo/feda2l-1"),
    (export, RUN, "feda2l export runs/demo/feda2l-1 --out model.safetensors"),
    (compare, COMPARE, "feda2l compare runs/fedavg runs/feda2l"),
    (bundle, COMPARE, "feda2l bundle runs/my-study --out shared/my-study"),
    (forecast, COMPARE, "feda2l forecast runs/exchange --windows 5"),
    (swarm, NETWORK, "feda2l swarm --nodes 4 --set rounds=20"),
    (node, NETWORK, "feda2l node --config node.toml"),
):
    app.command(command, group=group, help_prologue=f"Example: {example}")
app.command(certs)


@app.command(group=FIRST, sort_key=0, help_prologue="Example: feda2l demo --seeds 1")
def demo(*, out: Path = Path("runs/demo"), seeds: int = 3) -> None:
    """Train ten nodes on digits and compare six rate rules.

    There is no server. The demo takes under a minute.

    Parameters
    ----------
    out
        the folder of the runs; an existing folder gets a number instead
    seeds
        how many seeds per rate rule
    """
    from feda2l.cli.demo import demo

    if seeds < 1:
        raise FedA2LError(f"--seeds {seeds}: the demo needs at least 1 seed (default 3)")
    demo(out, seeds)


@app.command(group=FIRST, sort_key=2, help_prologue="Example: feda2l run my.toml --set rounds=50 --out runs/first")
def run(
    spec: Path | None = None,
    *,
    set_: Set = None,
    out: Path | None = None,
    resume: bool = False,
    data: DataFolder = None,
    track: Track = None,
    show_partition: bool = False,
    quiet: bool = False,
) -> None:
    """Run a spec: train all nodes and write a run folder.

    Without a file the default spec runs: digits, 10 nodes, FedAvg with FedA2L.

    Parameters
    ----------
    spec
        TOML file with the keys that differ from the defaults
    out
        the run folder (default runs/NAME)
    resume
        resume the run in the folder, also with more rounds
    show_partition
        print which node holds which samples, plot it in NAME-partition.png, then stop
    quiet
        print no progress
    """
    from feda2l.cli import run_view
    from feda2l.distributed.ranks import everywhere, leads
    from feda2l.runs.run import run
    from feda2l.spec.spec import Spec

    sets = set_ or []
    wanted = everywhere(lambda: Spec.load(spec, sets) if spec else Spec.parse({}, "spec", sets))
    if show_partition:
        run_view.show_partition(wanted, data, out)
        return
    if resume and out is None:
        out = Path("runs") / wanted.name
    done = run(wanted, out=out, resume=resume, data=data, trackers=track or (), progress=not quiet)
    if not leads():
        return
    summary = done.summary
    print(run_view.summary_text(summary, done.path))
    if (target := summary.get("target")) and target["round"] is None:
        wanted = target[summary["metric"]]
        raise RunFailed(
            f"evaluation.target = {wanted:g} was not reached in {summary['rounds']} rounds (trailing mean over "
            f"{target['smoothing']} evaluations). The run is complete; its records are in {done.path}",
            see="target",
        )


@app.command(group=RUN, help_prologue="Example: feda2l study cnn-cifar10 --seeds 1 --dry-run")
def study(
    name: str,
    *,
    set_: StudySet = None,
    reading: Literal["paper", "reference", "fair"] | None = None,
    seeds: int | None = None,
    only: Annotated[list[str] | None, Parameter(negative=())] = None,
    shard: str | None = None,
    timing: Annotated[bool, Parameter(negative=())] = False,
    limit_minutes: float | None = None,
    out: Path | None = None,
    data: DataFolder = None,
    track: Track = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Run a study: many specs, trained together.

    Run the same command again to resume.

    Parameters
    ----------
    name
        a study from `feda2l list studies`, or a TOML file
    reading
        the protocol: as the paper says, as its code does, or with only the rate rule different
    seeds
        run the seeds 1 to SEEDS
    only
        only the runs or cells whose name matches, for example 'fedavg-*'; can be repeated
    shard
        I/K: part I of K, to split the study over machines
    timing
        train one run at a time, so that its measured seconds are its own
    limit_minutes
        stop at the end of the round in which this time is exceeded
    out
        the study's folder (default runs/NAME)
    dry_run
        list the runs and their estimated cost on this machine, then stop
    """
    from feda2l.distributed.ranks import leads
    from feda2l.studies.api import study

    outcome = study(
        name,
        sets=set_ or [],
        reading=reading,
        seeds=seeds,
        only=only or [],
        shard=shard,
        timing=timing,
        limit_minutes=limit_minutes,
        out=out,
        data=data,
        dry_run=dry_run,
        trackers=track or (),
        say=lambda text: print(text, flush=True),
    )
    if not dry_run and leads():
        _end_of_study(outcome)


def _end_of_study(outcome: "Outcome") -> None:
    """Print how many runs finished. A failed run gives exit code 1; a reached time limit does not."""
    print(f"{len(outcome.runs)} of {len(outcome.jobs)} runs finished")
    if outcome.left:
        print(f"{len(outcome.left)} left; run the same command again to resume: {', '.join(outcome.left)}")
    if outcome.failed:
        raise RunFailed(f"{len(outcome.failed)} runs failed:\n" + "\n".join(outcome.failed))


@app.command(group=FIRST, sort_key=1, help_prologue="Example: feda2l init my.toml --set data.nodes=20")
def init(file: Path = Path("spec.toml"), /, *, set_: Set = None) -> None:
    """Write a spec with every key, its default and its meaning.

    An existing file is not overwritten.

    Parameters
    ----------
    file
        the TOML file
    """
    from feda2l.spec.commented_spec import write_spec

    write_spec(file, set_ or [])
    print(f"{file}: run it with: feda2l run {file}")


@app.command(group=FIRST, help_prologue="Example: feda2l doctor")
def doctor(*, data: DataFolder = None, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Check torch, GPU, disk, extras and data on this machine.

    The exit code is 1 if no run can work here.

    Parameters
    ----------
    json
        print JSON instead of a table
    """
    from feda2l.cli.doctor import examine
    from feda2l.cli.findings import print_findings

    findings = examine(data)
    print_findings(findings, json=json)
    if broken := [finding for finding in findings if finding.state == "broken"]:
        raise RunFailed(f"{broken[0].what} is broken: {broken[0].detail}; {broken[0].remedy}")


@app.command(group=LOOK_UP, help_prologue="Example: feda2l explain partition")
def explain(topic: str | None = None, /) -> None:
    """Explain an error message: its causes and remedies.

    Parameters
    ----------
    topic
        a section of the troubleshooting page; without one, all topics are listed
    """
    from feda2l.cli.explain import explain, sections

    if topic is None:
        print("\n".join(sections()))
        return
    text = explain(topic)
    if sys.stdout.isatty():
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        print(text, end="")


@app.command(group=MORE, help_prologue='Example: eval "$(feda2l completion bash)"')
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the shell script that completes commands and options."""
    script = app.generate_completion(shell=shell)
    if shell == "zsh":  # the script is meant as a file on $fpath; this line makes `eval` work too
        name = script[: script.index("() {")].split()[-1]
        script += f"\n(( $+functions[compdef] )) && compdef {name} feda2l"
    print(script)


@app.command(name="list", group=LOOK_UP, help_prologue="Example: feda2l list algorithms")
def list_(
    what: Literal["algorithms", "rates", "topologies", "networks", "datasets", "models", "studies", "keys", "all"]
    | None = None,
    /,
) -> None:
    """List algorithms, rate rules, models and other names.

    Parameters
    ----------
    what
        the kind to list, or all; without it, an index of the kinds
    """
    from feda2l.cli.catalogue import catalogue, index

    if what is None:
        print(index())
        return
    for table in catalogue(what):
        Console().print(table)


@data_app.command(help_prologue="Example: feda2l data fetch cifar10 --data ~/data")
def fetch(name: str, *, data: DataFolder = None) -> None:
    """Download a data set, verify its checksum and unpack it."""
    from feda2l.data import fetch

    print(f"{name}: {fetch(name, data)}")


@data_app.command(help_prologue="Example: feda2l data verify cifar10")
def verify(name: str, *, data: DataFolder = None) -> None:
    """Check that a data set's files exist, are complete and have the official checksums."""
    from feda2l.data import verify

    verdict = verify(name, data)
    print("\n".join(verdict.lines))
    if not verdict.ok:
        raise RunFailed(
            f"{name}: files are missing or damaged; download them: feda2l data fetch {name}", see="data-damaged"
        )
    print(f"{name}: official bytes" if verdict.official else f"{name}: usable; not known to be the official bytes")


@app.command(group=MORE, help_prologue="Example: feda2l bench --only digits")
def bench(*, only: list[str] | None = None, json: Path | None = None) -> None:
    """Measure the speed of this engine and of a plain PyTorch loop.

    Parameters
    ----------
    only
        benchmarks to run: cnn-cifar-b10, digits, resnet18-b10, timer-b32, adapt, mixing, nodes, report (default all)
    json
        also write the measurements to this file
    """
    from feda2l.bench import bench

    bench(only or (), json)


def main() -> None:
    """Entry point: a user's mistake gives a message and exit code 2, a failed run gives exit code 1."""
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_value")
    except UnusedCliTokensError as error:
        arguments = " ".join(error.unused_tokens or ())
        _fail(f"{arguments}: unexpected argument; repeat an option to give several values: --set a=1 --set b=2", 2)
    except CycloptsError as error:
        _fail(f"{error}\nfeda2l --help lists the commands", 2)
    except FedA2LError as error:
        if error.printed:
            sys.exit(error.exit_code)
        _fail("\n".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code)
    except KeyboardInterrupt:
        _interrupted()
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _interrupted() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") != "0":
        sys.exit(130)  # only the first rank prints the message
    same = sys.argv[1:2] in (["study"], ["node"])
    again = "run the same command again" if same else "run the same command again with --resume"
    _fail(f"interrupted; {again} to resume", 130)


def _fail(message: str, code: int) -> None:
    print(f"feda2l: {message}", file=sys.stderr)
    sys.exit(code)
