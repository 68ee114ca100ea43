"""The Triton convolutions of k nodes match torch. Triton's interpreter makes this possible without a GPU."""

from collections.abc import Callable
from pathlib import Path

import pytest


def test_outputs_and_gradients_match_torch(interpreted: Callable[[Path], None]) -> None:
    interpreted(Path(__file__).with_name("interpreted_convolutions.py"))


def test_tiles_divide_the_channels_and_fill_the_gpu() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    import torch

    from feda2l.engines.cuda_convolution import PROGRAMS, ModelShape, parts_of_sum, product_tile, weight_tile

    for rows in (1, 10, 40):
        for channels, outputs, size in ((16, 64, 32), (64, 64, 32), (64, 128, 32), (256, 512, 8), (512, 512, 4)):
            for dtype in (torch.bfloat16, torch.float32):
                shape = ModelShape(rows, 10, size, size, channels, outputs, 3, 1)
                tile = product_tile(shape, shape.places, outputs, channels, dtype)
                assert outputs % tile.outer == channels % tile.inner == 0
                tile = weight_tile(shape, dtype)
                assert outputs % tile.places == channels % tile.outer == 0
    assert parts_of_sum(90, 160) == 3  # ResNet-18's first group, ten nodes: 90 tiles, 160 steps each
    assert parts_of_sum(1440, 5) == 1  # its last
    assert parts_of_sum(PROGRAMS, 160) == 1
