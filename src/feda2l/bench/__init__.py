"""Benchmarks of the engines against a plain PyTorch loop, printed by `feda2l bench`. Runs do not use this package."""

from feda2l.bench.compare import bench

__all__ = ["bench"]
