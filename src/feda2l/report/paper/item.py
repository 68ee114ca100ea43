"""What the product knows about one table or figure of the paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from feda2l.report.run_figures import Figures
from feda2l.report.sheets import Sheet

MakeSheet = Callable[[Sequence[Figures], bool], Sheet | None]
Draw = Callable[[Sequence[Figures], Path], None]


@dataclass(frozen=True)
class PaperItem:
    """A table or a figure: its name, the shipped studies whose runs are in it, and how it is made from runs.

    `sheet` and `draw` make nothing if none of the runs belongs to the item.
    """

    name: str
    studies: tuple[str, ...]
    sheet: MakeSheet | None = None
    draw: Draw | None = None
