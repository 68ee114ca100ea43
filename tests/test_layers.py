"""How parameters are grouped into layers."""

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


ATTENTION = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")


def names(model: nn.Module, granularity: str = "module", **more: bool) -> dict[str, tuple[str, ...]]:
    return {layer.name: layer.tensors for layer in find_layers(model, granularity, **more)}


def test_module_layers():
    assert names(Everything()) == {
        "scale": ("scale",),
        "embed": ("embed.weight",),
        "body.0": ("body.0.weight", "body.0.bias"),
        "body.1": ("body.1.weight", "body.1.bias"),
        "body.3": ("body.3.weight",),
        "attention": tuple(f"attention.{name}" for name in ATTENTION),
        "head": ("head.bias",),  # its weight is tied to the embedding and belongs to that layer
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
    parameters = dict(model.named_parameters())
    for group in groups:
        assert all(parameters[tensor] is p for tensor, p in zip(group["tensors"], group["params"], strict=True))
        assert set(group) == {"params", "name", "tensors"}


def test_attention_is_one_layer():
    assert names(nn.MultiheadAttention(4, 2)) == {"model": ATTENTION}
    other = nn.Sequential(nn.MultiheadAttention(4, 2, kdim=3, vdim=5, bias=False), nn.Linear(4, 4))
    assert list(names(other)) == ["0", "1"]
    assert len(names(other)["0"]) == 4  # q, k, v and the output
    assert list(names(torch.compile(nn.TransformerEncoderLayer(8, 2, 16)))) == [
        "self_attn", "linear1", "linear2", "norm1", "norm2",
    ]  # fmt: skip


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_a_parametrized_linear_is_one_layer(norm):
    model = nn.Sequential(norm(nn.Linear(4, 3)), nn.Linear(3, 2))
    assert list(names(model)) == ["0", "1"]
    assert set(names(model)["0"]) == {name for name, _ in model.named_parameters() if name.startswith("0.")}
    assert list(names(norm(nn.Linear(4, 3)))) == ["model"]


class Scaled(nn.Module):
    """A parametrization with a parameter and a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.mix = nn.Linear(4, 4)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return self.mix(weight) * self.scale


def test_parameters_of_a_parametrization_belong_to_its_module():
    model = nn.Sequential(nn.Linear(4, 3))
    nn.utils.parametrize.register_parametrization(model[0], "weight", Scaled())
    assert list(names(model)) == ["0"]
    assert len(names(model)["0"]) == 5


def test_an_lstm_is_one_layer_or_one_per_level():
    model = nn.ModuleDict(
        {"rnn": nn.LSTM(4, 3, num_layers=2, bidirectional=True, proj_size=2), "head": nn.Linear(4, 2)}
    )
    assert list(names(model)) == ["rnn", "head"]
    split = names(model, split_recurrent=True)
    assert list(split) == ["rnn.l0", "rnn.l1", "head"]
    for level in ("l0", "l1"):
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        expected = {f"rnn.{kind}_{level}{way}" for kind in kinds for way in ("", "_reverse")}
        assert set(split[f"rnn.{level}"]) == expected
    assert list(names(nn.GRU(4, 3, num_layers=2), split_recurrent=True)) == ["l0", "l1"]
    assert [group["name"] for group in layer_groups(model, split_recurrent=True)] == list(split)


def test_empty_parameters_belong_to_no_layer():
    model = Everything()
    model.nothing = nn.Parameter(torch.empty(0, 4))
    model.head.nothing = nn.Parameter(torch.empty(0))
    for granularity in ("module", "tensor", "block", "model"):
        assert names(model, granularity) == names(Everything(), granularity)


def test_mistakes_are_reported():
    with pytest.raises(FedA2LError, match=r"granularity = 'modul' is unknown; did you mean 'module'\?"):
        layer_groups(nn.Linear(2, 2), granularity="modul")
    with pytest.raises(FedA2LError, match="granularity = None is unknown; known: module, tensor, block, model"):
        layer_groups(nn.Linear(2, 2), granularity=None)
    with pytest.raises(FedA2LError, match="a generator is not a model"):
        layer_groups(nn.Linear(2, 2).parameters())
    with pytest.raises(FedA2LError, match="parameter weight has no shape yet"):
        layer_groups(nn.LazyLinear(2))


def test_wrapped_models_have_the_names_of_plain_ones():
    model = Everything()
    model.module = nn.Linear(2, 2)  # a submodule named `module` is not a wrapper
    expected = names(model)
    assert "module" in expected
    for wrapped in (nn.DataParallel(model), torch.compile(nn.DataParallel(torch.compile(model)))):
        assert names(wrapped) == expected
        groups = layer_groups(wrapped)
        assert {group["name"]: tuple(group["tensors"]) for group in groups} == expected
        assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in model.parameters()}


def test_frozen_layers_are_left_out():
    model = Everything()
    model.body.requires_grad_(False)
    assert not any(name.startswith("body") for name in names(model))
    with pytest.raises(FedA2LError, match="Everything has no trainable parameter"):
        find_layers(model.requires_grad_(False))
    with pytest.raises(FedA2LError, match="no trainable"):
        layer_groups(nn.ReLU())


class LoRA(nn.Module):
    """A hand-written LoRA layer: a frozen linear layer plus two trained matrices."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(2, inner.in_features))
        self.lora_B = nn.Parameter(torch.zeros(inner.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + x @ self.lora_A.T @ self.lora_B.T


def test_the_two_parts_of_lora_are_one_layer():
    model = nn.Sequential(LoRA(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2))
    assert names(model) == {"0": ("0.lora_A", "0.lora_B"), "2": ("2.weight", "2.bias")}
    assert names(LoRA(nn.Linear(4, 3))) == {"model": ("lora_A", "lora_B")}
    parts = nn.ModuleDict({"lora_A": nn.Linear(4, 2, bias=False), "lora_B": nn.Linear(2, 3, bias=False)})
    assert names(nn.Sequential(parts)) == {"0": ("0.lora_A.weight", "0.lora_B.weight")}
    assert list(names(model, "tensor")) == ["0.lora_A", "0.lora_B", "2.weight", "2.bias"]


def test_lora_leaves_the_frozen_base_unchanged():
    """sigma is measured over A and B together, so it is finite although B starts at zero."""
    torch.manual_seed(0)
    model = nn.Sequential(LoRA(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2))
    base, size = model[0].inner.weight.clone(), model[0].lora_A.norm()
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
    assert torch.equal(model[0].inner.weight, base)


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


def test_a_single_module_is_one_layer():
    assert names(nn.Linear(2, 3)) == names(torch.compile(nn.Linear(2, 3))) == {"model": ("weight", "bias")}


def test_measured_tensors():
    assert Layer("a", ("a.weight", "a.bias")).measured("all") == (0, 1)
    assert Layer("a", ("a.bias", "a.weight")).measured("weight") == (1,)
    assert Layer("a", ("a.in_proj_weight", "a.bias")).measured("weight") == (0, 1)  # no tensor is named `weight`
    assert Layer("m", ("a.weight", "b.weight", "b.bias")).measured("weight") == (0, 1, 2)  # several tensors are
    assert Layer("weight", ("weight",)).measured("weight") == (0,)
    assert Layer("attention", ATTENTION).measured("weight") == (0, 1, 2, 3)  # two weights, only one named `weight`


def test_groups_work_in_an_optimizer():
    optimizer = torch.optim.SGD(layer_groups(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))), lr=0.1)
    assert [(group["name"], group["lr"]) for group in optimizer.param_groups] == [("0", 0.1), ("1", 0.1)]
