"""Which parameters make one layer."""

import pytest
import torch
from torch import nn

from feda2l import layer_groups
from feda2l.errors import FedA2LError
from feda2l.layers import Layer, find_layers


class Everything(nn.Module):
    """A bare parameter, a compiled part, fused attention weights, a tied head, a part without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4, bias=False))
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embed.weight


def names(model: nn.Module, granularity: str = "module") -> dict[str, tuple[str, ...]]:
    return {layer.name: layer.tensors for layer in find_layers(model, granularity)}


def test_module_layers():
    assert names(Everything()) == {
        "scale": ("scale",),
        "embed": ("embed.weight",),
        "body.0": ("body.0.weight", "body.0.bias"),
        "body.1": ("body.1.weight", "body.1.bias"),
        "body.3": ("body.3.weight",),
        "attention.in_proj_weight": ("attention.in_proj_weight",),
        "attention.in_proj_bias": ("attention.in_proj_bias",),
        "attention.out_proj": ("attention.out_proj.weight", "attention.out_proj.bias"),
        "head": ("head.bias",),  # its weight is the embedding's, and belongs there
    }


def test_other_granularities():
    model = Everything()
    assert list(names(model, "tensor")) == [name for name, _ in model.named_parameters()]
    assert list(names(model, "block")) == ["scale", "embed", "body.0", "body.1", "body.3", "attention", "head"]
    assert names(model, "model") == {"model": tuple(name for name, _ in model.named_parameters())}


@pytest.mark.parametrize("granularity", ["module", "tensor", "block", "model"])
def test_groups_hold_every_trainable_parameter_once(granularity):
    model = Everything()
    model.body[0].weight.requires_grad_(False)
    groups = layer_groups(model, granularity=granularity)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    own = dict(model.named_parameters())
    for group in groups:
        assert all(own[tensor] is p for tensor, p in zip(group["tensors"], group["params"], strict=True))
        assert set(group) == {"params", "name", "tensors"}


def test_frozen_layers_are_left_out():
    model = Everything()
    model.body.requires_grad_(False)
    assert not any(name.startswith("body") for name in names(model))
    with pytest.raises(FedA2LError, match="Everything has no trainable parameter"):
        find_layers(model.requires_grad_(False))
    with pytest.raises(FedA2LError, match="no trainable"):
        layer_groups(nn.ReLU())


def test_compiled_models_have_the_names_of_plain_ones():
    plain = Everything()
    expected = names(plain)
    assert names(torch.compile(plain)) == expected
    plain.head = torch.compile(plain.head)
    plain.body = torch.compile(plain.body)
    assert names(plain) == expected
    assert names(torch.compile(plain)) == expected
    groups = layer_groups(torch.compile(plain))
    assert [group["name"] for group in groups] == list(expected)


def test_a_model_that_is_one_layer():
    assert names(nn.Linear(2, 3)) == names(torch.compile(nn.Linear(2, 3))) == {"model": ("weight", "bias")}


def test_measured_tensors():
    assert Layer("a", ("a.weight", "a.bias")).measured("all") == (0, 1)
    assert Layer("a", ("a.bias", "a.weight")).measured("weight") == (1,)
    assert Layer("a", ("a.in_proj_weight", "a.bias")).measured("weight") == (0, 1)  # none of that name
    assert Layer("m", ("a.weight", "b.weight", "b.bias")).measured("weight") == (0, 1, 2)  # several
    assert Layer("weight", ("weight",)).measured("weight") == (0,)


def test_groups_work_in_an_optimizer():
    optimizer = torch.optim.SGD(layer_groups(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))), lr=0.1)
    assert [(group["name"], group["lr"]) for group in optimizer.param_groups] == [("0", 0.1), ("1", 0.1)]
