"""The line of a round that went by without the node."""

from typing import Any

from feda2l.records.run_folder import LAYER_COLUMNS, MULTIPLIERS


def missed_round(round: int) -> dict[str, Any]:
    """A record with nothing in it, so that line n stays round n."""
    return {
        "round": round,
        "train_loss": None,
        "disagreement": None,
        "bytes_sent": 0,
        **dict.fromkeys(MULTIPLIERS),
        "nodes": {"train_loss": [None], "bytes_sent": [0]},
        "layers": {"name": [], **{column: [[]] for column in LAYER_COLUMNS}},
        "heard": [],
    }
