"""Timer's Triton kernels match the PyTorch operations. Triton's interpreter makes this possible without a GPU."""

from collections.abc import Callable
from pathlib import Path


def test_outputs_and_gradients_match_the_pytorch_operations(interpreted: Callable[[Path], None]) -> None:
    interpreted(Path(__file__).with_name("interpreted_passes.py"))
