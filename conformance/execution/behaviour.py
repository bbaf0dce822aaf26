"""Which problems the behaviour of a kernel is checked on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from conformance.implementations.implementation import BEHAVIOUR, Implementation, ImplementationError
from conformance.operators import OPERATORS, takes
from conformance.problems import Problem, Variant

SMALL = 1 << 28
"""FLOPs of the largest problem that behaviour is checked on; a check calls a dozen times."""
BEHAVIOUR_PROBLEMS = {
    **{level: {"fp32": 1} for level in ("smoke", "huge")},
    **{level: {"fp32": 2, "bf16": 1} for level in ("standard", "full")},
}
"""Level -> dtype -> problems that behaviour is checked on, few, because behaviour seldom depends on the shape. A kernel
of none of these dtypes gets the first number for its first dtype."""


def small(operator: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of the operator's family that behaviour can be checked on: those with something to compute."""
    taken = (problem for problem in problems if takes(operator, problem.geometry))
    return [problem for problem in taken if 0 < OPERATORS[operator].flops(problem.geometry) < SMALL]


def behaviour_cases(
    implementation: Implementation,
    operator: str,
    problems: Sequence[Problem],
    quota: Mapping[str, int],
    dtypes: Sequence[str],
    layouts: Sequence[str],
) -> Iterator[tuple[Problem, Variant]]:
    """Of the dtypes and layouts asked for: the first problems that the implementation takes, in its first layout.

    A predicate that raises takes none, and is reported when its case runs.
    """
    kernels = [kernel for kernel in implementation.kernels if kernel.operator == operator]
    declared = [d for d in dict.fromkeys(d for kernel in kernels for d in kernel.dtypes) if d in dtypes]
    where = [la for la in dict.fromkeys(la for kernel in kernels for la in kernel.layouts) if la in layouts]
    first = dict.fromkeys(declared[:1], max(quota.values()))
    counts = {dtype: count for dtype, count in quota.items() if dtype in declared} or first

    def taken(dtype: str) -> Iterator[tuple[Problem, Variant]]:
        for problem in problems:
            for layout in where:
                try:
                    supported = implementation.supports(operator, problem.geometry, dtype, layout)
                except ImplementationError:
                    supported = True
                if supported:
                    yield problem, Variant(dtype, layout, BEHAVIOUR)
                    break

    for dtype, count in counts.items():
        yield from islice(taken(dtype), count)
