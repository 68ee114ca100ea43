"""Simulated seconds in tables, figures and comparisons, against calculations by hand."""

from pathlib import Path

import polars
import pytest

from feda2l.report.compare import compare
from feda2l.report.find_runs import Notes
from feda2l.report.report import read, report
from feda2l.report.sheets import Sheet, sheets_of
from feda2l.report.significance import CensoredTest, PairedTest
from synthetic_runs import rising, write_run, write_seeds


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The full graph needs fewer rounds, the ring fewer seconds. One seed of the star misses the target."""
    for graph, target_rounds, seconds in (("full", [3, 5], 30.0), ("ring", [6, 8], 4.0), ("star", [9, None], 5.0)):
        write_seeds(
            tmp_path / "runs" / graph, "constant", target_rounds, simulated=seconds, more={"topology": {"name": graph}}
        )
    return tmp_path / "runs"


def sheet(folder: Path, title: str) -> Sheet | None:
    (table,) = read([folder], Notes())[0]
    return next((sheet for sheet in sheets_of(table) if sheet.title == title), None)


def test_seconds_follow_the_last_node_of_a_round_and_have_their_own_ranks(runs: Path) -> None:
    table = sheet(runs, "Simulated time")
    assert table is not None
    rows = {row[1].text: [entry.text for entry in row[2:]] for row in table.rows}
    # rounds 3 and 5 of 30 s, rounds 6 and 8 of 4 s; the sample std of two values is their distance / sqrt 2
    assert rows["full"] == ["120.00 ± 42.43 (2/2)", "30.00 ± 0.00", "300.00 ± 0.00"]
    assert rows["ring"] == ["28.00 ± 5.66 (2/2)", "4.00 ± 0.00", "40.00 ± 0.00"]
    assert rows["star"] == ["median > 50.00 (1/2)", "5.00 ± 0.00", "50.00 ± 0.00"]
    assert {row[1].text: row[2].place for row in table.rows} == {"full": 2, "ring": 1, "star": None}
    rounds = sheet(runs, "Rounds to target")
    assert rounds is not None
    assert {row[0].text: row[1].place for row in rounds.rows} == {"full": 1, "ring": 2, "star": None}


def test_without_simulated_time_reports_do_not_mention_it(tmp_path: Path) -> None:
    write_seeds(tmp_path / "runs", "constant", [3, 5])
    report([tmp_path / "runs"], tmp_path / "out", paper=False)
    for name in ("table.md", "table.csv", "table.tex"):
        assert "imulated" not in (tmp_path / "out" / name).read_text()
    assert not list((tmp_path / "out" / "figures").glob("*seconds*"))


def test_a_report_shows_seconds_in_table_figures_and_page(runs: Path, tmp_path: Path) -> None:
    report([runs], tmp_path / "out", paper=False)
    table = polars.read_csv(tmp_path / "out" / "table.csv", infer_schema_length=None)
    seconds = dict(zip(table["row"], table["simulated_seconds_mean"], strict=True))
    assert seconds == {"full": 120, "ring": 28, "star": None}
    assert (tmp_path / "out" / "figures" / "curves-seconds.png").exists()
    assert '"seconds":[30.0,60.0' in (tmp_path / "out" / "index.html").read_text()


def test_runs_with_and_without_time_can_be_in_one_table(runs: Path) -> None:
    write_seeds(runs / "tree", "constant", [4, 4], more={"topology": {"name": "tree"}})
    table = sheet(runs, "Simulated time")
    assert table is not None
    assert next(row[2].text for row in table.rows if row[1].text == "tree") == "no simulated time"


def test_compare_reports_which_is_faster_on_the_network(runs: Path) -> None:
    comparison = compare(runs / "full", runs / "ring")
    first, _, second = comparison.measures[:3]
    assert (first.name, second.name) == ("simulated seconds to 50 %", "rounds to 50 %")
    assert isinstance(first.test, PairedTest)
    assert first.test.difference == (24 + 32) / 2 - (90 + 150) / 2
    assert "B better" in first.words
    assert "A better" in second.words
    assert "B is ahead of A in simulated seconds" in comparison.verdict
    censored = compare(runs / "ring", runs / "star").measures[0]
    # no mean if a seed missed the target: 24 and 32 s on the ring, 45 s and not reached on the star
    assert isinstance(censored.test, CensoredTest)
    assert censored.test.medians == (28, None)
    assert censored.test.direction == (3 - 1 + 4 - 2) / 2


def test_compare_needs_time_on_both_sides(runs: Path) -> None:
    write_run(runs / "tree" / "one", rising(4), rates="constant", more={"topology": {"name": "tree"}})
    assert compare(runs / "full", runs / "tree").measures[0].name == "interpolated rounds to 50 %"
