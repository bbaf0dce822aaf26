"""One line for each kernel: how many of the cases that ran fail, what is wrong and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.diagnosis.where import Where
from conformance.dtypes import dtype_place
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.failures import is_wrong
from conformance.reporting.groups import Group
from conformance.reporting.table import Table, many
from conformance.reporting.tally import RAN, Tally, operator_place

LETTERS = {"pass": "", "fail": "F", "error": "E", "waived": "w", "not run": "n"}
MEANINGS = {"F": "fail", "E": "errors", "w": "waived", "n": "not run, because others crashed"}
"""Letter of a number of cases -> its meaning; those without a letter pass."""
MAX_WHY = 120
"""Largest number of characters about what is wrong, which a kernel may have written."""


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """The verdict on an operator of an implementation.

    operator   empty for a file that cannot be used
    dtypes     those in which a case ran
    counts     status -> cases that ran
    not_run    errors that were never run, because others had crashed
    why        what is wrong, and where, for the failure of most cases; empty if nothing is wrong
    """

    implementation: str
    operator: str
    dtypes: tuple[str, ...]
    counts: Counter[str]
    not_run: int = 0
    why: str = ""

    @property
    def ran(self) -> int:
        """Number of cases that ran."""
        return self.counts.total() - self.not_run

    @property
    def failed(self) -> int:
        """Number of failures and errors among the cases that ran."""
        return self.counts["fail"] + self.counts["error"] - self.not_run

    @property
    def parts(self) -> dict[str, int]:
        """Number of cases by the letters of LETTERS."""
        counts = self.counts + Counter({"not run": self.not_run})
        counts["error"] -= self.not_run
        return {letter: counts[status] for status, letter in LETTERS.items() if counts[status]}

    @property
    def color(self) -> str:
        """Color of the line."""
        return "red" if self.failed else "green" if self.counts["pass"] else "yellow"

    def __str__(self) -> str:
        """`acme conv_forward fp32, bf16: 12 of 131 fail: strides swapped, where stride differs by axis`."""
        if not self.operator:
            return f"{self.implementation}: {self.why}"
        name = " ".join(filter(None, (self.implementation, self.operator, ", ".join(self.dtypes))))
        return f"{name}: {fraction([self])}{self._notes}"

    @property
    def _notes(self) -> str:
        errors = self.counts["error"] - self.not_run
        known = f", {self.not_run:,} not run" * bool(self.not_run) + f" ({many(errors, 'error')})" * bool(errors)
        return known + (f": {self.why}" if self.why else "")


def kernel_verdicts(tally: Tally, groups: Sequence[Group], evidence: RunEvidence) -> list[KernelVerdict]:
    """Return verdicts on all kernels that ran and files that cannot be used, by name. `groups` has the failures."""
    found = []
    for (name, operator), cases in sorted(
        tally.cells.items(), key=lambda item: (item[0][0], operator_place(item[0][1]))
    ):
        counts = Counter({status: cases[status] for status in RAN if cases[status]})
        if counts:
            failing = [
                one for one in groups if name in (one.implementation, *one.also) and operator in (*one.operators, "")
            ]
            why = ""
            with evidence.explaining(f"{name} {operator}".rstrip()):
                why = _why(failing, operator, evidence) if failing else ""
            dtypes = tuple(sorted(tally.dtypes[name, operator], key=dtype_place))
            found.append(KernelVerdict(name, operator, dtypes, counts, tally.not_run[name, operator], why))
    return found


def matrix(verdicts: Sequence[KernelVerdict]) -> Table:
    """Return the table of several verdicts: implementations by operators, the more of them down. A number of cases
    stands below its like."""
    names = sorted({one.implementation for one in verdicts})
    operators = sorted({one.operator for one in verdicts}, key=operator_place)
    cells = {(one.implementation, one.operator): one.parts for one in verdicts}
    turned = len(operators) > len(names)
    down, across = (operators, names) if turned else (names, operators)
    columns = []
    for column in across:
        held = [cells.get((column, row) if turned else (row, column), {}) for row in down]
        used = [letter for letter in LETTERS.values() if any(letter in parts for parts in held)]
        texts = [[f"{parts[letter]}{letter}" if letter in parts else "" for letter in used] for parts in held]
        widths = [max(map(len, part)) for part in zip(*texts, strict=True)]
        columns.append([" ".join(map(str.rjust, part, widths)) if any(part) else "." for part in texts])
    letters = dict.fromkeys(letter for parts in cells.values() for letter in parts)
    note = "; ".join(
        ["cases that pass", *(f"{letter}: {MEANINGS[letter]}" for letter in MEANINGS if letter in letters)]
    )
    head = "operator" if turned else "implementation"
    return Table("", (head, *across), tuple(zip(down, *columns, strict=True)), note=note)


def total(verdicts: Sequence[KernelVerdict]) -> str:
    """Return one line for all verdicts: that of the only kernel, or how many fail."""
    if len(verdicts) == 1:
        return str(verdicts[0])
    wrong = [one for one in verdicts if one.failed]
    cases = fraction(verdicts)
    if not wrong:
        return f"{len(verdicts):,} kernels: {cases}"
    names = ", ".join(f"{one.implementation} {one.operator}".rstrip() for one in wrong[:2])
    more = f" and {len(wrong) - 2:,} more" * (len(wrong) > 2)
    return f"{len(wrong):,} of {len(verdicts):,} kernels fail ({names}{more}): {cases}"


def fraction(verdicts: Sequence[KernelVerdict]) -> str:
    """Return how many of the cases that ran fail; if none does, how many pass."""
    failed, ran = sum(one.failed for one in verdicts), sum(one.ran for one in verdicts)
    waived = sum(one.counts["waived"] for one in verdicts)
    also = f", {waived:,} waived" * bool(waived)
    if failed:
        return f"{failed:,} of {ran:,} fail{also}"
    return f"{ran - waived:,} of {ran:,} pass{also}"


def _why(failing: Sequence[Group], operator: str, evidence: RunEvidence) -> str:
    """Return what is wrong and where, such as `strides swapped, where stride differs by axis`, and the number of other
    kinds; how the smallest case fails, if neither is known."""
    one = failing[0]
    # an exception of several operators has a condition in each of them, or none
    own = [record for record in one.records if record.operator == operator] or one.records
    conditions: Sequence[Where] = one.where or evidence.of(own)
    if one.where and is_wrong(one.smallest):  # the same mistake may show elsewhere in another operator
        conditions = evidence.wrong(one.implementation, operator) or one.where
    where = "; and ".join(f"where {found}" for found in conditions)
    what = one.cause if where else one.text.partition("; if that is meant")[0]  # how to declare it is said below
    if operator and len(what) > MAX_WHY:
        what = f"{what[:MAX_WHY]} ..."
    others = len(failing) - max(1, len(conditions))
    more = f"and {others} other kind{'s' * (others > 1)} of failure" if others > 0 else ""
    return ", ".join(filter(None, (what, where, more)))
