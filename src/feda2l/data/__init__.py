"""Data sets by name (`catalog`), how they are read, and how samples are assigned to nodes (`partition`).

Models are in `models`.
"""

from feda2l.data import partition
from feda2l.data.catalog import CATALOG, Entry, Verdict, fetch, find, load, verify
from feda2l.data.images import Images

__all__ = ["CATALOG", "Entry", "Images", "Verdict", "fetch", "find", "load", "partition", "verify"]
