"""Data sets by name (`catalog`), readers for files of data, and functions that assign samples to nodes (`partition`).

Nothing here depends on models or training; see `feda2l.models` and `feda2l.round`.
"""

from feda2l.data import partition
from feda2l.data.catalog import CATALOG, Entry, Verdict, fetch, find, load, verify
from feda2l.data.images import Images

__all__ = ["CATALOG", "Entry", "Images", "Verdict", "fetch", "find", "load", "partition", "verify"]
