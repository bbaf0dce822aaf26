"""Answers about a torch module: whether it is right at the shape that it is made for, and at which other shapes. Lines
for one module, a table for several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from conformance.diagnosis.where import Where, named
from conformance.operators import parse
from conformance.reporting.failures import has, is_not_run
from conformance.reporting.groups import Group
from conformance.reporting.table import Table
from conformance.results.schema import CaseRecord, Record

ANSWERS = {"pass": "yes", "fail": "no", "error": "no", "waived": "no"}
"""Status of a module's own problem -> whether the module is right there."""
NO_TIME = "-"


def is_own(record: Record) -> bool:
    """Return whether a record is of the problem that a module is made for, or says why there is none."""
    unknown = record.undeclared is not None and record.undeclared.kind == "shape"
    return unknown or (record.origin == "own" and not record.check)


def row(
    record: Record,
    counts: Counter[str],
    groups: Sequence[Group],
    where: Callable[[Group], Sequence[Where]],
) -> tuple[str, ...]:
    """Return a row of the table: module, whether it is right at its own shape (that of `record`), how often at others,
    where it fails, the likely cause, and its time over its reference's. `counts` are its cases that ran, by
    status."""
    counts = counts - Counter([record.status])
    not_run = sum(record.cases for group in groups for record in group.records if is_not_run(record))
    right, of = counts["pass"], sum(counts[status] for status in ANSWERS)
    # a gradient is often wrong because the forward result is
    ordered = sorted(groups, key=lambda group: all("backward" in operator for operator in group.operators))
    elsewhere = [group for group in ordered if not all(map(is_own, group.records))]
    condition = next(filter(None, map(where, elsewhere)), ())
    said = f"where {named(condition)}" if condition else "everywhere" if of and not right else ""
    cause = next((group.cause for group in elsewhere if group.cause), elsewhere[0].text if elsewhere else "")
    others_say = f"{right:,} of {of:,} cases" + (f" ({not_run:,} not run)" if not_run else "")
    return record.implementation, _at_its_own(record), others_say, said, cause, _time(record)


def _at_its_own(record: Record) -> str:
    """Return in words whether the module is right at its own shape."""
    if record.undeclared is not None:
        return f"not known: {record.undeclared.what}"
    verified = record.status in ANSWERS and not has(record, "hung")  # a hung case may be too large for this machine
    answer = ANSWERS[record.status] if verified else "not verified"
    answer += ", after a change of its weights" if has(record, "state") else ""
    why = "" if verified else f": {record.headline}"
    smaller = ""
    if record.problem != record.descriptor.replace(" ", "_"):
        smaller = f", of {_more(parse(record.problem.replace('_', ' ')), parse(record.descriptor))}"
    return f"{answer} ({record.descriptor}, {record.dtype}{smaller}){why}"


def _more(whole: Any, part: Any) -> str:
    """Return in words what a module's whole problem has more of than the part that is verified."""
    if whole.rank:
        return f"a batch of {whole.n}"
    return f"a batch of {whole.groups}" if whole.groups != part.groups else f"{whole.n} rows"


def _time(record: Record) -> str:
    """Return the time over the reference's, with its 95% interval; no number if the machine does not allow one."""
    measured = record.module_time if isinstance(record, CaseRecord) else None
    if measured is None:
        return NO_TIME
    if measured.machine.state == "unusable":
        return "unstable machine"
    from conformance.timing.measurement import ratio  # most runs have no torch modules
    from conformance.timing.table import bounded

    over = ratio(measured.module_s, measured.reference_s)
    return bounded(over.value, over.interval)


def lines(name: str, answer: str, others_say: str, where: str, cause: str, time: str) -> Iterator[str]:
    """Yield the lines on one module."""
    why = f"; fails {where}" if where else f"; likely cause: {cause}" if cause else ""
    yield f"{name}: right at its own shape: {answer}"
    yield f"{name}: right at other shapes: {others_say}{why}"
    if time != NO_TIME:
        yield f"{name}: time over its reference's: {time}"


def table(rows: Iterable[tuple[str, ...]]) -> Table:
    """Return the table of several modules."""
    heads = ("module", "right at its own shape", "right at other shapes", "fails", "likely cause", "time / reference's")
    return Table("Torch modules", heads, tuple(sorted(rows)), names=6)
