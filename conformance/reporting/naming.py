"""The known mistakes that name a group of failures, chosen from the mistakes that explain each of its cases.

A mistake is named if it explains nearly all results that were compared with it: a mistake that explains a few small
problems does so by chance. If more than two mistakes explain as much, the group is named by what they have in common.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set

from conformance.diagnosis.diagnose import GENERAL, changes, plainest
from conformance.diagnosis.where import FEWEST
from conformance.failure import without_numbers
from conformance.operators import GeometryError, parse
from conformance.reporting.failures import ORDINARY, is_affordable
from conformance.results.schema import Record

COMMON, MOST = 0.8, 0.6
"""Least share of the explained cases that a mistake must explain to be named; least share of the compared cases that
must be explained by any mistake at all (errors can be too small for an explanation)."""
ALONE, OFTEN = 0.35, 10
"""Least share of the compared cases, and least number of cases, that must be explained if a single mistake explains all
explained cases: with a momentum of 1%, few cases show an error in a running variance."""
NAMED = 2
"""Largest number of mistakes that are named because they explain the same cases, and because each explains a part."""
TOPICS = ("output padding", "padding", "stride", "dilation", "divisor", "filter", "bias", "statistics")
"""Subjects that stand for mistakes if more than NAMED mistakes explain the same cases."""
ABOUT = 0.6
"""Least share of these mistakes that must be about the subject."""


def named(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return the mistakes that explain nearly all explained results, and most of the compared results. Mistakes that
    explain the same results are one tuple; two mistakes that each explain a part are two. Empty if the best mistake
    explains less, or if more than two explain the same results and have nothing in common."""
    ordinary = [record for record in records if record.distribution in ORDINARY] or [*records]
    compared = [record for record in ordinary if is_affordable(record)] or [
        record for record in records if is_affordable(record)
    ]
    names = {name for record in compared for name in record.causes}
    # a single case may have another defect
    absent = frozenset(name for name in names if sum(_is_absent(name, record) for record in ordinary) > 1)
    explained = [record for record in compared if not absent.issuperset(record.causes)]
    if len(explained) < MOST * len(compared) and not _alone(explained, compared, absent):
        return []
    return _naming(explained, absent | GENERAL) or _naming(explained, absent | names - GENERAL)


def _is_absent(name: str, record: Record) -> bool:
    """Return whether a mistake cannot be the cause: nothing is ignored if all dilations are 1, and results are not all
    zero if fewer than half of them are wrong."""
    if name == "results all zero":
        elements = record.failure.elements if record.failure else ()
        return bool(elements) and all(2 * output.mismatched < output.compared for output in elements)
    kinds = {part.split(" of ")[0] for part in changes(name, " ignored")}
    if not kinds or not kinds <= {"stride", "dilation"}:
        return False
    try:
        geometry = parse(record.descriptor)
    except GeometryError:
        return False  # a problem of another version of the suite
    return all(max(getattr(geometry, kind)) == 1 for kind in kinds)


def _alone(explained: Sequence[Record], compared: Sequence[Record], absent: frozenset[str]) -> bool:
    """Return whether exactly one mistake, other than a wrong shape, explains all explained cases, and these are
    enough."""
    names = Counter(name for record in explained for name in record.causes if name not in GENERAL | absent)
    explain_all = [name for name, times in names.items() if times == len(explained) and "in the shape of" not in name]
    return len(explain_all) == 1 and len(explained) >= max(OFTEN, ALONE * len(compared))


def _naming(records: Sequence[Record], without: Set[str]) -> list[tuple[str, ...]]:
    """Return the mistakes that explain results, as `named` does, apart from those in `without`; all are explained."""
    parts: list[tuple[str, ...]] = []
    unexplained = [*records]
    while len(records) - len(unexplained) < COMMON * len(records):
        explained: defaultdict[str, list[int]] = defaultdict(list)
        for place, record in enumerate(unexplained):
            for name in record.causes:
                if name not in without:
                    explained[name].append(place)
        best = max(explained.values(), key=len, default=[])
        if len(parts) == NAMED or len(best) < (FEWEST if parts else 1):
            return []
        names = plainest([name for name, places in explained.items() if places == best])
        if len(names) > NAMED:
            alike = {_generally(name) for name in names}
            if len(alike) > 1 and not _topic(names):
                return []
            names = names if len(alike) > 1 else tuple(alike)
        parts.append(names)
        unexplained = [record for record in unexplained if not explains(names, record.causes)]
    return parts


def _topic(names: Sequence[str]) -> str:
    """Return the subject of most of several mistakes; empty if they have none in common."""
    return next((t for t in TOPICS if sum(t in name for name in names) >= ABOUT * len(names)), "")


def in_words(names: Sequence[str]) -> str:
    """Return up to two mistakes by name, or the subject of more."""
    if len(names) <= NAMED:
        return ", or ".join(names)
    topic = _topic(names)
    first = sorted(names, key=lambda name: topic not in name)[:NAMED]
    return f"{topic} taken wrongly ({', or '.join(first)}, or {len(names) - NAMED} more)"


def _generally(name: str) -> str:
    """Return the name of a mistake without its sizes, as mistakes of several sizes share it."""
    return without_numbers(name).replace(" of #", "")


def explains(names: tuple[str, ...], causes: Iterable[str]) -> bool:
    """Return whether a cause of a case is one of these mistakes, or has one of these names without its sizes."""
    return any(name in names or _generally(name) in names for name in causes)
