"""The Triton kernels of inner products equal float64's; by Triton's interpreter, so no GPU is needed."""

from collections.abc import Callable
from pathlib import Path


def test_products_equal_float64s(interpreted: Callable[[Path], None]) -> None:
    interpreted(Path(__file__).with_name("interpreted_products.py"))
