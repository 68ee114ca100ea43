"""Functions are compiled for every shape, even if there are many."""

from functools import partial

import pytest
import torch
from torch import Tensor

from feda2l.engines.compiling import compiled


def test_every_shape_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        seen.append(tuple(inputs[0].shape))
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))

    def doubled(x: Tensor) -> Tensor:
        return x * 2

    found = compiled(doubled)
    for size in range(2, 22):
        assert torch.equal(found(torch.ones(size)), torch.full((size,), 2.0))
    assert seen == [(size,) for size in range(2, 22)]
