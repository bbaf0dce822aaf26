"""JUnit XML, as continuous integration reads it: a suite per implementation and machine, a case per verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from xml.etree.ElementTree import Element, SubElement, tostring

from conformance.reporting.page.model import Verdict
from conformance.reporting.page.tables import Digest

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
    root = Element("testsuites", name=_legal(title))
    verdicts = digest.results.verdicts
    for row, held in groupby(sorted(verdicts, key=lambda v: v.row), key=lambda v: v.row):
        _suite(root, digest.name(row), list(held))
    root.attrib |= _counts(verdicts)
    for element in root.iter():  # a line for each, without the time that indenting takes
        element.tail = "\n"
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}'


def _suite(root: Element, name: str, verdicts: Sequence[Verdict]) -> None:
    suite = SubElement(root, "testsuite", {"name": _legal(name), **_counts(verdicts)})
    properties = SubElement(suite, "properties")
    _property(properties, "machine", verdicts[0].machine.label)
    for key, text in _versions(verdicts):
        _property(properties, key, text)
    for verdict in verdicts:
        _case(suite, name, verdict)


def _versions(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    return sorted({item for verdict in verdicts for item in verdict.record.versions.items()})


def _case(suite: Element, name: str, verdict: Verdict) -> None:
    record, status = verdict.record, verdict.record.status
    names = {"classname": _legal(f"{name}.{record.operator}"), "name": _legal(_name(verdict))}
    case = SubElement(suite, "testcase", names, time=_seconds(verdict))
    properties = SubElement(case, "properties")
    for key in PROPERTIES:
        if text := record.text(key):
            _property(properties, key, text)
    if record.cases != 1:
        _property(properties, "cases", str(record.cases))
    if status in OUTCOMES:
        outcome = SubElement(case, OUTCOMES[status], message=_legal(record.headline), type=status)
        outcome.text = _legal(record.explanation)


def _name(verdict: Verdict) -> str:
    words = " ".join(filter(None, map(verdict.record.text, ("problem", "dtype", "layout", "distribution", "check"))))
    return words or f"{verdict.record.cases} cases not attempted"


def _counts(verdicts: Sequence[Verdict]) -> dict[str, str]:
    found = Counter(OUTCOMES.get(verdict.record.status, "passed") for verdict in verdicts)
    total = sum(float(_seconds(verdict)) for verdict in verdicts)
    numbers = {
        "tests": len(verdicts),
        "failures": found["failure"],
        "errors": found["error"],
        "skipped": found["skipped"],
    }
    return {**{name: str(number) for name, number in numbers.items()}, "time": f"{total:.6f}"}


def _seconds(verdict: Verdict) -> str:
    return f"{verdict.record.seconds.get('total', 0.0):.6f}"


def _property(parent: Element, name: str, text: str) -> None:
    SubElement(parent, "property", name=_legal(name), value=_legal(text))


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
