"""Statistics of small effects, runs that did not arrive, equivalence and several tests, against hand calculations."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from feda2l.errors import FedA2LError
from feda2l.report.compare import compare
from feda2l.report.find_runs import Notes
from feda2l.report.primary_tests import as_lines
from feda2l.report.printed import print_comparison
from feda2l.report.report import read, report
from feda2l.report.significance import (
    CensoredTest,
    PairedTest,
    censored_test,
    equivalence_test,
    holm,
    log_rank_p,
    paired_test,
    times_test,
)
from feda2l.report.words import significance_lines
from feda2l.studies.study import Study
from synthetic_runs import write_run, write_seeds


def test_a_run_that_did_not_arrive_has_the_last_rank() -> None:
    # ranks: 20 1, 21 2, 30 3, 31 4, 32 5, never 6; rank differences 1 - 3, 2 - 4, 5 - 6
    test = censored_test([30, 31, None], [20, 21, 32])
    assert test.direction == pytest.approx((-2 - 2 - 1) / 3)
    assert (test.reached, test.medians) == ((2, 3), (31, 21))
    assert (test.p, test.smallest) == (2 / 8, 2 / 8)


def test_the_censored_test_counts_every_assignment_of_signs() -> None:
    first, second = [None, 30, None, 22, 27, 41], [20, 25, None, 24, 26, None]
    # ranks of the times: 20 1, 22 2, 24 3, 25 4, 26 5, 27 6, 30 7, 41 8, four times never 10.5
    differences = np.array([1 - 10.5, 4 - 7, 0, 3 - 2, 5 - 6, 10.5 - 8])
    sums = np.array(list(itertools.product((-1, 1), repeat=6))) @ differences
    test = censored_test(first, second)
    assert test.p == (np.abs(sums) >= abs(differences.sum()) - 1e-9).mean()
    assert test.direction == pytest.approx(differences.mean())


def test_by_how_much_a_run_is_late_does_not_matter() -> None:
    """A longer run that still does not arrive changes nothing, unlike a count of one round more than it had."""
    assert censored_test([None, 5], [3, 4]).p == censored_test([None, 500], [3, 4]).p
    assert censored_test([None, None], [None, None]).p == 1
    assert censored_test([None, None], [None, None]).direction == 0


def test_times_are_averaged_only_if_all_arrived() -> None:
    assert isinstance(times_test([1, 2], [3, 4]), PairedTest)
    assert isinstance(times_test([1, None], [3, 4]), CensoredTest)
    assert isinstance(times_test([None, None], [3, 4]), CensoredTest)


def test_log_rank_by_hand() -> None:
    """Events of A at 1 and 2, of B at 4 and 5; a run of A is censored at 3, one of B at 6."""
    # at risk (A, all): 1: 3 of 6, 2: 2 of 5, 4: 0 of 3, 5: 0 of 2; expected 1/2 + 2/5; variance 1/4 + 6/25
    z = (2 - 0.9) / np.sqrt(0.25 + 0.24)
    p = log_rank_p([1, 2, None], [4, 5, None], [3, 3, 3], [6, 6, 6])
    from scipy.stats import norm

    assert p == pytest.approx(2 * norm.sf(z))
    assert log_rank_p([None], [None], [9], [9]) == 1


def test_equivalence_by_hand() -> None:
    # differences 0.1, 0.3, -0.1: mean 0.1, standard error 0.2 / sqrt 3
    test = equivalence_test([1, 2, 3], [1.1, 2.3, 2.9], margin=0.5)
    error = 0.2 / np.sqrt(3)
    assert test.p == pytest.approx(t.sf((0.5 - 0.1) / error, 2))  # the margin that is closer decides
    assert test.interval == pytest.approx((0.1 - t.ppf(0.95, 2) * error, 0.1 + t.ppf(0.95, 2) * error))
    assert test.equivalent
    assert test.verdict.startswith("equivalent within 0.5 (TOST p = 0.037")
    assert equivalence_test([1.1, 2.3, 2.9], [1, 2, 3], margin=0.5).p == pytest.approx(test.p)
    assert "not shown to be equivalent within 0.2" in equivalence_test([1, 2, 3], [1.1, 2.3, 2.9], margin=0.2).verdict


@pytest.mark.parametrize("margin", [0.05, 0.2, 0.3, 0.5])
def test_equivalence_means_that_the_90_percent_interval_lies_within_the_margin(margin: float) -> None:
    test = equivalence_test([1, 2, 3, 4], [1.1, 2.2, 2.9, 4.1], margin)
    assert test.interval is not None
    low, high = test.interval
    assert test.equivalent == (-margin < low and high < margin)


def test_equivalence_needs_a_spread_and_a_margin() -> None:
    assert "one seed has no spread" in equivalence_test([1], [1], 0.5).verdict
    same = equivalence_test([1, 2], [2, 3], 5.0)
    assert not same.equivalent
    assert "differ by the same amount" in same.verdict
    for margin in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="margin"):
            equivalence_test([1, 2], [1, 3], margin)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # 3 x 0.01, 2 x 0.03, then no less
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@pytest.fixture
def slopes(tmp_path: Path) -> Path:
    """B crosses 50 % earlier in the same round, on each of six seeds; both end close together."""
    for seed in range(1, 7):
        a, b = 0.3 + 0.01 * seed, 0.4 + 0.01 * seed
        end = 0.6 + 0.001 * (seed % 2)
        write_run(tmp_path / "a" / f"{seed}", [a, 0.6, 0.6], rates="constant", seed=seed)
        write_run(tmp_path / "b" / f"{seed}", [b, end, end], rates="feda2l", seed=seed)
    return tmp_path


def test_interpolated_rounds_show_what_whole_rounds_hide(slopes: Path) -> None:
    interpolated, rounds, *_ = compare(slopes / "a", slopes / "b").measures
    assert rounds.words == "equal"
    assert interpolated.better == "B"
    assert interpolated.test is not None
    assert interpolated.test.p == 2 / 64
    # seed 1 of A: 1 + (0.5 - 0.31) / (0.6 - 0.31)
    figures = {one.run.path.name: one for one in read([slopes / "a"], Notes())[1]}
    assert figures["1"].interpolated == pytest.approx(1 + 0.19 / 0.29)


def test_compare_tests_equivalence_within_the_users_margin(slopes: Path) -> None:
    found = compare(slopes / "a", slopes / "b", equivalent_within=0.5)
    by_key = {measure.key: measure for measure in found.measures}
    best = by_key["best"].equivalence  # in points: 0.1 on three seeds, 0 on the others
    assert best is not None
    assert best.difference == pytest.approx(0.05)
    assert (best.margin, best.equivalent) == (0.5, True)
    assert by_key["rounds"].equivalence is None
    assert "equivalent within 0.5 in interpolated rounds to 50 %, best accuracy" in found.verdict
    for margin in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(FedA2LError, match="margin must be positive"):
            compare(slopes / "a", slopes / "b", equivalent_within=margin)


def test_runs_that_did_not_arrive_are_not_tested_for_equivalence(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", "constant", [8, None, 9])
    write_seeds(tmp_path / "b", "feda2l", [4, 5, 6])
    first = compare(tmp_path / "a", tmp_path / "b", equivalent_within=1).measures[0]
    assert first.equivalence is None
    assert first.amount == "median A 8.8, B 4.8"
    assert first.log_rank is not None
    assert "log-rank p = " in first.words


def test_compare_corrects_primary_measures_only(slopes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compare(slopes / "a", slopes / "b", holm=["interpolated_rounds", "best"])
    by_key = {measure.key: measure for measure in found.measures}
    assert by_key["interpolated_rounds"].corrected == pytest.approx(4 / 64)
    assert by_key["best"].corrected == pytest.approx(max(4 / 64, by_key["best"].test.p))  # type: ignore[union-attr]
    assert by_key["last_10"].words.endswith("exploratory")
    assert "B is ahead of A in interpolated rounds to 50 %" in found.verdict
    assert "but the difference is within chance (Holm-corrected p = 0.062)" in found.verdict
    assert "2 primary tests" in found.about_p
    print_comparison(slopes / "a", slopes / "b")
    printed = capsys.readouterr().out
    assert "No test was registered as primary (--holm), so every p is exploratory." in printed
    assert "(95 % t interval " in printed
    assert "The t intervals assume that the differences are normally distributed." in printed
    with pytest.raises(FedA2LError, match="roundz"):
        compare(slopes / "a", slopes / "b", holm=["roundz"])
    with pytest.raises(FedA2LError, match="--holm seconds: these runs have no test of it"):
        compare(slopes / "a", slopes / "b", holm=["seconds"])


STUDY = """
name = "made"
seeds = 6
[variants.slow.rates]
name = "constant"
[variants.fast.rates]
name = "feda2l"
[variants.later.rates]
name = "decay_only"
[report]
primary = ["fast against slow", "later against slow: best"]
"""


def test_a_report_corrects_the_registered_tests(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    for seed in range(1, 7):
        for cell, rates, start in (("slow", "constant", 0.3), ("fast", "feda2l", 0.4)):
            write_run(folder / cell / f"seed-{seed}", [start, 0.6, 0.6], rates=rates, seed=seed)
    tables, (sheet,), _ = report([folder], tmp_path / "out")
    fast, later = ([entry.text for entry in row] for row in sheet.rows)
    assert fast[:2] == ["fast against slow: interpolated_rounds", "6"]
    assert fast[5:] == ["0.031", "0.062", "no"]  # two tests are registered, and one has not been run
    assert later[4] == "not run yet"
    assert "Primary tests of made" in (tmp_path / "out" / "table.md").read_text()
    assert "Primary tests of made" in (tmp_path / "out" / "index.html").read_text()
    first, second, about = as_lines(sheet)
    assert first.endswith(", p = 0.031, after Holm 0.062; significant: no (6 seeds)")
    assert second == "Primary test later against slow: best: not run yet"
    assert "counts 2 registered tests" in about
    assert all(line.endswith("exploratory") for one in tables[0].contests for line in significance_lines(one))
    more = report([folder], tmp_path / "out", holm=["fast against slow: best"])[1][0]
    assert [row[0].text for row in more.rows][2] == "fast against slow: best"
    with pytest.raises(FedA2LError, match="no study has runs of both cells; the cells are fast, slow"):
        report([folder], tmp_path / "out", holm=["fast against nothing"])


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("fast versus slow", 'write "CELL against CELL"'),
        ("fast against slow: speed", "speed"),
        ("fast against fast", "both cells are the same"),
        ("fast against none", "the study has no cell 'none'; its cells are slow, fast, later"),
    ],
)
def test_a_study_refuses_a_primary_test_that_it_cannot_run(tmp_path: Path, test: str, message: str) -> None:
    file = tmp_path / "made.toml"
    file.write_text(STUDY.replace("fast against slow", test, 1))
    with pytest.raises(FedA2LError, match=message):
        Study.load(file)


def test_rank_and_mean_tests_agree_on_the_direction() -> None:
    first, second = [5.0, 6.0, 9.0], [4.0, 4.5, 8.0]
    assert np.sign(paired_test(first, second).direction) == np.sign(censored_test(first, second).direction) == -1
