"""The golden manifest as a file: what it holds, reading it with every defect named, writing it one entry a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.inputs.stream import GENERATOR

FOLDER = Path(__file__).parents[2] / "golden"
MANIFEST = FOLDER / "manifest.json"
TENSORS = "tensors"
"""Name of the folder beside a manifest that holds the stored tensors."""
FORMAT = 1
SEED = 0
"""The seed whose tensors the manifest pins."""
REMEDY = "restore it from version control or, if the change is meant, run: python -m conformance golden regenerate"

Digests = dict[str, str]
"""Tensor -> SHA-256."""
Entry = dict[str, Digests]
"""`inputs` and `outputs` of one recipe."""


class GoldenError(Exception):
    """A golden that cannot be read or does not hold; the message names the file, the entry and what to do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored tensor file: the key of its recipe and the SHA-256 of its bytes."""

    recipe: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Recipe key -> entry, and file name -> stored tensors."""

    entries: dict[str, Entry] = field(default_factory=dict)
    tensors: dict[str, Stored] = field(default_factory=dict)


class _Wrong(Exception):
    """The defect of a manifest, without the file's name."""


def read(path: Path = MANIFEST) -> Manifest:
    """The manifest at `path`. Raises GoldenError naming the file, the entry or field, and the remedy."""
    try:
        found = _mapping(_parsed(path), "the document")
        for name, value in {"format": FORMAT, "generator": GENERATOR, "seed": SEED}.items():
            if type(found.get(name)) is not type(value) or found[name] != value:
                raise _Wrong(f"field '{name}' is not {value!r}")
        return Manifest(
            {key: _entry(value, f"entry {key!a}") for key, value in _mapping(found.get("entries"), "entries").items()},
            {name: _stored(name, value) for name, value in _mapping(found.get("tensors"), "tensors").items()},
        )
    except FileNotFoundError:
        raise GoldenError(f"{path} is missing; {REMEDY}") from None
    except _Wrong as defect:
        raise GoldenError(f"{path}: {defect}; {REMEDY}") from None
    except OSError as problem:
        raise GoldenError(f"{path} cannot be read ({problem.strerror}); {REMEDY}") from None
    except (ValueError, RecursionError) as problem:
        raise GoldenError(f"{path} is not JSON ({problem}); {REMEDY}") from None


def render(manifest: Manifest, seed: int = SEED) -> str:
    """The text of a manifest: one entry a line, sorted, the same bytes on every machine."""
    tensors = {name: {"recipe": stored.recipe, "sha256": stored.sha256} for name, stored in manifest.tensors.items()}
    return (
        f'{{\n"format": {FORMAT},\n"generator": {json.dumps(GENERATOR)},\n"seed": {seed},\n'
        f'"entries": {{\n{_lines(manifest.entries)}\n}},\n"tensors": {{\n{_lines(tensors)}\n}}\n}}\n'
    )


def _lines(rows: Mapping[str, Any]) -> str:
    return ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(rows.items()))


def _parsed(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """JSON keeps the last of two equal names in silence."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Wrong(f"{name!a} is given twice")
        found[name] = value
    return found


def _mapping(value: Any, where: str, *names: str) -> dict[str, Any]:
    """`value` if it is an object, with exactly these names where some are given."""
    if not isinstance(value, dict):
        raise _Wrong(f"{where} is missing or is not an object")
    if names and set(value) != set(names):
        raise _Wrong(f"{where} must hold {' and '.join(names)} and nothing else")
    return value


def _entry(value: Any, where: str) -> Entry:
    halves = _mapping(value, where, "inputs", "outputs")
    return {
        half: {
            name: _sha256(text, f"{where}, field {half}.{name!a}")
            for name, text in _mapping(digests, f"{where}, field {half}").items()
        }
        for half, digests in halves.items()
    }


def _stored(name: str, value: Any) -> Stored:
    where = f"tensors, file {name!a}"
    if not re.fullmatch(r"\w[\w.-]*\.npz", name, re.ASCII):
        raise _Wrong(f"{where}: is not the name of an npz file in {TENSORS}/")
    found = _mapping(value, where, "recipe", "sha256")
    if not isinstance(found["recipe"], str):
        raise _Wrong(f"{where}, field recipe is not a string")
    return Stored(found["recipe"], _sha256(found["sha256"], f"{where}, field sha256"))


def _sha256(text: Any, where: str) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{64}", text):
        raise _Wrong(f"{where} is not a SHA-256 of 64 hexadecimal digits")
    return text
