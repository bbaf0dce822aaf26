"""JUnit XML, as continuous integration reads it: a suite per implementation and machine, a case per verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
PROPERTIES = (
    "operator", "problem", "dtype", "layout", "distribution", "storage", "check", "status", "source", "command",
)  # fmt: skip
"""The command has the rest."""


def document(digest: Digest, title: str) -> Iterator[str]:
    """The whole document, piece by piece. Times are seconds."""
    verdicts = sorted(digest.results.verdicts, key=lambda v: v.row)
    yield '<?xml version="1.0" encoding="utf-8"?>\n'
    yield _opened("testsuites", {"name": title, **_counts(verdicts)})
    for row, group in groupby(verdicts, key=lambda v: v.row):
        held, name = list(group), digest.name(row)
        yield _opened("testsuite", {"name": name, **_counts(held)})
        versions = sorted({item for verdict in held for item in verdict.record.versions.items()})
        yield _text(_properties([("machine", row[1].label), *versions]))
        for verdict in held:
            yield _text(_case(name, verdict.record, digest.cause(verdict.record)))
        yield "</testsuite>\n"
    yield "</testsuites>\n"


def _opened(tag: str, attributes: dict[str, str]) -> str:
    return f"{tostring(Element(tag, attributes), encoding='unicode').removesuffix(' />')}>\n"


def _text(element: Element) -> str:
    for one in element.iter():  # a line for each, without the time that indenting takes
        one.tail = "\n"
    return tostring(element, encoding="unicode")


def _case(name: str, record: Record, cause: str) -> Element:
    words = " ".join(filter(None, map(record.text, ("problem", "dtype", "layout", "distribution", "storage", "check"))))
    case = Element(
        "testcase",
        classname=f"{name}.{record.operator}",
        name=words or f"{many(record.cases, 'case')} not attempted",
        time=f"{record.seconds.get('total', 0.0):.6f}",
    )
    known = [(key, text) for key in PROPERTIES if (text := record.text(key))]
    known += [("cause", cause)] if cause else []
    case.append(_properties(known + ([("cases", str(record.cases))] if record.cases != 1 else [])))
    if record.status in OUTCOMES:
        outcome = SubElement(case, OUTCOMES[record.status], message=record.headline, type=record.status)
        outcome.text = record.explanation
    return case


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


def _properties(known: Iterable[tuple[str, str]]) -> Element:
    held = Element("properties")
    for name, text in known:
        SubElement(held, "property", name=name, value=text)
    return held
