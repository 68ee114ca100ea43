"""Primary tests: the few comparisons that a study registers before it runs, and corrects for their number."""

import re
from typing import NamedTuple

from feda2l.errors import FedA2LError
from feda2l.names import look_up

# What `feda2l compare` and a primary test measure; the words name it in an error.
MEASURES = {
    "simulated_seconds": "simulated seconds to the target",
    "interpolated_rounds": "interpolated rounds to the target",
    "rounds": "whole rounds to the target",
    "seconds": "seconds to the target",
    "best": "best score",
    "last_10": "mean score of the last ten rounds",
}
DEFAULT = "interpolated_rounds"
_FORM = re.compile(r"(?P<second>\S+) against (?P<first>[^\s:]+)(?:: *(?P<measure>\w+))?")


class PrimaryTest(NamedTuple):
    """One registered test: a cell of the study against another one, by one measure."""

    second: str
    first: str
    measure: str

    def __str__(self) -> str:
        return f"{self.second} against {self.first}: {self.measure}"


def parse_primary_test(text: str) -> PrimaryTest:
    """Read `CELL against CELL` or `CELL against CELL: MEASURE`.

    >>> parse_primary_test("feda2l against decay_only")
    PrimaryTest(second='feda2l', first='decay_only', measure='interpolated_rounds')
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise FedA2LError(
            f'primary test {text!r}: write "CELL against CELL" or "CELL against CELL: MEASURE"', see="compare"
        )
    measure = found["measure"] or DEFAULT
    look_up(measure, MEASURES, "measure")
    if found["first"] == found["second"]:
        raise FedA2LError(f"primary test {text!r}: both cells are the same; name two cells", see="compare")
    return PrimaryTest(found["second"], found["first"], measure)
