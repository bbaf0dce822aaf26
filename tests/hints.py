"""Known-bad kernels that a run tells to declare less precision: `python -m tests.hints [OPERATOR ...]`.

Whoever copies a hint gets a pass, and the defect is lost. Only kernels whose arithmetic is all that is wrong may have
one; any other is printed, with the hint, and the exit status is 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from conformance.calibration.known_kernels import MUTANTS, computed, judgements
from conformance.calibration.mutation import is_judged, rows
from conformance.inputs import Expectation
from conformance.judge.expected import Exact
from conformance.operators import OPERATORS
from conformance.operators.known_kernels.kernel import Mutant

ARITHMETIC = frozenset({"precision"})
"""Families of known-bad kernels whose arithmetic is all that is wrong."""
CASES, JOBS = 60, 2


def hinted(mutants: Iterable[Mutant], operator: str) -> Iterator[tuple[Mutant, str]]:
    """Yield kernels of which all failing cases would pass in one known arithmetic, with that."""
    fits = dict[Mutant, set[str]]()
    several = [*mutants]
    for _, recipe in rows(operator, "smoke")[:CASES]:
        expected = Expectation(recipe)
        for mutant in (one for one in several if is_judged(one, recipe) and fits.get(one) != set()):
            with np.errstate(all="ignore"):
                outputs = computed(mutant.run, expected)
                wrong = [one for one in judgements(mutant, expected, outputs=outputs) if not one.passed]
                if wrong:
                    known = Exact(expected).fitting(outputs, wrong, mutant.contract)
                    here = {str(contract) for contract in known or ()}
                    fits[mutant] = here & fits.get(mutant, here)
    for mutant, common in fits.items():
        if common:
            yield mutant, min(common)


def hiding(operator: str) -> list[str]:
    """What is wrong with the hints for one operator, a line each."""
    others = [one for one in MUTANTS if operator in one.operators and one.family not in ARITHMETIC]
    return [f"{operator}: {mutant.name} ({mutant.family}): {hint}" for mutant, hint in hinted(others, operator)]


if __name__ == "__main__":
    with ProcessPoolExecutor(JOBS) as pool:
        found = [line for lines in pool.map(hiding, sys.argv[1:] or OPERATORS) for line in lines]
    print("\n".join([*found, f"{len(found)} known-bad kernels would pass under a hint"]))
    sys.exit(bool(found))
