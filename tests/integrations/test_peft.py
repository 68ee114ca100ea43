"""LoRA by the real library: one layer an adapted module, the frozen base left alone."""

import copy

import pytest
import torch
from replay import KNOBS, Neighbour, replay
from torch import nn

import feda2l

peft = pytest.importorskip("peft", reason="peft is not installed: make test-integrations")


def test_lora_of_a_real_library():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    config = peft.LoraConfig(r=2, target_modules=["0", "2"], modules_to_save=["4"], use_dora=True)
    model = peft.get_peft_model(plain, config)
    groups = {group["name"]: group["tensors"] for group in feda2l.layer_groups(model)}
    assert list(groups) == [
        "base_model.model.0",
        "base_model.model.2",
        "base_model.model.4.modules_to_save.default",
    ]
    parts = [tensor.split(".")[3] for tensor in groups["base_model.model.2"]]
    assert parts == ["lora_A", "lora_B", "lora_magnitude_vector"]

    start, near = copy.deepcopy(model), Neighbour(model)
    optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.05)
    rates = feda2l.FedA2L(optimizer, **KNOBS)
    frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
    for round in range(5):
        rates.begin_round()
        for step in range(3):
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * round + step))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), torch.arange(8) % 3).backward()
            optimizer.step()
        rates.end_training()
        near.average(model)
        rates.step()
    assert rates.get_last_lr() == replay(start, near.rounds, lr=0.05)[-1]
    assert len(set(rates.get_last_lr())) == 3
    assert all(torch.equal(value, dict(model.named_parameters())[name]) for name, value in frozen.items())
