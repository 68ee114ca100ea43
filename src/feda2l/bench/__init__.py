"""Measurements of the engines' speed beside a plain loop; `feda2l bench` prints them. Nothing here is part of a run."""

from feda2l.bench.compare import bench

__all__ = ["bench"]
