"""A pytest plugin, loaded by name: of an implementation that has failed, nothing more is run.

A campaign over known-bad kernels asks only whether each is detected, and diagnosing every failure takes most of its
time.
"""

from __future__ import annotations

from typing import Any

import pytest

from conformance.plugin.outcome import record_of

_failed: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Pass over what is left of an implementation that has failed."""
    case: Any = item.callspec.params.get("case") if isinstance(item, pytest.Function) else None
    name = getattr(getattr(case, "implementation", None), "name", "")
    return True if name in _failed else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember who has failed."""
    record = record_of(report)
    if record is not None and record.status in ("fail", "error"):
        _failed.add(record.implementation)
