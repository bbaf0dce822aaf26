"""What is fuzzed: functions of bytes that return where bytes are taken or refused with the error that is documented,
and raise anything else. Each has samples to begin with."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.inputs import manifest, npz
from conformance.operators import OPERATORS, GeometryError, parse, takes
from conformance.problems import PROBLEMS
from conformance.reporting import verify_records
from conformance.reporting.page.merge import load
from conformance.reporting.page.model import ReportError
from conformance.reporting.page.render import texts
from conformance.reporting.page.tables import Digest
from conformance.results.reading import RecordError
from tests import report_samples as samples

MAX_MESSAGE = 2000
"""Characters of a message about bad input: nobody reads more, and a terminal scrolls."""


@dataclass(frozen=True)
class Target:
    """What reads bytes, and bytes that are right."""

    read: Callable[[bytes], None]
    samples: Callable[[], Iterable[bytes]]


def _written(name: str, content: bytes) -> Path:
    """The bytes in a file, in a folder of this process."""
    path = Path(tempfile.gettempdir()) / f"fuzz-{name}"
    path.write_bytes(content)
    return path


def _shown(message: object) -> None:
    """A message is short, and a terminal can show it."""
    text = str(message)
    assert len(text) <= MAX_MESSAGE, f"{len(text)} characters: {text[:200]!r}"
    assert all(c.isprintable() or c == "\n" for c in text), f"not printable: {text!r}"


def records(content: bytes) -> None:
    """A file of records or benchmarks, up to the texts of its report."""
    try:
        digest = Digest(load([_written("records", content)]))
    except ReportError as problem:
        return _shown(problem)
    for error in digest.results.errors:
        _shown(error)
    for text in texts(digest, "fuzz").values():
        text.encode()
    return None


def descriptors(content: bytes) -> None:
    """A problem as it is typed, and what follows from it before memory is allocated."""
    try:
        geometry = parse(content.decode("utf-8", "replace"))
    except GeometryError as problem:
        return _shown(problem)
    assert parse(geometry.descriptor) == geometry
    for name, operator in OPERATORS.items():
        if takes(name, geometry):
            float(operator.flops(geometry) + operator.bytes(geometry, 4))
            _ = [tensor.size for tensor in (*operator.inputs(geometry).values(), *operator.outputs(geometry).values())]
    return None


def verified(content: bytes) -> None:
    """A file of records, up to what is wrong with it."""
    try:
        begun, placed, ended = verify_records.read(_written("verified", content))
    except RecordError as problem:
        return _shown(problem)
    for line in verify_records.totals([record for _, record in placed]):
        _shown(line)
    for line in verify_records.defects(begun, placed, ended):
        _shown(line)
    return None


def tensors(content: bytes) -> None:
    """A file of tensors, which takes about as much memory as it is long."""
    try:
        arrays = npz.decode(content)
    except ValueError as problem:
        return _shown(problem)
    assert sum(array.nbytes for array in arrays.values()) <= len(content)
    return None


def manifests(content: bytes) -> None:
    """The manifest of goldens."""
    with suppress(manifest.GoldenError):
        manifest.render(manifest.read(_written("manifest", content)))


def _records() -> Iterable[bytes]:
    made = (samples.sample(), samples.failed(), samples.absent(), samples.waived(), samples.broken(), samples.trained())
    every = [*made, samples.checked({"repeatable": True, "accepted": ["stride 0"]})]
    yield from (json.dumps(record).encode() for record in every)
    yield "".join(json.dumps(record) + "\n" for record in every).encode()
    machine = {"machine_info": {"cpu": {"brand_raw": "Xeon"}}}
    timed = [{"extra_info": samples.sample(), "stats": {"median": 0.5, "data": [0.5, 0.25]}}]
    yield json.dumps(machine | {"benchmarks": timed}, indent=1).encode()


def _manifests() -> Iterable[bytes]:
    digests = {"x": "0" * 64}
    entries = {"conv_forward n1 c1 h1 w1 k1 r1 s1 fp32 fixed seed0": manifest.Entry(digests, {"y": "1" * 64})}
    listed = {"conv_forward-n1.npz": manifest.Stored("conv_forward n1", "2" * 64)}
    yield manifest.render(manifest.Manifest(entries, listed)).encode()


TARGETS = {
    "records": Target(records, _records),
    "descriptors": Target(descriptors, lambda: (problem.geometry.descriptor.encode() for problem in PROBLEMS)),
    "verified": Target(verified, _records),
    "tensors": Target(tensors, lambda: [npz.encode({"inputs/x": np.ones((2, 3), "<f4"), "outputs/y": np.ones(3)})]),
    "manifests": Target(manifests, _manifests),
}
