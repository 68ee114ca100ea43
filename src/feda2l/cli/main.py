"""The command line: parse, call, print."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError
from rich.console import Console

import feda2l
from feda2l.cli.network import certs, node, swarm
from feda2l.cli.options import DataFolder, Set, Track
from feda2l.cli.results import bundle, compare, evaluate, export, forecast, report, unbundle, watch
from feda2l.errors import FedA2LError, RunFailed

app = App(
    name="feda2l",
    version=feda2l.__version__,
    help="Decentralized federated learning with layer-wise rates.",
    suppress_keyboard_interrupt=False,  # `main` says how to go on
)
data_app = App(name="data", help="Data sets: download them, or check what is there.")
app.command(data_app)
for command in (node, swarm, certs, evaluate, forecast, export, report, watch, compare, bundle, unbundle):
    app.command(command)


@app.command
def demo(*, out: Path = Path("runs/demo"), seeds: int = 3) -> None:
    """Ten nodes learn digits without a server: six rate rules side by side, in under a minute."""
    from feda2l.cli.demo import demo

    if seeds < 1:
        raise FedA2LError(f"--seeds {seeds}: at least one seed is needed")
    demo(out, seeds)


@app.command
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
    """Run a spec. Without a file it is the default: digits, 10 nodes, FedAvg with FedA2L.

    Parameters
    ----------
    spec
        TOML file; it holds only what differs from the defaults
    out
        the run folder itself (default runs/NAME)
    resume
        go on where the run in the folder stopped; also with more rounds
    show_partition
        print and plot who holds what, and stop
    quiet
        no progress
    """
    from feda2l.cli import run_view as one_run
    from feda2l.distributed.ranks import everywhere, leads
    from feda2l.runs.run import run
    from feda2l.spec.spec import Spec

    sets = set_ or []
    wanted = everywhere(lambda: Spec.load(spec, sets) if spec else Spec.parse({}, "spec", sets))
    if show_partition:
        one_run.show_partition(wanted, data, out)
        return
    if resume and out is None:
        out = Path("runs") / wanted.name
    done = run(wanted, out=out, resume=resume, data=data, trackers=track or (), progress=not quiet)
    if not leads():
        return
    summary = done.summary
    print(one_run.summary_text(summary, done.path))
    if (target := summary.get("target")) and target["round"] is None:
        wanted = target[summary["metric"]]
        raise RunFailed(
            f"evaluation.target = {wanted:g} was never reached in {summary['rounds']} rounds (trailing "
            f"mean over {target['smoothing']} evaluations); the run is complete, its records are in {done.path}",
            see="target",
        )


@app.command
def study(
    name: str,
    *,
    set_: Set = None,
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
    """Run a study: many runs, packed. The same command again goes on where it was.

    Parameters
    ----------
    name
        a study of `feda2l list studies`, or a TOML file
    reading
        the whole protocol: what the paper says, what its code does, or everything equal but the rule
    seeds
        run seeds 1 to this
    only
        runs or cells whose name matches, for example 'fedavg-*'; may be repeated
    shard
        I/K: the I-th of K parts, for several machines
    timing
        one run at a time, so that its seconds are its own
    limit_minutes
        stop after the round in which the time is over
    out
        the study's folder (default runs/NAME)
    dry_run
        list the runs and what they cost here, and stop
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


def _end_of_study(outcome: Any) -> None:
    """Say what came of it; a failed run is exit code 1, time that is over is not."""
    print(f"{len(outcome.runs)} of {len(outcome.jobs)} runs finished")
    if outcome.left:
        print(f"{len(outcome.left)} left, the same command goes on: {', '.join(outcome.left)}")
    if outcome.failed:
        raise RunFailed(f"{len(outcome.failed)} runs failed:\n" + "\n".join(outcome.failed))


@app.command
def init(file: Path = Path("spec.toml"), /, *, set_: Set = None) -> None:
    """Write a spec with every key, its default and what it means; a file that is there stays.

    Parameters
    ----------
    file
        the TOML file
    """
    from feda2l.spec.commented_spec import write_spec

    write_spec(file, set_ or [])
    print(f"{file}: run it with  feda2l run {file}")


@app.command
def doctor(*, data: DataFolder = None, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Say what this machine has (torch, GPU, disk, extras, data) and what to install; exit code 1 if a run cannot work.

    Parameters
    ----------
    json
        for a program to read
    """
    from feda2l.cli.doctor import examine
    from feda2l.cli.findings import print_findings

    findings = examine(data)
    print_findings(findings, json=json)
    if broken := [finding for finding in findings if finding.state == "broken"]:
        raise RunFailed(f"{broken[0].what} is broken: {broken[0].found}; {broken[0].remedy}")


@app.command
def explain(topic: str | None = None, /) -> None:
    """More about an error message: a section of the troubleshooting page. Without a topic: which there are."""
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


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print what makes a shell complete feda2l's commands and options: eval "$(feda2l completion bash)"."""
    script = app.generate_completion(shell=shell)
    if shell == "zsh":  # made to be a file on $fpath; with this line it can be evaluated too
        name = script[: script.index("() {")].split()[-1]
        script += f"\n(( $+functions[compdef] )) && compdef {name} feda2l"
    print(script)


@app.command(name="list")
def list_(
    what: Literal["algorithms", "rates", "topologies", "networks", "datasets", "models", "studies", "keys"]
    | None = None,
    /,
) -> None:
    """What there is: algorithms, rate rules, topologies, networks, data sets, models, studies, keys of a spec."""
    from feda2l.cli.catalogue import catalogue

    for table in catalogue(what):
        Console().print(table)


@data_app.command
def fetch(name: str, *, data: DataFolder = None) -> None:
    """Download a data set, check it and unpack it."""
    from feda2l.data import fetch

    print(f"{name}: {fetch(name, data)}")


@data_app.command
def verify(name: str, *, data: DataFolder = None) -> None:
    """Say whether a data set's files are there, whole, and the official bytes."""
    from feda2l.data import verify

    verdict = verify(name, data)
    print("\n".join(verdict.lines))
    if not verdict.ok:
        raise RunFailed(f"{name}: the files are not usable as they are", see="data-damaged")
    print(f"{name}: official bytes" if verdict.official else f"{name}: usable; not known to be the official bytes")


@app.command
def bench(*, only: list[str] | None = None, json: Path | None = None) -> None:
    """This engine beside a plain PyTorch loop, both from one run.

    Parameters
    ----------
    only
        works to run: cnn-cifar-b10, digits, resnet18-b10, timer-b32, adapt, mixing, nodes, report (default all)
    json
        write the figures to this file too
    """
    from feda2l.bench import bench

    bench(only or (), json)


def main() -> None:
    """Entry point: a user's mistake ends in a message and exit code 2, a failed run in exit code 1."""
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_value")
    except UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or ())
        _fail(f"{words}: not understood here; an option that takes several is repeated, as --set a=1 --set b=2", 2)
    except CycloptsError as error:
        _fail(f"{error}\nfeda2l --help tells what there is", 2)
    except FedA2LError as error:
        if error.said:
            sys.exit(error.exit_code)
        _fail("\n".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code)
    except KeyboardInterrupt:
        _interrupted()
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _interrupted() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") != "0":
        sys.exit(130)  # the first rank says it
    again = "the same command goes on" if sys.argv[1:2] in (["study"], ["node"]) else "go on with --resume"
    _fail(f"interrupted; {again}", 130)


def _fail(message: str, code: int) -> None:
    print(f"feda2l: {message}", file=sys.stderr)
    sys.exit(code)
