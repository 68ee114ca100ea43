"""The Triton kernels of inner products agree with float64. Triton's interpreter runs them, so no GPU is needed."""

from collections.abc import Callable
from pathlib import Path


def test_products_equal_float64(interpreted: Callable[[Path], None]) -> None:
    interpreted(Path(__file__).with_name("interpreted_products.py"))
