"""Start a command under torchrun. All ranks get the same arguments; rank 0 leads and the others follow."""

import os
from pathlib import Path

from feda2l.distributed.ranks import Ranks, here
from feda2l.errors import FedA2LError, RunFailed
from feda2l.plain_values import PlainMapping
from feda2l.runs.process_group import ProcessGroup, SingleProcess


def group_here() -> ProcessGroup:
    """Return the process group of this process: the ranks of torchrun, or this process alone."""
    ranks = here()
    if ranks is None:
        return SingleProcess()
    from feda2l.runs.rank_group import RankGroup

    return RankGroup(ranks)


def demand_same(ranks: Ranks, given: PlainMapping, what: str) -> None:
    """Raise an error at all ranks if they have different values. It names the first difference."""

    def compare() -> None:
        for rank, other in enumerate(everyone):
            for key in sorted(everyone[0].keys() | other.keys()):
                if everyone[0].get(key) != other.get(key):
                    raise FedA2LError(
                        f"the ranks have different values in the {what}: {key} is {other.get(key)!r} at rank {rank}, "
                        f"and {everyone[0].get(key)!r} at rank 0; start all ranks with the same file and arguments",
                        see="torchrun",
                    )

    everyone = ranks.all(dict(given))
    ranks.together(compare)


def failed_elsewhere() -> RunFailed:
    """Return the error of a rank that follows when the leader failed. The leader prints the reason."""
    error = RunFailed("the first rank failed", see="torchrun")
    error.printed = True
    return error


def demand_out(out: str | Path | None) -> None:
    """Raise an error if torchrun may restart the job but `out` is missing: a restarted run must find its folder."""
    if out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise FedA2LError(
            "torchrun --max-restarts needs --out, so that a restarted run finds its folder", see="torchrun"
        )
