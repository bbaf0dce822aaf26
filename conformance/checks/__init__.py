"""Behaviour, invalid arguments, adjoint, memory; `required` is the table of all checks."""

from __future__ import annotations

from conformance.checks.behaviour_demand import CHECKS
from conformance.checks.sample import check_behaviour

__all__ = ["CHECKS", "check_behaviour"]
