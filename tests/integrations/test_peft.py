"""LoRA with the peft library: one layer per adapted module, and an unchanged frozen base."""

import copy

import pytest
import torch
from replay import SETTINGS, Neighbour, replay
from torch import nn

import feda2l

peft = pytest.importorskip("peft", reason="peft is not installed: make test-integrations")


def test_lora_with_peft():
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

    start, neighbour = copy.deepcopy(model), Neighbour(model)
    optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.05)
    rates = feda2l.FedA2L(optimizer, **SETTINGS)
    frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
    for round in range(5):
        rates.begin_round()
        for step in range(3):
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * round + step))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), torch.arange(8) % 3).backward()
            optimizer.step()
        rates.end_training()
        neighbour.average(model)
        rates.step()
    assert rates.get_last_lr() == replay(start, neighbour.rounds, lr=0.05)[-1]
    assert len(set(rates.get_last_lr())) == 3
    assert all(torch.equal(value, dict(model.named_parameters())[name]) for name, value in frozen.items())
