"""Compare the bytes that runs promise, before and after a change of the code.

    python tools/promised_bytes.py write FILE [--only GROUP] [--keep DIR]
    python tools/promised_bytes.py compare FILE [--only GROUP] [--keep DIR] [--renamed]

`write` runs the specs of `promised_specs.py` and writes the sha256 of every promised file to FILE. `compare` runs the
specs again and names every file that differs; the exit code is then 1. The same spec and seed must give the same
`rounds.jsonl`, `rounds.parquet`, `layers.parquet` and `checkpoint.safetensors`. `spec.toml`, `summary.json` and
`search.json` are compared by their values, without wall-clock times.

The hashes hold for one torch version and one kind of machine, so FILE does not belong in the repository. With `--keep`
the run folders stay in DIR, and a later `compare` on the same machine shows the first value that differs. With
`--renamed`, files that differ only in the names listed in `feda2l.old_names` count as equal. The tool uses
only the public interface: `feda2l.run` and the command line. It runs the code of the checkout that it lies in, whatever
is installed.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
import tomli_w
import torch
from promised_models import PartlyFrozen
from promised_specs import FILES, GROUPS, Job, Spec
from safetensors.torch import load_file, save_file

TOOLS = Path(__file__).resolve().parent
SOURCES = TOOLS.parent / "src"
PROMISED = ("rounds.jsonl", "rounds.parquet", "layers.parquet", "checkpoint.safetensors")
BY_VALUE = ("spec.toml", "summary.json", "search.json")
WALL_CLOCK = {"seconds", "time", "wall"}
FREE = ("name", "workers", "checkpoint_seconds")  # keys of a spec that change no promised byte
LIMIT = 400  # seconds that a command may take
Hashes = dict[str, dict[str, str]]  # of each run folder, of each file


class Stop(Exception):
    """Ends a run in the middle of its rounds."""


# --- running --------------------------------------------------------------------------------------------------------


def run_job(job: Job, out: Path) -> list[str]:
    """Run the specs of a job below `out`; return what went wrong."""
    if job.ranks and "TORCHELASTIC_RUN_ID" not in os.environ and job.kind != "command":
        group = out.parent.name
        return [] if (error := command(torchrun(job.ranks, __file__, "job", group, job.name))) is None else [error]
    specs = [{**own, "name": name} for name, own in job.specs.items()]
    if job.kind in ("kill", "command", "study", "swarm"):
        return [f"{own['name']}: {error}" for own in specs if (error := run_command(job, own, out / own["name"]))]
    problems = []
    for own, folder in [(specs, out)] if job.packed else [(own, out / own["name"]) for own in specs]:
        name, error = folder.name, None
        try:
            run_here(job, own, folder)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        if (error is not None) != (name in job.failing):
            problems.append(f"{name}: {error or 'it should have failed'}")
    return problems


def run_here(job: Job, specs: Any, out: Path) -> None:
    """Run a spec, or a pack, in this process."""
    import feda2l

    def go(values: Any, stop: int | None = None, resume: bool = False) -> None:
        def on_round(record: dict[str, Any]) -> None:
            if record["round"] == stop:
                raise Stop

        feda2l.run(values, out=out, resume=resume, progress=False, on_round=on_round)

    for rounds in job.at if job.kind == "extend" else ():
        cut = [own | {"rounds": rounds} for own in specs] if job.packed else specs | {"rounds": rounds}
        go(cut, resume=out.exists())
    for rounds in job.at if job.kind == "stop" else ():
        with contextlib.suppress(Stop):
            go(specs, stop=rounds, resume=out.exists())
        shutil.copytree(out, out.with_name(f"{out.name}-at-{rounds}"))
    go(specs, resume=bool(job.at))


def run_command(job: Job, own: Spec, out: Path) -> str | None:
    """Run a spec or a study with the command line; return what went wrong."""
    out.parent.mkdir(parents=True, exist_ok=True)
    verb = job.kind if job.kind in ("study", "swarm") else "run"
    file = out.with_name(f"{out.name}.{verb}.toml")  # not `spec.toml`, which marks a run folder
    file.write_text(tomli_w.dumps(own))
    words = ["-m", "feda2l", verb, str(file), "--out", str(out), *job.options]
    words += [] if verb == "study" else ["--quiet"]
    if job.kind == "kill":
        if error := kill([sys.executable, *words], out / "rounds.jsonl", job.at[0], own["rounds"]):
            return error
        words.append("--resume")
    for rounds in job.at if job.kind == "swarm" else ():
        if error := command([sys.executable, *words, "--set", f"rounds={rounds}"]):
            return error
        words.append("--resume")
    return command(torchrun(job.ranks, *words) if job.ranks else [sys.executable, *words])


def torchrun(ranks: int, *words: str) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [sys.executable, *launcher, *words]


def command(words: list[str]) -> str | None:
    """Run a command to its end; return the end of its output if it failed."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    return None if done.returncode == 0 else f"exit code {done.returncode}\n{done.stdout[-3000:]}"


def kill(words: list[str], lines: Path, rounds: int, last: int) -> str | None:
    """Start a command and end it with `kill -9` when it has written so many rounds."""
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    end = time.monotonic() + LIMIT
    while process.poll() is None and done(lines) < rounds and time.monotonic() < end:
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate()
    return None if rounds <= done(lines) < last else f"it was not killed in the middle of its rounds\n{output[-3000:]}"


def done(lines: Path) -> int:
    return lines.read_bytes().count(b"\n") if lines.exists() else 0


def prepare() -> None:
    """Write the files that specs refer to into the working folder."""
    for name, text in FILES.items():
        Path(name).write_text(text)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        save_file(PartlyFrozen().state_dict(), "start.safetensors")


# --- hashes ---------------------------------------------------------------------------------------------------------


def run_folders(folder: Path) -> Iterator[Path]:
    """The run folders at or below a folder; those of a swarm's own nodes are left out."""
    if (folder / "rounds.jsonl").exists():
        yield folder
    elif folder.is_dir():
        for child in sorted(folder.iterdir()):
            yield from run_folders(child)


def content(path: Path) -> bytes:
    """The bytes of a promised file, or the values of another file without times."""
    if path.name in PROMISED:
        return path.read_bytes()
    return json.dumps(values(path, Path.cwd()), sort_keys=True).encode()


def values(path: Path, work: Path) -> Any:
    """The values of a TOML or JSON file without times and without the path of the working folder."""
    text = path.read_text().replace(f"{work}{os.sep}", "")
    return tomllib.loads(text) if path.suffix == ".toml" else without_times(json.loads(text))


def without_times(value: Any) -> Any:
    """A value without wall-clock times; simulated seconds stay."""
    if isinstance(value, list):
        return [without_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    measured = [key for key in value if WALL_CLOCK & {*key.split("_")} and not key.startswith("simulated_")]
    return {key: without_times(item) for key, item in value.items() if key not in measured}


def hashes(group: str) -> Hashes:
    """The sha256 of every promised file of a group that was run."""
    return {
        str(folder): {
            name: hashlib.sha256(content(folder / name)).hexdigest()
            for name in (*PROMISED, *BY_VALUE)
            if (folder / name).exists()
        }
        for folder in run_folders(Path(group))
    }


def unequal_twins(found: Hashes) -> list[str]:
    """The runs of one spec that do not have the same promised bytes; of a swarm, only the checkpoint is promised."""
    first: dict[str, str] = {}
    problems = []
    for folder in found:
        if not Path(folder, "summary.json").exists():  # stopped in the middle
            continue
        spec = values(Path(folder, "spec.toml"), Path.cwd())
        runtime = {key: value for key, value in spec["runtime"].items() if key not in FREE}
        spec = {key: value for key, value in spec.items() if key not in FREE} | {"runtime": runtime}
        one = first.setdefault(json.dumps(spec, sort_keys=True), folder)
        names = ("checkpoint.safetensors",) if "swarm" in (one.split("/")[0], folder.split("/")[0]) else PROMISED
        if different := [name for name in names if found[one].get(name) != found[folder].get(name)]:
            problems.append(f"{folder} has the spec of {one}, but other bytes in {', '.join(different)}")
    return problems


def digest(group: str) -> str:
    """Of everything that a group's runs are made from."""
    models = (TOOLS / "promised_models.py").read_text()
    parts = [[dataclasses.asdict(job) for job in GROUPS[group]], FILES, models]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def use_checkout() -> None:
    """Make this process and those that it starts import the package of this checkout and `promised_models`."""
    paths = [str(SOURCES), str(TOOLS)]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    import feda2l

    if SOURCES not in Path(feda2l.__file__).resolve().parents:
        raise SystemExit(f"{feda2l.__file__}: is not the package of this checkout, {SOURCES}")


def commit() -> str:
    """The commit of the checkout, with `-dirty` if it was changed."""
    words = ["git", "-C", str(TOOLS), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown"


def machine() -> dict[str, str]:
    """What the bytes depend on besides the specs."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {"torch": torch.__version__, "machine": f"{platform.system()} {platform.machine()} {processor}".strip()}


# --- differences ----------------------------------------------------------------------------------------------------


def differing(old: Hashes, new: Hashes, kept: Path | None, *, renamed: bool = False) -> list[str]:
    """Every file that differs, with the first value that differs if the old run folders were kept.

    With `renamed`, a file with equal values under the present names does not differ.
    """
    lines = []
    for folder in sorted(old.keys() | new.keys()):
        before, now = old.get(folder), new.get(folder)
        if before is None or now is None:
            lines.append(f"{folder}: {'is new' if before is None else 'is missing'}")
            continue
        names = [name for name in (*PROMISED, *BY_VALUE) if before.get(name) != now.get(name)]
        if renamed and kept:
            names = [name for name in names if not equal_under_present_names(kept / folder / name, Path(folder, name))]
        if names:
            lines.append(f"{folder}: {', '.join(names)}")
            hints = [hint(kept, Path(folder, name)) for name in names if kept]
            lines += [f"    {text}" for text in hints if text]
    return lines


def equal_under_present_names(old: Path, new: Path) -> bool:
    """Whether two files hold equal values once `feda2l.old_names` is applied to the first."""
    from feda2l.old_names import RECORD_KEYS, current_record, current_spec, current_summary

    if not (old.exists() and new.exists()):
        return False
    if old.suffix == ".parquet":
        table = polars.read_parquet(old).rename(RECORD_KEYS, strict=False)
        return table.equals(polars.read_parquet(new))
    if old.suffix == ".jsonl":
        lines = [current_record(json.loads(line)) for line in old.read_text().splitlines()]
        return [json.dumps(line) for line in lines] == new.read_text().splitlines()
    if old.suffix == ".safetensors":
        one, other = load_file(old), load_file(new)
        return one.keys() == other.keys() and all(equal_bits(one[key], other[key]) for key in one)
    before, now = values(old, old.parents[len(new.parts) - 1]), values(new, Path.cwd())
    if old.name == "spec.toml":
        return bool(current_spec(before) == now)
    return bool(current_summary(before) == now) if old.name == "summary.json" else before == now


def hint(kept: Path, new: Path) -> str:
    """Where a file first differs from the kept one; empty if one is gone or the file is derived from others."""
    old = kept / new
    if not (old.exists() and new.exists()) or old.suffix == ".parquet":
        return ""
    if old.suffix == ".jsonl":
        pairs = zip(old.read_text().splitlines(), new.read_text().splitlines(), strict=False)
        for number, (one, other) in enumerate(pairs, start=1):
            if one != other:
                return f"{new.name}, line {number}: {first_difference(json.loads(one), json.loads(other))}"
        return f"{new.name}: {done(old)} lines before, {done(new)} now"
    if old.suffix == ".safetensors":
        one, other = load_file(old), load_file(new)
        keys = sorted(one.keys() ^ other.keys()) or [key for key in one if not equal_bits(one[key], other[key])]
        return f"{new.name}: {', '.join(keys[:4])}{', ...' if len(keys) > 4 else ''}"
    return f"{new.name}: {first_difference(values(old, kept), values(new, Path.cwd()))}"


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = (one.dtype, one.shape) == (other.dtype, other.shape)
    return same and one.numpy(force=True).tobytes() == other.numpy(force=True).tobytes()


def first_difference(one: Any, other: Any, where: str = "") -> str:
    """The place and both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        if keys := sorted(one.keys() ^ other.keys()):
            return f"{where or 'top level'}: {', '.join(keys)} on one side only"
        for key in one:
            if one[key] != other[key]:
                return first_difference(one[key], other[key], f"{where}.{key}".lstrip("."))
        return f"{where or 'top level'}: the order of the keys"
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        place = next(i for i in range(len(one)) if one[i] != other[i])
        return first_difference(one[place], other[place], f"{where}[{place}]")
    return f"{where}: {str(one)[:80]} before, {str(other)[:80]} now"


# --- the command line -----------------------------------------------------------------------------------------------


def run_group(group: str) -> list[str]:
    """Run all jobs of a group in the working folder; return what went wrong."""
    problems = []
    for number, job in enumerate(GROUPS[group], start=1):
        start = time.monotonic()
        print(f"{group} {number}/{len(GROUPS[group])}: {job.name}, {len(job.specs)} specs", end=" ", flush=True)
        problems += [f"{group}/{job.name}: {problem}" for problem in run_job(job, Path(group, job.name))]
        print(f"{time.monotonic() - start:.1f} s", flush=True)
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["write", "compare"])
    parser.add_argument("file", type=Path, help="JSON file of the hashes")
    parser.add_argument("--only", action="append", choices=list(GROUPS), help="run this group; may be repeated")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--renamed", action="store_true", help="accept the new names of feda2l.old_names")
    options = parser.parse_args()
    file, groups = options.file.resolve(), options.only or list(GROUPS)
    print(f"feda2l of {SOURCES}, commit {commit()}", flush=True)
    book = json.loads(file.read_text()) if file.exists() else {**machine(), "groups": {}}
    if options.verb == "compare" and not file.exists():
        parser.error(f"{file}: there is no such file; write it with the code before the change")
    if here := [f"{key} was {book[key]!r}, is {value!r}" for key, value in machine().items() if book[key] != value]:
        parser.error(f"{file}: the hashes were made elsewhere: {'; '.join(here)}")
    for group in groups if options.verb == "compare" else ():
        if group not in book["groups"]:
            parser.error(f"{file}: holds no group {group}; write it with the code before the change")
        if book["groups"][group]["digest"] != digest(group) and not options.renamed:
            parser.error(f"{file}: group {group} was written with other specs; use the tool of that commit")
    with contextlib.ExitStack() as stack:
        kept = options.keep and options.keep.resolve()
        work = kept or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if taken := [group for group in groups if (work / group).exists()]:
            parser.error(f"--keep {work}: holds {', '.join(taken)} already; choose another folder")
        work.mkdir(parents=True, exist_ok=True)
        stack.enter_context(contextlib.chdir(work))
        return run_groups(groups, book, file, kept, write=options.verb == "write", renamed=options.renamed)


def run_groups(
    groups: list[str], book: dict[str, Any], file: Path, kept: Path | None, *, write: bool, renamed: bool
) -> int:
    """Run groups in the working folder, write down or compare their hashes; return the exit code."""
    prepare()
    problems: list[str] = []
    everything: Hashes = {}
    for group in groups:
        start = time.monotonic()
        with open("messages.txt", "a") as messages, contextlib.redirect_stderr(messages):
            problems += run_group(group)
        found, seconds = hashes(group), round(time.monotonic() - start, 1)
        everything |= found
        print(f"{group}: {len(found)} run folders, {seconds} s", flush=True)
        if write:
            facts = {"commit": commit(), "digest": digest(group), "seconds": seconds, "kept": kept and str(kept)}
            book["groups"][group] = {**facts, "runs": found}
            file.write_text(json.dumps(book, indent=1) + "\n")
        else:
            old = book["groups"][group]
            problems += differing(old["runs"], found, Path(old["kept"]) if old["kept"] else None, renamed=renamed)
    problems += unequal_twins(everything)
    print("\n".join(problems) or f"{len(everything)} run folders: {'written' if write else 'the same bytes'}")
    return 1 if problems else 0


if __name__ == "__main__":
    use_checkout()
    if sys.argv[1:2] == ["job"]:  # one rank of a job that torchrun started
        _, _, group, name = sys.argv
        if problems := run_job(next(job for job in GROUPS[group] if job.name == name), Path(group, name)):
            sys.exit("\n".join(problems))
    else:
        sys.exit(main())
