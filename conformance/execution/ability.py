"""What an implementation can be asked: whether it is here, and which cases it has."""

from __future__ import annotations

from conformance.implementations.devices import Unavailable
from conformance.implementations.implementation import Implementation, ImplementationError, Unsupported
from conformance.layouts import is_optional
from conformance.problems import Problem, Variant


def concerns(one: Implementation, operator: str, layout: str) -> bool:
    """Whether an implementation has cases in a layout: in all plain ones, and in others that it declares."""
    return not is_optional(layout) or has_layout(one, operator, layout)


def has_layout(one: Implementation, operator: str, layout: str) -> bool:
    """Whether an implementation declares a layout."""
    return any(layout in kernel.layouts for kernel in one.kernels if kernel.operator == operator)


def takes_case(one: Implementation, operator: str, problem: Problem, variant: Variant) -> bool:
    """Whether a kernel declares that it can be verified on a case. A predicate that raises is reported elsewhere."""
    try:
        kernel = one.find(operator, problem.geometry, variant.dtype, variant.layout)
    except (Unsupported, ImplementationError):
        return False
    return not kernel.contract.exempts(variant.distribution, variant.dtype)


def absence_reason(implementation: Implementation) -> str | None:
    """Why an implementation cannot run here; None if it can."""
    try:
        implementation.require()
    except Unavailable as absence:
        return str(absence)
    return None
