"""Column names of records written before the signals were called divergence and stability."""

from collections.abc import Sequence

import polars

NEW_NAMES = {"divergence": "divergence", "stability": "stability"}


def with_new_names(rows: polars.LazyFrame) -> polars.LazyFrame:
    """Return the rows with today's column names."""
    there = rows.collect_schema().names()
    return rows.rename({old: new for old, new in NEW_NAMES.items() if old in there and new not in there})


def select_present(rows: polars.LazyFrame, columns: Sequence[str]) -> polars.DataFrame | None:
    """Read these columns, whatever the age of the records; None where one of them is missing."""
    renamed = with_new_names(rows)
    there = renamed.collect_schema().names()
    return renamed.select(columns).collect() if all(name in there for name in columns) else None
