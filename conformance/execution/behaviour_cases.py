"""Which cases the checks of behaviour run on: few, because behaviour seldom depends on the shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from conformance.execution.trial import DISTRIBUTION
from conformance.implementations.implementation import Implementation, ImplementationError, Kernel
from conformance.operators import OPERATORS, takes
from conformance.problems import Problem, Variant

SMALL = 1 << 28
"""FLOPs of the largest problem; a check calls a dozen times."""
QUOTA = {"fp32": 2, "bf16": 1}
"""Dtype -> problems. A kernel of neither gets the first quota for its first dtype."""
MOST = sum(QUOTA.values())


def small(operator: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of the operator's family that are small enough."""
    taken = (problem for problem in problems if takes(operator, problem.geometry))
    return [problem for problem in taken if OPERATORS[operator].flops(problem.geometry) < SMALL]


def chosen(
    implementation: Implementation,
    operator: str,
    problems: Sequence[Problem],
    dtypes: Sequence[str],
    layouts: Sequence[str],
) -> Iterator[tuple[Problem, Variant]]:
    """Of the dtypes and layouts asked for: the first problems that the implementation takes, in its first layout."""
    kernels = [kernel for kernel in implementation.kernels if kernel.operator == operator]
    declared = [d for d in dict.fromkeys(d for kernel in kernels for d in kernel.dtypes) if d in dtypes]
    where = [la for la in dict.fromkeys(la for kernel in kernels for la in kernel.layouts) if la in layouts]
    first = dict.fromkeys(declared[:1], max(QUOTA.values()))
    quota = {dtype: count for dtype, count in QUOTA.items() if dtype in declared} or first
    for dtype, count in quota.items():
        by_problem = ([(p, la) for la in where if _takes(implementation, operator, p, dtype, la)][:1] for p in problems)
        for problem, layout in islice(chain.from_iterable(by_problem), count):
            yield problem, Variant(dtype, layout, DISTRIBUTION)


def _takes(implementation: Implementation, operator: str, problem: Problem, dtype: str, layout: str) -> bool:
    """Whether there is a kernel. A predicate that raises has none, and is reported when its case runs."""
    try:
        return isinstance(implementation.find(operator, problem.geometry, dtype, layout), Kernel)
    except ImplementationError:
        return True
