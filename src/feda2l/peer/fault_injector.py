"""A fault plan at work in a real node: it dies, hangs and is late by itself, and does not hear what the plan cuts."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from feda2l.faults.plan import FaultPlan


@dataclass(frozen=True)
class PlannedFaults:
    """The plan as node `node` meets it."""

    plan: FaultPlan
    node: int

    @classmethod
    def load(cls, path: Path, node: int, nodes: int) -> "PlannedFaults":
        return cls(FaultPlan.load(path, nodes), node)

    def before_message(self, round: int) -> None:
        if self.plan.crashes(self.node, round):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.plan.hangs(self.node, round):
            os.kill(os.getpid(), signal.SIGSTOP)  # whoever watches over it continues it
        time.sleep(self.plan.delay(self.node, round))

    def rejoins(self, round: int) -> bool:
        """Whoever crashed or hung comes back by itself; this is for one that is well."""
        return self.plan.rejoins(self.node, round) is not None and not self.plan.away(self.node, round - 1)

    def receives(self, sender: int, round: int) -> bool:
        """A message that arrives broken is heard, and refused.

        Whether it should be away itself does not matter: one that hung and goes on asks how far the others are.
        """
        return self.plan.reaches(sender, self.node, round) or self.plan.rejects(self.node, sender, round)

    def corrupts(self, sender: int, round: int) -> bool:
        return self.plan.rejects(self.node, sender, round)
