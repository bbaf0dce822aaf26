"""What a run amounts to, computed once from its records: a verdict on each kernel, the matrix, groups of failures,
accuracy, absences and findings. The terminal, the summary in Markdown and the page are renderings of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from conformance.diagnosis.where import Where, evidence_for, named
from conformance.dtypes import dtype_place
from conformance.reporting import accuracy, batches, emulator_counts, modules
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.failures import is_wrong
from conformance.reporting.groups import Group, conditions, group
from conformance.reporting.table import Table, many
from conformance.reporting.tally import ACCEPTS, CONTRADICTS, NOT_VERIFIED, REFUSED, Tally, operator_place
from conformance.results.schema import Record

LETTERS = {"pass": "", "fail": "F", "error": "E", "waived": "w", "not run": "n"}
REASONS = ("implementation", "reason", "cases")
NAMED = 3
"""Largest number of names that are listed; more are only counted."""
MEANINGS = {"F": "fail", "E": "errors", "w": "waived", "n": "not run, because others crashed"}
"""Letter of a number of cases -> its meaning; those without a letter pass."""
TOO_COARSE = "the declared precision allows errors as large as the results"
MAX_WHY = 120
"""Largest number of characters about what is wrong, which a kernel may have written."""


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """The verdict on an operator of an implementation.

    operator   empty for a file that cannot be used
    dtypes     dtypes in which a case ran
    counts     status -> cases that ran
    not_run    cases that were left out, because others had crashed
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
        return self.counts.total()

    @property
    def failed(self) -> int:
        """Number of failures and errors among the cases that ran."""
        return self.counts["fail"] + self.counts["error"]

    @property
    def parts(self) -> dict[str, int]:
        """Number of cases by the letters of LETTERS."""
        counts = self.counts + Counter({"not run": self.not_run})
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
        text = f"{name}: {fraction([self])}"
        text += f", {self.not_run:,} not run" * bool(self.not_run)
        text += f" ({many(self.counts['error'], 'error')})" * bool(self.counts["error"])
        return f"{text}: {self.why}" if self.why else text


class Report:
    """The report of a run, from its tally, its evidence and the records that fail or are errors."""

    def __init__(self, tally: Tally, evidence: RunEvidence, failed: Iterable[Record]) -> None:
        self.tally, self.evidence, self._failed = tally, evidence, failed

    @cached_property
    def groups(self) -> list[Group]:
        """Failures of each implementation, grouped by cause."""
        return group(self._failed, self.evidence)

    @cached_property
    def verdicts(self) -> list[KernelVerdict]:
        """Verdicts on kernels that ran and files that cannot be used: by name, operators in the suite's order."""
        verdicts = []
        for (name, operator), dtypes in sorted(
            self.tally.ran.items(), key=lambda item: (item[0][0], operator_place(item[0][1]))
        ):
            failing = [kind for kind in self.of(name) if operator in (*kind.operators, "")]
            why = ""
            with self.evidence.explaining(f"{name} {operator}".rstrip()):
                why = _why(failing, operator, self.evidence) if failing else ""
            names = tuple(sorted((dtype for dtype, ran in dtypes.items() if dtype and ran), key=dtype_place))
            counts = sum(dtypes.values(), Counter())
            verdicts.append(KernelVerdict(name, operator, names, counts, self.tally.not_run[name, operator], why))
        return verdicts

    def of(self, name: str) -> list[Group]:
        """Return the groups of failures that an implementation has a part in."""
        return [kind for kind in self.groups if name in (kind.implementation, *kind.also)]

    @cached_property
    def matrix(self) -> Table:
        """Number of cases of each kernel by letter (LETTERS), implementations by operators; the longer of the two lists
        makes the rows. Numbers with the same letter are aligned."""
        cells = {(verdict.implementation, verdict.operator): verdict.parts for verdict in self.verdicts}
        names = sorted({name for name, operator in cells if operator})
        operators = sorted({operator for _, operator in cells if operator}, key=operator_place)
        turned = len(operators) > len(names)
        down, across = (operators, names) if turned else (names, operators)
        columns = []
        for column in across:
            kernels = [cells.get((column, row) if turned else (row, column), {}) for row in down]
            used = [letter for letter in LETTERS.values() if any(letter in parts for parts in kernels)]
            texts = [[f"{parts[letter]}{letter}" if letter in parts else "" for letter in used] for parts in kernels]
            widths = [max(map(len, part)) for part in zip(*texts, strict=True)]
            columns.append([" ".join(map(str.rjust, part, widths)) if any(part) else "." for part in texts])
        letters = {letter for (_, operator), parts in cells.items() for letter in parts if operator}
        meanings = [f"{letter}: {meaning}" for letter, meaning in MEANINGS.items() if letter in letters]
        meanings += [".: nothing ran"] * (len(cells) < len(names) * len(operators))
        head = "operator" if turned else "implementation"
        rows = tuple(zip(down, *columns, strict=True))
        return Table("Matrix", (head, *across), rows, note="; ".join(["cases that pass", *meanings]))

    @cached_property
    def accuracy(self) -> Table | None:
        """Accuracy profiles; None if there are none."""
        return accuracy.table(self.tally.profiles)

    @cached_property
    def batches(self) -> Table | None:
        """Batch invariance by implementation and operator; None where nobody looked."""
        return batches.table(self.tally.batches)

    @cached_property
    def devices(self) -> Table | None:
        """Cases and failures of each device; None if all ran on one."""
        heads, places = ("device", "host", "serial number", "cases", "fail", "errors"), self.tally.places
        rows = tuple(
            (*place, f"{cases.total():,}", f"{cases['fail']:,}", f"{cases['error']:,}")
            for place, cases in sorted(places.items())
        )
        return Table("Devices", heads, rows, 3) if len(rows) > 1 else None

    @cached_property
    def counted(self) -> list[Table]:
        """Table of what emulators count; empty if nothing is."""
        return emulator_counts.tables(self.tally.moved)

    @cached_property
    def findings(self) -> list[Table]:
        """Tables of weaker contracts, of reasons with their cases, of unverified outputs, of invalid arguments, of
        batch invariance, and of several devices."""
        weak = tuple(self.tally.weaker())
        heads = ("implementation", "weaker than fp32 in", "operators")
        tables = [Table("Weaker contracts", heads, weak, 3)] if weak else []
        for kind in (NOT_VERIFIED, "waived", "unavailable", CONTRADICTS, ACCEPTS):
            if rows := _reasons(self.tally.reasons[kind], "{}: " + TOO_COARSE if kind == NOT_VERIFIED else "{}"):
                tables.append(Table(kind.capitalize(), REASONS, rows, 2))
        return [*tables, *filter(None, (self.batches, self.devices))]

    @cached_property
    def unsupported(self) -> Table | None:
        """Table of what implementations do not take: operators that they do not have, cases that they do not declare,
        and calls that they refuse. None if there is nothing."""
        missing = self.tally.not_implemented.items()
        none = {name: Counter({", ".join(cases): cases.total()}) for name, cases in missing if cases}
        rows = (
            *_reasons(none, "does not implement {}"),
            *_reasons(self.tally.reasons["unsupported"]),
            *_reasons(self.tally.reasons[REFUSED], f"{REFUSED}: {{}}"),
        )
        return Table("Unsupported", REASONS, rows, 2) if rows else None

    def modules(self, records: Iterable[Record]) -> list[tuple[str, ...]]:
        """Return a row for each torch module, from the record of its own problem (see `modules.row`)."""
        return [
            modules.row(record, self.counts(record.implementation), self.of(record.implementation), self.where)
            for record in records
        ]

    def counts(self, name: str, operator: str = "") -> Counter[str]:
        """Return how many cases ran of an implementation, or of one of its operators, by status."""
        kernels = (dtypes for key, dtypes in self.tally.ran.items() if key[0] == name and operator in ("", key[1]))
        return sum((counts for dtypes in kernels for counts in dtypes.values()), Counter())

    def where(self, failures: Group) -> Sequence[Where]:
        """Return the conditions under which a group fails; empty if none is known."""
        return conditions(failures, self.evidence)

    def heading(self, failures: Group) -> tuple[str, str]:
        """Return the heading of a group: what fails, how and where; and the evidence for where, which is empty if that
        is not known."""
        operators = few([*filter(None, failures.operators)], "operator")
        where = self.where(failures)
        said = f"{failures.text}, where {named(where)}" if where else failures.text
        observed = evidence_for(where, (failures.plainer or failures.smallest).descriptor) if where else ""
        return f"{operators}: {said}" if operators else said, observed


def _reasons(reasons: Mapping[str, Counter[str]], words: str = "{}") -> tuple[tuple[str, ...], ...]:
    """Return rows of implementation, reason in these words, and cases; the commonest reason first."""
    return tuple(
        (name, words.format(why), f"{count:,}")
        for name, counts in sorted(reasons.items())
        for why, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )


def few(names: Sequence[str], noun: str, between: str = ", ") -> str:
    """Return a few names, or how many there are if they are more."""
    return between.join(names) if len(names) <= NAMED else many(len(names), noun)


def total(verdicts: Sequence[KernelVerdict]) -> str:
    """Return one line for all verdicts: that of the only kernel, or how many fail."""
    if len(verdicts) == 1:
        return str(verdicts[0])
    wrong = [verdict for verdict in verdicts if verdict.failed]
    cases = fraction(verdicts)
    if not wrong:
        return f"{len(verdicts):,} kernels: {cases}"
    names = ", ".join(f"{verdict.implementation} {verdict.operator}".rstrip() for verdict in wrong[:2])
    more = f" and {len(wrong) - 2:,} more" * (len(wrong) > 2)
    return f"{len(wrong):,} of {len(verdicts):,} kernels fail ({names}{more}): {cases}"


def fraction(verdicts: Sequence[KernelVerdict]) -> str:
    """Return how many of the cases that ran fail; if none does, how many pass."""
    failed, ran = sum(verdict.failed for verdict in verdicts), sum(verdict.ran for verdict in verdicts)
    waived = sum(verdict.counts["waived"] for verdict in verdicts)
    also = f", {waived:,} waived" * bool(waived)
    if failed:
        return f"{failed:,} of {ran:,} fail{also}"
    return f"{ran - waived:,} of {ran:,} pass{also}"


def _why(failing: Sequence[Group], operator: str, evidence: RunEvidence) -> str:
    """Return what is wrong and where, such as `strides swapped, where stride differs by axis`, and the number of other
    kinds of failure; how the smallest case fails, if neither cause nor condition is known."""
    failures = failing[0]
    # an exception of several operators has a condition in each of them, or none
    records = [record for record in failures.records if record.operator == operator] or failures.records
    conditions: Sequence[Where] = failures.where or evidence.of(records)
    if failures.where and is_wrong(failures.smallest):  # the same mistake may show elsewhere in another operator
        conditions = evidence.wrong(failures.implementation, operator) or failures.where
    where = "; and ".join(f"where {condition}" for condition in conditions)
    # the declaration is shown with the group
    what = failures.cause if where else failures.text.partition("; if that is meant")[0]
    if operator and len(what) > MAX_WHY:
        what = f"{what[:MAX_WHY]} ..."
    other_kinds = len(failing) - max(1, len(conditions))
    more = f"and {other_kinds} other kind{'s' * (other_kinds > 1)} of failure" if other_kinds > 0 else ""
    return ", ".join(filter(None, (what, where, more)))
