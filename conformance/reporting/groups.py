"""Failures grouped by what probably causes them, for the end of a run, the Markdown summary and the page.

One mistake fails on hundreds of problems. Failures that known mistakes explain are covered by the fewest mistakes that
do; the others are grouped by how they show, with sizes and values left out of the comparison.

A failure that no known mistake explains is attributed to a group only where that hardly hides another mistake:

- wrong elements, to a mistake that explains another case of the operator on the same problem: what a mistake does to
  infinities or rounding can differ;
- wrong elements on a problem too large for diagnosis, to the mistake that explains most cases of the operator;
- a behaviour check that ends in a wrong result, to the group of the same problem, else to the largest of the operator:
  a kernel that is wrong on plain inputs cannot pass it.

What was raised is never attributed, nor are wrong elements that were compared with the known mistakes in vain.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from conformance.diagnosis.diagnose import AFFORDABLE
from conformance.operators import OPERATORS, GeometryError, parse, takes
from conformance.reporting.table import many
from conformance.results.schema import Record

ORDINARY = frozenset({"integer", "fixed"})
"""Distributions in which every element has about the same part in a result."""
STATISTICS = frozenset({"rms", "gain z", "offset z"})
"""Checks of all elements together: each by itself may be within its bound."""
ALIKE = {
    "gain z": "as by a factor near 1 or rounding towards zero",
    "offset z": "as by a constant or rounding in one direction",
}
"""What errors are like that no check but this one sees."""
COMMON = 0.8
"""Share of a group's cases that must have an error location or a precision for its title to name it."""
NAMED = 2
"""Other causes that a title names where more explain as much."""
MAX_TEXT = 200
"""Characters of what a kernel raised."""
_EDGES = re.compile(r"\b(\w+) (?:= \d+ \((first|last)\)|(at both edges))")
_MISMATCH = re.compile(r"\w+ has shape |wrong result \(|results are wrong on plain inputs")
"""How the reason begins where results are wrong and no check of theirs is recorded."""
_RAISED = re.compile(r"raised (.*?)(?: at ((?:(?! at )[^\n])+):(\d+))?\Z", re.DOTALL)
_NUMBERS = re.compile(r"(?:0x[0-9a-f]+|\d[\d.,]*(?:e[-+]?\d+)?)(?:[\s,x:*-]+\d[\d.,]*)*", re.IGNORECASE)
"""A number, an address or a list of sizes."""


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of an implementation that probably have one cause.

    cause        the known mistake that explains them; empty where none does
    text         the cause, or how the smallest case failed
    records      the smallest case first; those that the cause explains before those attributed to it
    attributed   how many of the cases the cause does not explain by itself
    operators    those of most cases first
    """

    implementation: str
    cause: str
    text: str
    records: list[Record]
    cases: int
    attributed: int
    operators: tuple[str, ...]

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
        """Its cases, and how many of them the cause explains by itself, if not all."""
        more = f" ({self.cases - self.attributed:,} explained)" if self.cause and self.attributed else ""
        return f"{many(self.cases, 'case')}{more}"

    @property
    def smallest(self) -> Record:
        return self.records[0]


def group(records: Iterable[Record]) -> list[Group]:
    """Groups of the records that fail or are errors, by implementation, those of most cases first.

    The order of the records changes nothing.
    """
    failing: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.status in ("fail", "error"):
            failing[record.implementation].append(record)
    return [found for name in sorted(failing) for found in _of_implementation(sorted(failing[name], key=_size))]


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


Key = tuple[str, ...]
"""What a group is known by: the name of a mistake, or how its cases failed."""


class _Places:
    """Which groups were found on which problem and on which operator, and how often."""

    def __init__(self) -> None:
        self.found: defaultdict[tuple[str, str], Counter[Key]] = defaultdict(Counter)

    def add(self, record: Record, key: Key) -> None:
        self.found[record.operator, record.descriptor][key] += 1
        self.found[record.operator, ""][key] += 1

    def most(self, record: Record, anywhere: bool) -> Key | None:
        """The commonest on the problem, else, if `anywhere`, on the operator."""
        here = self.found.get((record.operator, record.descriptor))
        here = here or (self.found.get((record.operator, "")) if anywhere else None)
        return here.most_common(1)[0][0] if here else None


def _of_implementation(records: list[Record]) -> list[Group]:
    """Groups of one implementation's failures, given plain cases first and then behaviour checks, each by size."""
    explained, wrong = _Places(), _Places()
    groups: defaultdict[Key, list[Record]] = defaultdict(list)
    attributed: defaultdict[Key, list[Record]] = defaultdict(list)
    causes = _believed(records)
    chosen = _cover(causes.values())
    for record in records:
        if names := causes.get(id(record)):
            key: Key = (next(name for name in chosen if name in names),)
            groups[key].append(record)
            explained.add(record, key)
            wrong.add(record, key)
    for record in records:
        if id(record) in causes:
            continue
        found, wrongly = None, is_wrong(record)
        if wrongly:
            large = _cost(record.operator, record.descriptor)[0] > 2 * AFFORDABLE
            found = wrong.most(record, True) if record.check else explained.most(record, large)
        key = found or _signature(record)
        (attributed if found else groups)[key].append(record)
        if wrongly and not record.check:
            wrong.add(record, key)
    return sorted(
        (_group(key, held, attributed[key]) for key, held in groups.items()),
        key=lambda one: (-one.cases, not one.cause, one.title),
    )


def _believed(records: list[Record]) -> dict[int, tuple[str, ...]]:
    """Id of a record -> the mistakes that explain it.

    Where few elements make up a result, a mistake may explain it by chance. If results of ordinary inputs are wrong on
    the same problem and nothing explains them, only mistakes count that explain ordinary inputs of some problem.
    """
    ordinary = [record for record in records if record.distribution in ORDINARY and not record.check]
    known = {name for record in ordinary for name in record.causes}
    in_vain = {(r.operator, r.descriptor) for r in ordinary if not r.causes and is_wrong(r)}
    found = {}
    for record in records:
        doubtful = (record.operator, record.descriptor) in in_vain
        if names := tuple(name for name in record.causes if name in known or not doubtful):
            found[id(record)] = names
    return found


def _group(key: Key, held: list[Record], attributed: list[Record]) -> Group:
    cause = key[0] if len(key) == 1 else ""
    cases: Counter[str] = Counter()
    for record in (*held, *attributed):
        cases[record.operator] += record.cases
    return Group(
        implementation=held[0].implementation,
        cause=cause,
        text=_equally(cause, held) if cause else _text(held),
        records=[*held, *attributed],
        cases=cases.total(),
        attributed=sum(record.cases for record in attributed),
        operators=tuple(name for name, _ in cases.most_common()),
    )


def _equally(cause: str, held: list[Record]) -> str:
    """The cause, and others that explain every case just as well: the first of several is no answer."""
    common = set(held[0].causes).intersection(*(record.causes for record in held)) - {cause}
    others = [name for name in held[0].causes if name in common]
    if len(others) > NAMED + 1:
        others[NAMED:] = [f"one of {len(others) - NAMED} others"]
    return ", or ".join([cause, *others])


def _cover(explanations: Iterable[tuple[str, ...]]) -> list[str]:
    """Few mistakes that explain all of these: each time the one that explains most of the rest.

    Of equals, the one that comes earlier in the explanations, which name the library's first one first.
    """
    chosen, rest = [], Counter(explanations)
    while rest:
        counts, places = Counter[str](), Counter[str]()
        for names, count in rest.items():
            for place, name in enumerate(names):
                counts[name] += count
                places[name] += count * place
        best = min(counts, key=lambda name: (-counts[name], places[name], name))
        chosen.append(best)
        rest = Counter({names: count for names, count in rest.items() if best not in names})
    return chosen


def _signature(record: Record) -> Key:
    """How a case failed, without sizes and values. A place in a file and a behaviour check are the same for all
    operators: what they share is at fault."""
    if record.reason.startswith("claimed in "):
        return "claimed", record.status  # the loss of one kernel shows in many ways
    if raised := _raised(record):
        message, *place = raised
        return "raised", _NUMBERS.sub("#", message), *place
    if record.check:
        return "check", record.check
    if _exceeded(record):
        return record.operator, "elements"  # the locations of one mistake differ from problem to problem
    return record.operator, _NUMBERS.sub("#", record.headline)


def _text(records: list[Record]) -> str:
    """How the cases of a group failed, on one line: the first one's message, or what all have in common."""
    first = records[0]
    if raised := _raised(first):
        message, file, line = raised
        place = f" at {file.replace(chr(92), '/').rpartition('/')[2]}:{line}" if file else ""
        return f"raised {message if len(message) <= MAX_TEXT else message[:MAX_TEXT] + ' ...'}{place}"
    if first.check and not first.reason.startswith("claimed in "):
        return f"{first.check}: {first.headline}"
    exceeded = [(record, output, check) for record in records for output, check in _exceeded(record)]
    if not exceeded:
        return first.headline
    outputs = ", ".join(dict.fromkeys(output for _, output, _ in exceeded))
    inferred = [
        record.profile[output].inferred
        for record in records
        for output in dict.fromkeys(output for output, _ in _exceeded(record))
        if output in record.profile
    ]
    known = [one for one in inferred if one.precision != "unknown"]
    # the least precise: on few terms a poor accumulator looks like a better one
    precision = max(known, key=lambda one: one.rank).precision if known and len(known) >= COMMON * len(inferred) else ""
    # other mistakes make errors of the same size: a wrong factor does
    why = f"cause unknown, errors as large as with {precision}" if precision else "cause unknown"
    checks = dict.fromkeys(check for _, _, check in exceeded)
    if STATISTICS.issuperset(checks):
        if len(checks) == 1:
            why = ALIKE.get(next(iter(checks)), why)
        return f"{outputs}: {', '.join(checks)} too large, {why}"
    edges = ", ".join(_common([edge for record in records for edge in set(_edges(record))], len(records)))
    return f"{outputs}: elements mismatched{' at ' * bool(edges)}{edges}, {why}"


def _common(texts: list[str], count: int) -> list[str]:
    """Those that nearly all of so many cases have."""
    return sorted(text for text, times in Counter(texts).items() if times >= COMMON * count)


def is_wrong(record: Record) -> bool:
    """Whether results were compared and are wrong."""
    return record.status == "fail" and bool(_exceeded(record) or _MISMATCH.match(record.reason))


def _exceeded(record: Record) -> list[tuple[str, str]]:
    """(Output, check) of the checks that a case did not pass; NaN passes none."""
    return [
        (output, name)
        for output, checks in record.checks.items()
        for name, (value, limit) in checks.items()
        if not abs(float(value)) <= limit
    ]


def _edges(record: Record) -> Iterator[str]:
    """First, last or both along an axis."""
    for line in re.findall(r"^error locations: (.*)", record.reason, re.MULTILINE):
        for axis, edge, both in _EDGES.findall(line):
            yield f"{axis} = {edge}" if edge else f"{axis} {both}"


def _raised(record: Record) -> tuple[str, str, str] | None:
    """First line of the message, file and line; None where nothing was raised."""
    found = _RAISED.match(record.reason) if record.status == "error" else None
    return (found[1].partition("\n")[0], found[2] or "", found[3] or "") if found else None


def _size(record: Record) -> tuple[object, ...]:
    """Plain cases before behaviour checks; a short descriptor, of few parameters and small sizes, before few
    operations, because a case is looked at: an axis of 70,001 elements with stride 261 is few operations."""
    plain = (record.storage != "", record.dtype != "fp32", record.layout != "nchw", record.distribution != "fixed")
    variant = (record.dtype, record.layout, record.distribution, record.storage)
    names = (record.descriptor, *variant, record.check, record.reason)
    cost = _cost(record.operator, record.descriptor)
    return bool(record.check), math.isinf(cost[0]), len(record.descriptor), *cost, sum(plain), *plain, *names


@lru_cache(maxsize=4096)
def _cost(operator: str, descriptor: str) -> tuple[float, float]:
    """Operations and input elements; infinite where the problem is not known here."""
    try:
        geometry = parse(descriptor)
    except GeometryError:
        return math.inf, math.inf
    if operator not in OPERATORS or not takes(operator, geometry):
        return math.inf, math.inf
    known = OPERATORS[operator]
    return known.flops(geometry), sum(tensor.size for tensor in known.inputs(geometry).values())
