"""How a verdict travels with a test: as properties of its report, from a worker to the process that counts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import pytest

from conformance.results.schema import AnyRecord, Record
from conformance.results.writing import encode

PROPERTY = "conformance"
"""Name of the user property that carries a record, as a JSON line."""
BEGUN = "conformance-begun"
"""The same, before a kernel is called: the record of a test that takes its worker down."""
ROW = "conformance-row"
"""How many tests its implementation and operator have in this run."""
ABSENCES = "conformance-absences"
"""The records of what is not here and is no test, all of them with the first test of the run."""
CATEGORIES = {"pass": "passed", "fail": "failed", "error": "error"}
"""Status -> pytest's own category; other statuses are categories of their own."""
LETTERS = {"pass": ".", "fail": "F", "error": "E", "unsupported": "u", "waived": "w", "unavailable": "-"}

decoded = lru_cache(maxsize=2)(msgspec.json.Decoder(AnyRecord).decode)
"""Of our own lines, which need not be searched for what a stranger might write; several hooks ask for the same one."""


def publish(item: pytest.Item, record: Record) -> None:
    """Hand a record to whoever counts and writes."""
    item.user_properties.append((PROPERTY, encode(of_run(item.config, record)).decode()))


def of_run(config: pytest.Config, record: Record) -> Record:
    """The record with the level of the run."""
    session: Any = config.pluginmanager.get_plugin("conformance-session")
    level = config.getoption("--level")
    return msgspec.structs.replace(record, run_level=level, in_process=session.workers is None)


def record_of(report: Any) -> Record | None:
    """The record of a test whose call ended; None for other phases and other tests."""
    if getattr(report, "when", None) != "call":
        return None
    text = dict(report.user_properties).get(PROPERTY)
    return None if text is None else decoded(str(text))


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """The suite's statuses. Letters only where there is a line for each test: `progress` writes rows."""
    record = record_of(report)
    if record is None:
        return None
    shown = config.get_verbosity() > 0
    status = record.status
    return CATEGORIES.get(status, status), LETTERS[status] if shown else "", status.upper() if shown else ""
