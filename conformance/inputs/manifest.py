"""The golden manifest: its content, a reader that names every defect, and a writer with one entry per line.

Digests of tensors have one value on every machine, because the tensors are exact.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from conformance.files import content_of
from conformance.inputs.stream import GENERATOR
from conformance.resources import GOLDEN

if TYPE_CHECKING:
    from conformance.inputs.expectation import Expectation

MANIFEST = GOLDEN / "manifest.json"
TENSORS = "tensors"
"""Name of the folder beside a manifest that holds the stored tensors."""
SEED = 0
"""Seed of the tensors that the manifest pins."""
REMEDY = "restore it from version control or, if the change is meant, run: python -m tests.calibration goldens"

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class GoldenError(Exception):
    """A golden that cannot be read or does not hold; the message names the file, the entry and what to do.

    `alike` says it without the entry, for all goldens that have the same defect.
    """

    def __init__(self, message: str, alike: str = "") -> None:
        super().__init__(message)
        self.alike = alike or message


class MissingGoldenError(GoldenError):
    """A golden that the tables ask for and the manifest does not have."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Digests of one recipe's tensors, by name."""

    inputs: dict[str, Sha256]
    outputs: dict[str, Sha256]


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stored tensor file: the key of its recipe and the SHA-256 of its bytes."""

    recipe: str
    sha256: Sha256


class Manifest(msgspec.Struct, frozen=True):
    """Recipe key -> entry, and file name -> stored tensors."""

    entries: dict[str, Entry] = {}
    tensors: dict[str, Stored] = {}


class _Head(msgspec.Struct):
    format: Literal[1]
    generator: Literal["splitmix64-v1"]
    seed: Literal[0]


class _Document(_Head):
    """The document in a manifest's file; entries are converted one by one, so that a defect can be located."""

    entries: dict[str, Any]
    tensors: dict[str, Any]


class _Whole(_Head):
    """The document converted as a whole, in a tenth of the time: every run reads the 12,000 entries."""

    entries: dict[str, Entry]
    tensors: dict[str, Stored]

    @property
    def strings(self) -> int:
        """Number of strings in the document's text if no name occurs twice, of which JSON silently keeps the last."""
        digests = sum(len(entry.inputs) + len(entry.outputs) for entry in self.entries.values())
        return len(self.__struct_fields__) + 1 + 3 * len(self.entries) + 2 * digests + 5 * len(self.tensors)


def digest() -> str:
    """Return the manifest's SHA-256; empty if it cannot be read, which is reported by verdicts that need it."""
    with suppress(OSError):
        return hashlib.sha256(content_of(MANIFEST)).hexdigest()
    return ""


def read(path: Path = MANIFEST) -> Manifest:
    """Read the manifest at `path`. Raises GoldenError naming the file, the entry or field, and the remedy."""
    where, manifest = "the document", Manifest()
    try:
        text = content_of(path).decode()
        with suppress(msgspec.MsgspecError):
            whole = msgspec.json.decode(text, type=_Whole)
            if text.count('"') == 2 * whole.strings:
                return Manifest(whole.entries, whole.tensors)
        document = msgspec.convert(json.loads(text, object_pairs_hook=_unique, parse_int=_whole), _Document)
        for key, value in document.entries.items():
            where = f"entry {key!a}"
            manifest.entries[key] = msgspec.convert(value, Entry)
        for name, value in document.tensors.items():
            where = f"tensors, file {name!a}"
            if not re.fullmatch(r"\w[\w.-]*\.npz", name, re.ASCII):
                raise msgspec.ValidationError(f"is not the name of an npz file in {TENSORS}/")
            manifest.tensors[name] = msgspec.convert(value, Stored)
    except FileNotFoundError:
        raise GoldenError(f"{path} is missing; {REMEDY}") from None
    except OSError as problem:
        raise GoldenError(f"{path} cannot be read ({problem.strerror}); {REMEDY}") from None
    except msgspec.ValidationError as defect:
        raise GoldenError(f"{path}: {where}: {defect}; {REMEDY}") from None
    except (ValueError, RecursionError) as problem:
        raise GoldenError(f"{path} is not JSON ({problem}); {REMEDY}") from None
    return manifest


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, and refuse equal names, of which json and msgspec silently keep the last."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise msgspec.ValidationError(f"{name!a} is given twice")
        members[name] = value
    return members


def _whole(text: str) -> int:
    """Parse an integer, and refuse more than 18 digits: Python fails at 4,300, and explains how to raise that."""
    if len(text) > 18:
        raise msgspec.ValidationError(f"a number has {len(text)} digits")
    return int(text)


def render(manifest: Manifest, seed: int = SEED) -> str:
    """Return the text of a manifest: one entry per line, sorted, the same bytes on every machine."""

    def lines(rows: Mapping[str, Any]) -> str:
        return ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(rows.items()))

    built = msgspec.to_builtins(manifest)
    return (
        f'{{\n"format": 1,\n"generator": {json.dumps(GENERATOR)},\n"seed": {seed},\n'
        f'"entries": {{\n{lines(built["entries"])}\n}},\n"tensors": {{\n{lines(built["tensors"])}\n}}\n}}\n'
    )


def canonical(array: np.ndarray) -> np.ndarray:
    """Return values as little-endian float64 in row-major order; every storage dtype converts to float64 exactly.

    NaN gets one bit pattern and zero one sign, which the mathematics does not determine.
    """
    values = array.astype("<f8", order="C")
    values += 0.0
    values[np.isnan(values)] = np.nan
    return values


def digest_of(array: np.ndarray) -> str:
    """Return the SHA-256 of the canonical values."""
    return hashlib.sha256(canonical(array).data).hexdigest()


def entry(expected: Expectation) -> Entry:
    """Return the manifest entry of a recipe, computed from its tensors."""
    tensors = expected.inputs, expected.reference
    inputs, outputs = ({name: digest_of(array) for name, array in arrays.items()} for arrays in tensors)
    return Entry(inputs, outputs)


def differences(pinned: Entry, computed: Entry) -> Iterator[str]:
    """Yield the differences of two entries of a recipe, one sentence per tensor."""
    for half in ("inputs", "outputs"):
        listed, digests = getattr(pinned, half), getattr(computed, half)
        for name in sorted(listed.keys() | digests.keys()):
            before, now = listed.get(name, "absent"), digests.get(name, "absent")
            if before != now:
                shown = 12 if before[:12] != now[:12] else None
                yield f"{half}.{name} is {before[:shown]} there and {now[:shown]} here"
