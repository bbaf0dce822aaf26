"""Time of a torch module at its own shape, beside that of its reference."""

from __future__ import annotations

from contextlib import suppress

from conformance.execution.process import Crash
from conformance.execution.remote import Exited
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.results.schema import ModuleTime
from conformance.timing.conditions import Conditions
from conformance.timing.timing_demand import SIMULATED
from conformance.worker import ceilings, measuring

ROUNDS, EACH = 5, 0.05
"""Number of rounds of module and reference in turn, and the seconds of a round's calls, where several fit."""
LONGEST = 10.0
"""Seconds of a verified call, which makes modules and calls them three times, above which a module is not timed."""


def beside_torch(trial: Trial, verdict: Verdict) -> ModuleTime | None:
    """Time a module. Return None if it is wrong, slow or simulated, or raises when it is called as its file says."""
    if verdict.status != "pass" or verdict.seconds["kernel"] > LONGEST or trial.implementation.device in SIMULATED:
        return None
    bridge, conditions = trial.implementation.arrays, Conditions(ceilings.reference_seconds)
    pairs = []
    with suppress(Crash, Exited, Exception):  # right on the suite's inputs, it may raise on its own
        for _ in range(ROUNDS):
            conditions.look()
            pairs.append(bridge.perform(measuring.beside_reference, bridge, EACH))
        conditions.look()
        module, reference = zip(*pairs, strict=True)
        return ModuleTime(module_s=module, reference_s=reference, machine=conditions.state)
    return None
