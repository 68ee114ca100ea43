"""A command under torchrun: all ranks are given the same, one leads, the others follow."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feda2l.distributed.ranks import Ranks, here
from feda2l.errors import FedA2LError, RunFailed
from feda2l.runs.process_group import ProcessGroup, SingleProcess


def group_here() -> ProcessGroup:
    """The processes that share this one's runs."""
    ranks = here()
    if ranks is None:
        return SingleProcess()
    from feda2l.runs.rank_group import RankGroup

    return RankGroup(ranks)


def demand_same(ranks: Ranks, given: Mapping[str, Any], what: str) -> None:
    """Every rank must have been given the same; else all say where the first difference is."""

    def compare() -> None:
        for rank, other in enumerate(everyone):
            for key in sorted(everyone[0].keys() | other.keys()):
                if everyone[0].get(key) != other.get(key):
                    raise FedA2LError(
                        f"the ranks were not given the same {what}: {key} is {other.get(key)!r} at rank {rank} and "
                        f"{everyone[0].get(key)!r} at rank 0; give all the same file and arguments",
                        see="torchrun",
                    )

    everyone = ranks.all(dict(given))
    ranks.together(compare)


def failed_elsewhere() -> RunFailed:
    """For a rank that follows: the leader failed, and says why."""
    error = RunFailed("the first rank failed", see="torchrun")
    error.said = True
    return error


def demand_out(out: str | Path | None) -> None:
    """A job that torchrun may start again must find its folder again."""
    if out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise FedA2LError(
            "torchrun --max-restarts needs --out, so that a run that is started again finds its folder", see="torchrun"
        )
