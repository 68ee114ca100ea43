"""Runs that start from pretrained weights, with frozen layers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import feda2l
from feda2l.errors import FedA2LError
from feda2l.models import build

BASE = {
    "rounds": 2,
    "data": {"nodes": 3, "alpha": 1.0},
    "rates": {"name": "constant", "base": 0.05},
    "runtime": {"workers": 0},
}


def pretrained(path: Path, classes: int = 10) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    state = build("mlp", classes=classes, input=(1, 8, 8)).state_dict()
    save_file(state, path)
    return state


def spec(**model) -> dict:
    return BASE | {"model": {"name": "mlp", **model}}


@pytest.fixture
def file(tmp_path: Path) -> str:
    pretrained(tmp_path / "start.safetensors")
    return str(tmp_path / "start.safetensors")


def rows(simulator) -> list[dict[str, torch.Tensor]]:
    population = simulator.engine.population
    return [{slot.name: slot.view(row).clone() for slot in population.layout.slots} for row in population.base]


def test_every_node_starts_from_the_file(start, file):
    expected = load_file(file)
    for row in rows(start(spec(initial_weights=file))):
        assert row.keys() == expected.keys()
        assert all(torch.equal(row[name], expected[name]) for name in row)


def test_a_fresh_head_is_initialised_from_the_seed(start, tmp_path):
    path = tmp_path / "other-classes.safetensors"
    expected = pretrained(path, classes=7)
    drawn = rows(start(spec()))[0]
    for row in rows(start(spec(initial_weights=str(path), reinitialize=["fc3"]))):
        for name in row:
            assert torch.equal(row[name], drawn[name] if name.startswith("fc3") else expected[name])


def test_frozen_layers_keep_their_values_and_are_not_sent(tmp_path, file):
    given = load_file(file)
    run = feda2l.run(spec(initial_weights=file, freeze=["fc1"]), out=tmp_path / "run", progress=False)
    model = run.model(node=1).state_dict()
    kept = {name for name in given if torch.equal(given[name], model[name])}
    assert kept == {"fc1.weight", "fc1.bias"}
    assert "fc1" not in set(run.layers["layer"])
    trained = sum(value.numel() for name, value in given.items() if name not in kept)
    assert set(run.rounds["bytes_sent"]) == {2 * 4 * trained}  # to two neighbours


def test_a_frozen_layer_without_a_start_keeps_its_initial_values(tmp_path):
    specs = [spec(freeze=["fc1"]) | {"seed": seed, "name": f"s{seed}"} for seed in (1, 2)]
    packed = feda2l.run(specs, out=tmp_path / "packed", progress=False)
    for settings, together in zip(specs, packed, strict=True):
        alone = feda2l.run(settings, out=tmp_path / settings["name"], progress=False)
        for name in ("rounds.jsonl", "checkpoint.safetensors", "spec.toml"):
            assert (together.path / name).read_bytes() == (alone.path / name).read_bytes()
    one, two = (run.model().state_dict()["fc1.weight"] for run in packed)
    assert not torch.equal(one, two)


def test_a_model_that_freezes_itself_keeps_its_start(module, tmp_path):
    source = """
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 12).requires_grad_(False), nn.Tanh(), nn.Linear(12, 10))
"""
    name = f"{module(source)}:Net"
    state = {name: torch.randn(shape) / 8 for name, shape in (("1.weight", (12, 64)), ("1.bias", (12,)))}
    state |= {"3.weight": torch.randn(10, 12) / 8, "3.bias": torch.zeros(10)}
    save_file(state, tmp_path / "start")
    settings = BASE | {"model": {"name": name, "initial_weights": str(tmp_path / "start")}}
    model = feda2l.run(settings, out=tmp_path / "run", progress=False).model().state_dict()
    assert [name for name in state if torch.equal(state[name], model[name])] == ["1.weight", "1.bias"]


def test_an_exported_model_can_start_another_run(start, tmp_path):
    from feda2l.cli.results import export

    run = feda2l.run(spec(), out=tmp_path / "first", progress=False)
    export(run.path, out=tmp_path / "model.safetensors")
    row = rows(start(spec(initial_weights=str(tmp_path / "model.safetensors"))))[0]
    assert all(torch.equal(value, row[name]) for name, value in run.model().state_dict().items())


def test_the_resolved_spec_pins_the_file(tmp_path, file):
    run = feda2l.run(spec(initial_weights=file), out=tmp_path / "run", progress=False)
    assert run.spec.model.initial_weights_sha256 is not None
    again = feda2l.run(run.spec, out=tmp_path / "again", progress=False)
    assert (again.path / "rounds.jsonl").read_bytes() == (run.path / "rounds.jsonl").read_bytes()
    pretrained(Path(file), classes=10)
    save_file({name: value + 1 for name, value in load_file(file).items()}, file)
    with pytest.raises(FedA2LError, match=r'has sha256 .*, expected model.initial_weights_sha256 = "'):
        feda2l.run(run.spec, out=tmp_path / "third", progress=False)
    with pytest.raises(FedA2LError, match=r"model.initial_weights_sha256: '"):
        feda2l.run(spec(initial_weights=file) | {"rounds": 3}, out=tmp_path / "run", resume=True, progress=False)


def test_invalid_files_and_patterns_raise_errors(tmp_path, file):
    def words(match: str, **model) -> None:
        with pytest.raises(FedA2LError, match=match):
            feda2l.run(spec(**model), out=tmp_path / "run", progress=False)
        assert not (tmp_path / "run" / "rounds.jsonl").exists()

    words("cannot be read: No such file", initial_weights="nowhere.safetensors")
    words("model.reinitialize: no layer is named 'tail", initial_weights=file, reinitialize=["tail*"])
    words("model.freeze: no layer is named 'con\\*'; the layers are fc1, fc2, fc3", freeze=["con*"])
    words("no trainable parameter", freeze=["*"])
    words("model.reinitialize needs model.initial_weights", reinitialize=["head"])
    words("gives all nodes the same start", initial_weights=file, init="per_node")
    (tmp_path / "text").write_text("weights")
    words("is not a safetensors file .*save_file", initial_weights=str(tmp_path / "text"))
    pretrained(tmp_path / "seven", classes=7)
    words(
        r"has wrong shapes for fc3.weight \(is \[7, 64\], should be \[10, 64\]\)",
        initial_weights=str(tmp_path / "seven"),
    )
    state = load_file(file)
    state["extra.weight"] = state.pop("fc3.bias")
    save_file(state, tmp_path / "renamed")
    words(
        "lacks fc3.bias; has the unknown tensors extra.weight; .*model.reinitialize",
        initial_weights=str(tmp_path / "renamed"),
    )
