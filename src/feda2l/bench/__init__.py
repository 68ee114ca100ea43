"""How fast this engine is, beside the loop most people write; `feda2l bench` prints it."""

from feda2l.bench.compare import bench

__all__ = ["bench"]
