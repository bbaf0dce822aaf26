"""Records for trials of the report: as a run writes them, and many made from few."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.reporting import terminal
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.page.merge import load
from conformance.reporting.page.tables import Digest
from conformance.reporting.report import Report, total
from conformance.reporting.tally import Tally
from conformance.results import schema
from conformance.results.reading import decode
from conformance.results.schema import SCHEMA

Record = dict[str, Any]
"""A record as its line says it."""
VERSIONS = {"python": "3.11.7", "machine": "x86_64", "system": "Linux", "numpy": "2.4.6"}
H100 = VERSIONS | {"torch": "2.13.0", "device": "NVIDIA H100"}
CONTRACT = {"inputs": "exact", "accumulate": "fp32", "rounding": "nearest", "algorithm": "direct", "splits": 1}
CAUSES = ["last row of y (dy) left out", "padding of H one too small after"]
WAIVER = {"reason": "known", "url": "https://example.org/known"}
INFERRED = {"precision": "fp32 accumulation", "rank": 1, "conservative": False}
DIAGNOSIS = (
    "y: 288 of 2,592 elements mismatched (contract: direct, inputs as given, fp32 accumulation)\n"
    "worst y[0, 13, 8, 0] = 0.0, expected -5.40553563854337, error 5.41, limit 1.19e-05\n"
    "worst error / bound 4.534e+05 exceeds limit 1; rms 5.027e+05 exceeds limit 0.5438\n"
    "inferred precision: unknown\nerror locations: p = 8 (last)\n"
    "likely cause: last row of y (dy) left out, or padding of H one too small after (explains 100%)"
)
WRONG = {"output": "y", "mismatched": 288, "compared": 2592, "edges": [["p", "last"]]}
ELEMENTS = {"kind": "elements", "elements": [WRONG]}
"""The same as data."""
RAISED = {
    "status": "error", "reason": "raised ValueError: no at /a/acme.py:7", "checks": {}, "causes": [],
    "failure": {"kind": "raised", "message": "ValueError: no", "file": "/a/acme.py", "line": 7},
}  # fmt: skip
"""Of what a kernel raised."""


def sample(**changes: Any) -> Record:
    """A verdict of the fixed distribution that passed, but for what is changed; what is changed to None is left out."""
    record: Record = {
        "kind": "case", "schema": SCHEMA, "implementation": "acme", "operator": "conv_forward", "device": "cpu",
        "status": "pass", "cases": 1,
        "source": "a" * 64, "contract": CONTRACT, "problem": "edge.plain", "descriptor": "n2 c8 h9 w9 k16 r3 s3 p1 b1",
        "dtype": "fp32", "layout": "nchw", "distribution": "fixed", "seed": 0, "generator": "splitmix64-v1",
        "method": "exact",
        "terms": {"y": 73}, "reason": "",
        "checks": {"y": {"worst error / bound": [0.31, 1.0], "rms": [0.28, 0.55], "gain z": [1.5, 6.2]}},
        "profile": {
            "y": {
                "lambda": 1.9, "lambda_limit": 6.0, "effective_bits": 19.7, "rms": 0.28, "gain_z": 1.5,
                "offset_z": -0.4, "inferred": INFERRED,
            }
        },
        "seconds": {"reference": 0.001, "kernel": 0.002, "judge": 0.003, "total": 0.006},
        "versions": VERSIONS,
    }  # fmt: skip
    record |= changes
    words = ["conformance", "check", record["implementation"], record["descriptor"], "--operator", record["operator"]]
    for option, plainest in (("dtype", "fp32"), ("layout", "nchw"), ("distribution", "fixed"), ("seed", 0)):
        words += [f"--{option}", record[option]] if record[option] != plainest else []
    record.setdefault("command", shlex.join(map(str, words)))
    return {name: value for name, value in record.items() if value is not None}


def absent(**changes: Any) -> Record:
    """Cases that could not be attempted."""
    head = {"kind": "absence", "schema": SCHEMA, "implementation": "acme", "operator": "avg_pool_forward"}
    rest = {"device": "cpu", "status": "unsupported", "cases": 18, "reason": "not implemented", "versions": VERSIONS}
    return {name: value for name, value in (head | rest | changes).items() if value is not None}


def failed(**changes: Any) -> Record:
    """A verdict with a diagnosis."""
    checks = {"y": {"worst error / bound": ["inf", 1.0], "rms": [5e5, 0.5438]}}
    given = {"status": "fail", "reason": DIAGNOSIS, "failure": ELEMENTS, "causes": CAUSES, "checks": checks}
    return sample(**{**given, **changes})


def waived(**changes: Any) -> Record:
    """A failure that is expected."""
    failure = {"failure": {"kind": "elements"}, "reason": "y: 3 elements mismatched"}
    return sample(**{"status": "waived", "waiver": WAIVER, **failure, **changes})


def checked(facts: Record, **changes: Any) -> Record:
    """A behaviour check that found something out."""
    return sample(
        **{"kind": "check", "check": "results_are_plain", "facts": facts, "distribution": "contract", **changes}
    )


def trained(**changes: Any) -> Record:
    """A training that got to its end."""
    names = ("first_loss", "last_loss", "accuracy", "test_loss", "test_accuracy", "baseline")
    scores = dict(zip(names, (2.0, 0.5, 0.9, 0.7, 0.8, 0.2), strict=True))
    run = {"network": "digits", "steps": 12, "verified": 92, "losses": [2.0, 0.5], "scores": scores}
    own = {"operator": "training", "problem": "digits", "distribution": "training", "profile": None}
    return sample(**{"kind": "training", "training": run, "contracts": {}, "level": "smoke", **own, **changes})


def broken(**changes: Any) -> Record:
    """A file that could not be used."""
    head = {"kind": "broken", "schema": SCHEMA, "implementation": "impls/b.py", "operator": "", "device": ""}
    reason = changes.get("reason", "SyntaxError")
    own = {"reason": reason, "failure": {"kind": "file", "message": reason.partition("\n")[0]}}
    return {**head, "status": "error", "cases": 1, "versions": VERSIONS, **own, **changes}


def as_read(record: Mapping[str, Any]) -> schema.Record:
    """The record of a line."""
    return decode(json.dumps(record))


HEADER = {
    "kind": "header", "schema": SCHEMA, "started": "2026-05-04T03:02:01+00:00", "command": ["pytest"], "versions": {},
    "level": "smoke", "seed": 0, "method": "auto", "golden": "",
}  # fmt: skip
FOOTER = {
    "kind": "footer", "schema": SCHEMA, "ended": "2026-05-04T04:02:01+00:00", "cases": {}, "exit_status": 0,
    "interrupted": False,
}  # fmt: skip


def sealed(lines: Iterable[Mapping[str, Any] | bytes]) -> bytes:
    """The content of a file with these lines, whose footers fit what stands above them."""
    found, digest = list[bytes](), hashlib.sha256()
    for line in lines:
        kind = "" if isinstance(line, bytes) else line["kind"]
        if not isinstance(line, bytes):
            digest = hashlib.sha256() if kind == "header" and not line.get("resumed") else digest
            line = json.dumps({**line, "digest": ""} if kind == "footer" else line, separators=(",", ":")).encode()
        if kind == "footer":
            above = digest.copy()
            above.update(line[:-2])
            line = line[:-2] + above.hexdigest().encode() + line[-2:]
        found.append(line + b"\n")
        digest.update(found[-1])
    return b"".join(found)


def written(path: Path, records: Iterable[Mapping[str, Any]], header: Mapping[str, Any] = HEADER) -> Path:
    """A file of the records of one run, whose header is its first line."""
    path.write_bytes(sealed([header, *records, FOOTER]))
    return path


def digest(folder: Path, records: Iterable[Mapping[str, Any]], *others: Path) -> Digest:
    """The digest of a run with these records, and of other files."""
    return Digest(load([written(folder / "run.jsonl", records), *others]))


def benchmarks(path: Path, timed: Iterable[tuple[Record, float]]) -> Path:
    """A file as pytest-benchmark writes it, from records and median seconds."""
    found = [{"extra_info": record, "stats": {"median": seconds}} for record, seconds in timed]
    path.write_text(json.dumps({"machine_info": {}, "benchmarks": found}, indent=4), encoding="utf-8")
    return path


def spread(seeds: Sequence[Record], count: int) -> Iterator[Record]:
    """`count` verdicts from those of a run: other implementations, problems and numbers, a few failures, no two of one
    case."""
    dice = random.Random(20_000)
    for place in range(count):
        record = copy.deepcopy(seeds[place % len(seeds)])
        lap = place // len(seeds)
        record["implementation"] += f"-{lap % 4}" if lap % 4 else ""
        if "problem" in record:
            _varied(record, lap, dice)
        yield record


def _varied(record: Record, lap: int, dice: random.Random) -> None:
    record["problem"] += f".{lap}"
    record["command"] += f" --seed {lap}" if lap else ""
    record["seed"] = lap
    record["seconds"]["total"] = round(dice.uniform(1e-4, 2.0), 6)
    for numbers in (*record["checks"].values(), *record.get("profile", {}).values()):
        for name, value in numbers.items():
            if isinstance(value, list) and not isinstance(value[0], str):
                value[0] *= dice.uniform(0.5, 1.0)
            elif isinstance(value, float) and name != "lambda_limit":
                numbers[name] = value * dice.uniform(0.5, 1.0)
    if record["status"] == "pass" and dice.random() < 0.005:
        record |= {
            "status": dice.choice(("fail", "error")),
            "reason": DIAGNOSIS.replace("288", str(dice.randint(1, 2000))),
            "failure": ELEMENTS,
        }


def reported(records: Iterable[schema.Record]) -> Report:
    """The report of a run with these records."""
    tally, held = Tally(), [*records]
    for record in held:
        tally.add(record)
    return Report(tally, RunEvidence(held), [record for record in held if record.status in ("fail", "error")])


def summary(records: Iterable[schema.Record], width: int = 80, listed: Iterable[str] = ()) -> list[str]:
    """The lines at the end of a run with these records, without colors; the last one last."""
    report = reported(records)
    lines = *terminal.verdict_lines(report, width), *terminal.notes(report, width, frozenset(listed))
    return [*(text.rstrip() for text, _ in lines), *([total(report.verdicts)] if report.verdicts else [])]
