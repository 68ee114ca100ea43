"""Models by name and by import path: sizes, layers and error messages."""

import pytest
import torch

from feda2l.errors import FedA2LError
from feda2l.layers import find_layers
from feda2l.models import MODELS, build
from feda2l.round.layout import Layout


def size(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "input", "parameters", "layers"),
    [
        ("cnn", 10, (3, 32, 32), 878_538, 4),  # spec E
        ("cnn", 100, (3, 32, 32), 924_708, 4),
        ("cnn", 200, (3, 64, 64), 5_694_600, 4),
        ("resnet18", 10, (3, 32, 32), 11_173_962, 41),
        ("resnet18", 100, (3, 32, 32), 11_220_132, 41),
        ("resnet18", 200, (3, 64, 64), 11_271_432, 41),
        ("resnet34", 10, (3, 32, 32), 21_282_122, 73),
        ("resnet34", 100, (3, 32, 32), 21_328_292, 73),
        ("resnet34", 200, (3, 64, 64), 21_379_592, 73),
        ("resnet18_gn", 10, (3, 32, 32), 11_173_962, 41),  # GroupNorm has as many parameters as BatchNorm
        ("resnet34_gn", 10, (3, 32, 32), 21_282_122, 73),
        ("mlp", 10, (1, 8, 8), 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10, 3),
        ("small_cnn", 10, (1, 8, 8), 9 * 16 + 16 + 9 * 16 * 32 + 32 + 32 * 16 * 10 + 10, 3),
    ],
)
def test_sizes_and_layers_match_the_specification(name, classes, input, parameters, layers):
    model = build(name, classes=classes, input=input)
    assert size(model) == Layout.of(model).parameters == parameters
    assert len(find_layers(model)) == layers
    assert model(torch.zeros(2, *input)).shape == (2, classes)


def test_the_cnn_has_the_layers_of_the_paper():
    """Two 5x5 convolutions (32 and 64 channels, no padding), pooling by 2, 512 hidden units, biases in all layers."""
    shapes = {name: tuple(parameter.shape) for name, parameter in build("cnn").named_parameters()}
    assert list(shapes.values()) == [
        (32, 3, 5, 5),
        (32,),
        (64, 32, 5, 5),
        (64,),
        (512, 1600),
        (512,),
        (10, 512),
        (10,),
    ]
    wide = build("cnn", classes=200, input=(3, 64, 64))
    assert wide.fc1.in_features == 10_816


@pytest.mark.parametrize("side", [15, 8, 1])
def test_images_too_small_for_the_cnn_raise_an_error(side):
    with pytest.raises(FedA2LError, match=rf"at least 16x16 pixels, got {side}x32; use small_cnn"):
        build("cnn", input=(3, side, 32))


def test_the_smallest_images_for_the_cnn():
    assert build("cnn", input=(1, 16, 16))(torch.zeros(1, 1, 16, 16)).shape == (1, 10)


def test_groupnorm_has_no_statistics_to_exchange():
    assert list(build("resnet18_gn").buffers()) == []
    assert len(list(build("resnet18").buffers())) == 3 * 20


@pytest.mark.parametrize("name", ["cnn", "mlp", "small_cnn"])
def test_initial_values_match_torch_and_its_seed(name):
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.nn.utils.parameters_to_vector(build(name).parameters()))
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_an_unknown_name_suggests_the_closest_one():
    with pytest.raises(FedA2LError, match=r"model.name = 'cn' is unknown; did you mean 'cnn'"):
        build("cn")
    assert {"mlp", "cnn", "small_cnn"} <= set(MODELS)


SOURCE = """
import torch
from torch import nn

class Plain(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

class Asks(nn.Module):
    def __init__(self, classes, input, width=3):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.given = classes, input, width

def everything(**given):
    model = nn.Linear(1, 1)
    model.given = given
    return model

class Wrong(nn.Module):
    def __init__(self, channels):
        super().__init__()

def number():
    return 3

constant = 4
"""


@pytest.fixture
def mine(tmp_path, monkeypatch) -> str:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "models_of_mine.py").write_text(SOURCE)
    return "models_of_mine"


def test_a_users_model_gets_the_arguments_it_accepts(mine):
    assert size(build(f"{mine}:Plain", classes=7)) == 10
    assert build(f"{mine}:Asks", classes=7, input=(1, 2, 3)).given == (7, (1, 2, 3), 3)
    assert build(f"{mine}:everything", classes=7, input=(1, 2, 3)).given == {"classes": 7, "input": (1, 2, 3)}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("models_of_mine:Missing", "cannot be imported"),
        ("no_such_module_of_mine:Net", "cannot be imported"),
        ("models_of_mine:Wrong", "could not be built.*channels"),
        ("models_of_mine:number", "returned a int, expected a torch.nn.Module"),
        ("models_of_mine:constant", "is a int, which is not callable"),
    ],
)
def test_a_broken_user_model_raises_an_error_with_its_name(mine, name, words):
    with pytest.raises(FedA2LError, match=f"(?s){name}.*{words}"):
        build(name)
