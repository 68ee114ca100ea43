"""How long a round took: a line of `timings.jsonl`."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict, cast

Part = Literal["train", "mix", "adapt", "evaluate"]
TRAINING: tuple[Part, ...] = ("train", "mix", "adapt")  # what counts towards the time to a target
PARTS: tuple[Part, ...] = (*TRAINING, "evaluate")


class RoundTimings(TypedDict):
    """Seconds of each part of a round; a round that a peer missed has none."""

    round: int
    train: NotRequired[float]
    mix: NotRequired[float]
    adapt: NotRequired[float]
    evaluate: NotRequired[float]
    pack: int  # how many runs trained together: they share the seconds


def round_timings(round: int, seconds: Mapping[str, float], pack: int) -> RoundTimings:
    """The timings of a completed round; `seconds` has some or all of `PARTS`."""
    return cast(RoundTimings, {"round": round, **seconds, "pack": pack})


def total_seconds(timing: RoundTimings, parts: Sequence[Part] = PARTS) -> float:
    """Seconds of these parts together."""
    return sum(timing.get(part, 0.0) for part in parts)
