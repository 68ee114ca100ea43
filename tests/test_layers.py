"""Which parameters make one layer."""

import pytest
import torch
from torch import nn

from feda2l import FedA2L, layer_groups
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


class LoRA(nn.Module):
    """A frozen linear layer and what is learned beside it, written by hand."""

    def __init__(self, inside: nn.Linear) -> None:
        super().__init__()
        self.inside = inside.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(2, inside.in_features))
        self.lora_B = nn.Parameter(torch.zeros(inside.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x) + x @ self.lora_A.T @ self.lora_B.T


def test_the_two_parts_of_lora_are_one_layer():
    model = nn.Sequential(LoRA(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2))
    assert names(model) == {"0": ("0.lora_A", "0.lora_B"), "2": ("2.weight", "2.bias")}
    assert names(LoRA(nn.Linear(4, 3))) == {"model": ("lora_A", "lora_B")}
    parts = nn.ModuleDict({"lora_A": nn.Linear(4, 2, bias=False), "lora_B": nn.Linear(2, 3, bias=False)})
    assert names(nn.Sequential(parts)) == {"0": ("0.lora_A.weight", "0.lora_B.weight")}
    assert list(names(model, "tensor")) == ["0.lora_A", "0.lora_B", "2.weight", "2.bias"]


def test_a_frozen_base_is_left_alone_beside_lora():
    """sigma of the layer is that of A and B together, so B's start at zero does no harm."""
    torch.manual_seed(0)
    model = nn.Sequential(LoRA(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2))
    base, size = model[0].inside.weight.clone(), model[0].lora_A.norm()
    optimizer = torch.optim.SGD(layer_groups(model), lr=0.1)
    rates = FedA2L(optimizer)
    rates.begin_round()
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    rates.end_training()
    rates.step()
    moved = model[0].lora_B.norm()  # A does not move while B is zero
    assert rates.last["0"].divergence == pytest.approx(float((moved / size).detach()), rel=1e-5)
    assert list(rates.last) == ["0", "2"]
    assert torch.equal(model[0].inside.weight, base)


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
