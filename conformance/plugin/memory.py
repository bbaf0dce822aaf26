"""The tables of memory at the end of a run."""

from __future__ import annotations

import pytest

from conformance.plugin.plugin import record_of
from conformance.reporting import memory
from conformance.results.schema import CheckRecord


def pytest_configure(config: pytest.Config) -> None:
    """A run starts without a table."""
    config.pluginmanager.register(Tables(), "conformance-memory")


class Tables:
    """Collects what checks of memory found, from the records that the controller sees."""

    def __init__(self) -> None:
        self.records: list[CheckRecord] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = record_of(report)
        if isinstance(record, CheckRecord):
            self.records.append(record)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One table for each problem, and one of the network."""
        tables = memory.tables((record.implementation, record) for record in self.records)
        if tables:
            terminalreporter.section("memory")
        for table in tables:
            for line in (table.title, *table.lines(), *([table.note] if table.note else []), ""):
                terminalreporter.write_line(line)
