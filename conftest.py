"""Doctests are collected from every module; what needs a GPU's packages is left out where there are none."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["src/feda2l/*/cuda_*.py"]
