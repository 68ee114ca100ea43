"""Table 2: rounds to the target in six settings of model and data."""

from collections.abc import Sequence

from feda2l.report.paper.grid import ALGORITHMS, Column
from feda2l.report.paper.item import PaperItem
from feda2l.report.paper.rounds_table import rounds_table
from feda2l.report.run_figures import Figures
from feda2l.report.sheets import Sheet

COLUMNS = tuple(
    Column(f"{model} / {data}", model, data)
    for model, data in (
        ("CNN", "CIFAR-10"),
        ("CNN", "CIFAR-100"),
        ("ResNet-18", "CIFAR-100"),
        ("ResNet-18", "TinyImageNet"),
        ("ResNet-34", "CIFAR-100"),
        ("ResNet-34", "TinyImageNet"),
    )
)


def make(runs: Sequence[Figures], numbers: bool) -> Sheet | None:
    """The table, if one of its cells was run."""
    return rounds_table("Table 2 of the paper: rounds to the target", runs, COLUMNS, ALGORITHMS, numbers=numbers)


ITEM = PaperItem(
    "Table 2",
    (
        "cnn-cifar10",
        "cnn-cifar100",
        "resnet18-cifar100",
        "resnet18-tinyimagenet",
        "resnet34-cifar100",
        "resnet34-tinyimagenet",
    ),
    sheet=make,
)
