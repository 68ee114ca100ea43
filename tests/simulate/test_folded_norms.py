"""A network with folded BatchNorms has the same outputs as the original, for the values of any model."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from feda2l.engines.folded_norms import FoldedNorms
from feda2l.models import build


def network(name: str, seed: int) -> nn.Module:
    """A network with non-default statistics, factors and offsets."""
    torch.manual_seed(seed)
    model = build(name, classes=7, input=(3, 8, 8)).double()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d | nn.GroupNorm):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
        if isinstance(part, nn.BatchNorm2d):
            part.eps = 0.01 * seed
            nn.init.normal_(part.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.1, 3)  # type: ignore[arg-type]
    return model.eval()


@pytest.mark.parametrize("name", ["resnet18", "resnet18_gn"])
def test_outputs_match_the_original_network(name: str) -> None:
    first, second = network(name, 1), network(name, 1)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(1.1)
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    before = copy.deepcopy(first.state_dict())
    folded = FoldedNorms(first)
    with torch.no_grad():
        for model in (first, second):
            found: Tensor = functional_call(folded.template, folded.tensors(model), (x,))
            torch.testing.assert_close(found, model(x), rtol=1e-10, atol=1e-10)
    assert all(torch.equal(before[key], value) for key, value in first.state_dict().items())


def test_half_precision_is_kept_and_factors_use_full_precision() -> None:
    norm = nn.Sequential(nn.BatchNorm2d(16)).eval()
    nn.init.normal_(norm[0].running_mean)
    x = torch.randn(2, 16, 5, 5, dtype=torch.bfloat16)
    folded = FoldedNorms(norm)
    found = functional_call(folded.template, folded.tensors(norm), (x,))
    assert found.dtype == torch.bfloat16
    exact = norm(x.float())
    assert (found.float() - exact).abs().max() <= exact.abs().max() * 2**-8
