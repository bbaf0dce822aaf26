"""Making a record from a case and its verdict."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from conformance.execution import device_shares
from conformance.execution.status import Verdict
from conformance.execution.trial import Absence, Trial
from conformance.implementations.devices import processor
from conformance.implementations.registry import BrokenFile
from conformance.inputs.manifest import digest
from conformance.inputs.stream import GENERATOR
from conformance.judge import Judgement, expect
from conformance.judge.accuracy import KNOWN
from conformance.problems.case import BEHAVIOUR
from conformance.results.schema import (
    SCHEMA,
    VERIFIED,
    AbsenceRecord,
    BrokenRecord,
    CaseRecord,
    CheckRecord,
    Facts,
    Header,
    Inferred,
    Part,
    Profile,
    WaiverRecord,
    Work,
    number,
)


def record(trial: Trial, verdict: Verdict) -> CaseRecord:
    """Return the record of a case whose results were to be compared."""
    return CaseRecord(**_attempt(trial, verdict))


def behaviour_record(trial: Trial, verdict: Verdict, check: str) -> CheckRecord:
    """Return the record of a behaviour check: that of a case, with the check's name and what it measured."""
    fields = _attempt(trial, verdict)
    facts = verdict.facts or Facts()
    return CheckRecord(**fields | {"check": check, "facts": facts, "command": trial.repeats(check)})


def absence_record(absence: Absence, check: str = "") -> AbsenceRecord:
    """Return the record of cases that could not be attempted, counted together; `check` may name a behaviour check."""
    distribution = BEHAVIOUR if check else ""
    return AbsenceRecord(schema=SCHEMA, versions=versions(), check=check, distribution=distribution, **asdict(absence))


def broken_record(path: str, broken: BrokenFile) -> BrokenRecord:
    """Return the record of a file in `impls/` that could not be used."""
    return BrokenRecord(
        schema=SCHEMA, implementation=path, operator="", device="", status="error", cases=1,
        reason=broken.reason, failure=broken.failure, versions=versions(),
    )  # fmt: skip


def header(
    command: Sequence[str], level: str, seed: int, method: str, selection: dict[str, tuple[str, ...]],
    environment: str = "", unit: Part | None = None,
) -> Header:  # fmt: skip
    """Return the header of a run that begins now."""
    return Header(
        schema=SCHEMA, started=now(), command=tuple(command), versions=versions(), level=level, seed=seed,
        method=method, golden=digest(), selection=selection, environment=environment, unit=unit,
    )  # fmt: skip


def now() -> str:
    """Return the current time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def verdict_fields(verdict: Verdict, marker: str) -> dict[str, Any]:
    """Return status, reason, failure, waiver, seconds and the device that a marker stands for here, for the record of
    any attempt."""
    waiver, device = verdict.waiver, device_shares.HERE.get(marker)
    return {
        "host": platform.node() if device else "",
        "device_index": device.index if device else None,
        "device_serial": device.serial if device else "",
        "status": verdict.status,
        "reason": verdict.reason,
        "failure": verdict.failure,
        "undeclared": verdict.refusal.undeclared if verdict.refusal else None,
        "causes": verdict.diagnosis.names if verdict.diagnosis else (),
        "waiver": WaiverRecord(reason=waiver.reason, url=waiver.url) if waiver else None,
        "seconds": {phase: round(seconds, 6) for phase, seconds in verdict.seconds.items()},
    }


def _attempt(trial: Trial, verdict: Verdict) -> dict[str, Any]:
    workload, dtype, here = trial.workload, trial.variant.dtype, trial.implementation
    least = workload.traffic(dtype)
    return {
        "schema": SCHEMA,
        "implementation": here.name,
        "operator": trial.operator.name,
        "device": here.device,
        "cases": 1,
        "source": here.source,
        "covers": here.files.news(here.name) if here.files and verdict.status in VERIFIED else None,
        "contract": verdict.contract.as_record() if verdict.contract else None,
        "problem": trial.problem.name,
        "origin": trial.problem.origin,
        "descriptor": workload.geometry.descriptor,
        "dtype": dtype,
        "layout": trial.variant.layout,
        "distribution": trial.variant.distribution,
        "storage": trial.variant.storage,
        "seed": trial.seed,
        "generator": GENERATOR,
        "method": expect(trial.recipe, trial.method).method,
        "refused": verdict.refused,
        "terms": dict(workload.errors.terms),
        "checks": {
            judgement.output: {check.name: (number(check.value), float(check.limit)) for check in judgement.checks}
            for judgement in verdict.judgements
        },
        "unverified": verdict.unverified,
        "profile": {j.output: _profile(j) for j in verdict.judgements if j.profile},
        "work": msgspec.convert(verdict.work | {"least_bytes": least}, Work) if verdict.work and least else None,
        "versions": versions()
        | ({"implementation": here.version} if here.version else {})
        | ({} if verdict.status == "unavailable" else texts(here.arrays.describe())),
        "command": trial.command,
        **verdict_fields(verdict, here.device),
    }


def _profile(judgement: Judgement) -> Profile:
    """Return an output's measured numbers, and the precision that they are consistent with."""
    contract = judgement.inferred
    inferred = Inferred(
        precision=contract.arithmetic if contract else "unknown",
        rank=KNOWN.index(contract) if contract else len(KNOWN),
        conservative=contract is not None and judgement.conservative,
    )
    numbers = {name: number(value) for name, value in judgement.profile.items()}
    return msgspec.convert(numbers | {"inferred": inferred}, Profile)


def texts(described: dict[str, Any]) -> dict[str, str]:
    """Convert versions to plain text, whatever a vendor's bridge returns; torch's version is a class of its own."""
    return {str(name): str(value) for name, value in described.items()}


@cache
def versions() -> dict[str, str]:
    """Return the versions of the machine and of the packages that every verdict depends on."""
    versions = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": processor(),
    }
    for package in ("kernel-conformance", "numpy", "ml_dtypes"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
