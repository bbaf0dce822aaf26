"""Failures grouped by what probably causes them, for the end of a run, the Markdown summary and the page.

One mistake fails on hundreds of problems. Wrong results of an operator are one group where one condition tells all of
them from what passes (`conformance.reporting.evidence`), two where it takes two; without a condition they are grouped
by what explains them (`naming.py`), and then by how they show, with sizes and values left out of the comparison.

A failure that has no group by itself is attributed to one only where that hardly hides another mistake:

- wrong elements, to a mistake that explains another case of the operator on the same problem: what a mistake does to
  infinities or rounding can differ;
- wrong elements on a problem too large for diagnosis, to the mistake that explains most cases of the operator;
- a behaviour check that ends in a wrong result, to the group of the same problem, else to the largest of the operator:
  a kernel that is wrong on plain inputs cannot pass it;
- what was not run because of crashes, to these;
- results of another dtype, to the mistake that explains others of that dtype: of an empty batch none is explained;
- whatever else is wrong on an operator whose results differ from call to call, to that.

What was raised is never attributed, nor are wrong elements that were compared with the known mistakes in vain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from conformance.diagnosis.diagnose import GENERAL, specific
from conformance.diagnosis.where import Where, said
from conformance.failure import WrongElements
from conformance.judge.accuracy import contradicted, shows
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.failures import (
    DIFFERENT,
    Signature,
    by_storage,
    differs,
    edges,
    exceeded,
    has,
    is_a_sum,
    is_affordable,
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
"""Checks of all elements together: each by itself may be within its bound."""
ALIKE = {
    "gain z": "as by a factor near 1 or rounding towards zero",
    "offset z": "as by a constant or rounding in one direction",
}
"""What errors are like that no check but this one sees."""
COMMON = 0.8
"""Share of its cases that must have what a group is said to have, and of the cases of two groups that are one."""
ALONE = "; right alone in a new process: it depends on the calls before"
"""What is said of wrong results that are."""
MAX_TEXT = 200
"""Characters of what a kernel raised."""


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of an implementation that probably have one cause.

    cause        the known mistake that explains them; empty where none does
    text         the cause, or how the smallest case failed
    records      the smallest case first that no other mistake explains as well as the cause; those that the group is
                 of before those attributed to it
    plainer      a smaller case, which others explain as well
    cases        of the level, without the problems that were run to find out where it fails
    attributed   how many of the cases are attributed
    operators    those of most cases first
    where        the condition that tells the wrong results from what passes, or two, where they make the group
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
        """One line: the cause, or the operators and how the smallest case failed."""
        if self.cause or not any(self.operators):
            return self.text
        more = len(self.operators) - 2
        shown = [*self.operators[:2], f"{more} more operators"] if more > 1 else self.operators
        return f"{', '.join(shown)}: {self.text}"

    @property
    def counted(self) -> str:
        """Its cases, and who else has them."""
        fails = many(self.cases, "case") if self.cases else f"only in {many(len(self.records), 'more problem')}"
        return fails + (f", also of {', '.join(self.also)}" if self.also else "")

    @property
    def smallest(self) -> Record:
        return self.records[0]

    @property
    def shown(self) -> str:
        """The case that is shown, in words, and a plainer one; empty of a file that cannot be used."""
        case = described(self.smallest)
        if self.plainer is None:
            return f"smallest case: {case}" if case else ""
        return f"smallest case that no other mistake explains: {case}; of all: {described(self.plainer)}"

    @property
    def command(self) -> str:
        """What reproduces it: where results differ from call to call a check that makes the calls before, if one has
        failed, as the smallest case may pass in a new process."""
        checks = [record for record in self.records if record.check == "calls_in_a_row_are_right"]
        return (checks[0] if checks and differs(self.smallest) else self.smallest).command


def group(records: Iterable[Record], evidence: RunEvidence | None = None) -> list[Group]:
    """Groups of the records that fail or are errors, by implementation: what differs from call to call, then those of
    most cases first.

    `evidence` is that of the run, by default of the records. The order of the records changes nothing.
    """
    records = [*records]
    evidence = RunEvidence(records) if evidence is None else evidence
    failing: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.status in ("fail", "error"):
            failing[record.implementation].append(record)
    found: list[Group] = []
    for name, mine in sorted(failing.items()):
        with evidence.explaining(f"{name}: {described(mine[0])}"):
            found += _of_implementation(sorted(mine, key=size), evidence)
            continue
        found.append(_ungrouped(mine))
    return _together(found)


def amount(groups: list[Group]) -> str:
    """Likely causes, kinds of failure without a known cause, and cases."""
    causes = sum(bool(found.cause) for found in groups)
    others = len(groups) - causes
    words = [many(causes, "likely cause")] if causes else []
    words += [f"{others} {'other ' * bool(causes)}kind{'s' * (others != 1)} of failure"] if others else []
    cases = sum(found.cases for found in groups)
    return f"{', '.join(words)}, {many(cases, 'case')}"


def described(record: Record) -> str:
    """A case in words, e.g. "n1 c8 h9 w9 k16 r1 s1 (fp32 nchw fixed)"; empty for a file that could not be used."""
    variant = " ".join(filter(None, (record.dtype, record.layout, record.check or record.distribution, record.storage)))
    return " ".join(filter(None, (record.descriptor or record.problem, f"({variant})" if variant else "")))


def conditions(one: Group, evidence: RunEvidence) -> Sequence[Where]:
    """Where a group fails; empty where the evidence does not tell."""
    return one.where or evidence.of(one.records)


def located(one: Group, evidence: RunEvidence) -> str:
    """The same in one line, with what was seen."""
    return said(conditions(one, evidence), (one.plainer or one.smallest).descriptor)


def _of_implementation(records: list[Record], evidence: RunEvidence) -> list[Group]:
    """Groups of one implementation's failures, given plain cases first and then behaviour checks, each by size."""
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
            parts[record.operator, next((one for one in conditions if evidence.has(record, one)), None)].append(record)
        else:
            rest.append(record)
    for (operator, where), part in parts.items():
        rest += sorting.part(operator, where, part)
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for operand, kind in chain.from_iterable(map(stored_so, rest)):
        kinds[operand].add(kind)

    def by_how_it_lies(record: Record) -> list[str]:
        return [blamed(operand, kind, kinds[operand]) for operand, kind in stored_so(record)]

    stored = Counter(chain.from_iterable(map(by_how_it_lies, rest)))
    crash = next((signature(record) for record in rest if is_crash(record)), None)
    for record in sorted(rest, key=size):
        if names := by_how_it_lies(record):
            sorting.explain(record, (max(names, key=lambda name: stored[name]),))
        elif is_not_run(record) and crash:
            sorting.put(record, crash, attributed=True)
        elif is_wrong(record):
            sorting.attribute(record)
        else:
            sorting.put(record, signature(record))
    return sorted(sorting.groups(), key=lambda one: (not differs(one.smallest), -one.cases, not one.cause, one.title))


class _Sorting:
    """Failures of an implementation by what their group is known by: the mistakes that explain it, or how it shows."""

    def __init__(self, evidence: RunEvidence) -> None:
        self._evidence = evidence
        self._held: defaultdict[Signature, list[Record]] = defaultdict(list)
        self._attributed: defaultdict[Signature, list[Record]] = defaultdict(list)
        self._causes: dict[Signature, str] = {}
        self._conditions: dict[Signature, dict[Where, str]] = {}
        self._explained: defaultdict[tuple[str, str], Counter[Signature]] = defaultdict(Counter)
        self._wrong: defaultdict[tuple[str, str], Counter[Signature]] = defaultdict(Counter)
        """Operator and problem -> groups of wrong results there, and how often; of every problem under an empty one."""
        self._dtypes: dict[tuple[str, tuple[str, str] | None], Signature] = {}
        """Operator and what is said of results of another dtype -> the group of the mistake that explains some."""

    def put(self, record: Record, key: Signature, attributed: bool = False) -> None:
        (self._attributed if attributed else self._held)[key].append(record)

    def explain(self, record: Record, names: tuple[str, ...]) -> None:
        """Put a case to those that these mistakes explain."""
        self._causes[names] = in_words(names)
        self.put(record, names)

    def part(self, operator: str, where: Where | None, records: list[Record]) -> list[Record]:
        """Put wrong results of an operator that have one condition, or none; those that are left over belong to no
        mistake of theirs."""
        left = []
        every = named(records)
        if where and len(every) > 1:  # what several mistakes explain in parts has one condition: one of them
            together = tuple(chain.from_iterable(every))
            every = [together] if len(together) <= NAMED else every[:1]
        for record in records:
            explaining = next((names for names in every if explains(names, record.causes)), None)
            names = explaining or (every[0] if every and where else None)
            key = names or ((operator, "elements", str(where)) if where else signature(record))
            if every and not names:
                left.append(record)
                continue
            if names:
                self._causes[names] = in_words(names)
            if where:
                known = self._conditions.setdefault(key, {})
                if operator in known.values() or not known:  # the same mistake in another operator has one of its own
                    known[where] = operator
            self.put(record, key, attributed=names is not None and explaining is None)
            if explaining and (dtype := other_dtype(record)):
                self._dtypes[operator, dtype] = key
            for places in (self._wrong, *([self._explained] if explaining else [])):
                places[operator, record.descriptor][key] += 1
                places[operator, ""][key] += 1
        return left

    def attribute(self, record: Record) -> None:
        """Put a wrong result to a group of its problem, else of its operator, as the module says."""
        places = self._wrong if record.check else self._explained
        found = places.get((record.operator, record.descriptor))
        if not found and (record.check or not is_affordable(record)):
            found = places.get((record.operator, ""))
        known = found.most_common(1)[0][0] if found else self._dtypes.get((record.operator, other_dtype(record)))
        key = known or signature(record)
        self.put(record, key, attributed=known is not None)
        if not record.check:
            self._wrong[record.operator, record.descriptor][key] += 1
            self._wrong[record.operator, ""][key] += 1

    def groups(self) -> list[Group]:
        """What was put so far."""
        return [self._group(key, sorted(held, key=size)) for key, held in self._held.items()]

    def _group(self, key: Signature, held: list[Record]) -> Group:
        attributed, cause, cases = self._attributed[key], self._causes.get(key, ""), Counter[str]()
        if GENERAL.issuperset(key) and any(one.reading for one in held):  # which says more
            cause = ""
        shown = next((one for one in held if cause and _tells(key, one)), held[0])
        for record in (*held, *attributed):
            cases[record.operator] += _cases(record)
        passed = self._evidence.passed(held[0])
        is_right_alone = any(is_deciding(one) and one.case == shown.case for one in passed)
        return Group(
            implementation=held[0].implementation,
            cause=cause,
            text=(cause or _text(held, passed, has_condition=key in self._conditions))
            + (ALONE if is_right_alone else ""),
            records=[shown, *(one for one in held if one is not shown), *sorted(attributed, key=size)],
            plainer=None if shown is held[0] else held[0],
            cases=cases.total(),
            attributed=sum(map(_cases, attributed)),
            operators=tuple(name for name, _ in cases.most_common()),
            where=(*self._conditions.get(key, ()),),
        )


def _tells(names: tuple[str, ...], record: Record) -> bool:
    """Whether these mistakes explain a case, and no others do as well."""
    return bool(record.causes) and all(explains(names, (name,)) for name in specific(record.causes))


def _ungrouped(records: list[Record]) -> Group:
    """All failures of an implementation, where their causes could not be looked for, by how the first one failed."""
    cases: Counter[str] = Counter()
    for record in records:
        cases[record.operator] += _cases(record)
    first = records[0]
    return Group(first.implementation, "", first.headline, records, cases.total(), 0, (*cases,))


def _cases(record: Record) -> int:
    """How many cases of the level a record stands for."""
    return 0 if is_deciding(record) else record.cases


def _together(groups: list[Group]) -> list[Group]:
    """Those of variants of one file that fail alike, from the same problem on, as one."""
    first: dict[tuple[object, ...], int] = {}
    found: list[Group] = []
    for one in groups:
        smallest = one.smallest
        same = smallest.source, one.title, smallest.operator, smallest.descriptor, smallest.dtype, smallest.distribution
        place = first.setdefault(same, len(found)) if smallest.source and smallest.descriptor else len(found)
        if place == len(found) or not _alike(one, found[place]):
            found.append(one)
        else:
            known = found[place]
            found[place] = replace(
                known,
                records=known.records + one.records,
                cases=known.cases + one.cases,
                attributed=known.attributed + one.attributed,
                also=(*known.also, one.implementation),
            )
    return found


def _alike(one: Group, other: Group) -> bool:
    """Whether two groups are of nearly the same cases."""
    first, second = (
        {(r.operator, r.descriptor, r.dtype, r.layout, r.distribution, r.check) for r in group.records}
        for group in (one, other)
    )
    return len(first & second) >= COMMON * len(first | second)


def _text(records: list[Record], passed: Sequence[Record], *, has_condition: bool) -> str:
    """How the cases of a group failed, on one line: the first one's message, or what all have in common."""
    first = records[0]
    if first.failure and first.failure.kind == "raised":
        message, file = first.failure.message, first.failure.file
        place = f" at {file.replace(chr(92), '/').rpartition('/')[2]}:{first.failure.line}" if file else ""
        return f"raised {message if len(message) <= MAX_TEXT else message[:MAX_TEXT] + ' ...'}{place}"
    if differs(first):
        return first.headline
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
        return ", ".join(filter(None, (said, only or _precision(records, passed, has_condition=has_condition))))
    if reading := next((record.reading for record in records if record.reading), ""):
        return f"{outputs}: {reading}{'' if ' at ' in reading else _edges(records)}"
    return ", ".join(
        filter(None, (f"{outputs}: {_elements(records)}", _precision(records, passed, has_condition=has_condition)))
    )


def _elements(records: Sequence[Record]) -> str:
    """What the wrong elements of nearly all cases have in common."""
    outputs = [one for record in records if record.failure for one in record.failure.elements if one.mismatched]

    def nearly_all(are: Callable[[WrongElements], bool]) -> bool:
        return bool(outputs) and sum(map(are, outputs)) >= COMMON * len(outputs)

    if nearly_all(lambda one: one.every):
        return "every element is NaN" if nearly_all(lambda one: one.nan == "all") else "every element mismatched"
    are_nan = nearly_all(lambda one: bool(one.nan))
    return f"elements {'are NaN' if are_nan else 'mismatched'}{_edges(records)}"


def _edges(records: Sequence[Record]) -> str:
    """First and last indices at which the wrong elements of nearly all cases are."""
    places = ", ".join(_common([edge for record in records for edge in set(edges(record))], len(records)))
    return f" at {places}" if places else ""


def _precision(records: list[Record], passed: Iterable[Record], *, has_condition: bool) -> str:
    """The first known arithmetic in which every failing case would pass that was judged in others, and how it is
    declared; empty where there is none. Where cases that passed are more precise, it is said of failures that have a
    condition, and not how it is declared: that would hide them."""
    judged = [record for record in records if record.failure and record.failure.fits is not None]
    fits = [record.failure.fits for record in judged if record.failure and record.failure.fits is not None]
    dtypes = {record.dtype for record in judged}
    passing = [record for record in passed if record.dtype in dtypes]
    precise = [rank for record in passing for rank in _ranks(record)]
    common = [known for known in fits[0] if all(known in others for others in fits)] if fits else []
    if hint := next(
        (known for known in common if not contradicted(known[0], precise, len(judged), len(passing))), None
    ):
        return f"errors as large as with {hint[0]}; if that is meant, declare {hint[1]}"
    alone = common and has_condition and is_a_sum(records[0])  # what else there is has other errors as small
    return f"errors as large as with {common[0][0]}, under this condition alone" if alone else ""


def _ranks(record: Record) -> Iterator[int]:
    """The places among known precisions that the errors of a case show, of outputs that can show them."""
    for output, profile in record.profile.items():
        if shows(record.dtype, record.terms.get(output, 0)):
            yield profile.inferred.rank


def _common(texts: list[str], count: int) -> list[str]:
    """Those that nearly all of so many cases have."""
    return sorted(text for text, times in Counter(texts).items() if times >= COMMON * count)
