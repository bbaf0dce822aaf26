"""Inputs that no call has seen before, and whose exact results are known: drawn ones, scaled by powers of two.

A kernel may remember results by what it is given. Whoever times it over and over on one set of inputs times its memory.
Operators are homogeneous: scale some of the inputs, and some of the outputs scale with them, exactly where the factor
is a power of two or -1. So one drawn set, of which a reference is computed, makes many that are new to a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from conformance.execution.case import Case
from conformance.execution.judging import judged, prepare_reference
from conformance.inputs import Expectation, Recipe, expectation
from conformance.judge import Contract
from conformance.operators import Arrays
from conformance.operators.base import Homogeneous

POWERS = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6, 7, -7, 8)
"""Exponents of factors: far from where the fixed-point data of the fixed distribution would become subnormal or
overflow."""
DRAWS, MORE_DRAWS = 1, 4
"""Sets that are drawn: more where only signs can be changed."""
UNJUDGED = 1 << 32
"""Seeds from here on are those of nothing else."""


def factors(homogeneous: Homogeneous) -> tuple[float, ...]:
    """What inputs are multiplied with; 1 comes first."""
    if not homogeneous.inputs:
        return (1.0,)
    signs = (1, -1) if homogeneous.signs else (1,)
    return tuple(sign * 2.0**power for power in (POWERS if homogeneous.powers else (0,)) for sign in signs)


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """One set of inputs: a drawn one and the factor that some of them are multiplied with."""

    case: Case
    expected: Expectation
    factor: float

    def inputs(self) -> Arrays:
        """Inputs in canonical order, scaled."""
        if self.factor == 1:
            return self.expected.inputs
        scaled = self.case.operator.homogeneous.inputs
        return {n: a * a.dtype.type(self.factor) if n in scaled else a for n, a in self.expected.inputs.items()}

    def plain(self, outputs: Arrays) -> Arrays:
        """Outputs as they would be of the drawn inputs."""
        if self.factor == 1:
            return outputs
        scaled = self.case.operator.homogeneous.outputs
        return {n: a * a.dtype.type(1 / self.factor) if n in scaled else a for n, a in outputs.items()}

    def refuted(self, plain: Arrays, contract: Contract) -> str:
        """What is wrong with outputs; empty if they pass."""
        prepare_reference(self.expected, self.case.method)
        found = judged(self.expected, plain, contract, self.case.method)
        return "\n".join(judgement.explain() for judgement in found if not judgement.passed)


def contents(case: Case) -> Iterator[Content]:
    """All that there are, first that of the case itself."""
    known = case.operator.homogeneous
    count = DRAWS if known.inputs and known.powers else MORE_DRAWS
    drawn = [replace(case, seed=case.seed + number) for number in range(count)]
    for factor in factors(known):
        for number, other in enumerate(drawn):
            yield Content(other, _drawn(case.recipe, number), factor)


def unjudged(case: Case, number: int) -> Content:
    """Inputs of a draw of their own: for a call whose results nobody looks at, so that no reference is computed."""
    other = replace(case, seed=case.seed + UNJUDGED + number)
    return Content(other, Expectation(other.recipe), 1.0)


def _drawn(first: Recipe, number: int) -> Expectation:
    """The tensors of one draw: the first is everybody's, the others are kept until another problem is asked for."""
    return expectation(first) if number == 0 else _others(first)(number)


class _Others:
    """The other draws of a recipe, each made when it is first asked for."""

    def __init__(self, first: Recipe) -> None:
        self._first = first
        self._found: dict[int, Expectation] = {}

    def __call__(self, number: int) -> Expectation:
        """Draw `number`."""
        if number not in self._found:
            self._found[number] = Expectation(replace(self._first, seed=self._first.seed + number))
        return self._found[number]


@lru_cache(maxsize=1)
def _others(first: Recipe) -> _Others:
    return _Others(first)
