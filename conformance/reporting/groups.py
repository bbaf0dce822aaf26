"""Failures grouped by their probable cause, for the end of a run, the Markdown summary and the page.

One mistake fails on hundreds of problems. Wrong results of an operator are one group if one condition separates all of
them from passing cases (`conformance.reporting.evidence`), two if it takes two; without a condition they are grouped by
the mistakes that explain them (`naming.py`), and then by how they show, without sizes and values.

A failure that has no group by itself is attributed to one only if that is unlikely to hide another mistake:

- wrong elements, to a mistake that explains another case of the operator on the same problem: a mistake can affect
  infinities or rounding differently;
- wrong elements on a problem too large for diagnosis, to the mistake that explains most cases of the operator;
- a behaviour check that ends in a wrong result, to the group of the same problem, or else to the largest of the
  operator: a kernel that is wrong on plain inputs cannot pass the check;
- cases that were not run because of crashes, to these crashes;
- results of another dtype, to the mistake that explains others of that dtype: no mistake explains an empty batch;
- any other failure of an operator whose results differ from call to call, to that difference.

An exception is never attributed, nor are wrong elements that no known mistake explained when they were compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from conformance.diagnosis.diagnose import BITS_LOST, GENERAL, specific
from conformance.diagnosis.traits import options
from conformance.diagnosis.where import Where, said
from conformance.failure import WrongElements
from conformance.judge.accuracy import contradicted, shows
from conformance.operators import parse
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.failures import (
    DIFFERENT,
    Signature,
    by_storage,
    confused,
    differs,
    edges,
    exceeded,
    has,
    is_a_sum,
    is_affordable,
    is_after_calls,
    is_crash,
    is_deciding,
    is_not_run,
    is_wrong,
    other_dtype,
    signature,
    size,
    stored_so,
)
from conformance.reporting.naming import NAMED, explains, in_words, named
from conformance.reporting.table import many
from conformance.results.schema import Record
from conformance.storage import blamed

STATISTICS = frozenset({"rms", "gain z", "offset z"})
"""Checks of all elements together: each element by itself may be within its bound."""
ALIKE = {
    "gain z": "as by a factor near 1 or rounding towards zero",
    "offset z": "as by a constant or rounding in one direction",
}
"""Check -> a description of errors that only this check detects."""
COMMON = 0.8
"""Least share of a group's cases that have what its text says of all; least share of cases that two groups must have in
common to be merged."""
ALONE = "; right alone in a new process: it depends on the calls before"
"""Addition to the text of wrong results that are right when they run alone."""
MAX_TEXT = 200
"""Largest number of characters of a kernel's message that are shown."""


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of an implementation that probably have one cause.

    cause        the known mistake that explains them; empty if none does
    text         the cause, or how the smallest case failed
    records      first the smallest case that no other mistake explains as well as the cause; then the other cases of
                 the group, and last those attributed to it
    plainer      a smaller case, which other mistakes explain as well
    cases        number of cases of the level, without the problems that were run to locate the failure
    attributed   number of these cases that are attributed
    operators    operators of the cases, the one with most cases first
    where        the condition that separates the wrong results from passing cases, or two, if conditions make the group
    also         other implementations of the same file that fail in the same way on the same problem
    """

    implementation: str
    cause: str
    text: str
    records: list[Record]
    cases: int
    attributed: int
    operators: tuple[str, ...]
    where: tuple[Where, ...] = ()
    also: tuple[str, ...] = ()
    plainer: Record | None = None

    @property
    def title(self) -> str:
        """Cause, or operators and how the smallest case failed, on one line."""
        if self.cause or not any(self.operators):
            return self.text
        more = len(self.operators) - 2
        shown = [*self.operators[:2], f"{more} more operators"] if more > 1 else self.operators
        return f"{', '.join(shown)}: {self.text}"

    @property
    def counted(self) -> str:
        """Number of cases, and the other implementations that have them."""
        fails = many(self.cases, "case") if self.cases else f"only in {many(len(self.records), 'more problem')}"
        return fails + (f", also of {', '.join(self.also)}" if self.also else "")

    @property
    def smallest(self) -> Record:
        return self.records[0]

    @property
    def shown(self) -> str:
        """The case that is shown, in words, and a plainer one; empty for a file that cannot be used."""
        case = described(self.smallest)
        if self.plainer is None:
            return f"smallest case: {case}" if case else ""
        return f"smallest case that no other mistake explains: {case}; of all: {described(self.plainer)}"

    @property
    def command(self) -> str:
        """Command that reproduces the failure: if results differ from call to call, that of a failed check that makes
        several calls, if there is one, as the smallest case may pass in a new process."""
        checks = [record for record in self.records if record.check == "calls_in_a_row_are_right"]
        return (checks[0] if checks and differs(self.smallest) else self.smallest).command


def group(records: Iterable[Record], evidence: RunEvidence | None = None) -> list[Group]:
    """Group the records that fail or are errors, by implementation: first those that differ from call to call, then the
    groups with most cases.

    `evidence` is the run's, by default that of the records. The order of the records has no effect.
    """
    records = [*records]
    evidence = RunEvidence(records) if evidence is None else evidence
    failing: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.status in ("fail", "error"):
            failing[record.implementation].append(record)
    groups: list[Group] = []
    for name, failures in sorted(failing.items()):
        with evidence.explaining(f"{name}: {described(failures[0])}"):
            groups += _of_implementation(sorted(failures, key=size), evidence)
            continue
        groups.append(_ungrouped(failures))
    return _together(groups)


def amount(groups: list[Group]) -> str:
    """Return the numbers of likely causes, of kinds of failure without a known cause, and of cases, in words."""
    causes = sum(bool(group.cause) for group in groups)
    other_kinds = len(groups) - causes
    words = [many(causes, "likely cause")] if causes else []
    words += (
        [f"{other_kinds} {'other ' * bool(causes)}kind{'s' * (other_kinds != 1)} of failure"] if other_kinds else []
    )
    cases = sum(group.cases for group in groups)
    return f"{', '.join(words)}, {many(cases, 'case')}"


def described(record: Record) -> str:
    """Return a case in words, e.g. "n1 c8 h9 w9 k16 r1 s1 (fp32 nchw fixed)"; empty for a file that cannot be used."""
    variant = " ".join(filter(None, (record.dtype, record.layout, record.check or record.distribution, record.storage)))
    return " ".join(filter(None, (record.descriptor or record.problem, f"({variant})" if variant else "")))


def conditions(failures: Group, evidence: RunEvidence) -> Sequence[Where]:
    """Return the conditions under which a group fails; empty if the evidence shows none."""
    return failures.where or evidence.of(failures.records)


def located(failures: Group, evidence: RunEvidence) -> str:
    """Return in one line where a group fails, and the evidence for that."""
    return said(conditions(failures, evidence), (failures.plainer or failures.smallest).descriptor)


def _of_implementation(records: list[Record], evidence: RunEvidence) -> list[Group]:
    """Return groups of an implementation's failures, given plain cases first, then behaviour checks, each by size."""
    sorting = _Sorting(evidence)
    random = {record.operator for record in records if differs(record)}
    parts: defaultdict[tuple[str, Where | None], list[Record]] = defaultdict(list)
    rest = []
    for record in records:
        wrongly = is_wrong(record)
        if wrongly and record.operator in random:
            sorting.put(record, DIFFERENT, attributed=not differs(record))
        elif wrongly and not record.check and not by_storage(record):
            conditions = evidence.wrong(record.implementation, record.operator)
            parts[
                record.operator, next((condition for condition in conditions if evidence.has(record, condition)), None)
            ].append(record)
        else:
            rest.append(record)
    for (operator, where), part in parts.items():
        rest += sorting.part(operator, where, part)
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for operand, kind in chain.from_iterable(map(stored_so, rest)):
        kinds[operand].add(kind)

    def storages_blamed(record: Record) -> list[str]:
        return [blamed(operand, kind, kinds[operand]) for operand, kind in stored_so(record)]

    stored = Counter(chain.from_iterable(map(storages_blamed, rest)))
    crash = next((signature(record) for record in rest if is_crash(record)), None)
    for record in sorted(rest, key=size):
        if names := storages_blamed(record):
            sorting.explain(record, (max(names, key=lambda name: stored[name]),))
        elif is_not_run(record) and crash:
            sorting.put(record, crash, attributed=True)
        elif is_wrong(record) and not confused(record):
            sorting.attribute(record)
        else:
            sorting.put(record, signature(record))
    groups = _with_confused(sorting.groups())
    return sorted(groups, key=lambda group: (not differs(group.smallest), -group.cases, not group.cause, group.title))


def _with_confused(groups: Sequence[Group]) -> Iterator[Group]:
    """Yield the groups; merge wrong results that depend on earlier calls into the group of calls that the kernel
    confuses: a behaviour check has identified these calls, and the parameter in which they differ. The others pass
    where they are run alone."""
    confusing = {group.smallest.operator: group for group in groups if confused(group.smallest)}

    def is_part(group: Group) -> bool:
        first = group.smallest
        is_beside = confusing.get(first.operator, group) is not group
        return is_beside and (group.text.endswith(ALONE) or is_after_calls(first))

    parts_of = defaultdict[str, list[Group]](list)
    for group in groups:
        if is_part(group):
            parts_of[group.smallest.operator].append(group)
    for group in groups:
        if not is_part(group):
            parts = parts_of[group.smallest.operator] if confused(group.smallest) else []
            yield replace(
                group,
                records=group.records + [record for part in parts for record in part.records],
                cases=group.cases + sum(part.cases for part in parts),
                attributed=group.attributed + sum(part.cases for part in parts),
            )


class _Sorting:
    """Failures of an implementation by the key of their group: the mistakes that explain them, or how they show."""

    def __init__(self, evidence: RunEvidence) -> None:
        self._evidence = evidence
        self._records: defaultdict[Signature, list[Record]] = defaultdict(list)
        self._attributed: defaultdict[Signature, list[Record]] = defaultdict(list)
        self._causes: dict[Signature, str] = {}
        self._conditions: dict[Signature, dict[Where, str]] = {}
        self._explained: defaultdict[tuple[str, str], Counter[Signature]] = defaultdict(Counter)
        self._wrong: defaultdict[tuple[str, str], Counter[Signature]] = defaultdict(Counter)
        """(operator, problem) -> groups of wrong results there, with counts; an empty problem stands for all."""
        self._dtypes: dict[tuple[str, tuple[str, str] | None], Signature] = {}
        """(operator, message and dtype of results of another dtype) -> group of the mistake that explains some."""

    def put(self, record: Record, key: Signature, attributed: bool = False) -> None:
        (self._attributed if attributed else self._records)[key].append(record)

    def explain(self, record: Record, names: tuple[str, ...]) -> None:
        """Put a case into the group of these mistakes."""
        self._causes[names] = in_words(names)
        self.put(record, names)

    def part(self, operator: str, where: Where | None, records: list[Record]) -> list[Record]:
        """Put wrong results of an operator that have one condition, or none, into groups; return those that none of the
        mistakes named for them explains."""
        unexplained = []
        mistakes = named(records)
        if where and len(mistakes) > 1:  # mistakes that explain parts share one condition: one group
            together = tuple(chain.from_iterable(mistakes))
            mistakes = [together] if len(together) <= NAMED else mistakes[:1]
        for record in records:
            explaining = next((names for names in mistakes if explains(names, record.causes)), None)
            names = explaining or (mistakes[0] if mistakes and where else None)
            key = names or ((operator, "elements", str(where)) if where else signature(record))
            if mistakes and not names:
                unexplained.append(record)
                continue
            if names:
                self._causes[names] = in_words(names)
            if where:
                conditions = self._conditions.setdefault(key, {})
                # the same mistake has another condition in another operator
                if operator in conditions.values() or not conditions:
                    conditions[where] = operator
            self.put(record, key, attributed=names is not None and explaining is None)
            if explaining and (dtype := other_dtype(record)):
                self._dtypes[operator, dtype] = key
            for places in (self._wrong, *([self._explained] if explaining else [])):
                places[operator, record.descriptor][key] += 1
                places[operator, ""][key] += 1
        return unexplained

    def attribute(self, record: Record) -> None:
        """Put a wrong result into a group of its problem, or else of its operator, as the module's docstring says."""
        places = self._wrong if record.check else self._explained
        counts = places.get((record.operator, record.descriptor))
        if not counts and (record.check or not is_affordable(record)):
            counts = places.get((record.operator, ""))
        attributed_to = (
            counts.most_common(1)[0][0] if counts else self._dtypes.get((record.operator, other_dtype(record)))
        )
        key = attributed_to or signature(record)
        self.put(record, key, attributed=attributed_to is not None)
        if not record.check:
            self._wrong[record.operator, record.descriptor][key] += 1
            self._wrong[record.operator, ""][key] += 1

    def groups(self) -> list[Group]:
        """Return the groups of all failures that were put so far."""
        return [self._group(key, sorted(records, key=size)) for key, records in self._records.items()]

    def _group(self, key: Signature, records: list[Record]) -> Group:
        attributed, cause, cases = self._attributed[key], self._causes.get(key, ""), Counter[str]()
        passed = self._evidence.passed(records[0])
        reading = next((record.reading for record in records if record.reading), "")
        if reading and GENERAL.issuperset(key) and cause != BITS_LOST.name:
            cause = ""  # a reading of the case says more than a general mistake
        text = cause or _text(records, passed, [*self._conditions.get(key, ())])
        if reading and cause == BITS_LOST.name:
            text += f" ({reading})"
        shown = next(
            (
                record
                for record in records  # a case that no other mistake explains as well
                if cause and record.causes and all(explains(key, (name,)) for name in specific(record.causes))
            ),
            records[0],
        )
        for record in (*records, *attributed):
            cases[record.operator] += _cases(record)
        is_right_alone = any(is_deciding(record) and record.case == shown.case for record in passed)
        return Group(
            implementation=records[0].implementation,
            cause=cause,
            text=text + (ALONE if is_right_alone else ""),
            records=[shown, *(record for record in records if record is not shown), *sorted(attributed, key=size)],
            plainer=None if shown is records[0] else records[0],
            cases=cases.total(),
            attributed=sum(map(_cases, attributed)),
            operators=tuple(name for name, _ in cases.most_common()),
            where=(*self._conditions.get(key, ()),),
        )


def _ungrouped(records: list[Record]) -> Group:
    """Return all failures of an implementation as one group, named by the first, if the search for causes failed."""
    cases: Counter[str] = Counter()
    for record in records:
        cases[record.operator] += _cases(record)
    first = records[0]
    return Group(first.implementation, "", first.headline, records, cases.total(), 0, (*cases,))


def _cases(record: Record) -> int:
    """Return the number of cases of the level that a record stands for."""
    return 0 if is_deciding(record) else record.cases


def _together(groups: list[Group]) -> list[Group]:
    """Merge the groups of variants of one file that fail alike, from the same smallest problem on."""
    first: dict[tuple[object, ...], int] = {}
    merged: list[Group] = []
    for group in groups:
        smallest = group.smallest
        same = (
            smallest.source,
            group.title,
            smallest.operator,
            smallest.descriptor,
            smallest.dtype,
            smallest.distribution,
        )
        place = first.setdefault(same, len(merged)) if smallest.source and smallest.descriptor else len(merged)
        if place == len(merged) or not _alike(group, merged[place]):
            merged.append(group)
        else:
            earlier = merged[place]
            merged[place] = replace(
                earlier,
                records=earlier.records + group.records,
                cases=earlier.cases + group.cases,
                attributed=earlier.attributed + group.attributed,
                also=(*earlier.also, group.implementation),
            )
    return merged


def _alike(group: Group, other: Group) -> bool:
    """Return whether two groups consist of nearly the same cases."""
    first, second = (
        {(r.operator, r.descriptor, r.dtype, r.layout, r.distribution, r.check) for r in group.records}
        for group in (group, other)
    )
    return len(first & second) >= COMMON * len(first | second)


def _text(records: list[Record], passed: Sequence[Record], where: Sequence[Where]) -> str:
    """Return on one line how the cases of a group failed: the first one's message, or what all have in common."""
    first = records[0]
    if first.failure and first.failure.kind == "raised":
        message, file = first.failure.message, first.failure.file
        place = f" at {file.replace(chr(92), '/').rpartition('/')[2]}:{first.failure.line}" if file else ""
        return f"raised {message if len(message) <= MAX_TEXT else message[:MAX_TEXT] + ' ...'}{place}"
    if differs(first):
        return first.headline
    if first.failure and first.failure.kind == "golden" and len(entries := {record.headline for record in records}) > 1:
        return f"{len(entries):,} {first.failure.message}"
    if first.check and not has(first, "claim"):
        return f"{first.check}: {first.headline}"
    beyond = [(record, output, check) for record in records for output, check in exceeded(record)]
    if not beyond:
        return first.headline
    wrong = dict.fromkeys(output for _, output, _ in beyond)
    right = dict.fromkeys(output for record in records for output in record.checks if output not in wrong)
    outputs = ", ".join(wrong) + (f" (not {', '.join(right)})" if right else "")
    checks = dict.fromkeys(check for _, _, check in beyond)
    if STATISTICS.issuperset(checks):
        only = ALIKE.get(next(iter(checks)), "") if len(checks) == 1 else ""
        said = f"{outputs}: {', '.join(checks)} too large"
        return ", ".join(filter(None, (said, only or _precision(records, passed, where))))
    if reading := next((record.reading for record in records if record.reading), ""):
        return f"{outputs}: {reading}{'' if ' at ' in reading else _edges(records)}"
    return ", ".join(filter(None, (f"{outputs}: {_elements(records)}", _precision(records, passed, where))))


def _elements(records: Sequence[Record]) -> str:
    """Return what the wrong elements of nearly all cases have in common, in words."""
    outputs = [
        output for record in records if record.failure for output in record.failure.elements if output.mismatched
    ]

    def nearly_all(are: Callable[[WrongElements], bool]) -> bool:
        return bool(outputs) and sum(map(are, outputs)) >= COMMON * len(outputs)

    if nearly_all(lambda output: output.every):
        return "every element is NaN" if nearly_all(lambda output: output.nan == "all") else "every element mismatched"
    are_nan = nearly_all(lambda output: bool(output.nan))
    return f"elements {'are NaN' if are_nan else 'mismatched'}{_edges(records)}"


def _edges(records: Sequence[Record]) -> str:
    """Return the first and last indices at which the wrong elements of nearly all cases are, in words."""
    counts = Counter(edge for record in records for edge in set(edges(record)))
    places = sorted(edge for edge, count in counts.items() if count >= COMMON * len(records))
    return f" at {', '.join(places)}" if places else ""


def _is_on_option(where: Sequence[Where], record: Record) -> bool:
    """Return whether a condition names an option of the operator, such as a residual or gelu: an arithmetic of sums
    would show without it too. A kernel with another function in the place of gelu was offered sums in fp16."""
    present = options(parse(record.descriptor)) if where else set[str]()
    return any(literal.name in present for region in where for literal in region.condition)


def _precision(records: list[Record], passed: Iterable[Record], where: Sequence[Where]) -> str:
    """Return the first known arithmetic in which all failing cases would pass that were compared with it, and how it is
    declared; empty if there is none. If passing cases are more precise, or the condition of the failures names an
    option, the arithmetic is named only for failures that have a condition, and without the declaration, which would
    hide these failures."""
    judged = [record for record in records if record.failure and record.failure.fits is not None]
    fits = [record.failure.fits for record in judged if record.failure and record.failure.fits is not None]
    dtypes = {record.dtype for record in judged}
    passing = [record for record in passed if record.dtype in dtypes]
    precise = [rank for record in passing for rank in _ranks(record)]
    common = [precision for precision in fits[0] if all(precision in fitting for fitting in fits)] if fits else []
    hint = next(
        (precision for precision in common if not contradicted(precision[0], precise, len(judged), len(passing))), None
    )
    if hint and not _is_on_option(where, records[0]):
        return f"errors as large as with {hint[0]}; if that is meant, declare {hint[1]}"
    alone = common and where and is_a_sum(records[0])  # other errors of non-sums are as small
    return f"errors as large as with {common[0][0]}, under this condition alone" if alone else ""


def _ranks(record: Record) -> Iterator[int]:
    """Yield the ranks among known precisions that the errors of a case show, for outputs that can show them."""
    for output, profile in record.profile.items():
        if shows(record.dtype, record.terms.get(output, 0)):
            yield profile.inferred.rank
