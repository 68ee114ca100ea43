"""The Triton kernel of mixing equals the CPU bit by bit. Triton's interpreter runs it, so no GPU is needed."""

from collections.abc import Callable
from pathlib import Path


def test_mixing_equals_the_cpu_bit_by_bit(interpreted: Callable[[Path], None]) -> None:
    interpreted(Path(__file__).with_name("interpreted_mixing.py"))
