"""A pytest plugin, loaded by name: of an implementation that has failed, nothing more is run, and nothing that it does
not declare.

A campaign over known-bad kernels asks only whether each is detected. Diagnosing every failure takes most of its time,
and half a million verdicts of `unsupported` the rest.
"""

from __future__ import annotations

from typing import Any

import pytest

from conformance.execution.case import Case
from conformance.implementations.implementation import Unsupported
from conformance.plugin.outcome import record_of

_failed: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Pass over what is left of an implementation that has failed."""
    case: Any = item.callspec.params.get("case") if isinstance(item, pytest.Function) else None
    if not isinstance(case, Case):
        return None
    if case.implementation.name in _failed:
        return True
    try:
        _ = case.kernel
    except Unsupported:
        return True
    except Exception:  # the run says of which kind
        return None
    return None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember who has failed."""
    record = record_of(report)
    if record is not None and record.status in ("fail", "error"):
        _failed.add(record.implementation)
