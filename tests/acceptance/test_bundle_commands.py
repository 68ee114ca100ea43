"""`feda2l bundle`, `report` and `compare`, from runs to a bundle and back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from synthetic_runs import write_seeds

Cli = Callable[..., Any]


def test_runs_are_bundled_reported_compared_and_unpacked(cli: Cli) -> None:
    for rule, reached in (("constant", [6, 7]), ("feda2l", [4, 5])):
        write_seeds(Path("runs") / rule, rule, reached)
    made = cli("bundle", "runs", "--out", "shared")
    assert made.code == 0, made.err
    assert "shared: 4 runs, 0.0" in made.out
    assert "--layers '*'" in made.out
    assert cli("report", "shared", "--out", "report").code == 0
    assert "feda2l" in Path("report/table.csv").read_text()
    outcome = cli("compare", "shared/constant", "shared/feda2l")
    assert outcome.code == 0, outcome.err
    assert "B is ahead of A in interpolated rounds" in " ".join(outcome.out.split())
    again = cli("bundle", "runs", "--out", "shared", "--layers", "feda2l/*")
    assert again.code == 2
    assert "--overwrite" in again.err
    again = cli("bundle", "runs", "--out", "shared", "--layers", "feda2l/*", "--overwrite")
    assert "rows per layer of 2 runs" in again.out
    assert cli("bundle", "shared", "--unpack", "--out", "runs again").out == "runs again: 4 runs\n"
    assert Path("runs again/feda2l/feda2l-1/spec.toml").exists()
    two = cli("bundle", "shared", "runs", "--unpack", "--out", "other")
    assert (two.code, Path("other").exists()) == (2, False)
    assert "feda2l bundle BUNDLE --unpack --out DIR" in two.err


def test_a_bundle_needs_runs_and_an_altered_one_is_refused(cli: Cli) -> None:
    assert "feda2l bundle RUNS... --out DIR" in cli("bundle", "--out", "shared").err
    write_seeds(Path("runs"), "constant", [6])
    cli("bundle", "runs", "--out", "shared")
    table = Path("shared/rounds.parquet")
    table.write_bytes(table.read_bytes() + b" ")
    outcome = cli("report", "shared")
    assert outcome.code == 2
    assert "shared/rounds.parquet: its SHA-256 differs" in outcome.err
