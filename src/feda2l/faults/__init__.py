"""Faults on purpose: one plan says who fails when, and the simulator and real peers follow it alike."""

from feda2l.faults.plan import Fault, FaultPlan, Return

__all__ = ["Fault", "FaultPlan", "Return"]
