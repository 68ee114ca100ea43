"""Tables and figures of the paper: what is drawn and written, against the runs that they are made from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest

from feda2l.report.draw_parameters import balance_figure, sensitivity_figure, varied_cells
from feda2l.report.draw_rates import rate_figure, rescaled, steepest_layers
from feda2l.report.find_runs import Notes
from feda2l.report.paper import ITEMS, draw_paper_figures, figure_2, figure_3, figure_5, paper_sheets
from feda2l.report.paper.grid import ALGORITHMS, RULES, Column, make_grid
from feda2l.report.paper.table_2 import COLUMNS
from feda2l.report.paper.table_3 import COLUMN
from feda2l.report.paper_settings import ALGORITHM, METHOD, default_parameters
from feda2l.report.report import read, report
from feda2l.report.run_figures import Figures
from feda2l.report.sheets import Sheet
from feda2l.studies.study import shipped
from synthetic_runs import rising, write_run

KEYS = {label: key for key, label in METHOD.items() if key != "hyperbolic_reference"}
ALGORITHM_KEYS = {label: key for key, label in ALGORITHM.items()}
CNN_10 = {"data": {"name": "cifar10"}, "model": {"name": "cnn"}}
RESNET_18 = {"data": {"name": "cifar100"}, "model": {"name": "resnet18"}}
RESNET_34_TINY = {"data": {"name": "tinyimagenet"}, "model": {"name": "resnet34"}}


def write_cell(
    folder: Path, rule: str, reached: Sequence[int | None], algorithm: str = "FedAvg", **options: Any
) -> None:
    """A cell of the paper: one run per seed, all settings as the paper fixes them unless `options` say otherwise."""
    more: dict[str, Any] = options.pop("more")
    base: dict[str, Any] = {
        "data": {"nodes": 10, "partition": "dirichlet", "alpha": 0.1},
        "topology": {"name": "full"},
        "algorithm": {"name": ALGORITHM_KEYS[algorithm]},
        "training": {"epochs": 1, "momentum": 0.9},
        "rates": {"horizon": 500},
    }
    for section, values in more.items():
        base[section] = {**base.get(section, {}), **values}
    name = "-".join((more["model"]["name"], more["data"]["name"], algorithm, rule, options.pop("tag", "")))
    for seed, when in enumerate(reached, start=1):
        curve = rising(when, length=30)
        write_run(folder / f"{name}-{seed}", curve, rates=KEYS[rule], seed=seed, smoothing=10, more=base, **options)


def runs_in(folder: Path) -> list[Figures]:
    return read([folder], Notes())[1]


def sheet_of(runs: Sequence[Figures], number: int) -> Sheet:
    (sheet,) = (sheet for sheet in paper_sheets(runs) if sheet.title.startswith(f"Table {number} "))
    return sheet


def row_of(sheet: Sheet, *first: str) -> list[str]:
    return next(
        [e.text for e in row[len(first) :]] for row in sheet.rows if [e.text for e in row[: len(first)]] == [*first]
    )


def test_every_item_names_studies_that_exist() -> None:
    assert {study for item in ITEMS for study in item.studies} <= shipped().keys()
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    assert set(METHOD.values()) == set(RULES)
    assert set(ALGORITHM.values()) == {*ALGORITHMS, "DFedHPO"}


def test_table_2_has_the_six_columns_improvement_and_first_counts(tmp_path: Path) -> None:
    """Rises to 0.6 in round k: the mean of ten is at 0.55 in round k + 8 and at 0.3 in round k + 3."""
    for rule, when in {"Vanilla": 12, "CAWR": 7, "FedA2L": 2}.items():
        write_cell(tmp_path, rule, [when, when], target=0.55, more=CNN_10)
    for rule, when in {"CAWR": 7, "FedA2L": 7, "OCLR": None}.items():
        write_cell(tmp_path, rule, [when], target=0.3, more=RESNET_34_TINY)
    sheet = sheet_of(runs_in(tmp_path), 2)
    assert sheet.header == [
        "algorithm",
        "method",
        "CNN / CIFAR-10 (55 %)",
        "CNN / CIFAR-100",
        "ResNet-18 / CIFAR-100",
        "ResNet-18 / TinyImageNet",
        "ResNet-34 / CIFAR-100",
        "ResNet-34 / TinyImageNet (30 %)",
        "1st count",
        "1st count, alone",
    ]
    empty = ["not run"] * 4
    assert row_of(sheet, "FedAvg", "CAWR") == ["15 ± 0.00", *empty, "10 (paper: 148 ± 38.81)", "1", "0"]
    assert row_of(sheet, "FedAvg", "FedA2L") == ["10 ± 0.00", *empty, "10 (paper: 71 ± 1.25)", "2", "1"]
    assert row_of(sheet, "FedAvg", "OCLR") == ["not run", *empty, "> 30 (paper: 225 ± 12.53)", "0", "0"]
    assert row_of(sheet, "FedAvg", "Improv. (%)") == ["33.33", "", "", "", "", "0.00", "", ""]  # (15 - 10) / 15
    assert row_of(sheet, "FedProx", "FedA2L") == ["not run"] * 6 + ["0", "0"]
    assert len(sheet.rows) == 6 * 7 + 1
    places = {row[1].text: row[2].place for row in sheet.rows if row[0].text == "FedAvg"}
    assert (places["FedA2L"], places["CAWR"], places["Vanilla"]) == (1, 2, None)
    assert (
        "FedA2L is first in 2 of the 2 settings that were run, counting ties as the paper does; alone in 1."
        in sheet.notes
    )
    (apart,) = (note for note in sheet.notes if "is not shown" in note)
    assert apart.startswith("The paper's number is not shown for CNN / CIFAR-10, FedAvg")
    assert apart.endswith("evaluation.target is 0.55 (the paper: 0.64).")


def test_where_no_other_rule_reached_the_target_the_improvement_is_the_papers_100(tmp_path: Path) -> None:
    write_cell(tmp_path, "Vanilla", [None], target=0.55, more=CNN_10)
    write_cell(tmp_path, "FedA2L", [3], target=0.55, more=CNN_10)
    assert row_of(sheet_of(runs_in(tmp_path), 2), "FedAvg", "Improv. (%)")[0] == "100 (no other rule reached it)"


def test_a_mix_of_models_in_one_folder_fills_different_columns(tmp_path: Path) -> None:
    for more, when in ((CNN_10, 3), (RESNET_18, 6)):
        for rule in ("Vanilla", "FedA2L"):
            write_cell(tmp_path, rule, [when], target=0.3, more=more)
    row = row_of(sheet_of(runs_in(tmp_path), 2), "FedAvg", "FedA2L")
    assert row[:3] == ["10", "not run", "10"]  # not before ten evaluations
    grid = make_grid(runs_in(tmp_path), COLUMNS, ALGORITHMS)
    models = {
        column.model: {f.run.keys["model.name"] for f in cell.seeds} for (column, _, _), cell in grid.cells.items()
    }
    assert models == {"CNN": {"cnn"}, "ResNet-18": {"resnet18"}}


def test_of_two_settings_of_a_cell_the_papers_is_shown_and_the_other_named(tmp_path: Path) -> None:
    for epochs, when in ((1, 5), (2, 3)):
        more = CNN_10 | {"training": {"epochs": epochs, "momentum": 0.9}}
        write_cell(tmp_path, "FedA2L", [when + 10], target=0.64 - 0.1, tag=str(epochs), more=more)
    sheet = sheet_of(runs_in(tmp_path), 2)
    assert row_of(sheet, "FedAvg", "FedA2L")[0].startswith("23")  # 0.6 from round 15: 0.55 in round 23
    assert any("1 runs of the same cells" in note and "training.epochs (1)" in note for note in sheet.notes)


def test_table_3_multiplies_rounds_by_seconds_and_marks_the_fastest(tmp_path: Path) -> None:
    """A round takes `every_second`, 0.25 s to mix, 0.25 s to adapt and 1 s to evaluate."""
    for rule, when, seconds in (("Vanilla", 12, 1.5), ("CAWR", 7, 1.5), ("FedA2L", 2, 4.5)):
        write_cell(tmp_path, rule, [when], target=0.45, pack=1, every_second=seconds, more=RESNET_18)
    write_cell(tmp_path, "StepLR", [2], target=0.45, pack=3, every_second=1.0, more=RESNET_18)
    sheet = sheet_of(runs_in(tmp_path), 3)
    assert sheet.header[:3] == ["method", "FedAvg, s per round", "FedAvg, minutes"]
    assert len(sheet.header) == 1 + 2 * 6
    # 0.45 in round k + 6: 18, 13 and 10 rounds (not before ten)
    assert row_of(sheet, "Vanilla")[:2] == ["3 (paper: 28.43)", "0.9 (paper: 232.63)"]
    assert row_of(sheet, "CAWR")[:2] == ["3 (paper: 28.15)", "0.65 (paper: 92.41)"]
    assert row_of(sheet, "FedA2L")[:2] == ["6 (paper: 29.28)", "1 (paper: 86.38)"]
    assert row_of(sheet, "StepLR")[:2] == ["not run", "not run"]
    places = {row[0].text: (row[1].place, row[2].place) for row in sheet.rows}
    assert (places["CAWR"], places["Vanilla"], places["FedA2L"]) == ((None, 1), (None, 2), (None, None))


def test_table_5_has_rounds_and_seconds_with_the_improvement_of_both(tmp_path: Path) -> None:
    series = {"data": {"name": "exchange_rate", "nodes": 8, "partition": "natural", "alpha": 0.1}}
    more = series | {"model": {"name": "timer"}, "topology": {"name": "full"}, "training": {"batch_size": 32}}
    for rule, when in {"one_cycle": 4, "feda2l": 3}.items():
        curve = [0.06] * (when - 1) + [0.05] * (6 - when)
        options: dict[str, Any] = {"pack": 1, "every_second": 0.5, "naive": {"last_value": 0.0533}, "nodes": 8}
        write_run(tmp_path / rule, curve, rates=rule, metric="mse", target=0.0575, more=more, **options)
    sheet = sheet_of(runs_in(tmp_path), 5)
    assert row_of(sheet, "FedAvg", "OCLR") == ["4 (paper: 16)", "8 (paper: 393.86)", "not run", "not run"]
    assert row_of(sheet, "FedAvg", "FedA2L") == ["3 (paper: 11)", "6 (paper: 289.98)", "not run", "not run"]
    assert row_of(sheet, "FedAvg", "Improv. (%)") == ["25.00", "25.00", "", ""]
    assert "ExchangeRate, forecasts without training: the last value has an MSE of 0.0533." in sheet.notes


def test_table_4_has_a_column_for_each_network(tmp_path: Path) -> None:
    ring = RESNET_18 | {"topology": {"name": "ring"}, "evaluation": {"smoothing": 15}}
    nodes = RESNET_18 | {"data": {"name": "cifar100", "nodes": 20}}  # a window of 10 in place of 15
    for rule in ("Vanilla", "FedA2L"):
        write_cell(tmp_path, rule, [3], "FedAWA", target=0.33, tag="ring", more=ring)
        write_cell(tmp_path, rule, [3], "FedAWA", target=0.42, tag="nodes", more=nodes)
    sheet = sheet_of(runs_in(tmp_path), 4)
    assert [column.split(" (")[0] for column in sheet.header[2:8]] == [
        "Dir(0.01)",
        "Dir(0.5)",
        "20 nodes",
        "30 nodes",
        "Ring",
        "K-Connected",
    ]
    row = row_of(sheet, "FedAWA", "FedA2L")
    assert row == ["not run", "not run", "10", "not run", "15 (paper: 319 [setting])", "not run", "2", "0"]
    assert any(note.endswith("evaluation.smoothing is 10 (the paper: 15).") for note in sheet.notes)


def test_figure_2_has_six_panels_titled_by_algorithm_with_the_target(tmp_path: Path) -> None:
    for algorithm in ("FedAvg", "FedYogi"):
        for rule in ("Vanilla", "FedA2L"):
            write_cell(tmp_path, rule, [5], algorithm, target=0.45, pack=1, every_second=1.5, more=RESNET_18)
    runs = runs_in(tmp_path)
    panels = figure_2.panels(make_grid(runs, [COLUMN], ALGORITHMS)).axes
    assert [axes.get_title() for axes in panels] == [*ALGORITHMS]
    for axes in panels:
        *curves, target = axes.get_lines()
        assert (target.get_linestyle(), set(target.get_ydata())) == (":", {45.0})
        ran = axes.get_title() in ("FedAvg", "FedYogi")
        assert [line.get_label() for line in curves] == (["Vanilla", "FedA2L"] if ran else [])
        assert [text.get_text() for text in axes.texts] == ([] if ran else ["not run"])
        for line in curves:
            assert line.get_ydata().tolist() == pytest.approx([10.0] * 4 + [60.0] * 26)
            assert line.get_xdata().tolist() == pytest.approx([2 * round / 60 for round in range(1, 31)])


def test_figure_3_has_three_panels_with_a_bar_for_each_rule(tmp_path: Path) -> None:
    for rule in ("Vanilla", "CAWR", "FedA2L"):
        for algorithm in ("FedAvg", "DFedSAM"):
            write_cell(tmp_path, rule, [5, 6], algorithm, target=0.3, more=RESNET_34_TINY)
    grid = make_grid(runs_in(tmp_path), figure_3.COLUMNS, ALGORITHMS)
    panels = figure_3.panels(grid)
    titles = [axes.get_title() for axes in panels.axes]
    assert titles == ["ResNet-18 / CIFAR-100", "ResNet-34 / CIFAR-100", "ResNet-34 / TinyImageNet"]
    assert [[text.get_text() for text in axes.texts] for axes in panels.axes] == [["not run"], ["not run"], []]
    bars = panels.axes[2].patches
    assert [bar.get_height() for bar in bars] == pytest.approx([60.0] * 6)
    assert [label.get_text() for label in panels.axes[2].get_xticklabels()] == [*ALGORITHMS]
    assert [text.get_text() for text in panels.legends[0].get_texts()] == ["Vanilla", "CAWR", "FedA2L"]


def test_figure_4_is_drawn_once_for_each_algorithm(tmp_path: Path) -> None:
    for algorithm in ("FedAvg", "FedProx"):
        write_cell(tmp_path / "runs", "FedA2L", [5], algorithm, target=0.45, more=RESNET_18)
    draw_paper_figures(runs_in(tmp_path / "runs"), tmp_path)
    drawn = {path.name for path in tmp_path.glob("figure-4*")}
    assert drawn == {f"figure-4-{name}.{kind}" for name in ("FedAvg", "FedProx") for kind in ("png", "svg", "pdf")}


def test_the_rates_of_a_layer_are_the_records_and_signals_are_rescaled_with_round_1(tmp_path: Path) -> None:
    write_run(tmp_path / "one", rising(3))
    (table,), (figures,) = read([tmp_path], Notes())
    figure = rate_figure(table.contests[0].cells[0], "FedA2L")
    assert not isinstance(figure, str)
    layers = polars.read_parquet(figures.run.path / "layers.parquet")
    node, names = steepest_layers(layers)
    assert (node, names) == (1, ["a", "b"])  # node 1 has twice the divergence; the layers have the same
    left, right = figure.axes[:2], figure.axes[2:]
    for axes, twin, name in zip(left, right, names, strict=True):
        own = layers.filter((polars.col("node") == node) & (polars.col("layer") == name)).sort("round")
        assert axes.get_title() == f"node 1, layer {name}"
        assert axes.get_lines()[0].get_ydata().tolist() == own["rate"].to_list()
        sigma = twin.get_lines()[0].get_ydata()
        assert (len(sigma), sigma[0], sigma.min()) == (10, 1.0, 0.0)  # the highest of all rounds is round 1's


def test_signals_that_do_not_change_are_at_zero() -> None:
    assert rescaled(np.array([0.3, 0.3])).tolist() == [0.0, 0.0]
    assert np.isnan(rescaled(np.array([np.nan]))).all()


def write_beta(folder: Path, model: str, beta: float, seed: int = 1, **more: Any) -> None:
    letters = {"tau": "threshold", "R_warm": "warmup_rounds", "rho": "window", "xi": "decay", "beta": "balance"}
    label = {"cnn": "CNN", "resnet18": "ResNet-18"}[model]
    default = default_parameters({"model": label, "dataset": "CIFAR-100", "algorithm": None, "method": None})
    rates = {letters[letter]: value for letter, value in default.items()} | {"balance": beta, "horizon": 500} | more
    spec = {
        "data": {"name": "cifar100", "nodes": 10, "alpha": 0.1, "partition": "dirichlet"},
        "model": {"name": model},
        "topology": {"name": "full"},
        "rates": rates,
    }
    name = "-".join([model, *(f"{key}={value}" for key, value in (more | {"beta": beta}).items()), str(seed)])
    write_run(folder / name, rising(3 + seed), target=0.29, smoothing=10, seed=seed, more=spec)


def test_figure_5_has_one_panel_per_model_and_one_legend_entry_per_beta(tmp_path: Path) -> None:
    for model in ("cnn", "resnet18"):
        for beta in (0.0, 0.6, 1.0):
            for seed in (1, 2):
                write_beta(tmp_path, model, beta, seed)
    write_beta(tmp_path, "cnn", 0.6, window=20)  # varies another parameter
    found = figure_5.cells_by_column([f for f in runs_in(tmp_path) if figure_5._varies_beta_alone(f)])
    figure = figure_5.panels(found)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["CNN / CIFAR-100", "ResNet-18 / CIFAR-100", "ResNet-34 / CIFAR-100"]
    assert [len(axes.get_lines()) for axes in figure.axes] == [4, 4, 0]  # three curves and the target
    assert [text.get_text() for text in figure.axes[2].texts] == ["not run"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["beta 0", "beta 0.6", "beta 1"]
    curve = figure.axes[0].get_lines()[0].get_ydata()
    assert curve.tolist() == pytest.approx([10.0] * 3 + [35.0] + [60.0] * 6)


def test_the_sensitivity_figure_draws_a_run_once_in_the_panel_of_what_it_varies(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_beta(tmp_path, "cnn", 0.6, seed)
        for beta in (0.0, 1.0):
            write_beta(tmp_path, "cnn", beta, seed)
        write_beta(tmp_path, "cnn", 0.6, seed, window=10)
        write_beta(tmp_path, "cnn", 0.6, seed, window=20)
    ((table,), _) = read([tmp_path], Notes())
    figure, missing = sensitivity_figure(table)
    assert figure is not None
    assert missing == []
    panels = {axes.get_xlabel(): axes for axes in figure.axes if axes.get_xlabel()}
    assert panels.keys() == {"window", "balance"}
    for name, values in {"window": ["10", "20"], "balance": ["0", "1"]}.items():
        axes = panels[name]
        assert [label.get_text() for label in axes.get_xticklabels()] == values
        points = [line for line in axes.get_lines() if line.get_marker() == "o"]
        assert sum(len(line.get_xdata()) for line in points) == 4  # two values, two seeds
        assert [line.get_label() for line in axes.get_lines() if line.get_linestyle() == "--"] == [
            "default, 5" if name == "window" else "default, 0.6"
        ]


def test_settings_that_vary_no_parameter_have_no_panel(tmp_path: Path) -> None:
    """The base rate varies among constant rates only, so it makes no panel, and all values of beta are points."""
    for beta in (0.0, 0.6, 1.0):
        write_beta(tmp_path, "cnn", beta)
    more = {"data": {"name": "cifar100", "nodes": 10}, "model": {"name": "cnn"}, "topology": {"name": "full"}}
    for base in (0.01, 0.003):
        own = more | {"rates": {"base": base, "horizon": 500}}
        write_run(tmp_path / f"{base}", rising(3), rates="constant", target=0.29, smoothing=10, more=own)
    ((table,), _) = read([tmp_path], Notes())
    figure, _ = sensitivity_figure(table)
    assert figure is not None
    (axes,) = (axes for axes in figure.axes if axes.get_xlabel())
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.6", "1"]
    assert [line.get_linestyle() for line in axes.get_lines()] == ["None"] * 3


def test_the_models_of_a_study_of_beta_are_not_merged(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('name = "beta"\n[report]\nrows = "rates.balance"\ncolumns = ["model.name"]\n')
    for model in ("cnn", "resnet18"):
        for beta in (0.0, 0.6):
            write_beta(tmp_path, model, beta)
    tables, _ = read([tmp_path], Notes())
    figures = [figure for table in tables if (figure := balance_figure(table)[0]) is not None]
    assert sorted(axes.get_title() for figure in figures for axes in figure.axes) == ["cnn", "resnet18"]
    for figure in figures:
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["beta 0", "beta 0.6"]


def test_a_cell_that_varies_two_parameters_is_in_no_panel(tmp_path: Path) -> None:
    for window, beta in ((5, 0.6), (10, 0.6), (5, 0.0), (10, 0.0), (5, 1.0)):
        write_beta(tmp_path, "cnn", beta, window=window)
    ((table,), _) = read([tmp_path], Notes())
    varied = varied_cells([cell for _, cell in table.cells], ["rates.window", "rates.balance"])
    counts = {key: len(cells) for key, cells in varied.by_key.items()}
    assert (counts, len(varied.default), len(varied.several)) == ({"rates.window": 1, "rates.balance": 2}, 1, 1)


def test_runs_outside_the_paper_make_none_of_its_tables(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "digits", rising(3))
    assert paper_sheets(runs_in(tmp_path / "runs")) == []
    report([tmp_path / "runs"], tmp_path / "out")
    assert not list((tmp_path / "out" / "figures").glob("figure-*"))


def test_without_the_papers_numbers_its_layout_stays(tmp_path: Path) -> None:
    write_cell(tmp_path / "runs", "FedA2L", [3], target=0.45, more=RESNET_18)
    report([tmp_path / "runs"], tmp_path / "out", paper=False)
    text = (tmp_path / "out" / "table.md").read_text()
    assert "## Table 2 of the paper: rounds to the target" in text
    assert "(paper: 177" not in text
    assert "Table 2 of the paper" in (tmp_path / "out" / "table.tex").read_text()


def test_a_report_has_the_papers_tables_and_the_primary_tests(tmp_path: Path) -> None:
    for rule in ("FedA2L", "CAWR"):
        write_cell(tmp_path / "runs" / rule, rule, [3], target=0.45, more=RESNET_18)
    _, (primary,), _ = report([tmp_path / "runs"], tmp_path / "out", holm=["FedA2L against CAWR"])
    assert [row[0].text for row in primary.rows] == ["FedA2L against CAWR: interpolated_rounds"]
    for name in ("table.md", "table.tex", "index.html"):
        text = (tmp_path / "out" / name).read_text()
        assert "Table 2 of the paper" in text
        assert "Primary tests" in text


def test_a_column_has_one_target_the_papers_if_anyone_has_it(tmp_path: Path) -> None:
    write_cell(tmp_path, "CAWR", [3], target=0.29, more={"data": {"name": "cifar100"}, "model": {"name": "cnn"}})
    for rule in ("Vanilla", "StepLR"):
        more = {"data": {"name": "cifar100"}, "model": {"name": "cnn"}}
        write_cell(tmp_path, rule, [3], target=0.35, more=more)
    column = Column("CNN / CIFAR-100", "CNN", "CIFAR-100")
    grid = make_grid(runs_in(tmp_path), [column], ALGORITHMS)
    assert (grid.targets[column], [rule for _, _, rule in grid.cells]) == (0.29, ["CAWR"])
    assert grid.notes == [
        "Left out of this table, 2 runs of the same cells in other settings; how many differ in what: "
        "evaluation.target (2)."
    ]
