"""Who is there: how long to wait for each neighbour, who is away, who is not believed any more."""

import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from feda2l.peer.config import DeadlineConfig, LimitsConfig, NeighbourConfig

KEPT = 20  # arrivals that a deadline is made from
FEWEST = 3  # before that there is no usual
AHEAD = 2  # rounds that one may be ahead of its last message: the one it is in, and the next
STEADIEST = 0.05  # of the median: no spread is taken for less


@dataclass(eq=False)
class Neighbour:
    """What a node knows of a neighbour that it hears."""

    config: NeighbourConfig
    deadline: DeadlineConfig
    limits: LimitsConfig
    present: bool = True  # else it is away: asked, but not waited for
    arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  # seconds into the round
    received: int = 0  # the last round that was heard of it, and when
    received_at: float = 0.0
    strikes: int = 0  # bad messages since the last good one
    quarantined_until: int = 0  # the first round in which it is asked again
    rejects: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def id(self) -> int:
        return self.config.id

    def quarantined(self, round: int) -> bool:
        return round < self.quarantined_until

    @property
    def patience(self) -> float:
        """Seconds from the start of a round until it is left out: median + k MAD of its last arrivals, in bounds."""
        if len(self.arrivals) < FEWEST:
            return self.deadline.most
        median = statistics.median(self.arrivals)
        spread = statistics.median(abs(arrival - median) for arrival in self.arrivals)
        spread = max(spread, STEADIEST * median)  # even a clockwork has a bad day
        return min(max(median + self.deadline.factor * spread, self.deadline.least), self.deadline.most)

    def came(self, round: int, seconds: float) -> None:
        """Its message of a round arrived, so many seconds into the round."""
        self.present, self.received, self.received_at = True, round, time.monotonic()
        self.strikes = max(0, self.strikes - 1)
        self.arrivals.append(seconds)

    def can_be_at(self, round: int, fastest: float) -> bool:
        """Can it have come to a round since it was heard last, if no round takes less than `fastest` seconds?"""
        return not self.received or round <= self.received + AHEAD + (time.monotonic() - self.received_at) / fastest

    def missed(self) -> None:
        self.present = False

    def record_rejection(self, reason: str, round: int) -> bool:
        """Count a bad message; True if the neighbour is quarantined for it."""
        self.rejects[reason] += 1
        self.strikes += 1
        if self.strikes < self.limits.strikes:
            return False
        self.strikes = 0
        self.quarantined_until = round + 1 + self.limits.quarantine_rounds
        return True
