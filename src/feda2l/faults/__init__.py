"""Planned faults: which node fails in which round. They are carried out in `simulate` and `peer`."""

from feda2l.faults.plan import Fault, FaultPlan, Return

__all__ = ["Fault", "FaultPlan", "Return"]
