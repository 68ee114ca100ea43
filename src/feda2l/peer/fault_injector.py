"""Apply a fault plan in a real node: it kills, stops or delays itself and ignores the links that the plan cuts."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from feda2l.faults.plan import FaultPlan


@dataclass(frozen=True)
class PlannedFaults:
    """The faults of the plan that concern node `node`."""

    plan: FaultPlan
    node: int

    @classmethod
    def load(cls, path: Path, node: int, nodes: int) -> "PlannedFaults":
        return cls(FaultPlan.load(path, nodes), node)

    def before_message(self, round: int) -> None:
        if self.plan.crashes(self.node, round):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.plan.hangs(self.node, round):
            os.kill(os.getpid(), signal.SIGSTOP)  # the swarm continues it
        time.sleep(self.plan.delay(self.node, round))

    def rejoins(self, round: int) -> bool:
        """A node that crashed or hung rejoins without this; it applies only to a node that still runs."""
        return self.plan.rejoins(self.node, round) is not None and not self.plan.is_absent(self.node, round - 1)

    def receives(self, sender: int, round: int) -> bool:
        """Does the message of the sender arrive? A damaged message arrives too, and is rejected.

        Planned absence of this node does not matter: a node that hung and continues asks for the round of the others.
        """
        return self.plan.reaches(sender, self.node, round) or self.plan.rejects(self.node, sender, round)

    def corrupts(self, sender: int, round: int) -> bool:
        return self.plan.rejects(self.node, sender, round)
