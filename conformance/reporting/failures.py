"""How a failing case shows: wrong results or exceptions, and which case is shown first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from conformance.diagnosis.diagnose import AFFORDABLE
from conformance.failure import Kind
from conformance.operators import OPERATORS, GeometryError, parse, takes
from conformance.results.schema import Record
from conformance.storage import KINDS, StorageError
from conformance.storage import parse as parse_storage

ORDINARY = frozenset({"integer", "fixed"})
"""Distributions in which every element contributes about equally to a result."""

Signature = tuple[str, ...]
"""How a case failed, without sizes and values."""
DIFFERENT: Signature = ("differs", "from call to call")


def has(record: Record, *kinds: Kind) -> bool:
    """Return whether a case failed in one of these ways."""
    return record.failure is not None and record.failure.kind in kinds


def is_wrong(record: Record) -> bool:
    """Return whether results are wrong, or cannot be compared."""
    if record.status != "fail":
        return False
    reported = record.failure is not None and record.failure.on_plain
    return reported or has(record, "elements", "malformed") or bool(exceeded(record))


def differs(record: Record) -> bool:
    """Return whether results differ from call to call, unless a behaviour check reports that beside its own subject."""
    return record.failure is not None and record.failure.kind == "differs" and not record.failure.on_plain


def confused(record: Record) -> tuple[str, ...]:
    """Return the problem and the parameter of two calls that a kernel confused; empty for other failures."""
    return (record.failure and record.failure.confused) or ()


def is_after_calls(record: Record) -> bool:
    """Return whether a behaviour check found wrong results in one of its calls, where a single call is right."""
    return bool(record.check) and has(record, "elements") and not (record.failure and record.failure.on_plain)


def is_crash(record: Record) -> bool:
    """Return whether a kernel's process ended, by itself or because it gave no answer."""
    return record.status == "error" and has(record, "crashed", "hung")


def fails(record: Record) -> bool:
    """Return whether a case has failed; a failure that came once on a device says nothing of the kernel."""
    return record.status in ("fail", "error") and not has(record, "not repeatable")


def is_not_run(record: Record) -> bool:
    """Return whether a case was left out because other cases had crashed."""
    return has(record, "not run")


def is_deciding(record: Record) -> bool:
    """Return whether a record is of a problem that was run to find out where a kernel fails."""
    return record.origin == "where"


def has_no_kernel(record: Record) -> bool:
    """Return whether an implementation has no kernel of the operator at all."""
    return record.undeclared is not None and record.undeclared.kind == "operator"


def other_dtype(record: Record) -> tuple[str, str] | None:
    """Return the message about results of another dtype, and that dtype; None if values were compared."""
    failure = record.failure
    return (failure.message, failure.dtype) if failure and failure.dtype and not record.checks else None


def by_storage(record: Record) -> bool:
    """Return whether a case is right with contiguous operands, so that their storage is the cause."""
    return bool(stored_so(record))


def kinds_of_storage(record: Record) -> dict[str, str]:
    """Return the kind of storage of each operand that has one; empty for a record of another version of the suite."""
    try:
        return parse_storage(record.storage)
    except StorageError:
        return {}


def stored_so(record: Record) -> list[tuple[str, str]]:
    """Return the operands whose storage is the cause of a failure, each with its kind of storage."""
    return [pair for pair in kinds_of_storage(record).items() if KINDS[pair[1]].format(pair[0]) in record.causes]


def exceeded(record: Record) -> list[tuple[str, str]]:
    """Return (output, check) for the checks that a case did not pass; NaN passes none."""
    return [
        (output, name)
        for output, checks in record.checks.items()
        for name, (value, limit) in checks.items()
        if not abs(float(value)) <= limit
    ]


def edges(record: Record) -> Iterator[str]:
    """Yield the axes at whose first or last index, or both, elements are wrong, in words."""
    for elements in record.failure.elements if record.failure else ():
        for axis, edge in elements.edges:
            yield f"{axis} at both edges" if edge == "both" else f"{axis} = {edge}"


def signature(record: Record) -> Signature:
    """Return how a case failed. A place in a file and a behaviour check are the same for all operators: the code that
    they share is at fault."""
    failure = record.failure
    if failure is None:
        return record.operator, record.status
    if failure.kind == "not repeatable":
        return record.operator, failure.kind
    if failure.kind == "golden":
        return "golden", failure.alike  # one command mends them, whatever the operator
    if failure.kind == "claim":
        return "claimed", record.status  # the loss of one kernel shows in many ways
    if differs(record):
        return DIFFERENT
    if is_crash(record):
        return "crashed", failure.alike, failure.file
    if failure.kind == "raised":
        return "raised", failure.alike, failure.file, str(failure.line)
    if failure.kind == "declaration":
        return "declared", failure.alike  # the same in each check
    if record.check:
        return "check", record.check
    if exceeded(record):
        return record.operator, "elements"  # the locations of one mistake differ from problem to problem
    return record.operator, failure.kind, failure.dtype, failure.alike


def is_affordable(record: Record) -> bool:
    """Return whether results were compared with the known mistakes."""
    return cost(record.operator, record.descriptor)[0] <= 2 * AFFORDABLE


def is_a_sum(record: Record) -> bool:
    """Return whether all outputs of the operator are sums of products, rounded once."""
    try:
        geometry = parse(record.descriptor)
    except GeometryError:
        return False
    return OPERATORS[record.operator].errors(geometry).propagate is None


def size(record: Record) -> tuple[object, ...]:
    """Return a sort key: plain cases before behaviour checks; then the shortest descriptors, which have few parameters
    and small sizes; then the fewest operations. People read the case, and a case of few operations can be hard to read:
    an axis of 70,001 elements with stride 261."""
    plain = (record.storage != "", record.dtype != "fp32", record.layout != "nchw", record.distribution != "fixed")
    variant = (record.dtype, record.layout, record.distribution, record.storage)
    names = (record.descriptor, *variant, record.check, record.reason)
    operations = cost(record.operator, record.descriptor)
    unknown_cost = math.isinf(operations[0])
    return bool(record.check), unknown_cost, len(record.descriptor), *operations, sum(plain), *plain, *names


@lru_cache(maxsize=4096)
def cost(operator: str, descriptor: str) -> tuple[float, float]:
    """Return the operations and input elements of a problem; infinite if it is not known here."""
    try:
        geometry = parse(descriptor)
    except GeometryError:
        return math.inf, math.inf
    if operator not in OPERATORS or not takes(operator, geometry):
        return math.inf, math.inf
    workload = OPERATORS[operator].on(geometry)
    return workload.flops, sum(tensor.size for tensor in workload.inputs.values())
