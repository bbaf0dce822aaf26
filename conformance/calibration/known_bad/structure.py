"""Index, groups, bias and gradients: the mistakes that diagnosis knows, computed exactly and rounded once.

Exactly, so that a mistake which changes nothing on a problem is seen to be equivalent there, in any order of the sums.
"""

from __future__ import annotations

from conformance.calibration.known_bad.base import Mutant, exact, of_operator
from conformance.diagnosis.mistakes import LIBRARY, Mistake, operators_of
from conformance.operators import Arrays, ConvGeometry, Operator


def planted(mistake: Mistake) -> Mutant:
    """The kernel that makes this mistake, and is right where the mistake does not exist."""

    def run(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
        outputs = mistake.outputs(operator, geometry, inputs)
        return (
            exact(operator, geometry, inputs, dtype)
            if outputs is None
            else of_operator(operator, geometry, outputs, dtype)
        )

    return Mutant(mistake.name, mistake.kind, run, operators=operators_of(mistake), when=mistake.when, base=exact)


STRUCTURE: tuple[Mutant, ...] = tuple(planted(mistake) for mistake in LIBRARY)
