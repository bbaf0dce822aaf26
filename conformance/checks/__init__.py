"""Behaviour, invalid arguments, adjoint, memory; `CHECKS` maps names to checks."""

from __future__ import annotations

from conformance.checks.behaviour_demand import CHECKS
from conformance.checks.sample import check_behaviour

__all__ = ["CHECKS", "check_behaviour"]
