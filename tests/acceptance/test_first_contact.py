"""The first hour of a new user: help, a first spec, the doctor, shell completion and explained errors."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cyclopts import App

from feda2l.cli import demo, doctor, explain, main
from feda2l.errors import Busy, FedA2LError
from feda2l.spec.commented_spec import commented_spec
from feda2l.spec.schema_base import Section, section_of
from feda2l.spec.sections import NetworkSpec
from feda2l.spec.spec import Spec

Cli = Callable[..., Any]
ROOT = Path(__file__).parents[2]
OFF = re.compile(r"^# (?=\w+ = )", re.MULTILINE)  # a key that is commented out

# init


def keys(values: dict[str, Any]) -> set[str]:
    return {
        f"{name}.{inner}" if isinstance(value, dict) else name
        for name, value in values.items()
        for inner in (value if isinstance(value, dict) else [""])
    }


def all_keys() -> set[str]:
    """The keys of all sections, except sections that are off as a whole."""
    found = set()
    for name, value in Spec():
        if isinstance(value, Section):
            found |= {f"{name}.{key}" for key in type(value).model_fields}
        elif section_of(Spec.model_fields[name]) is None:
            found.add(name)
    return found


@pytest.mark.parametrize(
    "sets",
    [
        [],
        ["data.name=exchange_rate"],
        ['data.name="csv"', 'data.path="t.csv"', 'data.feature_columns=["a", "b"]', "rates.window=4", "rounds=7"],
        ["algorithm.name=fedprox", "algorithm.mu=0.1", "faults=plan.toml"],
        ["network.participation=0.5"],
    ],
    ids=len,
)
def test_a_commented_spec_parses_to_the_spec_it_was_written_from(sets: list[str]) -> None:
    text = commented_spec(sets)
    assert Spec.parse(tomllib.loads(text)) == Spec.parse({}, "spec", sets)


def test_a_commented_spec_has_every_key_once_and_every_line_is_well_formed() -> None:
    everything = tomllib.loads(OFF.sub("", commented_spec()))  # TOML rejects a duplicate key
    assert keys(everything) == all_keys()
    Spec.parse(everything)
    for line in commented_spec().splitlines():
        assert line.startswith(("#", "[")) or not line or re.match(r"\w+ = .+  # \S", line)


def test_a_section_that_is_off_lists_every_key_and_each_key_can_be_set() -> None:
    text = commented_spec()
    assert "\n# [network]  # " in text
    lines = re.findall(r"^#   (\w+ = .*)", text, re.MULTILINE)
    assert [line.split(" ")[0] for line in lines] == list(NetworkSpec.model_fields)
    for line in lines:
        Spec.parse(tomllib.loads(f"[network]\n{line}"))


def test_init_writes_a_file_that_runs_and_never_overwrites(cli: Cli) -> None:
    assert cli("init", "new/my.toml", "--set", "rounds=2", "--set", "runtime.workers=0").code == 0
    written = Path("new/my.toml").read_text()
    assert "feda2l run new/my.toml" in written
    assert cli("run", "new/my.toml", "--quiet", "--out", "out").code == 0
    assert len(Path("out/rounds.jsonl").read_text().splitlines()) == 2
    again = cli("init", "new/my.toml")
    assert (again.code, Path("new/my.toml").read_text()) == (2, written)
    assert "not overwritten" in again.err
    mistaken = cli("init", "other.toml", "--set", "data.nodse=3")
    assert mistaken.code == 2
    assert "did you mean 'nodes'" in mistaken.err
    assert not Path("other.toml").exists()


# doctor


def test_doctor_reports_a_working_core_and_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDA2L_DATA", "nothing-here")
    monkeypatch.setattr(doctor, "EXTRAS", {"plots": (("no-such-package",), "figures")})
    outcome = cli("doctor", "--json")
    assert outcome.code == 0, outcome.err
    found = {finding["what"]: finding for finding in json.loads(outcome.out)}
    assert found["torch"]["detail"].startswith(torch.__version__)
    assert found["data digits"]["state"] == "ok"
    assert found["data cifar100"]["remedy"] == "feda2l data fetch cifar100"
    assert found["extra plots"]["remedy"] == f"pip install -c {ROOT}/lock.txt -e '{ROOT}[plots]'"
    assert found["data folder (FEDA2L_DATA)"]["detail"].startswith("nothing-here: ")
    assert found["network"]["state"] == "ok"
    monkeypatch.setenv("COLUMNS", "400")
    table = cli("doctor")
    assert table.code == 0
    assert f"pip install -c {ROOT}/lock.txt -e '{ROOT}[plots]'" in table.out


def test_doctor_keeps_a_checkout_installed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._install("peers", tmp_path) == "pip install 'feda2l[peers]'"
    monkeypatch.chdir(ROOT)
    assert doctor._install("peers") == "pip install -c lock.txt -e '.[peers]'"


def test_doctor_works_when_the_gpu_driver_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA driver initialization failed\nand more")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", fail)
    outcome = cli("doctor", "--json")
    assert outcome.code == 0, outcome.err
    (found,) = [finding for finding in json.loads(outcome.out) if finding["what"] == "GPU"]
    assert found["detail"] == "RuntimeError: CUDA driver initialization failed"


def test_doctor_exits_with_1_when_torch_is_broken(
    process: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    outcome = process("doctor")
    assert outcome.code == 1
    assert "BROKEN" in outcome.out
    assert "torch is broken: ImportError: libtorch.so: cannot open" in outcome.err
    assert "Traceback" not in outcome.err


def test_doctor_knows_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for extra, (packages, purpose) in doctor.EXTRAS.items():
        assert purpose
        assert sorted(re.match(r"[\w-]+", text)[0] for text in extras[extra]) == sorted(packages)
    assert set(extras) - {"test", "docs", "integrations"} == set(doctor.EXTRAS)


# version, help, completion


def commands(app: App, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and subcommand as its words."""
    for name in app:
        if not name.startswith("-"):
            yield (*above, name)
            yield from commands(app[name], (*above, name))


def test_the_help_fits_one_screen_and_starts_with_five_commands(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = cli("--help")
    assert cli().out == outcome.out  # the same page without any argument
    assert outcome.code == 0
    lines = outcome.out.rstrip().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    panels = dict(re.findall(r"^╭─ ([\w ]+) ─+╮\n(.*?)^╰", outcome.out, re.MULTILINE | re.DOTALL))
    assert list(panels) == ["Start with these", "Look up", "Run", "Compare", "Real network", "More"]
    listed = {panel: [row.split()[1] for row in rows.splitlines()] for panel, rows in panels.items()}
    assert sorted(listed["Start with these"]) == ["demo", "doctor", "init", "report", "run"]
    assert listed["Start with these"][:3] == ["demo", "init", "run"]
    assert {"--help", "--version"} < set(listed["More"])
    names = {words[0] for words in commands(main.app)}
    assert {name for rows in listed.values() for name in rows} == names | {"--help", "--version"}


@pytest.mark.parametrize("words", list(commands(main.app)), ids=" ".join)
def test_the_help_of_every_command_starts_with_an_example_of_it(words: tuple[str, ...], cli: Cli) -> None:
    outcome = cli(*words, "--help")
    assert outcome.code == 0
    first = outcome.out.splitlines()[0]
    assert first.startswith("Example: ")
    assert len(first) <= 80
    assert outcome.out.count("Example: ") == 1
    (example, *_) = re.findall(r"feda2l ([^&)]*)", first)
    assert example.split()[: len(words)] == list(words)
    main.app.parse_args(example.split(), print_error=False, exit_on_error=False)  # raises for an unknown option


def test_the_demo_names_three_commands_to_go_on_with() -> None:
    lines = demo.next_steps(Path("runs/demo")).splitlines()
    assert lines[0].startswith("next: feda2l report runs/demo --out report ")
    called = [line.removeprefix("next:").split()[1] for line in lines]
    assert called == ["report", "init", "run"]


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_help_and_version_do_not_import_torch(argument: str) -> None:
    code = f"import sys; sys.argv = ['feda2l', {argument!r}]; from feda2l.cli.main import main; main(); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    if argument == "--version":
        import feda2l

        assert done.stdout.splitlines()[0] == feda2l.__version__


ASK = {
    "bash": (
        "source completion; ask() { COMP_WORDS=(feda2l $1 ''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _feda2l; "
        "echo ${COMPREPLY[@]}; }; ask; ask 'run --track'; ask list"
    ),
    "fish": "source completion; for line in '' 'run --track ' 'list '; complete -C \"feda2l $line\"; end",
    "zsh": "autoload -Uz compinit; compinit -u -D; source ./completion; echo $_comps[feda2l]; cat completion",
}


@pytest.mark.parametrize("shell", ASK)
def test_a_shell_completes_commands_options_and_names(shell: str, cli: Cli) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    Path("completion").write_text(cli("completion", shell).out)
    options = ["-f"] if shell == "zsh" else []
    done = subprocess.run([shell, *options, "-c", ASK[shell]], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    words = done.stdout.split()
    assert {"doctor", "swarm", "tensorboard", "topologies"} <= {word.strip("'\"():").split(":")[0] for word in words}
    if shell == "zsh":
        assert words[0] == "_cyclopts_feda2l"


# errors


def anchors_in_code() -> set[str]:
    """Every `see` of an error, and every topic that a message names."""
    found: set[str] = {Busy.see}
    for path in (ROOT / "src" / "feda2l").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "see" and isinstance(node.value, ast.Constant):
                found.add(str(node.value.value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"See: feda2l explain ([\w-]+)", node.value))
    return found


def test_every_anchor_is_a_section_and_every_section_is_used() -> None:
    assert anchors_in_code() == set(explain.sections())


def test_every_section_shows_its_message_and_the_remedy() -> None:
    for anchor, text in explain.sections().items():
        shown = re.search(r"```text\n(.*?)```\n(.*)", text, re.DOTALL)
        assert shown, anchor
        assert shown[1].startswith("feda2l: ")
        assert len(shown[2].split()) > 20, anchor


def test_an_error_names_its_section_and_explain_prints_it(cli: Cli) -> None:
    outcome = cli("run", "--set", "data.nodes=500")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == "See: feda2l explain partition"
    assert cli("explain", "partition").out == explain.sections()["partition"]
    assert cli("explain").out.split() == list(explain.sections())
    unknown = cli("explain", "partitoin")
    assert unknown.code == 2
    assert "did you mean 'partition'?" in unknown.err
    with pytest.raises(FedA2LError) as raised:
        Spec.parse({"rounds": 0})
    assert raised.value.__notes__ == ["See: feda2l explain spec"]


def test_the_package_contains_the_troubleshooting_page() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["force-include"] == {f"docs/{explain.PAGE}": f"feda2l/{explain.PAGE}"}
