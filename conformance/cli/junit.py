"""Verdicts as JUnit's XML, which most services of continuous integration read."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from conformance.files import write
from conformance.implementations.errors import printable
from conformance.results.schema import Record

SKIPPED = ("unsupported", "unavailable", "waived")


class JUnit:
    """A suite of test cases, one for each task."""

    def __init__(self) -> None:
        self._suite = ElementTree.Element("testsuite", name="conformance")
        self._counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}

    def add(self, name: str, record: Record) -> None:
        """Add a task by its name."""
        seconds = record.seconds.get("total", 0.0)
        case = ElementTree.SubElement(
            self._suite, "testcase", classname=printable(f"conformance.{record.implementation}"),
            name=printable(name), time=f"{seconds:.3f}",
        )  # fmt: skip
        self._counts["tests"] += 1
        kind = {"fail": "failure", "error": "error"}.get(record.status, "skipped" * (record.status in SKIPPED))
        if kind:
            element = ElementTree.SubElement(case, kind, message=printable(record.headline))
            again = f"\nreproduce: {record.command}" if record.command else ""
            element.text = printable(f"{record.explanation}{again}")
            self._counts[kind if kind == "skipped" else f"{kind}s"] += 1

    def write(self, path: Path) -> None:
        """Write the file. Raises OSError."""
        self._suite.attrib.update({name: str(count) for name, count in self._counts.items()})
        suites = ElementTree.Element("testsuites")
        suites.append(self._suite)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True))
