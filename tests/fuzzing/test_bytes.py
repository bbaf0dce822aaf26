"""What reads bytes of others takes them or refuses them with a message, also where they are nearly right."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")

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
        runs, placed = verify_records.read_placed(_written("verified", content))
    except RecordError as problem:
        return _shown(problem)
    totals = verify_records.totals([record for _, record in placed])
    for line in (*totals, *verify_records.defects(runs, placed)):
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
    yield samples.sealed([samples.HEADER, *every, samples.FOOTER])
    machine = {"machine_info": {"cpu": {"brand_raw": "Xeon"}}}
    timed = [{"extra_info": samples.sample(), "stats": {"median": 0.5, "data": [0.5, 0.25]}}]
    yield json.dumps(machine | {"benchmarks": timed}, indent=1).encode()


def _manifests() -> Iterable[bytes]:
    digests = {"x": "0" * 64}
    entries = {"conv_forward n1 c1 h1 w1 k1 r1 s1 fp32 fixed seed0": manifest.Entry(digests, {"y": "1" * 64})}
    listed = {"conv_forward-n1.npz": manifest.Stored("conv_forward n1", "2" * 64)}
    yield manifest.render(manifest.Manifest(entries, listed)).encode()


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], Iterable[bytes]]]] = {
    "records": (records, _records),
    "descriptors": (descriptors, lambda: (problem.geometry.descriptor.encode() for problem in PROBLEMS)),
    "verified": (verified, _records),
    "tensors": (tensors, lambda: [npz.encode({"inputs/x": np.ones((2, 3), "<f4"), "outputs/y": np.ones(3)})]),
    "manifests": (manifests, _manifests),
}
"""Functions of bytes that return where these are taken or refused with the error that is documented, and raise anything
else; and samples that are right."""


NUMBERS = (
    "9" * 5000,
    "9" * 4000,
    "18446744073709551616",
    "1e999",
    "1e308",
    "-1e308",
    "5e-324",
    "-1",
    "-0.0",
    "0",
    "NaN",
)
TEXTS = ("\x00", "\x1b[2J", "\uffff", "\U0001fffe", "\ufdd0", "\u202e", "=1+1", "<script>", "__proto__", "", "x" * 5000)
TOKENS = (*NUMBERS, *map(json.dumps, TEXTS), '"\\ud800"', "null", "true", "[]", "{}", "[" * 5000, '"nan"', '"inf"')
"""What is put in the place of a value of JSON."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value inside of one of JSON: what holds it, and its key there."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@st.composite
def nearly(draw: st.DrawFn, name: str) -> bytes:
    """A sample of a target: if it is JSON with up to three values replaced; then, or otherwise, with bytes replaced."""
    content = draw(st.sampled_from(sorted(TARGETS[name][1]())))
    with suppress(ValueError):
        held, tokens = json.loads(content), draw(st.lists(st.sampled_from(TOKENS), max_size=3))
        for number in range(len(tokens)):
            inside, key = draw(st.sampled_from(list(places(held))))
            inside[key] = f"@{number}@"
        text = json.dumps(held, indent=1 if content.startswith(b"{\n") else None)
        for number, token in enumerate(tokens):
            text = text.replace(f'"@{number}@"', token)
        content = text.encode()
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(content)))
        end = start + draw(st.integers(-40, 40))  # bytes are replaced, cut out, or there twice
        content = content[:start] + draw(st.binary(max_size=8)) + content[max(end, 0) :]
    return content


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_that_are_nearly_right_are_taken_or_refused_with_a_message(name: str):
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(nearly(name))
    @example(b"")
    def check(content: bytes) -> None:
        TARGETS[name][0](content)

    check()


def test_a_member_that_unpacks_to_a_thousand_times_its_length_is_no_file_of_tensors():
    bomb = BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00" + bytes(1 << 24))
    tensors(bomb.getvalue())
