"""The numbers of the tables against calculations by hand."""

import itertools
import json
from pathlib import Path

import numpy as np
import polars
import pytest

from feda2l.errors import FedA2LError
from feda2l.report.draw_scores import seeds_band
from feda2l.report.find_runs import Notes
from feda2l.report.report import read
from feda2l.report.results import NEVER, Cell, Contest, ResultTable
from feda2l.report.run_figures import first_rounds, smooth
from feda2l.report.sheets import sheets_of
from feda2l.report.significance import paired_test, seeds_needed
from feda2l.report.words import rounds_words, significance_lines
from feda2l.report.write_tables import comma_separated
from synthetic_runs import rising, write_run, write_seeds

WIDE = {"evaluation": {"smoothing": 15}}  # the window of the paper's robustness table


def contest_of(folder: Path) -> Contest:
    (table,) = tables_of(folder)
    (contest,) = table.contests
    return contest


def tables_of(folder: Path, notes: Notes | None = None) -> list[ResultTable]:
    return read([folder], notes or Notes())[0]


def cell_of(contest: Contest, row: str) -> Cell:
    return next(cell for cell in contest.cells if cell.row == row)


def test_mean_and_sample_std_where_every_seed_came(tmp_path: Path) -> None:
    write_seeds(tmp_path, "feda2l", [2, 4, 9])
    reach = cell_of(contest_of(tmp_path), "feda2l").reach
    assert (reach.mean, reach.median, reach.std) == (5, 4, pytest.approx(np.sqrt(13)))
    assert rounds_words(reach, 10) == "5.0 ± 3.6 (3/3)"


def test_a_censored_seed_counts_as_later_than_all_and_there_is_no_mean(tmp_path: Path) -> None:
    write_seeds(tmp_path, "feda2l", [2, None, 9])
    write_seeds(tmp_path, "constant", [None, None, 3])
    write_seeds(tmp_path, "step", [None, None, None])
    contest = contest_of(tmp_path)
    ours, constant, step = (cell_of(contest, row) for row in ("feda2l", "constant", "step"))
    assert (ours.reach.mean, ours.reach.median, ours.reach.reached) == (None, 9, 2)
    assert contest.by == "median"
    assert rounds_words(ours.reach, 10) == "median 9 (2/3)"
    assert rounds_words(constant.reach, 10) == "median > 10 (1/3)"
    assert rounds_words(step.reach, 10) == "not reached (0/3)"
    assert [contest.place(cell) for cell in (ours, constant, step)] == [1, None, None]


def test_rounds_are_those_of_the_trailing_mean_without_partial_windows(tmp_path: Path) -> None:
    curve = [0.9, 0.1, 0.5, 0.5, 0.8, 0.8]
    write_run(tmp_path / "one", curve, smoothing=3, target=0.6)
    assert contest_of(tmp_path).cells[0].reach.mean == 5  # (0.5 + 0.5 + 0.8) / 3 = 0.6, and not 0.6 - 1e-17


def test_a_mean_over_equal_nodes_reaches_a_target_equal_to_it(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [0.1, 0.29, 0.29], target=0.29, nodes=10)
    assert contest_of(tmp_path).cells[0].reach.mean == 2


def test_rounds_without_an_evaluation_do_not_count_in_the_window() -> None:
    curve = np.array([np.nan, 0.2, np.nan, 0.6, np.nan, 0.8])
    assert first_rounds(smooth(curve, 2), [0.4, 0.7, 0.9]) == [4, 6, None]


def test_errors_are_not_smoothed_and_fall(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [3.0, 1.0, 2.0, 2.0], metric="mse", target=1.0, smoothing=3)
    cell = contest_of(tmp_path).cells[0]
    assert cell.reach.mean == 2
    assert cell.example.best == 1.0


def test_the_figure_of_the_mean_curve_is_not_the_mean_of_figures(tmp_path: Path) -> None:
    write_run(tmp_path / "s1", [0.6, 0.6, 0.6, 0.6], seed=1)
    write_run(tmp_path / "s2", [0.1, 0.1, 0.1, 0.6], seed=2)
    cell = contest_of(tmp_path).cells[0]
    assert cell.reach.mean == 2.5
    assert cell.curve_averaged == 4  # (0.6 + 0.1) / 2 is below 0.5 until the second reaches it


def test_places_ties_and_firsts(tmp_path: Path) -> None:
    for graph, rounds in {"ring": (4, 2, 2), "full": (3, 5, 2)}.items():
        for rule, when in zip(("constant", "step", "feda2l"), rounds, strict=True):
            write_seeds(tmp_path / graph, rule, [when], more={"topology": {"name": graph}})
    (table,) = tables_of(tmp_path)
    ring = next(contest for contest in table.contests if contest.column == "ring")
    assert {cell.row: ring.place(cell) for cell in ring.cells} == {"constant": 2, "step": 1, "feda2l": 1}
    assert table.firsts(controls=False) == {"constant": (0, 0), "step": (1, 0), "feda2l": (2, 1)}


def test_who_runs_alone_is_not_the_fastest(tmp_path: Path) -> None:
    for graph, rules in {"ring": ("feda2l",), "full": ("feda2l", "decay_only"), "star": ("feda2l", "constant")}.items():
        for rule in rules:
            write_seeds(tmp_path / graph, rule, [3], more={"topology": {"name": graph}})
    (table,) = tables_of(tmp_path)
    assert table.firsts(controls=False) == {"feda2l": (1, 0), "constant": (1, 0)}
    assert table.firsts(controls=True) == {"feda2l": (2, 0), "decay_only": (1, 0), "constant": (1, 0)}
    where = "in 1 setting with at least two methods, one of which reached the target"
    won = f"How often each method was the fastest, {where}: "
    assert f"{won}constant 1 (tied in 1), feda2l 1 (tied in 1)." in sheets_of(table)[0].notes


def test_improvement_is_against_the_best_baseline_and_never_against_a_control(tmp_path: Path) -> None:
    for rule, when in {"constant": 10, "step": 8, "decay_only": 4, "feda2l": 6}.items():
        write_seeds(tmp_path, rule, [when])
    contest = contest_of(tmp_path)
    ours = cell_of(contest, "feda2l")
    assert contest.improvement(ours) == (pytest.approx(25), False)  # (8 - 6) / 8
    assert contest.improvement(ours, ["control"]) == (pytest.approx(-50), False)  # (4 - 6) / 4
    assert contest.speed_up(ours) == (pytest.approx(10 / 6), False)


def test_a_baseline_that_never_came_gives_a_bound(tmp_path: Path) -> None:
    write_seeds(tmp_path, "constant", [None, None])
    write_seeds(tmp_path, "feda2l", [4, 6])
    contest = contest_of(tmp_path)
    ours = cell_of(contest, "feda2l")
    assert contest.rounds(cell_of(contest, "constant")) == NEVER
    assert contest.speed_up(ours) == (2.0, True)  # more than 10 rounds over 5
    assert contest.improvement(ours) == (50, True)  # (more than 10 - 5) / 10


def test_time_to_target_is_only_of_runs_that_were_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "alone", rising(4), rates="step", pack=1, every_second=1.5)
    write_run(tmp_path / "packed", rising(4), rates="feda2l", pack=2, every_second=1.5)
    contest = contest_of(tmp_path)
    alone, packed = cell_of(contest, "step").example, cell_of(contest, "feda2l").example
    assert (alone.seconds, alone.seconds_with_evaluation) == (8.0, 12.0)
    assert packed.seconds is None


def test_three_ways_of_a_best_score(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [0.2, 0.9, 0.4, 0.6], smoothing=2)
    figures = contest_of(tmp_path).cells[0].example
    assert (figures.best, figures.best_smoothed) == (0.9, 0.65)
    assert figures.last_10 == pytest.approx(0.525)


def test_a_non_finite_run_is_censored_and_named(tmp_path: Path) -> None:
    write_run(tmp_path / "good", rising(3), seed=1)
    write_run(tmp_path / "bad", [0.1, 0.1], seed=2, rounds=10, status="non_finite")
    notes = Notes()
    (table,) = tables_of(tmp_path, notes)
    cell = table.contests[0].cells[0]
    assert (cell.reach.reached, cell.reach.runs, cell.non_finite) == (1, 2, 1)
    assert cell.over_seeds("best") == [0.6]
    assert cell.curve_averaged is None
    assert len(seeds_band(cell)[0]) == 10  # the seed that broke off does not cut the other's curve
    assert any(line.startswith("non-finite") and "bad" in line for line in notes.lines())


def test_different_data_and_targets_have_tables_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rising(3), target=0.5)
    write_run(tmp_path / "b", rising(3), target=0.3)
    write_run(tmp_path / "c", rising(3), target=0.5, more={"data": {"name": "cifar10"}})
    assert len(tables_of(tmp_path)) == 3


def test_a_partition_seed_that_moves_with_the_seed_makes_no_column(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"{seed}", rising(3), seed=seed, more={"data": {"partition_seed": seed}})
    assert len(contest_of(tmp_path).cells[0].seeds) == 2


def test_a_control_paired_with_the_run_of_its_seed_is_one_row(tmp_path: Path) -> None:
    for seed in (1, 2):
        own = {"rates": {"name": "decay_only_matched", "paired": f"feda2l-{seed}"}}
        write_run(tmp_path / f"{seed}", rising(3), seed=seed, more=own)
    assert len(contest_of(tmp_path).cells[0].seeds) == 2


def test_a_study_says_what_rows_and_columns_are(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(
        'name = "graphs"\n[report]\nrows = "topology.name"\ncolumns = ["rates.name"]\n'
    )
    for graph in ("ring", "full"):
        for rule in ("constant", "feda2l"):
            write_run(tmp_path / f"{graph}-{rule}", rising(3), rates=rule, more={"topology": {"name": graph}})
    (table,) = tables_of(tmp_path)
    assert (table.study, table.rows, table.columns) == ("graphs", ["full", "ring"], ["constant", "feda2l"])


def test_of_many_parameters_a_row_is_called_by_what_differs(tmp_path: Path) -> None:
    values = [(5, 0.3), (10, 0.3), (5, 0.1), (5, 0.3)]
    for number, (window, decay) in enumerate(values):
        write_run(tmp_path / f"{number}", rising(3), seed=number, more={"rates": {"window": window, "decay": decay}})
    assert sorted(cell.row for cell in contest_of(tmp_path).cells) == ["decay 0.1", "default", "window 10"]


def test_a_paired_test_by_hand() -> None:
    test = paired_test([10, 12, 14], [8, 9, 13])  # -2 -3 -1: of 8 signs two have a sum as large
    assert (test.p, test.smallest, test.difference) == (0.25, 0.25, -2)
    assert test.interval == (
        pytest.approx(-2 - 4.302653 / np.sqrt(3), rel=1e-5),
        pytest.approx(-2 + 4.302653 / np.sqrt(3), rel=1e-5),
    )
    assert "cannot show it" in test.verdict
    six = paired_test([2] * 6, [1] * 6)
    assert (six.p, seeds_needed()) == (2 / 64, 6)
    assert six.verdict.startswith("more than chance")
    assert paired_test([1, 2], [1, 2]).p == 1


@pytest.mark.parametrize("digits", [1, 12])
def test_a_paired_test_counts_every_assignment_of_signs(digits: int) -> None:
    """With one digit many sums are equal to the observed one up to rounding; they count as at least as far."""
    random = np.random.default_rng(3)
    first, second = np.round(random.random(8), digits) + 0.7, np.round(random.random(8) + 0.2, digits) + 0.7
    second += 1e-11 * random.random(8)
    sums = np.array(list(itertools.product((-1, 1), repeat=8))) @ (second - first)
    expected = (np.abs(sums) >= abs((second - first).sum()) - 1e-9).mean()
    assert paired_test(first.tolist(), second.tolist()).p == expected


def test_a_paired_test_of_many_seeds_samples_the_signs() -> None:
    first = np.arange(20.0)
    agree, mixed = paired_test(first, first + 1), paired_test(first, first + np.tile([1, -1], 10))
    assert agree.p < 1e-4
    assert mixed.p == 1


def test_few_seeds_are_said_to_show_nothing(tmp_path: Path) -> None:
    write_seeds(tmp_path, "constant", [8, 9, 10])
    write_seeds(tmp_path, "feda2l", [2, 3, 4])
    (line,) = significance_lines(contest_of(tmp_path))
    assert line.startswith("feda2l needs 6.00 rounds fewer than constant")
    assert "3 seeds cannot show it" in line


def test_the_paper_stands_beside_ours_with_its_flags(tmp_path: Path) -> None:
    usual = {"data": {"name": "cifar100", "nodes": 10}, "model": {"name": "cnn"}, "topology": {"name": "full"}}
    for rule in ("constant", "feda2l"):
        write_run(tmp_path / rule, rising(3), rates=rule, target=0.29, smoothing=10, more=usual)
    contest = contest_of(tmp_path)
    assert {cell.row: cell.paper and cell.paper.text for cell in contest.cells} == {
        "constant": "29 ± 22.07 [step]",
        "feda2l": "23 ± 0.49",
    }
    (table,) = read([tmp_path], Notes(), paper=False)[0]
    assert table.contests[0].cells[0].paper is None


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"training": {"epochs": 2}}, "training.epochs is 2 (the paper: 1)"),
        ({"training": {"batch_size": 64}}, "training.batch_size is 64 (the paper: 10)"),
        ({"training": {"optimizer": "adam"}}, "training.optimizer is adam (the paper: sgd)"),
        ({"data": {"name": "cifar100", "nodes": 20}}, "data.nodes is 20 (the paper: 10)"),
        ({"data": {"name": "cifar100", "nodes": 10, "alpha": 1.0}}, "data.alpha is 1 (the paper: 0.1)"),
        ({"topology": {"name": "star"}}, "topology.name is star (the paper: full)"),
        ({"rates": {"window": 7}}, "rates.window is 7 (the paper: 5)"),
        ({"evaluation": {"target": 0.3}}, "evaluation.target is 0.3 (the paper: 0.29)"),
        ({"evaluation": {"smoothing": 5}}, "evaluation.smoothing is 5 (the paper: 10)"),
    ],
)
def test_the_report_says_which_setting_is_not_the_papers(tmp_path: Path, changed: dict, word: str) -> None:
    usual = {"data": {"name": "cifar100", "nodes": 10}, "model": {"name": "cnn"}, "topology": {"name": "full"}}
    write_run(tmp_path / "one", rising(3), target=0.29, smoothing=10, more=usual | changed)
    (table,) = tables_of(tmp_path)
    cell = table.contests[0].cells[0]
    assert (cell.paper, cell.differs) == (None, (word,))
    assert f"The paper's number is not shown for feda2l: {word}." in sheets_of(table)[0].notes


def test_a_series_with_another_input_length_is_not_the_papers(tmp_path: Path) -> None:
    data = {"name": "exchange_rate", "nodes": 8, "partition": "natural", "alpha": 0.1, "input_length": 48}
    more = {"data": data, "model": {"name": "timer"}, "topology": {"name": "full"}, "training": {"batch_size": 32}}
    write_run(tmp_path / "one", [0.06, 0.05], metric="mse", target=0.0575, rates="constant", more=more)
    assert contest_of(tmp_path).cells[0].differs == ("data.input_length is 48 (the paper: 96)",)


def test_two_studies_that_differ_in_epochs_only_are_not_mixed(tmp_path: Path) -> None:
    """Each has a block of its own, and only the paper's own number of epochs has the paper's number beside it."""
    usual = {"data": {"name": "cifar100", "nodes": 10}, "model": {"name": "cnn"}, "topology": {"name": "full"}}
    for epochs in (1, 2):
        folder = tmp_path / f"epochs-{epochs}"
        for rule, when in {"constant": 8, "feda2l": 6}.items():
            options = {"target": 0.29, "smoothing": 10, "more": usual | {"training": {"epochs": epochs}}}
            write_run(folder / rule, rising(when - epochs, 20), rates=rule, **options)
        (folder / "study.toml").write_text('name = "cnn"\n[report]\nrows = "rates.name"\n')
    (table,) = tables_of(tmp_path)
    assert [contest.where for contest in table.contests] == ["epochs 1", "epochs 2"]
    shown = {(contest.where, cell.row): cell.paper and cell.paper.rounds for contest, cell in table.cells}
    assert shown == {
        ("epochs 1", "constant"): 29,
        ("epochs 1", "feda2l"): 23,
        ("epochs 2", "constant"): None,
        ("epochs 2", "feda2l"): None,
    }


def test_what_a_search_cost_is_said_of_the_row_that_searched(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('name = "cnn"\n[report]\nrows = "rates.name"\ncolumns = ["algorithm.name"]\n')
    write_run(tmp_path / "fedavg", rising(3), rates="constant")
    searched = write_run(tmp_path / "searched", rising(3), rates="constant", more={"algorithm": {"name": "dfedhpo"}})
    summary = json.loads((searched / "summary.json").read_text())
    (searched / "summary.json").write_text(json.dumps(summary | {"search": {"rounds": 300}}))
    (table,) = tables_of(tmp_path)
    sheet = sheets_of(table)[0]
    assert [entry.text for entry in sheet.rows[0]] == ["constant", "3.0 (1/1)", "3.0 (1/1) [search]"]
    note = "[search] dfedhpo, constant: its search before round 1 cost as much as 300 rounds, which are not counted."
    assert note in sheet.notes


@pytest.mark.parametrize(
    ("changed", "target", "text"),
    [
        ({"model": {"name": "resnet18"}}, 0.45, "491 ± 53.13 [std]"),
        ({"model": {"name": "resnet18"}, "topology": {"name": "ring"}} | WIDE, 0.33, "not reached [setting]"),
        ({"model": {"name": "resnet18"}, "topology": {"name": "ring"}}, 0.33, None),
        (
            {"model": {"name": "resnet18"}, "data": {"name": "cifar100", "nodes": 10, "alpha": 0.5}} | WIDE,
            0.45,
            "354 [setting]",
        ),
        ({"topology": {"name": "star"}}, 0.29, None),
        ({}, 0.30, None),
        ({"training": {"momentum": 0.9}}, 0.29, "29 ± 22.07 [step]"),
        ({"training": {"momentum": 0.0}}, 0.29, None),
        ({"rates": {"base": 0.003}}, 0.29, None),
    ],
)
def test_the_paper_is_asked_for_the_same_setting_only(
    tmp_path: Path, changed: dict, target: float, text: str | None
) -> None:
    usual = {"data": {"name": "cifar100", "nodes": 10}, "model": {"name": "cnn"}, "topology": {"name": "full"}}
    write_run(tmp_path / "one", rising(3), rates="constant", target=target, smoothing=10, more=usual | changed)
    paper = contest_of(tmp_path).cells[0].paper
    assert (paper and paper.text) == text


def test_the_papers_sensitivity_goes_by_the_one_parameter_that_differs(tmp_path: Path) -> None:
    default = {"threshold": 1e-3, "warmup_rounds": 10, "window": 5, "decay": 0.3, "balance": 0.6}
    usual = {"data": {"name": "cifar100", "nodes": 10}, "model": {"name": "cnn"}, "topology": {"name": "full"}}
    for name, own in {"default": {}, "window": {"window": 10}, "decay": {"decay": 0.1}}.items():
        write_run(tmp_path / name, rising(3), target=0.29, smoothing=10, more=usual | {"rates": default | own})
    papers = {cell.row: cell.paper.text for cell in contest_of(tmp_path).cells if cell.paper}
    assert papers == {"default": "21 to 24 [default]", "window 10": "28", "decay 0.1": "29"}


def test_the_csv_has_a_line_a_method_and_setting(tmp_path: Path) -> None:
    write_seeds(tmp_path, "constant", [8, None])
    write_seeds(tmp_path, "feda2l", [2, 4])
    lines = polars.read_csv(comma_separated(tables_of(tmp_path)).encode())
    assert lines["row"].to_list() == ["constant", "feda2l"]
    assert lines["median"].to_list() == ["> 10", "3.0"]
    assert lines["mean"].to_list() == [None, 3.0]
    assert lines["std"].to_list() == [None, pytest.approx(np.sqrt(2))]
    assert lines["std_population"].to_list() == [None, pytest.approx(1)]


def test_without_a_target_there_are_scores_only(tmp_path: Path) -> None:
    write_run(tmp_path / "one", rising(3), target=None)
    titles = [sheet.title for sheet in sheets_of(tables_of(tmp_path)[0])]
    assert titles[:2] == ["Best accuracy, %", "All figures"]


def test_an_even_number_of_seeds_of_which_half_came_has_no_median(tmp_path: Path) -> None:
    write_seeds(tmp_path, "feda2l", [2, None])
    assert contest_of(tmp_path).cells[0].reach.median is None


def test_nothing_to_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FedA2LError, match="no finished run"):
        tables_of(tmp_path)
