"""Table 4: rounds to the target with other skews, numbers of nodes and graphs."""

from collections.abc import Sequence

from feda2l.report.paper.grid import Column
from feda2l.report.paper.item import PaperItem
from feda2l.report.paper.rounds_table import rounds_table
from feda2l.report.run_figures import Figures
from feda2l.report.sheets import Sheet

NETWORKS = ("Dir(0.01)", "Dir(0.5)", "20 nodes", "30 nodes", "Ring", "K-Connected")
COLUMNS = tuple(Column(network, "ResNet-18", "CIFAR-100", network) for network in NETWORKS)


def make(runs: Sequence[Figures], numbers: bool) -> Sheet | None:
    """The table, if one of its cells was run; the paper does not name the model, ResNet-18 fits its targets."""
    title = "Table 4 of the paper: robustness, rounds to the target"
    return rounds_table(title, runs, COLUMNS, ("FedAvg", "FedAWA"), numbers=numbers)


ITEM = PaperItem("Table 4", ("robustness-heterogeneity", "robustness-nodes", "robustness-topology"), sheet=make)
