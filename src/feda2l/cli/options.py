"""Options that several commands share, and the groups of the help."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

# `feda2l --help` lists the groups in this order; all of them together fit on one screen.
FIRST, LOOK_UP, RUN, COMPARE, NETWORK, MORE = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Start with these", "Look up", "Run", "Compare", "Real network", "More"))
)

Set = Annotated[
    list[str] | None,
    Parameter(name="--set", negative=(), help="override one key of the spec: key=value; can be repeated"),
]
StudySet = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative=(),
        help="override one key of the study, or of its base spec: key=value; can be repeated",
    ),
]
Track = Annotated[
    list[Literal["tensorboard", "wandb", "mlflow"]] | None,
    Parameter(name="--track", negative=(), help="send every round to this tracker; can be repeated"),
]
DataFolder = Annotated[
    Path | None, Parameter(name="--data", help="folder of data sets (default: FEDA2L_DATA, else a cache)")
]
