"""Timer's Triton passes equal those that are written out; by Triton's interpreter, so no GPU is needed."""

from collections.abc import Callable
from pathlib import Path


def test_outputs_and_gradients_equal_those_written_out(interpreted: Callable[[Path], None]) -> None:
    interpreted(Path(__file__).with_name("interpreted_passes.py"))
