"""One JSON line per verdict, flushed as it happens. Everything a report shows comes from these."""

from __future__ import annotations

import json
import math
import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from conformance.dtypes import STORAGE
from conformance.execution.case import Absence, Case
from conformance.execution.judging import by_probes
from conformance.execution.trial import DISTRIBUTION, Facts
from conformance.execution.verify import Verdict
from conformance.implementations.host import processor
from conformance.inputs.stream import GENERATOR
from conformance.judge import Judgement
from conformance.judge.accuracy import KNOWN

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
        """Idempotent. What cannot be written was reported when it was due."""
        with suppress(OSError):
            self._file.close()


def line(record: dict[str, Any]) -> str:
    """A record as strict JSON on one line."""
    return json.dumps(record, allow_nan=False)


def record(case: Case, verdict: Verdict) -> dict[str, Any]:
    """The record of a case that was attempted."""
    dtype = case.variant.dtype
    return {
        **_head(case.implementation.name, case.operator.name, case.implementation.device, verdict.status, 1),
        "source": case.implementation.source,
        "contract": verdict.contract.as_record() if verdict.contract else None,
        "problem": case.problem.name,
        "descriptor": case.problem.geometry.descriptor,
        "dtype": dtype,
        "layout": case.variant.layout,
        "distribution": case.variant.distribution,
        "seed": case.seed,
        "generator": GENERATOR,
        "method": "probes" if by_probes(case) else "exact",
        "terms": dict(case.operator.errors(case.problem.geometry).terms),
        "reason": verdict.reason,
        "checks": {
            judgement.output: {check.name: [number(check.value), check.limit] for check in judgement.checks}
            for judgement in verdict.judgements
        },
        "profile": {
            judgement.output: {name: number(value) for name, value in judgement.profile.items()}
            for judgement in verdict.judgements
            if judgement.profile
        },
        "inferred": {j.output: _inferred(j) for j in verdict.judgements if j.profile},
        "seconds": {phase: round(value, 6) for phase, value in verdict.seconds.items()},
        **({"work": verdict.work, "least_bytes": _least_bytes(case)} if verdict.work else {}),
        "versions": _versions() | ({} if verdict.status == "unavailable" else case.implementation.arrays.describe()),
        "command": case.command,
    }


def _least_bytes(case: Case) -> int:
    """Every tensor moved once."""
    return case.operator.bytes(case.problem.geometry, STORAGE[case.variant.dtype].itemsize)


def conduct_record(case: Case | Absence, verdict: Verdict, check: str, facts: Facts) -> dict[str, Any]:
    """The record of one check of behaviour: the same, with the check's name and what it found."""
    if isinstance(case, Absence):
        return {**absence_record(case), "distribution": DISTRIBUTION, "check": check}
    found = record(case, verdict)
    return {**found, "check": check, **facts, "command": f"{found['command']} -k {check}"}


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


def _inferred(judgement: Judgement) -> dict[str, Any]:
    """The contract, its place among the known ones (later is weaker), and whether more was declared than needed."""
    if judgement.inferred is None:
        return {"contract": "none that is known", "rank": len(KNOWN), "conservative": False}
    return {
        "contract": judgement.inferred.arithmetic,
        "rank": KNOWN.index(judgement.inferred),
        "conservative": judgement.conservative,
    }


def number(value: float) -> float | str:
    """JSON has no infinity; a record must stay readable by strict parsers."""
    return float(value) if math.isfinite(value) else str(value)


@cache
def _versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": processor(),
    }
    for package in ("kernel-conformance", "numpy", "ml_dtypes"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
