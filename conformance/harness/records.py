"""One JSON line per verdict, flushed as it happens. Everything a report shows comes from these."""

from __future__ import annotations

import json
import math
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from conformance.data.stream import GENERATOR
from conformance.harness.case import Absence, Case
from conformance.harness.implementation import Kernel
from conformance.harness.verify import Verdict

SCHEMA = 1


class Records:
    """An open records file. Raises OSError at once where it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("w", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """One line, on disk before the next verdict begins."""
        self._file.write(line(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Idempotent."""
        self._file.close()


def line(record: dict[str, Any]) -> str:
    """A record as strict JSON on one line."""
    return json.dumps(record, allow_nan=False)


def record(case: Case, verdict: Verdict) -> dict[str, Any]:
    """The record of a case that was attempted."""
    kernel = case.kernel
    dtype = case.variant.dtype
    return {
        **_head(case.implementation.name, case.operator.name, case.implementation.device, verdict.status, 1),
        "source": case.implementation.source,
        "contract": kernel.contract.as_record() if isinstance(kernel, Kernel) else None,
        "problem": case.problem.name,
        "descriptor": case.problem.geometry.descriptor,
        "dtype": dtype,
        "layout": case.variant.layout,
        "arm": case.variant.arm,
        "seed": case.seed,
        "generator": GENERATOR,
        "terms": case.operator.terms(case.problem.geometry),
        "reason": verdict.reason,
        "checks": {
            judgement.output: {check.name: [_number(check.value), check.limit] for check in judgement.checks}
            for judgement in verdict.judgements
        },
        "passport": {
            judgement.output: {name: _number(value) for name, value in judgement.passport.items()}
            for judgement in verdict.judgements
            if judgement.passport
        },
        "earned": {j.output: {"contract": j.earned, "modest": j.modest} for j in verdict.judgements if j.earned},
        "seconds": {phase: round(value, 6) for phase, value in verdict.seconds.items()},
        "versions": _versions() | ({} if verdict.status == "unavailable" else case.implementation.arrays.describe()),
        "command": case.command,
    }


def absence_record(absence: Absence) -> dict[str, Any]:
    """The record of cases that could not be attempted, counted together."""
    head = _head(absence.implementation, absence.operator, absence.device, absence.status, absence.cases)
    return {**head, "reason": absence.reason, "versions": _versions()}


def broken_record(path: str, reason: str) -> dict[str, Any]:
    """The record of a file in `impls/` that could not be used."""
    return {**_head(path, "", "", "error", 1), "reason": reason, "versions": _versions()}


def _head(implementation: str, operator: str, device: str, status: str, cases: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "implementation": implementation,
        "operator": operator,
        "device": device,
        "status": status,
        "cases": cases,
    }


def _number(value: float) -> float | str:
    """JSON has no infinity; a record must stay readable by strict parsers."""
    return float(value) if math.isfinite(value) else str(value)


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    for package in ("kernel-conformance", "numpy", "ml_dtypes"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
