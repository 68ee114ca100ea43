"""What is written: LaTeX that is whole, figures, TensorBoard's events, and code of the documentation that runs."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars
import pytest
from rich.console import Console

from feda2l.errors import FedA2LError
from feda2l.report import tensorboard_export
from feda2l.report.compare import compare
from feda2l.report.draw_rates import steepest_layers
from feda2l.report.find_runs import Notes, find_runs
from feda2l.report.page import page
from feda2l.report.printed import print_report, shown_table
from feda2l.report.related_work import OURS, related_work
from feda2l.report.replace_figures import WRITTEN, replaced_figures
from feda2l.report.report import read, report
from feda2l.report.sheets import Sheet, SheetEntry, details_sheet, sheets_of, unequal_notes
from feda2l.report.write_tables import escape, latex, markdown
from synthetic_runs import rising, write_run, write_seeds

DOCUMENT = Path(__file__).parents[2] / "docs" / "reading-results.md"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two rules on two graphs, two seeds each; one never comes."""
    for graph in ("ring", "full"):
        folder = tmp_path / "runs" / graph
        write_seeds(folder, "constant", [6, None], more={"topology": {"name": graph}})
        write_seeds(folder, "feda2l", [4, 4], more={"topology": {"name": graph}}, pack=1, every_second=1.0)
        write_seeds(folder, "decay_only", [5, 5], more={"topology": {"name": graph}})
    return tmp_path / "runs"


def check_latex(text: str) -> None:
    """Braces and environments close, every line of a table has its columns, nothing special is left bare."""
    bare = re.sub(r"\\[{}%&#_$\\]", "", text)
    bare = re.sub(r"(?m)^%.*$", "", bare)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    begun, ended = re.findall(r"\\begin{(\w+)}", text), re.findall(r"\\end{(\w+)}", text)
    assert sorted(begun) == sorted(ended)
    for columns, body in re.findall(r"\\begin{tabular}{(\w+)}(.*?)\\end{tabular}", text, re.DOTALL):
        for line in body.splitlines():
            if line.endswith(r"\\") and "multicolumn" not in line:
                assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
            assert not re.search(r"(?<!\\)[#_%]", line)


def test_latex_is_balanced(runs: Path) -> None:
    text = latex(read([runs], Notes())[0])
    check_latex(text)
    assert r"feda2l & \textbf{4.0 $\pm$ 0.0 (2/2)} & \textbf{4.0 $\pm$ 0.0 (2/2)} \\" in text
    assert r"constant & median $>$ 10 (1/2)" in text
    assert r"decay\_only" in text


def test_latex_escapes_all_it_must() -> None:
    check_latex("\\begin{tabular}{l}\n" + escape("a_b & 5 % {x} ~ ^ # $ \\") + r" \\" + "\n\\end{tabular}")


def test_a_flag_in_brackets_is_printed_in_a_marked_entry_too(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=80).print(shown_table(Sheet("rounds", ["row"], [[SheetEntry("3.0 (1/1) [search]", 1)]])))
    assert "3.0 (1/1) [search]" in capsys.readouterr().out


def test_markdown_marks_first_and_second(tmp_path: Path) -> None:
    for rule, when in {"constant": 9, "step": 7, "feda2l": 4}.items():
        write_seeds(tmp_path, rule, [when])
    text = markdown(read([tmp_path], Notes())[0], [related_work()], ["left out: nothing"])
    assert "| feda2l | **4.0 (1/1)** |" in text
    assert "| step | <u>7.0 (1/1)</u> |" in text
    assert "| Improv. | +42.9 % (step) |" in text
    assert "- left out: nothing" in text


def test_a_study_of_a_parameter_has_its_figures(tmp_path: Path) -> None:
    for beta in (0.0, 0.6, 1.0):
        write_run(tmp_path / "runs" / f"{beta}", rising(3), more={"rates": {"balance": beta}})
    report([tmp_path / "runs"], tmp_path / "out")
    drawn = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"sensitivity.png", "balance.pdf"} <= drawn


def test_errors_have_a_report_too(tmp_path: Path) -> None:
    series = {"data": {"name": "exchange_rate", "partition": "natural"}}
    naive = {"last_value": 0.9, "window_mean": 0.7}
    for rule, curve in {"constant": [2.0, 1.0], "feda2l": [1.0, 0.5]}.items():
        write_run(tmp_path / "runs" / rule, curve, rates=rule, metric="mse", target=0.6, naive=naive, more=series)
    report([tmp_path / "runs"], tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    assert "Lowest test MSE" in text
    assert "| constant | not reached (0/1) |" in text
    curves = next((tmp_path / "out" / "figures").glob("curves*.svg")).read_text()
    assert "no training: mean of what is seen" in curves  # the better of the two
    assert "last value" not in curves


def test_the_page_holds_everything_it_needs(runs: Path) -> None:
    html = page(read([runs], Notes())[0], related_work(), [])
    assert "@@" not in re.sub(r"(?s)<script>/\*.*?</script>", "", html).split('id="data"')[1]
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="(?!data:)', html)


def test_the_layers_that_move_most_are_of_one_node() -> None:
    rows = [
        (2, node, layer, sigma) for node, layer, sigma in [(0, "a", 1.0), (1, "a", 5.0), (1, "b", 3.0), (0, "b", 4.0)]
    ]
    frame = polars.DataFrame(rows, schema=["round", "node", "layer", "divergence"], orient="row")
    assert steepest_layers(frame, 2) == (1, ["a", "b"])


def test_related_work_names_what_there_is() -> None:
    from feda2l.algorithms import ALGORITHMS
    from feda2l.rates import RULES

    for ours in OURS.values():
        kind, _, name = ours.name.rpartition(" ")
        assert name in (ALGORITHMS if kind == "algorithm" else RULES)
    assert len(related_work().rows) == len(OURS)


def test_tensorboard_reads_back_what_was_written(runs: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tensorboard_export.export_tensorboard(read([runs / "ring"], Notes())[1], tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 6
    events = accumulator.EventAccumulator(str(tmp_path / "out" / "feda2l-1"))
    events.Reload()
    score = [(event.step, round(event.value, 6)) for event in events.Scalars("accuracy")]
    assert score == list(enumerate(rising(4), start=1))
    assert events.Scalars("rate/a")[1].value == pytest.approx(0.005)
    assert events.Scalars("bytes_sent")[0].value == 2e6


def test_without_tensorboard_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(FedA2LError, match=r"feda2l\[tensorboard\]"):
        tensorboard_export.export_tensorboard([], tmp_path)


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL))
def test_the_documented_code_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in re.findall(r"import (\w+)", code):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    write_run(tmp_path / "runs" / "demo" / "feda2l-1", rising(3))
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "table.csv").write_text("row,mean\nfeda2l,3\n")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"polars": polars}
    exec(code, names)
    if "best" in names:
        assert names["best"]["accuracy"].to_list() == [0.6]


def test_compare_says_who_is_ahead_and_that_two_seeds_are_too_few(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", "constant", [8, 9], pack=1, every_second=1.5)
    write_seeds(tmp_path / "b", "feda2l", [4, 7], pack=1, every_second=1.5)
    found = compare(tmp_path / "a", tmp_path / "b")
    interpolated, rounds, seconds, best, last = found.measures
    assert interpolated.first == "8.30 ± 0.71 (2/2)"  # 0.1 to 0.6 crosses 0.5 after 4/5 of the round
    assert rounds.test is not None
    assert rounds.test.difference == -3
    assert (seconds.test and seconds.test.difference) == -6
    assert best.words == "equal"
    assert last.test is not None
    assert last.test.difference == pytest.approx(100 * (0.5 * 7 / 10 + 0.5 * 4 / 10 - 0.5 * 3 / 10 - 0.5 * 2 / 10) / 2)
    assert found.verdict.startswith(
        "B is ahead of A in interpolated rounds to 50 % by 3 rounds, but 2 seeds are too few"
    )


def test_compare_with_enough_seeds(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", "constant", [8, 9, 8, 9, None, 9])
    write_seeds(tmp_path / "b", "feda2l", [4, 5, 4, 5, 4, 5])
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.verdict == ("B beats A in interpolated rounds to 50 % (median A 8.8, B 4.3) (p = 0.031, 6 seeds).")
    assert found.notes == ["never at the target, ranked later than all that reached it: A with seed 5"]
    assert compare(tmp_path / "b", tmp_path / "a").verdict.startswith("A beats B")


def test_compare_says_where_the_other_side_is_ahead(tmp_path: Path) -> None:
    """A has the higher best, B the higher end: neither figure alone is the answer."""
    write_run(tmp_path / "a", [0.5, 0.6, *[0.52] * 10], rates="constant")
    write_run(tmp_path / "b", [0.5, 0.59, *[0.55] * 10])
    assert compare(tmp_path / "a", tmp_path / "b").verdict == (
        "A is ahead of B in best accuracy by 1 points, but 1 seed is too few to tell that from chance (at least 6 are "
        "needed). B is ahead in accuracy of the last 10 (by 3 points)."
    )


def test_a_run_older_than_a_key_is_compared_with_one_that_has_its_default(tmp_path: Path) -> None:
    """`data.clusters` came after the first records; a value that is not the default still tells runs apart."""
    write_run(tmp_path / "a" / "s1", rising(5), rates="constant", seed=1)
    write_run(tmp_path / "a" / "s2", rising(6), rates="constant", seed=2, more={"data": {"clusters": 10}})
    write_run(tmp_path / "b" / "s1", rising(4), seed=1)
    write_run(tmp_path / "b" / "s2", rising(4), seed=2)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.seeds == [1, 2]
    assert (found.first, found.second) == (f"{tmp_path / 'a'} (constant)", f"{tmp_path / 'b'} (feda2l)")
    write_run(tmp_path / "a" / "s3", rising(6), rates="constant", seed=3, more={"data": {"clusters": 4}})
    with pytest.raises(FedA2LError, match=r"differ in data\.clusters"):
        compare(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("facts", "machine"),
    [
        ({"device": "NVIDIA H200", "processor": "Xeon", "cores": 16}, "NVIDIA H200"),
        ({"device": "cpu", "processor": "AMD EPYC", "cores": 2}, "AMD EPYC (2 cores)"),
        ({}, "?"),
    ],
)
def test_the_machine_has_a_name(tmp_path: Path, facts: dict[str, Any], machine: str) -> None:
    run = write_run(tmp_path / "run", rising(3))
    (run / "environment.json").write_text(json.dumps(facts))
    (found,) = find_runs([run], Notes())
    assert found.machine == machine


def test_rounds_to_different_targets_are_not_compared(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", "constant", [None], target=0.7)
    write_seeds(tmp_path / "b", "feda2l", [4], target=0.5)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert [measure.name for measure in found.measures] == ["best accuracy", "accuracy of the last 10"]
    assert [note.partition(":")[0] for note in found.notes] == [
        "differs, so the figures that depend on it are not comparable"
    ]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"more": {"data": {"name": "cifar10"}}}, "different data"),
        ({"metric": "mse"}, "scored by accuracy, B by mse"),
        ({"seed": 2}, "no seed is on both sides"),
    ],
)
def test_compare_refuses_what_cannot_be_compared(tmp_path: Path, other: dict[str, Any], why: str) -> None:
    a = write_run(tmp_path / "a", rising(3))
    b = write_run(tmp_path / "b", rising(3), rates="constant", **other)
    with pytest.raises(FedA2LError, match=why):
        compare(a, b)


def test_compare_wants_one_method_a_side(runs: Path) -> None:
    with pytest.raises(FedA2LError, match=r"differ in .*rates.name"):
        compare(runs, runs)


def test_the_bench_makes_records_that_a_report_can_read(tmp_path: Path) -> None:
    from feda2l.bench.report_work import write_synthetic_runs

    write_synthetic_runs(tmp_path, runs=8, rounds=30, nodes=3)
    notes = Notes()
    _, figures = read([tmp_path], notes)
    assert len(figures) == 8
    assert not any("left out" in line for line in notes.lines())


@pytest.mark.long
def test_the_bench_measures_a_report() -> None:
    from feda2l.bench.report_work import report_work

    result = report_work(runs=4, rounds=20, nodes=3)
    assert result.figure.endswith(" s")
    assert result.numbers["memory_bytes"] > 1e8


@pytest.mark.parametrize("arguments", [["report"], ["report", "nowhere"], ["compare", "nowhere", "nowhere"]])
def test_mistakes_on_the_command_line_end_without_a_traceback(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from feda2l.cli.main import main

    monkeypatch.setattr("sys.argv", ["feda2l", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("feda2l: ")


def test_the_commands_write_all_files_and_print_what_they_found(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from feda2l.cli.main import main

    def call(*words: object) -> None:
        monkeypatch.setattr("sys.argv", ["feda2l", *map(str, words)])
        main()

    call("report", runs, "--out", tmp_path / "out", "--no-paper")
    printed = capsys.readouterr().out
    assert "median" in printed
    out = tmp_path / "out"
    assert str(out / "index.html") in printed
    assert "rates.balance was not varied" in printed
    for name in ("index.html", "table.md", "table.tex", "table.csv"):
        assert (out / name).stat().st_size > 500
    drawn = {path.name for path in (out / "figures").iterdir()}
    for name in ("curves-ring", "curves-full", "best", "minutes", "rates-ring-feda2l", "rates-full-feda2l"):
        assert {f"{name}.png", f"{name}.svg", f"{name}.pdf"} <= drawn
    call("compare", runs / "ring" / "constant-1", runs / "ring" / "feda2l-1")
    assert "B is ahead of A" in capsys.readouterr().out


def test_unequal_rounds_are_said_wherever_scores_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B scores higher, but it also trained for longer."""
    write_run(tmp_path / "a", [0.1] * 60, rates="constant", target=None)
    write_run(tmp_path / "b", [0.1] * 60 + [0.3] * 10, target=None)
    found = compare(tmp_path / "a", tmp_path / "b")
    caveat = "rounds differ (A 60, B 70)"
    assert found.notes == ["differs, so the figures that depend on it are not comparable: rounds (60 and 70)"]
    assert [measure.words.endswith(f"; {caveat}") for measure in found.measures] == [True, True]
    assert found.verdict.endswith(f"The sides are not equal in best accuracy: {caveat}.")
    print_report([tmp_path], tmp_path / "out", tensorboard=False, paper=False)
    assert "rounds differ: 60, 70." in capsys.readouterr().out
    assert "rounds differ: 60, 70." in (tmp_path / "out" / "table.md").read_text()


def test_measures_to_the_target_have_no_caveat_of_unequal_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rising(8, 10), rates="constant")
    write_run(tmp_path / "b", rising(4, 12))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert [measure.key for measure in found.measures if measure.caveat] == ["best", "last_10"]
    assert found.measures[0].better == "B"


def test_a_table_says_that_targets_differ(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", rising(5), rates="constant", target=None)
    write_run(tmp_path / "runs" / "b", rising(4), rates="feda2l", target=0.5)
    (table,) = read([tmp_path / "runs"], Notes())[0]
    assert unequal_notes(table) == [
        "targets differ: 50 %, no target. The rounds to different targets are not comparable."
    ]
    assert set(unequal_notes(table)) <= set(sheets_of(table)[0].notes)


def test_a_second_report_removes_the_figures_of_the_first_only(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report([runs], out)
    (out / "figures" / "curves-mine.png").write_text("of the user")
    assert (out / "figures" / "curves-full.png").exists()
    report([runs / "ring"], out)
    left = {path.stem for path in (out / "figures").iterdir()}
    assert left == {"curves", "curves-mine", "best", "minutes", "rates", "written-by-report"}
    assert not list(out.glob(".figures*"))


def test_a_list_of_figures_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "kept.txt").write_text("of the user")
    (tmp_path / "figures" / WRITTEN).write_text("../kept.txt\n..\nold.png\n")
    (tmp_path / "figures" / "old.png").write_text("old")
    with replaced_figures(tmp_path / "figures") as folder:
        (folder / "new.png").write_text("new")
    assert (tmp_path / "kept.txt").exists()
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["new.png", WRITTEN]


def test_a_mean_of_few_evaluations_says_how_many(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rising(3, 5), rates="constant")
    write_run(tmp_path / "b", rising(2, 5))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.measures[-1].name == "accuracy of the last 5"
    (table,) = read([tmp_path], Notes())[0]
    assert "last 5" in details_sheet(table).header
    write_run(tmp_path / "c", rising(2, 12), rates="step")
    (table,) = read([tmp_path], Notes())[0]
    assert "last 10, or all if fewer" in details_sheet(table).header


def test_a_measure_without_values_says_what_is_missing(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rising(None), rates="constant")
    write_run(tmp_path / "b", rising(None))
    words = {measure.name: measure.words for measure in compare(tmp_path / "a", tmp_path / "b").measures}
    assert words["rounds to 50 %"] == "not compared: no run reached the target"
    assert words["seconds to 50 %"] == "not compared: no seed has timings up to the target on both sides"
