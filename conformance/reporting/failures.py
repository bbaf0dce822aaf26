"""How a failing case shows: its results, what was raised, and which case is looked at first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache

from conformance.diagnosis.diagnose import AFFORDABLE
from conformance.execution.nondeterminism import DIFFERS
from conformance.operators import OPERATORS, GeometryError, parse, takes
from conformance.problems.table import DECIDING
from conformance.results.schema import Record
from conformance.storage import KINDS, StorageError
from conformance.storage import parse as parse_storage

ORDINARY = frozenset({"integer", "fixed"})
"""Distributions in which every element has about the same part in a result."""
_EDGES = re.compile(r"\b(\w+) (?:= \d+ \((first|last)\)|(at both edges))")
_MISMATCH = re.compile(r"\w+ has (?:shape|dtype) |returned |wrong result \(|results are wrong on plain inputs")
"""How the reason begins where results are wrong and no check of theirs is recorded."""
_RAISED = re.compile(r"raised (.*?)(?: at ((?:(?! at )[^\n])+):(\d+))?\Z", re.DOTALL)
_NUMBERS = re.compile(r"(?:0x[0-9a-f]+|\d[\d.,]*(?:e[-+]?\d+)?)(?:[\s,x:*-]+\d[\d.,]*)*", re.IGNORECASE)
"""A number, an address or a list of sizes."""
_CRASHED = ("crashed: ", "no answer within ")
_NOT_RUN = "not run, crashed "
"""How the reason begins of what ended a kernel's process, and of what was not run because of it."""

Signature = tuple[str, ...]
"""How a case failed, without sizes and values."""
DIFFERENT: Signature = ("differs", "from call to call")


def is_wrong(record: Record) -> bool:
    """Whether results are wrong, or are none that could be compared."""
    return record.status == "fail" and bool(exceeded(record) or _MISMATCH.match(record.reason))


def differs(record: Record) -> bool:
    """Whether results differ from call to call."""
    return record.reason.startswith(DIFFERS)


def is_crash(record: Record) -> bool:
    return record.status == "error" and record.reason.startswith(_CRASHED)


def is_not_run(record: Record) -> bool:
    """Whether a case was left out because others had crashed."""
    return record.reason.startswith(_NOT_RUN)


def is_deciding(record: Record) -> bool:
    """Whether it is of a problem that was run to find out where a kernel fails."""
    return record.problem.startswith(DECIDING)


def is_of_another_dtype(record: Record) -> bool:
    return " has dtype " in record.headline and not record.checks


def by_storage(record: Record) -> bool:
    """Whether a case is right with contiguous operands, so that how they lie in memory is the cause."""
    try:
        kinds = parse_storage(record.storage)
    except StorageError:
        return False
    return any(KINDS[kind].format(operand) in record.causes for operand, kind in kinds.items())


def exceeded(record: Record) -> list[tuple[str, str]]:
    """(Output, check) of the checks that a case did not pass; NaN passes none."""
    return [
        (output, name)
        for output, checks in record.checks.items()
        for name, (value, limit) in checks.items()
        if not abs(float(value)) <= limit
    ]


def locations(record: Record) -> list[str]:
    """Where the wrong elements of each output are."""
    return re.findall(r"^error locations: (.*)", record.reason, re.MULTILINE)


def edges(record: Record) -> Iterator[str]:
    """First, last or both along an axis."""
    for line in locations(record):
        for axis, edge, both in _EDGES.findall(line):
            yield f"{axis} = {edge}" if edge else f"{axis} {both}"


def raised(record: Record) -> tuple[str, str, str] | None:
    """First line of the message, file and line; None where nothing was raised."""
    found = _RAISED.match(record.reason) if record.status == "error" else None
    return (found[1].partition("\n")[0], found[2] or "", found[3] or "") if found else None


def without_numbers(text: str) -> str:
    """The same for all sizes."""
    return _NUMBERS.sub("#", text)


def signature(record: Record) -> Signature:
    """How a case failed. A place in a file and a behaviour check are the same for all operators: what they share is at
    fault."""
    if record.reason.startswith("claimed in "):
        return "claimed", record.status  # the loss of one kernel shows in many ways
    if differs(record):
        return DIFFERENT
    if is_crash(record):
        return "crashed", without_numbers(record.headline)
    if found := raised(record):
        message, *place = found
        return "raised", without_numbers(message), *place
    if record.reason.startswith("when="):
        return "declared", without_numbers(record.headline)  # the same in each check
    if record.check:
        return "check", record.check
    if exceeded(record):
        return record.operator, "elements"  # the locations of one mistake differ from problem to problem
    return record.operator, without_numbers(record.headline)


def is_affordable(record: Record) -> bool:
    """Whether results were compared with the known mistakes."""
    return cost(record.operator, record.descriptor)[0] <= 2 * AFFORDABLE


def size(record: Record) -> tuple[object, ...]:
    """Plain cases before behaviour checks; a short descriptor, of few parameters and small sizes, before few
    operations, because a case is looked at: an axis of 70,001 elements with stride 261 is few operations."""
    plain = (record.storage != "", record.dtype != "fp32", record.layout != "nchw", record.distribution != "fixed")
    variant = (record.dtype, record.layout, record.distribution, record.storage)
    names = (record.descriptor, *variant, record.check, record.reason)
    operations = cost(record.operator, record.descriptor)
    known = math.isinf(operations[0])
    return bool(record.check), known, len(record.descriptor), *operations, sum(plain), *plain, *names


@lru_cache(maxsize=4096)
def cost(operator: str, descriptor: str) -> tuple[float, float]:
    """Operations and input elements; infinite where the problem is not known here."""
    try:
        geometry = parse(descriptor)
    except GeometryError:
        return math.inf, math.inf
    if operator not in OPERATORS or not takes(operator, geometry):
        return math.inf, math.inf
    known = OPERATORS[operator]
    return known.flops(geometry), sum(tensor.size for tensor in known.inputs(geometry).values())
