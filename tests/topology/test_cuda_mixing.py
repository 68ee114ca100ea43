"""The Triton kernel of mixing has the bits of the CPU; by Triton's interpreter, so no GPU is needed."""

from collections.abc import Callable
from pathlib import Path


def test_mixing_has_the_bits_of_the_cpu(interpreted: Callable[[Path], None]) -> None:
    interpreted(Path(__file__).with_name("interpreted_mixing.py"))
