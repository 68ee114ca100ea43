"""What the nodes learn from: data sets by name (`catalog`), as tensors (`images`), and who holds what (`partition`)."""

from feda2l.data import partition
from feda2l.data.catalog import CATALOG, Entry, Verdict, fetch, find, load, verify
from feda2l.data.images import Images

__all__ = ["CATALOG", "Entry", "Images", "Verdict", "fetch", "find", "load", "partition", "verify"]
