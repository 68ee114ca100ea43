"""The types of values that come from a TOML or a JSON file, before anything has checked them."""

from collections.abc import Mapping
from typing import Any

__all__ = ["PlainDict", "PlainMapping"]

PlainDict = dict[str, Any]
"""A table of a TOML file or an object of a JSON file: strings, numbers, booleans, lists and tables."""

PlainMapping = Mapping[str, Any]
"""The same, for a reader that does not change it."""
