"""The duration of a round: a line of `timings.jsonl`."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict, cast

Part = Literal["train", "mix", "adapt", "evaluate"]
TRAINING: tuple[Part, ...] = ("train", "mix", "adapt")  # counted in the time to a target
PARTS: tuple[Part, ...] = (*TRAINING, "evaluate")


class RoundTimings(TypedDict):
    """Seconds of each part of a round; empty for a round that a peer missed."""

    round: int
    train: NotRequired[float]
    mix: NotRequired[float]
    adapt: NotRequired[float]
    evaluate: NotRequired[float]
    pack: int  # number of runs that trained together and share the seconds


def round_timings(round: int, seconds: Mapping[str, float], pack: int) -> RoundTimings:
    """Make the timings of a completed round; `seconds` has some or all of `PARTS`."""
    return cast(RoundTimings, {"round": round, **seconds, "pack": pack})


def total_seconds(timing: RoundTimings, parts: Sequence[Part] = PARTS) -> float:
    """Return the sum of the seconds of these parts."""
    return sum(timing.get(part, 0.0) for part in parts)
