"""The paper's table of related work beside the methods that are implemented here."""

from typing import NamedTuple

from feda2l.report.paper_numbers import rows_of
from feda2l.report.sheets import Sheet, SheetEntry


class Ours(NamedTuple):
    """What our implementation of a method does; without a server, each differs from the original."""

    name: str
    layer_wise: bool
    every_round: bool
    server_free: bool
    no_extra_message: str
    signal: str


OURS = {
    "FedYogi": Ours("algorithm fedyogi", False, True, True, "yes", "moments of the node's own mixed update"),
    "FLARE": Ours(
        "rate rule flare", False, False, True, "a whole number once", "local steps against the neighbourhood's mean"
    ),
    "DFedHPO": Ours(
        "algorithm dfedhpo", False, False, True, "rates and losses before round 1", "search before round 1"
    ),
    "AutoLR": Ours("rate rule autolr", True, True, True, "yes", "movement a weight by depth, once a round"),
    "Fed-LAMB": Ours("rate rule fed_lamb", True, True, True, "yes", "a layer's size over its update, once a round"),
    "FLAYER": Ours("rate rule flayer", True, True, True, "yes", "depth and the mean gradient of the round before"),
    "FedLWS": Ours(
        "algorithm fedlws", True, True, True, "yes", "the neighbours' spread shrinks mixed layers; rates stay"
    ),
    "FedA2L": Ours("rate rule feda2l", True, True, True, "yes", "how far training moved and mixing corrected a layer"),
}


def related_work() -> Sheet:
    """For each question, the paper's answer and ours."""
    header = ["method", "`feda2l list`", "layer-wise", "per round", "server-free", "no extra message"]
    header += ["signal: the paper", "signal: here"]
    rows = []
    for row in rows_of("related_work"):
        ours = OURS[row["method"]]
        theirs = [row[question] for question in ("layer_wise_lr", "dynamic_per_round", "server_free", "no_extra_comm")]
        own = [{True: "yes", False: "no"}[answer] for answer in (ours.layer_wise, ours.every_round, ours.server_free)]
        answers = map(" / ".join, zip(theirs, [*own, ours.no_extra_message], strict=True))
        rows.append(
            [SheetEntry(text) for text in (row["method"], ours.name, *answers, row["signal_source"], ours.signal)]
        )
    notes = [
        "Each entry is the paper's answer for the original / the answer for our version. Ours has no server: what a "
        "server would see is taken from the neighbours of a node. FLARE and FLAYER are our readings: `feda2l list`.",
    ]
    return Sheet("Related work", header, rows, notes)
