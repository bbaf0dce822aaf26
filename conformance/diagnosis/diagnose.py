"""The likely cause of a wrong output: the known mistake that explains it, if one clearly does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operators import FAMILIES, Arrays, Operator
from conformance.operators.mistakes import Mistake

EXPLAINED = 0.05
"""Largest share of the error that a named mistake may leave unexplained."""
APART = 3.0
"""How many times worse the next explanation must be; closer ones are named together."""
EQUAL = 0.002
"""Residuals below this are rounding: they do not tell one explanation from another."""
NEGLIGIBLE = 2e-3
"""Error in units of the reference's norm, the rounding of inputs to bf16 among them, that no mistake of the library
stays below: one term left out of a thousand makes 0.03."""
AFFORDABLE = 1 << 24
"""Multiply-adds of a problem up to which the whole library is tried."""
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The mistakes that explain an output equally well, the library's first one first, and what they leave over."""

    names: tuple[str, ...]
    residual: float

    def __str__(self) -> str:
        more = len(self.names) - SHOWN
        names = ", or ".join(self.names[:SHOWN]) + (f", or {more} more" if more > 0 else "")
        return f"likely cause: {names} (explains {100 * (1 - self.residual):.3g}%)"


def diagnose(
    operator: Operator, geometry: Any, inputs: Arrays, outputs: Arrays, reference: Arrays | None = None
) -> Diagnosis | None:
    """The known mistake that explains wrong outputs (canonical order, storage dtype); None if none clearly does.

    Elements that are not finite anywhere are left aside. `reference` saves computing the exact outputs once more.
    """
    if operator.flops(geometry) > 2 * AFFORDABLE:
        return None
    with np.errstate(all="ignore"):
        reference = reference or operator.reference(geometry, inputs)
        units = {name: _norm(array) or 1.0 for name, array in reference.items()}
        exact = _in_units(reference, units)
        if not _notable(_in_units(outputs, units), exact):
            return None
        scored = sorted(_scores(operator, geometry, inputs, outputs, exact, units), key=lambda score: score[0])
    if not scored or not scored[0][0] <= EXPLAINED:
        return None
    best = scored[0][0]
    names = tuple(mistake.name for residual, mistake in scored if residual <= max(EQUAL, best * APART))
    order = [mistake.name for mistake in FAMILIES[operator.family].mistakes]
    return Diagnosis(tuple(sorted(names, key=order.index)), best)


def _norm(array: np.ndarray) -> float:
    """Of the finite elements."""
    return float(np.linalg.norm(array[np.isfinite(array)]))


def _in_units(arrays: Arrays, units: Mapping[str, float]) -> Arrays:
    """Each output in units of its reference's norm: an error in dbeta counts as one in dx, which may be far smaller."""
    return {name: array.astype(np.float64) / units[name] for name, array in arrays.items()}


def _notable(actual: Arrays, exact: Arrays) -> bool:
    """Whether there is a finite error beyond arithmetic."""
    return any(_norm(actual[name] - array) > NEGLIGIBLE for name, array in exact.items())


def _scores(
    operator: Operator, geometry: Any, inputs: Arrays, outputs: Arrays, exact: Arrays, units: Mapping[str, float]
) -> Iterator[tuple[float, Mistake]]:
    """Residual ||actual - mistaken|| / ||actual - reference|| of every mistake that exists here."""
    actual = _in_units(outputs, units)
    for mistake in FAMILIES[operator.family].mistakes:
        mistaken = mistake.outputs(operator, geometry, inputs)
        if mistaken is not None:
            stored = {name: mistaken[name].astype(array.dtype) for name, array in outputs.items()}
            residual = _residual(actual, _in_units(stored, units), exact)
            if math.isfinite(residual):
                yield residual, mistake


def _residual(actual: Arrays, mistaken: Arrays, exact: Arrays) -> float:
    """Infinite where fewer than half of the elements can be compared, or the reference is no further away."""
    finite = {name: np.isfinite(actual[name] - mistaken[name] - exact[name]) for name in exact}
    left, count = _distance(actual, mistaken, finite)
    whole, _ = _distance(actual, exact, finite)
    size = sum(array.size for array in exact.values())
    return left / whole if whole > 0 and 2 * count >= size else math.inf


def _distance(first: Arrays, second: Arrays, mask: Mapping[str, np.ndarray]) -> tuple[float, int]:
    """Root of the summed squared differences over the elements of the mask, and their number."""
    total, count = 0.0, 0
    for name, array in second.items():
        kept = (first[name] - array)[mask[name]]
        total += float(kept @ kept)
        count += kept.size
    return math.sqrt(total), count
