"""Tables of any version, read with the present column names."""

from collections.abc import Sequence

import polars

from feda2l.old_names import RECORD_KEYS


def with_new_names(rows: polars.LazyFrame) -> polars.LazyFrame:
    """Rename the columns of an older version."""
    existing = rows.collect_schema().names()
    return rows.rename({old: new for old, new in RECORD_KEYS.items() if old in existing and new not in existing})


def select_present(rows: polars.LazyFrame, columns: Sequence[str]) -> polars.DataFrame | None:
    """Read these columns, whatever the age of the records; None where one of them is missing."""
    renamed = with_new_names(rows)
    existing = renamed.collect_schema().names()
    return renamed.select(columns).collect() if all(name in existing for name in columns) else None
