"""What somebody wants to know first of a torch module: whether it is right at the shape that it is made for, and at
which others. Two lines for one module, a table for several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from conformance.implementations.modules import KEEPS, UNKNOWN_SHAPE
from conformance.problems.table import OWN
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.failures import is_not_run
from conformance.reporting.groups import Group, located
from conformance.reporting.table import Table
from conformance.results.schema import Record

ANSWERS = {"pass": "yes", "fail": "no", "error": "no", "waived": "no"}
"""Whether a module is right, by the status of its own problem."""
SLOW = "no answer within "
"""How the reason begins where a module is too large for this machine, or hangs."""


def is_own(record: Record) -> bool:
    """Whether a case is the problem that a module is made for, or why there is none."""
    return (record.problem.startswith(OWN) and not record.check) or record.reason.startswith(UNKNOWN_SHAPE)


def rows(
    own: Sequence[Record], cells: Mapping[tuple[str, str], Counter[str]], groups: Sequence[Group], evidence: RunEvidence
) -> Iterator[tuple[str, str, str, str, str]]:
    """Module, whether it is right at its own shape, how often at others, where it fails, and the likely cause. `cells`
    are the cases of every implementation and operator by status."""
    failed = {name: [*found] for name, found in groupby(groups, key=lambda one: one.implementation)}
    for record in sorted(own, key=lambda record: record.implementation):
        name = record.implementation
        counts = sum((found for (owner, _), found in cells.items() if owner == name), Counter[str]())
        counts = counts - Counter([record.status])
        mine = failed.get(name, [])
        left = sum(one.cases for group in mine for one in group.records if is_not_run(one))
        right, of = counts["pass"], sum(counts[status] for status in ANSWERS) - left
        verified = record.status in ANSWERS and not record.reason.startswith(SLOW)
        answer = ANSWERS[record.status] if verified else "not verified"
        answer += ", after a change of its weights" if KEEPS in record.reason else ""
        missing = record.reason.partition(UNKNOWN_SHAPE)[2]
        answer = f"not known: {missing}" if missing else f"{answer} ({record.descriptor}, {record.dtype})"
        # a gradient is often wrong because the forward is
        mine.sort(key=lambda one: not any(operator.endswith("forward") for operator in one.operators))
        others = [one for one in mine if not all(map(is_own, one.records))]
        conditions = (located(one, evidence).partition(": ")[0].removeprefix("fails ") for one in others)
        where = next(filter(None, conditions), "everywhere" if of and not right else "")
        cause = next((one.cause for one in others if one.cause), others[0].text if others else "")
        others_say = f"{right:,} of {of:,} cases" + (f" ({left:,} not run)" if left else "")
        yield name, answer, others_say, where, cause


def lines(found: Sequence[tuple[str, str, str, str, str]]) -> Iterator[str]:
    """Of each module two."""
    for name, answer, others_say, where, _ in found:
        yield f"{name}: right at its own shape: {answer}"
        yield f"{name}: right at other shapes: {others_say}" + (f"; fails {where}" if where else "")


def table(found: Sequence[tuple[str, str, str, str, str]]) -> Table:
    """Of several modules."""
    heads = ("module", "right at its own shape", "right at other shapes", "fails", "likely cause")
    return Table("torch modules", heads, tuple(found), names=5)
