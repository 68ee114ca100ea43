"""The tables of causes, forecasts and times, from synthetic run folders."""

from pathlib import Path
from typing import Any

import polars
import pytest
import tomli_w

from feda2l.errors import FedA2LError
from feda2l.report.find_runs import flatten
from feda2l.studies.study import Study
from reproduction.causes import CAUSES, causes_table
from reproduction.evidence import read_evidence
from reproduction.fill_page import fill, fill_pages
from reproduction.keep import keep
from reproduction.page_figures import paced_clock
from reproduction.series_tables import series_table
from reproduction.statistics_table import statistics_table
from reproduction.times_table import times_table
from synthetic_runs import write_run

# the only keys that a cause may change; a rate rule also brings its parameters
CHANGED_KEYS = {
    "momentum": {"training.momentum"},
    "hidden warm-up": {"rates.warmup_factor", "rates.bn_warmup_factor"},
    "lower rate": {"rates.base"},
    "BatchNorm policy": {"algorithm.buffers"},
}
ROUNDS = 12
STUDIES = Path(__file__).parents[2] / "reproduction" / "studies"


def write_study(folder: Path, *cells: str, timing: bool = False) -> None:
    """Write a study with these cells, which differ in a key that no table reads."""
    folder.mkdir(parents=True)
    variants = {name: {"topology": {"seed": number}} for number, name in enumerate(cells)}
    (folder / "study.toml").write_text(tomli_w.dumps({"name": folder.name, "timing": timing, "variants": variants}))


def flat(value: float) -> list[float]:
    """Return a curve whose best smoothed value equals the mean of its last ten rounds."""
    return [value] * ROUNDS


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if not cause.whole], ids=lambda c: f"{c.start}:{c.end}")
def test_each_cause_changes_one_setting(cause: Any) -> None:
    cells = {cell.name: cell for cell in Study.load(STUDIES / "evidence-resnet18-cifar100.toml").cells}
    specs = [cells[name].spec(1).resolved(layers=41, model="resnet18") for name in (cause.start, cause.end)]
    first, second = (flatten(spec.model_dump(exclude={"name"})) for spec in specs)
    different = {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
    models = {cells[name].spec(1).model.name for name in (cause.start, cause.end)}
    if cause.end == "constant-group-norm":
        assert (different, models) == (set(), {"resnet18", "resnet18_gn"})
    elif cause.name in CHANGED_KEYS:
        assert different == CHANGED_KEYS[cause.name]
    elif cause.name == "layer-wise signal":
        assert different == {"rates.name"}
    else:
        assert "rates.name" in different
        assert all(key.startswith("rates.") and key != "rates.base" for key in different)


def test_the_causes_form_a_chain_from_the_released_constant_rate_to_feda2l() -> None:
    chain = [cause for cause in CAUSES if not cause.whole][:4]
    assert [cause.start for cause in chain[1:]] == [cause.end for cause in chain[:-1]]
    whole = next(cause for cause in CAUSES if cause.name == "the released gain")
    assert (chain[0].start, chain[-1].end) == (whole.start, whole.end)


def test_the_longer_study_differs_from_the_shorter_one_only_in_rounds() -> None:
    """Its first rounds can therefore count as a seed of the shorter study."""
    shorter, longer = (
        {cell.name: flatten(cell.spec(2).model_dump()) for cell in Study.load(STUDIES / f"{name}.toml").cells}
        for name in ("evidence-resnet18-cifar100", "evidence-resnet18-cifar100-long")
    )
    assert longer.keys() < shorter.keys()
    for name, keys in longer.items():
        assert {key for key in keys if keys[key] != shorter[name][key]} == {"rounds"}


def test_causes_by_hand(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    write_study(folder, "constant", "constant-momentum-0", "constant-average")
    options: dict[str, Any] = {"rates": "constant", "smoothing": 10, "target": 0.45}
    for seed, (before, after) in enumerate(((0.40, 0.44), (0.38, 0.46)), start=1):
        write_run(folder / f"constant/seed-{seed}", flat(before), seed=seed, **options)
        more = {"training": {"momentum": 0.0}}
        write_run(folder / f"constant-momentum-0/seed-{seed}", flat(after), seed=seed, more=more, **options)
    write_run(
        folder / "constant-average/seed-2", flat(0.5), seed=2, more={"algorithm": {"buffers": "average"}}, **options
    )
    lines = causes_table(tmp_path, "made").splitlines()[2:]
    change = "39.00 to 45.00 (+6.00: +4.00, +8.00)"
    assert lines == [
        "| momentum | `constant` to `constant-momentum-0` | no momentum instead of 0.9 | -, - to -, 10 "
        f"| {change} | {change} |",
        "| BatchNorm policy | `constant` to `constant-average` | statistics averaged like parameters | - to 10 "
        "| 38.00 to 50.00 (+12.00) | 38.00 to 50.00 (+12.00) |",
    ]


def test_a_longer_study_adds_the_seeds_that_a_shorter_one_lacks(tmp_path: Path) -> None:
    """Only the first rounds of its seeds count, up to the length of the shorter study."""
    cells = ("constant", "constant-momentum-0")
    for study, seeds in (("made", (1,)), ("made-long", (1, 2))):
        write_study(tmp_path / study, *cells)
        for cell, score in zip(cells, (0.40, 0.44), strict=True):
            for seed in seeds:
                more = {"training": {"momentum": 0.9 if cell == "constant" else 0.0}}
                curve = flat(score + 0.02 * (seed - 1)) + (flat(0.9) if study == "made-long" else [])
                options: dict[str, Any] = {"rates": "constant", "smoothing": 10, "target": 0.45, "more": more}
                write_run(tmp_path / f"{study}/{cell}/seed-{seed}", curve, seed=seed, **options)
    (line,) = causes_table(tmp_path, "made", "made-long").splitlines()[2:]
    # seed 1 comes from the shorter study
    change = "41.00 to 45.00 (+4.00: +4.00, +4.00)"
    assert line.endswith(f"| -, - to -, 10 | {change} | {change} |")


def test_statistics_by_hand(tmp_path: Path) -> None:
    write_study(tmp_path / "made", "constant", "constant-average", "feda2l", "constant-group-norm")
    models = {"constant-group-norm": "resnet18_gn"}
    for cell, mean in (("constant", 0.5), ("constant-average", 0.52), ("feda2l", 0.6), ("constant-group-norm", 0.4)):
        buffers = "average" if cell.endswith("average") else "local"
        more = {"algorithm": {"buffers": buffers}, "model": {"name": models.get(cell, "resnet18")}}
        path = write_run(tmp_path / f"made/{cell}/seed-1", flat(0.3), rates=cell.split("-")[0], more=more)
        table = polars.read_parquet(path / "rounds.parquet")
        # one node is 0.2 above the other; the accuracy of the first two of twelve rounds is 0
        nodes = polars.col("accuracy") + 0.1 * (2 * polars.col("node") - 1)
        accuracy = polars.when(polars.col("round") <= 2).then(0.0).otherwise(nodes if buffers == "local" else mean)
        table.with_columns(accuracy=accuracy, mean_model_accuracy=polars.lit(mean)).write_parquet(
            path / "rounds.parquet"
        )
    assert statistics_table(tmp_path, "made").splitlines()[2:] == [
        "| `constant` | 30.00 | 20.00 | 50.00 | 52.00 |",
        "| `feda2l` | 30.00 | 20.00 | 60.00 |  |",
    ]


def write_series(folder: Path, cell: str, seed: int, curve: list[float], target: float, **rates: Any) -> None:
    optimizer, algorithm, rule = cell.split("-")[:3]
    name = folder.name.replace("-", "_")
    more = {
        "data": {"name": name, "nodes": 8 if name == "exchange_rate" else 12, "partition": "natural"},
        "model": {"name": "timer"},
        "topology": {"name": "full"},
        "algorithm": {"name": algorithm},
        "rates": {"name": rule, **rates},
        "training": {"optimizer": optimizer, "momentum": 0.9, "batch_size": 32},
    }
    naive = {"last_value": 0.0533, "window_mean": 0.0894}
    path = folder / cell / f"seed-{seed}"
    write_run(path, curve, rates=rule, seed=seed, target=target, metric="mse", naive=naive, more=more)


def test_series_by_hand(tmp_path: Path) -> None:
    cells = ["sgd-fedavg-constant", "sgd-fedavg-decay_only", "adam-fedavg-feda2l"]
    folder = tmp_path / "exchange-rate"
    write_study(folder, *cells)
    write_series(folder, cells[0], 1, [0.09, 0.056, 0.06], 0.0575)
    write_series(folder, cells[0], 2, [0.09, 0.07, 0.052], 0.0575)
    write_series(folder, cells[1], 1, [0.09, 0.08, 0.07], 0.0575)
    write_series(folder, cells[2], 1, [0.05, 0.06, 0.07], 0.0575, base=1e-4)
    lines = series_table(tmp_path, "exchange-rate").splitlines()
    assert lines[2:] == [
        "| none | none | last value |  | 0 | 0.0533 | 0.0533 |  |",
        "| none | none | mean of what is seen |  | - | 0.0894 | 0.0894 |  |",
        # means of the three rounds: 0.068667 and 0.070667
        "| sgd 0.01 | fedavg | `constant` | 47 [step] | 2, 3 | 0.0560, 0.0520 | 0.069667 ± 0.0014 | 1 of 2 |",
        "| sgd 0.01 | fedavg | `decay_only` |  | - | 0.0700 | 0.08 | 0 of 1 |",
        "| adam 0.0001 | fedavg | `feda2l` |  | 1 | 0.0500 | 0.06 | 1 of 1 |",
        "",
        "Target: an MSE of 0.0575.",
    ]


def test_a_target_that_differs_from_the_papers_is_marked(tmp_path: Path) -> None:
    folder = tmp_path / "beijing-air-quality"
    write_study(folder, "sgd-fedawa-one_cycle")
    write_series(folder, "sgd-fedawa-one_cycle", 1, [0.9, 0.8, 0.7], 0.75)
    assert "| `one_cycle` | 22 (to 4.3582) | 3 |" in series_table(tmp_path, "beijing-air-quality")


def test_times_come_from_runs_that_had_the_machine_alone(tmp_path: Path) -> None:
    write_study(tmp_path / "runs", "constant", "cawr", "feda2l", "constant-average", timing=True)
    deep = {
        "data": {"name": "cifar100", "nodes": 10},
        "model": {"name": "resnet18"},
        "topology": {"name": "full"},
        "training": {"momentum": 0.9},
        "runtime": {"precision": "bf16"},
    }
    options: dict[str, Any] = {"every_second": 1.5, "target": 0.45, "more": deep}
    write_run(tmp_path / "runs/constant/seed-1", flat(0.5), rates="constant", pack=1, **options)
    write_run(tmp_path / "runs/cawr/seed-1", flat(0.5), rates="cawr", pack=2, **options)
    # a shorter warm-up does not change the times; another BatchNorm policy is not the paper's setting
    changed = {"feda2l": {"rates": {"warmup_rounds": 2}}, "constant-average": {"algorithm": {"buffers": "average"}}}
    for cell, more in changed.items():
        changed_options = options | {"more": deep | more, "rates": cell.split("-")[0]}
        write_run(tmp_path / f"runs/{cell}/seed-1", flat(0.5), pack=1, **changed_options)
    keep(tmp_path / "runs", tmp_path / "results/made")
    # 1.5 s to train, 0.25 s each to mix and to adapt, 1 s to evaluate
    assert times_table(tmp_path / "results", "made").splitlines()[2:] == [
        "| `constant` | 2.00 | 12.50 | 3.00 | ?, bf16 | 28.43 |",
        "| `feda2l` | 2.00 | 12.50 | 3.00 | ?, bf16 | 29.28 |",
        "| `constant-average` | 2.00 | 12.50 | 3.00 | ?, bf16 |  |",
    ]
    page = tmp_path / "page.md"
    page.write_text("<!-- results: minutes made minutes.png constant cawr -->\n<!-- end -->\n")
    fill_pages([page], tmp_path / "results")
    assert "![accuracy over minutes, made: constant, cawr](minutes.png)" in page.read_text()
    assert (tmp_path / "minutes.png").stat().st_size > 1000
    page.write_text("<!-- results: minutes made minutes.png cawr -->\n<!-- end -->\n")
    with pytest.raises(FedA2LError, match="cawr: shared the machine"):
        fill_pages([page], tmp_path / "results")
    # with the machine to itself the cell took two seconds per round
    write_run(tmp_path / "results/made-time/cawr/seed-1", flat(0.5)[:3], rates="cawr", pack=1, **options)
    (tmp_path / "results/made-time/study.toml").write_text((tmp_path / "results/made/study.toml").read_text())
    fill_pages([page], tmp_path / "results")
    paces = [read_evidence(tmp_path / "results" / study).cells["cawr"].example for study in ("made", "made-time")]
    assert paced_clock(*paces) == pytest.approx([2.0 * done for done in range(1, ROUNDS + 1)])


def test_a_run_shorter_than_the_papers_rounds_does_not_disagree(tmp_path: Path) -> None:
    write_study(tmp_path / "made", "feda2l", "feda2l-reference")
    deep: dict[str, Any] = {
        "data": {"name": "cifar100", "nodes": 10},
        "model": {"name": "resnet18"},
        "topology": {"name": "full"},
    }
    for cell, momentum in (("feda2l", 0.9), ("feda2l-reference", 0.0)):
        more = deep | {"training": {"momentum": momentum}}
        write_run(tmp_path / f"made/{cell}/seed-1", flat(0.3), target=0.45, smoothing=10, more=more)
    text = fill("<!-- results: cells made -->\n<!-- end -->", tmp_path)
    for cell in ("feda2l", "feda2l-reference"):
        assert f"| `{cell}` | 177 ± 6.97 | - | not reached (0/1) | - | > {ROUNDS} | not run so long |" in text


def test_multipliers_are_measured_from_the_first_adapted_round(tmp_path: Path) -> None:
    write_study(tmp_path / "made", "feda2l")
    path = write_run(tmp_path / "made/feda2l/seed-1", flat(0.3), more={"rates": {"warmup_rounds": 7}})
    table = polars.read_parquet(path / "layers.parquet")
    adapted = polars.when(polars.col("round") < 10).then(1.0).otherwise(1.5)
    table.with_columns(multiplier=adapted).write_parquet(path / "layers.parquet")
    assert "| `feda2l` | 1.50 | 0.00 | 1.50 |" in fill("<!-- results: multipliers made -->\n<!-- end -->", tmp_path)
