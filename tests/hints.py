"""Known-bad kernels that a run tells to declare less precision: `python -m tests.hints [OPERATOR ...]`.

Whoever copies a hint gets a pass, and the defect is lost. Only kernels whose arithmetic is all that is wrong may have
one; any other is printed, with the hint, and the exit status is 1.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from conformance.inputs import Expectation
from conformance.judge.accuracy import RANKS, contradicted, shows
from conformance.judge.expected import Exact
from conformance.operators import OPERATORS
from tests.calibration.kernels.kernel import Mutant
from tests.calibration.known_kernels import MUTANTS, computed, judgements
from tests.calibration.mutation import is_judged, rows

ARITHMETIC = frozenset({"precision"})
"""Families of known-bad kernels whose arithmetic is all that is wrong."""
CASES, JOBS = 40, 2


def hinted(mutants: Iterable[Mutant], operator: str) -> Iterator[tuple[Mutant, str]]:
    """Yield kernels that a run would tell to declare an arithmetic, with that: as `conformance.reporting.groups` does,
    by their failing cases and by those that pass in the same dtypes."""
    fits: defaultdict[Mutant, list[tuple[str, Sequence[str]]]] = defaultdict(list)
    precise: defaultdict[tuple[Mutant, str], list[int]] = defaultdict(list)
    passing = Counter[tuple[Mutant, str]]()
    several, without = [*mutants], set[Mutant]()
    for _, recipe in rows(operator, "smoke")[:CASES]:
        expected = Expectation(recipe)
        for mutant in (one for one in several if one not in without):
            if not is_judged(mutant, recipe):  # it is right there
                passing[mutant, recipe.dtype] += 1
                continue
            with np.errstate(all="ignore"):
                outputs = computed(mutant.run, expected)
                judged = [*judgements(mutant, expected, outputs=outputs)]
                if wrong := [one for one in judged if not one.passed]:
                    known = Exact(expected).fitting(outputs, wrong, mutant.contract)
                    fits[mutant].append((recipe.dtype, [contract.arithmetic for contract in known or ()]))
                    without |= set() if known else {mutant}
                    continue
                passing[mutant, recipe.dtype] += 1
                if shows(recipe.dtype, min(recipe.workload.errors.terms.values())):
                    precise[mutant, recipe.dtype] += [RANKS[one.inferred.arithmetic] for one in judged if one.inferred]
    for mutant, failing in fits.items():
        dtypes = {dtype for dtype, _ in failing}
        against = [rank for dtype in dtypes for rank in precise[mutant, dtype]]
        passed = sum(passing[mutant, dtype] for dtype in dtypes)
        common = [text for text in failing[0][1] if all(text in others for _, others in failing)]
        if hint := next((text for text in common if not contradicted(text, against, len(failing), passed)), ""):
            yield mutant, hint


def hiding(operator: str) -> list[str]:
    """Yield what is wrong with the hints for one operator, a line each."""
    others = [one for one in MUTANTS if operator in one.operators and one.family not in ARITHMETIC]
    return [f"{operator}: {mutant.name} ({mutant.family}): {hint}" for mutant, hint in hinted(others, operator)]


if __name__ == "__main__":
    with ProcessPoolExecutor(JOBS) as pool:
        found = [line for lines in pool.map(hiding, sys.argv[1:] or OPERATORS) for line in lines]
    print("\n".join([*found, f"{len(found)} known-bad kernels would pass under a hint"]))
    sys.exit(bool(found))
