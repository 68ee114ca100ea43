"""ResNets on node-batched kernels against captured steps. Skipped without a GPU."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rounds_on_devices import SMALL, difference, merged, rounds
from torch import nn

import feda2l
from feda2l.engines.batched_convolution import convolution
from feda2l.models.resnet import ResNet

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def batch_norm(classes: int, input: tuple[int, ...]) -> ResNet:
    """Two groups of one block with every kind of convolution of ResNet-18."""
    return ResNet((1, 1), classes=classes, channels=input[0], norm=nn.BatchNorm2d)


def group_norm(classes: int, input: tuple[int, ...]) -> ResNet:
    return ResNet((1, 1), classes=classes, channels=input[0], norm=partial(nn.GroupNorm, 32))


# a small rate: at 0.01 a difference of 1e-7 at the start grows to 2e-4 after two rounds, also on a CPU
RESNET = merged(SMALL, {"model": {"name": f"{__name__}:batch_norm"}, "rates": {"base": 1e-4}})
UNEQUAL = {"data": {"partition": "dirichlet", "train_fraction": 0.2, "min_size": 60, "alpha": 0.5}}
VARIANTS: list[dict[str, Any]] = [
    {"algorithm": {"buffers": "average"}},
    {"algorithm": {"buffers": "local"}},
    {"algorithm": {"buffers": "recalibrate"}},
    {"model": {"name": f"{__name__}:group_norm"}},
    {"algorithm": {"name": "dfedsam"}},
    UNEQUAL,
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_two_rounds_match_captured_steps(variant: dict[str, Any]) -> None:
    spec = merged(RESNET, variant)
    rows, expected, _ = rounds(merged(spec, {"runtime": {"engine": "rows"}}), 2, "cuda")
    batched, found, _ = rounds(merged(spec, {"runtime": {"engine": "batched"}}), 2, "cuda")
    assert difference(rows.trained, batched.trained) < 1e-5
    for name, values in rows.buffers.items():
        assert torch.allclose(values.double(), batched.buffers[name].double(), rtol=1e-4, atol=1e-5), name
    assert found[-1]["train_loss"] == pytest.approx(expected[-1]["train_loss"], rel=1e-4)
    assert found[-1]["test_loss"] == pytest.approx(expected[-1]["test_loss"], rel=1e-3)


def test_bf16_is_close_to_fp32() -> None:
    batched = merged(RESNET, {"runtime": {"engine": "batched"}})
    exact, _, _ = rounds(batched, 2, "cuda")
    half, _, _ = rounds(merged(batched, {"runtime": {"precision": "bf16"}}), 2, "cuda")
    assert 0 < difference(exact.trained, half.trained) < 0.01


def test_packed_runs_match_separate_runs(tmp_path: Path) -> None:
    runtime = {"device": "cuda", "engine": "batched"}
    spec = merged(RESNET, UNEQUAL, {"rounds": 2, "runtime": runtime})
    specs = [merged(spec, {"name": f"seed-{seed}", "seed": seed}) for seed in (1, 2)]
    alone = [feda2l.run(spec, out=tmp_path / f"{spec['name']}-alone", progress=False) for spec in specs]
    packed = feda2l.run(specs, out=tmp_path / "pack", progress=False)
    for one, other in zip(alone, packed, strict=True):
        assert other.summary["engine"] == "cuda_batched"
        for name, value in one.state().items():
            assert torch.allclose(value.double(), other.state()[name].double(), rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize(("side", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_convolutions_match_cudnn_and_are_reproducible(side: int, stride: int, kind: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 10, 16, 15, 64, device="cuda", dtype=kind, requires_grad=True)
    weight = torch.randn(3, 128, side * side * 64, device="cuda", dtype=kind, requires_grad=True)
    out = convolution(x, weight, side, stride)
    given = torch.randn_like(out)
    found = out, *torch.autograd.grad(out, (x, weight), given, retain_graph=True)
    again = convolution(x, weight, side, stride), *torch.autograd.grad(out, (x, weight), given)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    for row in range(len(x)):
        picture = x[row].detach().double().movedim(-1, 1).requires_grad_()
        kernel = weight[row].detach().double().unflatten(1, (side, side, -1)).movedim(-1, 1).requires_grad_()
        expected = F.conv2d(picture, kernel, stride=stride, padding=side // 2)
        gradients = torch.autograd.grad(expected, (picture, kernel), given[row].double().movedim(-1, 1))
        for one, other in zip(found, (expected, *gradients), strict=True):
            right = other.detach().movedim(1, -1).reshape(one[row].shape)
            assert difference(right, one[row].detach()) < (1e-5 if kind == torch.float32 else 1e-2)
