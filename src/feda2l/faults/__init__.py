"""Fault plans: which node fails in which round. Packages `simulate` and `peer` inject the faults."""

from feda2l.faults.plan import Fault, FaultPlan, Return

__all__ = ["Fault", "FaultPlan", "Return"]
