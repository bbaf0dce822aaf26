"""Whether a wrong result is wrong every time: no formula explains one that differs from call to call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conformance.diagnosis.diagnose import EXPLAINED
from conformance.execution.invocation import Invocation, MismatchedError
from conformance.execution.process import Crash
from conformance.implementations.errors import KernelFailure, blame
from conformance.implementations.implementation import Kernel
from conformance.operators import Arrays

CALLS = 10
"""Calls on the same inputs, the first one among them, where the second gives something else."""
ALIKE = 5
"""Wrong cases of a kernel that were the same in a second call, after which no more are called again."""
DIFFERS = "results differ from call to call"
"""How the reason of such a failure begins."""
_alike: dict[int, tuple[Kernel, int]] = {}
"""A kernel by its id, itself (so that no other one gets that id), and how many such cases there were."""


class NondeterminismError(KernelFailure):
    """A wrong result that other calls on the same inputs do not give; the message begins with DIFFERS."""


class AnotherCallError(Exception):
    """There is nothing to compare a wrong result with; the message says what another call ended in."""


@dataclass(slots=True)
class DifferingCalls:
    """Calls on the same inputs that gave different results, at least one of them wrong.

    `farthest` is the largest difference of an element from the first call's; infinite where one alone is a number.
    """

    made: int = 1
    wrong: int = 1
    farthest: float = 0.0

    def __str__(self) -> str:
        by = f", by up to {self.farthest:.3g}" if math.isfinite(self.farthest) else ""
        return f"{DIFFERS}: wrong in {self.wrong} of {self.made} calls on the same inputs{by}"


def differing_calls(
    invocation: Invocation, inputs: Arrays, outputs: Arrays, passes: Callable[[Arrays], bool], exact: Arrays | None
) -> DifferingCalls | None:
    """What more calls on the inputs of wrong `outputs` give; None where the next one gives the same.

    A difference below what a mistake leaves unexplained is the order of sums, and the same here; without the `exact`
    outputs any difference is one. Raises AnotherCallError, for a kernel once.
    """
    kernel = invocation.kernel
    assert isinstance(kernel, Kernel)
    _, alike = _alike.get(id(kernel), (kernel, 0))
    if alike >= ALIKE:
        return None
    seen = DifferingCalls()
    while seen.made < CALLS:
        try:
            native, _ = invocation.laid_out(inputs)
            again = invocation.outputs(invocation.call(native))
        except MismatchedError:
            seen.made, seen.wrong, seen.farthest = seen.made + 1, seen.wrong + 1, math.inf
            continue
        except (Crash, Exception) as error:
            _alike[id(kernel)] = kernel, ALIKE  # a hang takes a minute
            what = str(error).partition("\n")[0] if isinstance(error, Crash) else blame(error)
            raise AnotherCallError(f"called again on the same inputs: {what}") from None
        passed = passes(again)
        if seen.made == 1 and not passed and _same(again, outputs, exact):
            _alike[id(kernel)] = kernel, alike + 1
            return None
        seen.made, seen.wrong = seen.made + 1, seen.wrong + (not passed)
        seen.farthest = max(seen.farthest, *(_farthest(again[name], outputs[name]) for name in outputs))
    return seen


def _same(again: Arrays, outputs: Arrays, exact: Arrays | None) -> bool:
    return all(
        _farthest(again[name], array) <= (0.0 if exact is None else EXPLAINED * _farthest(array, exact[name]))
        for name, array in outputs.items()
    )


def _farthest(first: np.ndarray, second: np.ndarray) -> float:
    """Largest difference of an element; infinite where one of two alone is a number."""
    one, other = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(one - other)
    apart[(one == other) | (np.isnan(one) & np.isnan(other))] = 0
    return float(np.max(np.nan_to_num(apart, nan=np.inf, posinf=np.inf), initial=0.0))
