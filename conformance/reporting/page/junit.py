"""JUnit XML, as continuous integration reads it: a suite per implementation and machine, a case per verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from xml.etree.ElementTree import Element, SubElement, tostring

from conformance.reporting.page.model import Verdict
from conformance.reporting.page.tables import Digest
from conformance.reporting.table import many
from conformance.results.schema import Record

OUTCOMES = {
    "fail": "failure",
    "error": "error",
    "waived": "skipped",
    "unsupported": "skipped",
    "unavailable": "skipped",
}
"""Status -> JUnit's element; `pass` has none."""
PROPERTIES = ("operator", "problem", "dtype", "layout", "distribution", "check", "status", "source", "command")
"""The command has the rest."""
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document may hold, not even escaped."""


def document(digest: Digest, title: str) -> str:
    """The whole document. Times are seconds."""
    verdicts = sorted(digest.results.verdicts, key=lambda v: v.row)
    root = Element("testsuites", {"name": _legal(title), **_counts(verdicts)})
    for row, group in groupby(verdicts, key=lambda v: v.row):
        held, name = list(group), digest.name(row)
        suite = SubElement(root, "testsuite", {"name": _legal(name), **_counts(held)})
        versions = sorted({item for verdict in held for item in verdict.record.versions.items()})
        _properties(suite, [("machine", row[1].label), *versions])
        for verdict in held:
            _case(suite, name, verdict.record, digest.cause(verdict.record))
    for element in root.iter():  # a line for each, without the time that indenting takes
        element.tail = "\n"
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}'


def _case(suite: Element, name: str, record: Record, cause: str) -> None:
    words = " ".join(filter(None, map(record.text, ("problem", "dtype", "layout", "distribution", "check"))))
    case = SubElement(
        suite,
        "testcase",
        classname=_legal(f"{name}.{record.operator}"),
        name=_legal(words or f"{many(record.cases, 'case')} not attempted"),
        time=f"{record.seconds.get('total', 0.0):.6f}",
    )
    known = [(key, text) for key in PROPERTIES if (text := record.text(key))]
    known += [("cause", cause)] if cause else []
    _properties(case, known + ([("cases", str(record.cases))] if record.cases != 1 else []))
    if record.status in OUTCOMES:
        outcome = SubElement(case, OUTCOMES[record.status], message=_legal(record.headline), type=record.status)
        outcome.text = _legal(record.explanation)


def _counts(verdicts: Sequence[Verdict]) -> dict[str, str]:
    found = Counter(OUTCOMES.get(verdict.record.status, "passed") for verdict in verdicts)
    numbers = {
        "tests": len(verdicts),
        "failures": found["failure"],
        "errors": found["error"],
        "skipped": found["skipped"],
    }
    total = sum(verdict.record.seconds.get("total", 0.0) for verdict in verdicts)
    return {**{name: str(number) for name, number in numbers.items()}, "time": f"{total:.6f}"}


def _properties(parent: Element, known: Iterable[tuple[str, str]]) -> None:
    held = SubElement(parent, "properties")
    for name, text in known:
        SubElement(held, "property", name=_legal(name), value=_legal(text))


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
