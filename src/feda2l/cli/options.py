"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Set = Annotated[
    list[str] | None,
    Parameter(name="--set", negative=(), help="override a key of the spec: key=value; may be repeated"),
]
Track = Annotated[
    list[Literal["tensorboard", "wandb", "mlflow"]] | None,
    Parameter(name="--track", negative=(), help="tell a tracker every round; may be repeated"),
]
DataFolder = Annotated[
    Path | None, Parameter(name="--data", help="folder of data sets; else FEDA2L_DATA, else a cache")
]
