"""The state of each neighbour: how long to wait for it, whether it is away, whether it is quarantined."""

import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from feda2l.peer.config import DeadlineConfig, LimitsConfig, NeighbourConfig

KEPT = 20  # arrivals from which a deadline is computed
FEWEST = 3  # with fewer arrivals the longest deadline holds
AHEAD = 2  # rounds that a neighbour can be ahead of its last message: its current round and the next one
STEADIEST = 0.05  # the smallest spread, as a fraction of the median


@dataclass(eq=False)
class Neighbour:
    """What a node knows about a neighbour from which it receives."""

    config: NeighbourConfig
    deadline: DeadlineConfig
    limits: LimitsConfig
    present: bool = True  # otherwise it is away: asked, but not waited for
    arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  # seconds since the start of the round
    received: int = 0  # the round of its last message
    received_at: float = 0.0  # the time of its last message
    strikes: int = 0  # rejected messages; a good message takes one away
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
        """Seconds from the start of a round until it is left out: median + k MAD of its arrivals, within bounds."""
        if len(self.arrivals) < FEWEST:
            return self.deadline.most
        median = statistics.median(self.arrivals)
        spread = statistics.median(abs(arrival - median) for arrival in self.arrivals)
        spread = max(spread, STEADIEST * median)  # very regular arrivals still need some tolerance
        return min(max(median + self.deadline.factor * spread, self.deadline.least), self.deadline.most)

    def came(self, round: int, seconds: float) -> None:
        """Record that its message of a round arrived `seconds` after the start of the round."""
        self.present, self.received, self.received_at = True, round, time.monotonic()
        self.strikes = max(0, self.strikes - 1)
        self.arrivals.append(seconds)

    def can_be_at(self, round: int, fastest: float) -> bool:
        """Can it have reached `round` since its last message, if every round takes at least `fastest` seconds?"""
        return not self.received or round <= self.received + AHEAD + (time.monotonic() - self.received_at) / fastest

    def missed(self) -> None:
        self.present = False

    def record_rejection(self, reason: str, round: int) -> bool:
        """Count a rejected message; True if the neighbour is quarantined now."""
        self.rejects[reason] += 1
        self.strikes += 1
        if self.strikes < self.limits.strikes:
            return False
        self.strikes = 0
        self.quarantined_until = round + 1 + self.limits.quarantine_rounds
        return True
