"""Forecasting end to end on the real series: scores, naive forecasts, targets, partitions, bytes, figures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest
import torch

import feda2l
from feda2l.data import exchange_rate
from feda2l.data.series import Series, forecast_errors
from feda2l.errors import FedA2LError
from run_files import SAME

Cli = Callable[..., Any]
MODULE = """
import torch
from torch import nn
from feda2l.models.timer import Timer

class Small(Timer):
    "Timer's 19 layers of a sixteenth of the width; checkpoints of the whole one fill a disk."
    def __init__(self, input, horizon):
        super().__init__(input=input, horizon=horizon, width=32, hidden=64)

class Straight(nn.Module):
    "One linear map of what is seen to what follows, for every variate."
    def __init__(self, input, horizon):
        super().__init__()
        self.head = nn.Linear(input[0], horizon)
    def forward(self, x):
        return self.head(x.transpose(1, 2)).transpose(1, 2)

class Last(nn.Module):
    "The last value, whatever its parameter is."
    def __init__(self, horizon):
        super().__init__()
        self.horizon, self.nothing = horizon, nn.Linear(1, 1)
    def forward(self, x):
        return x[:, -1:].expand(-1, self.horizon, -1) + 0 * self.nothing(x[:, :1, :1])
"""


def spec(name: str = "exchange_rate", own: str | None = "Straight", **more: Any) -> dict[str, Any]:
    """A small spec; the arguments replace keys of its tables."""
    values: dict[str, Any] = {
        "rounds": 2,
        "data": {"name": name, "stride": 96},
        "rates": {"name": "constant", "base": 0.01},
        "runtime": {"workers": 0},
        "model": {"name": f"own_forecasters:{own}"} if own else {},
    }
    for key, value in more.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return values


def flags(values: dict[str, Any]) -> list[str]:
    """A spec as `--set` flags."""
    found: list[str] = []
    for key, value in values.items():
        for inner, item in value.items() if isinstance(value, dict) else [("", value)]:
            found += ["--set", f"{key}{'.' * bool(inner)}{inner}={json.dumps(item)}"]
    return found


@pytest.fixture
def go(official: Path, cli: Cli) -> Callable[..., feda2l.Run]:
    """Run a spec in the current folder, which holds two forecasters of a user."""
    Path("own_forecasters.py").write_text(MODULE)

    def run(values: dict[str, Any], out: str = "run", **options: Any) -> feda2l.Run:
        return feda2l.run(values, out=out, data=official, progress=False, **options)

    return run


def errors_of(model: torch.nn.Module, series: Series) -> tuple[list[float], list[float]]:
    """MSE and MAE of each site's test windows, computed without our engines."""
    with torch.no_grad():
        found = forecast_errors(series, model)
    return found.mse.tolist(), found.mae.tolist()


# scores


def test_timer_is_evaluated_by_mse_and_mae_of_every_node_and_the_mean_model(
    go: Callable[..., feda2l.Run], official: Path
) -> None:
    run = go(spec(own=None, rounds=1, data={"stride": 800}))
    assert run.spec.model.name == "timer"
    assert run.spec.model.loss == "mse"
    assert (run.spec.data.nodes, run.spec.training.batch_size, run.spec.training.drop_last) == (8, 32, False)
    series = exchange_rate.load(official, stride=800)
    last = run.folder.read()[-1]
    for node in (0, 7):
        mse, mae = errors_of(run.model(node), series)
        assert last["nodes"]["mse"][node] == pytest.approx(mse[node], rel=1e-4)
        assert last["nodes"]["mae"][node] == pytest.approx(mae[node], rel=1e-4)
    for metric, by_site in zip(("mse", "mae"), errors_of(run.model(), series), strict=True):
        assert last[metric] == pytest.approx(sum(last["nodes"][metric]) / 8, rel=1e-12)
        assert last[f"mean_model_{metric}"] == pytest.approx(sum(by_site) / 8, rel=1e-4)
    assert run.layers["layer"].n_unique() == 19
    rounds = polars.read_parquet(run.path / "rounds.parquet")
    assert rounds.height == 8
    assert {"mse", "mae", "test_loss", "mean_model_mse", "mean_model_mae"} <= set(rounds.columns)
    assert not [name for name in rounds.columns if "accuracy" in name]
    assert rounds["mse"].to_list() == [value for record in run.folder.read() for value in record["nodes"]["mse"]]


@pytest.mark.parametrize(
    ("name", "naive"), [("exchange_rate", (0.0533, 0.0894)), ("beijing_air_quality", (1.079, 0.770))]
)
def test_the_naive_forecasts_are_reported_and_match_their_definition(
    name: str, naive: tuple[float, float], go: Callable[..., feda2l.Run], official: Path, cli: Cli
) -> None:
    given = spec(name, "Last", rounds=1, data={"stride": 1})
    outcome = cli("run", *flags(given), "--out", "run", "--data", official, "--quiet")
    assert outcome.code == 0, outcome.err
    run = feda2l.Run("run")
    found = run.summary["naive"]
    digits = 4 if name == "exchange_rate" else 3
    assert [round(found[kind]["mse"], digits) for kind in ("last_value", "window_mean")] == list(naive)
    assert f"last_value {found['last_value']['mse']:.4f}, window_mean {found['window_mean']['mse']:.4f}" in outcome.out
    # a model that forecasts the last value has the score of the naive forecast
    assert run.summary["mse"]["final"] == pytest.approx(found["last_value"]["mse"], rel=1e-6)
    assert run.summary["final"]["mae"] == pytest.approx(found["last_value"]["mae"], rel=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["exchange_rate", "beijing_air_quality"])
def test_sgd_and_adam_train(name: str, optimizer: str, go: Callable[..., feda2l.Run]) -> None:
    base = 0.01 if optimizer == "sgd" else 1e-4
    run = go(spec(name, data={"stride": 24}, rounds=3, training={"optimizer": optimizer}, rates={"base": base}))
    records = run.folder.read()
    losses = [record["train_loss"] for record in records]
    assert losses == sorted(losses, reverse=True)
    assert records[-1]["mse"] < records[0]["mse"]


def test_timer_trains_with_adam(go: Callable[..., feda2l.Run]) -> None:
    run = go(spec("beijing_air_quality", "Small", training={"optimizer": "adam"}, rates={"base": 1e-3}))
    first, last = run.folder.read()
    assert last["train_loss"] < first["train_loss"]
    assert run.spec.data.nodes == 12


@pytest.mark.parametrize("partition", ["time", "cluster"])
def test_nodes_that_are_not_sites_are_evaluated_on_every_window(
    partition: str, go: Callable[..., feda2l.Run], official: Path
) -> None:
    run = go(spec(data={"partition": partition, "nodes": 3, "alpha": 1.0}, topology={"name": "ring"}))
    series = exchange_rate.load(official, stride=96)
    counts = torch.bincount(series.test_node).double()
    last = run.folder.read()[-1]
    assert len(last["nodes"]["mse"]) == 3
    for node in range(3):
        mse, _ = errors_of(run.model(node), series)
        over_all = float(counts @ torch.tensor(mse, dtype=torch.float64) / counts.sum())
        assert last["nodes"]["mse"][node] == pytest.approx(over_all, rel=1e-4)
    assert run.summary["naive"]["last_value"]["mse"] > 0


# targets


def test_a_target_of_a_series_is_an_upper_bound_of_the_mse(
    go: Callable[..., feda2l.Run], official: Path, cli: Cli
) -> None:
    def call(target: float, out: str) -> Any:
        given = spec(evaluation={"target": target, "smoothing": 1})
        return cli("run", *flags(given), "--out", out, "--data", official, "--quiet")

    reached = call(2.5, "reached")  # above 1, so it cannot be an accuracy
    assert reached.code == 0, reached.err
    assert "target 2.5 reached in round 1" in reached.out
    missed = call(1e-6, "missed")
    assert missed.code == 1
    assert "evaluation.target = 1e-06 was not reached in 2 rounds" in missed.err
    assert feda2l.Run("missed").summary["target"] == {"mse": 1e-6, "smoothing": 1, "every": 1, "round": None}
    curve = [record["mse"] for record in feda2l.Run("missed").folder.read()]
    assert curve[1] < curve[0]
    between = call((curve[0] + curve[1]) / 2, "between")
    assert "reached in round 2" in between.out


def test_an_accuracy_above_1_is_rejected(cli: Cli) -> None:
    outcome = cli("run", "--set", "evaluation.target=1.5")
    assert outcome.code == 2
    assert "evaluation.target = 1.5: an accuracy is at most 1" in outcome.err


def test_a_regression_loss_is_rejected_for_classes(cli: Cli) -> None:
    outcome = cli("run", "--set", "model.loss=mse")
    assert outcome.code == 2
    assert 'model.loss = "mse": the targets of digits are classes; use cross_entropy' in outcome.err


# bytes


def test_a_forecast_that_is_resumed_or_packed_has_the_same_bytes(go: Callable[..., feda2l.Run], official: Path) -> None:
    given = spec(own="Small", data={"stride": 400})
    go(given, "whole")
    go({**given, "rounds": 1}, "parts")
    go(given, "parts", resume=True)
    others = [{**given, "name": "alone"}, {**given, "name": "other", "seed": 2}]
    feda2l.run(others, out="pack", data=official, progress=False)
    for name in SAME:
        whole = Path("whole", name).read_bytes()
        assert whole == Path("parts", name).read_bytes()
        assert whole == Path("pack", "alone", name).read_bytes()
    assert Path("whole", "rounds.jsonl").read_bytes() != Path("pack", "other", "rounds.jsonl").read_bytes()


# rejected requests


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"algorithm": {"name": "fedntd"}}, 'algorithm.name = "fedntd" distils the classes that are not the true one'),
        ({"algorithm": {"name": "dfedhpo"}}, 'algorithm.name = "dfedhpo" needs held-out samples on every node'),
        (
            {"evaluation": {"on": "local"}},
            'evaluation.on = "local" needs held-out samples on every node; a series',
        ),
        (
            {"data": {"partition": "dirichlet"}},
            'data.partition = "dirichlet" needs classes; exchange_rate has none',
        ),
        ({"data": {"nodes": 5}}, "these data come from 8 nodes, got data.nodes = 5"),
        ({"data": {"horizon": 4000}}, "exchange_rate: Australia has no test window of 96 + 4000 rows"),
        ({"data": {"train_fraction": 1.0}}, "train_fraction must be above 0 and below 1, got 1.0"),
        (
            {"model": {"loss": "cross_entropy"}},
            'model.loss = "cross_entropy": the targets of exchange_rate are numbers; use mse or mae',
        ),
        ({"model": {"name": "mlp"}}, "model.name = 'mlp'"),
    ],
)
def test_requests_that_a_series_does_not_support_are_rejected(
    more: dict[str, Any], words: str, go: Callable[..., feda2l.Run]
) -> None:
    with pytest.raises(FedA2LError) as error:
        go(spec(**more))
    assert words in str(error.value)
    assert not Path("run").exists()


# figures


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_forecasts_are_plotted_with_the_true_values(go: Callable[..., feda2l.Run], official: Path, cli: Cli) -> None:
    go(spec("beijing_air_quality", rounds=1))
    outcome = cli("forecast", "run", "--data", official)
    assert outcome.code == 0, outcome.err
    assert outcome.out == "figure: run/forecast.png\n"
    width, height = size(Path("run/forecast.png"))
    assert width > height > 1000  # three windows of four variates
    outcome = cli("forecast", "run", "--data", official, "--node", 8, "--windows", 1)
    assert outcome.out == "figure: run/forecast-node-8.png\n"
    assert size(Path("run/forecast-node-8.png"))[0] < width
    assert cli("forecast", "run", "--data", official, "--out", "plots/own.png").out == "figure: plots/own.png\n"
    assert size(Path("plots/own.png")) == (width, height)


def test_a_forecast_uses_the_windows_of_its_node_in_units_of_the_file(
    go: Callable[..., feda2l.Run], official: Path
) -> None:
    from feda2l.runs.forecast import forecasts

    go(spec(own="Last", rounds=1))
    series = exchange_rate.load(official, stride=96)
    found = forecasts("run", node=3, windows=2, data=official)
    own = series.test_starts[series.test_node == 3] - series.bounds[3]
    assert [one.site for one in found.windows] == ["Switzerland"] * 2
    assert [one.row for one in found.windows] == own[[len(own) // 4, 3 * len(own) // 4]].tolist()
    rates = exchange_rate.read(official / "exchange_rate.txt.gz")
    for one in found.windows:
        start = rates.bounds[3] + one.row
        expected = rates.original(rates.rows[start : start + 192].double(), 3)
        torch.testing.assert_close(torch.cat([one.seen, one.truth]), expected)
        torch.testing.assert_close(one.forecast, one.naive)
        torch.testing.assert_close(one.naive, one.seen[-1:].expand(96, -1))
    everywhere = forecasts("run", windows=8, data=official)
    assert [one.site for one in everywhere.windows] == list(series.names)
    assert len(forecasts("run", windows=10_000, data=official).windows) == len(series.test_starts)


def test_an_impossible_forecast_is_rejected(go: Callable[..., feda2l.Run], official: Path, cli: Cli) -> None:
    go(spec(rounds=1))
    for arguments, words in [
        (["run", "--node", 8], "--node 8: must be 0 to 7"),
        (["run", "--windows", 0], "--windows 0: at least one window is needed"),
        (["nowhere"], "nowhere: is not a run folder"),
        (["run", "--out", "run/spec.toml/x.png"], "run/spec.toml/x.png: the figure cannot be written"),
    ]:
        outcome = cli("forecast", *arguments, "--data", official)
        assert outcome.code == 2
        assert words in outcome.err
    feda2l.run({"rounds": 1, "runtime": {"workers": 0}}, out="digits", progress=False)
    outcome = cli("forecast", "digits")
    assert outcome.code == 2
    assert "digits: this run used digits, which is not a time series" in outcome.err


def test_show_partition_of_a_series_counts_windows_of_sites(
    go: Callable[..., feda2l.Run], official: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = cli("run", *flags(spec()), "--show-partition", "--data", official)
    assert shown.code == 0, shown.err
    assert "windows of each site at each node" in shown.out
    assert "class" not in shown.out
    assert "Switzerland" in shown.out
    wide = cli("run", *flags(spec("beijing_air_quality")), "--show-partition", "--data", official)
    assert "sites held" in wide.out
    assert "Wanshouxigong (" in wide.out
