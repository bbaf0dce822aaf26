"""The file of support claims beside an implementation: its schema, how it is read, and the claims that records verify.

A kernel's problems are listed once for all variants (dtype, layout, distribution and, if any, storage or behaviour
check) that pass on the same problems.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from conformance import __version__
from conformance.execution.trial import Claim
from conformance.failure import Failure
from conformance.files import content_of
from conformance.implementations.devices import DEVICES
from conformance.operators import OPERATORS
from conformance.problems.case import Case
from conformance.results.reading import RecordError, strict_json
from conformance.results.schema import Attempt, Count, Record, Text

FOLDER_FILE, ENDING = "claims.json", ".claims.json"
KNOWN_OPERATORS = (*OPERATORS, "training")
"""Operators that claims may name: a case of any other would never be compared, and its loss would go unnoticed."""
NOT_PACKAGES = ("python", "machine", "system", "processor", "kernel-conformance")
"""Names in the `versions` of every record that are not packages which an implementation needs."""


class ClaimsError(ValueError):
    """A file of claims that cannot be used; the message names the file, the field and what to do."""


class Verified(Struct, frozen=True, kw_only=True):
    """Variants of an operator, and the problems that all of them passed on."""

    variants: tuple[Annotated[str, Meta(pattern=r"\A\S+ \S+ \S+( \S+)?\Z")], ...]
    problems: tuple[Text, ...]


class ImplementationClaims(Struct, frozen=True, kw_only=True):
    """Claims of one implementation: the run that verified it, and the verified cases by operator."""

    suite: str
    level: str
    seed: Count
    device: str
    versions: dict[str, str]
    problems: dict[str, str]
    cases: dict[str, tuple[Verified, ...]]

    def __post_init__(self) -> None:
        for what, values, choices in (("device", [self.device], DEVICES), ("operator", self.cases, KNOWN_OPERATORS)):
            for value in values:
                if value not in choices:
                    raise ValueError(f"{what} {value!r} must be one of {', '.join(choices)}")
        for name in (name for groups in self.cases.values() for group in groups for name in group.problems):
            if name not in self.problems:
                raise ValueError(f"problem {name!r} has no descriptor in `problems`")

    @property
    def keys(self) -> frozenset[Case]:
        return frozenset(
            _case(operator, self.problems[name] or name, *variant.split())
            for operator, groups in self.cases.items()
            for group in groups
            for variant in group.variants
            for name in group.problems
        )


class ClaimsFile(Struct, frozen=True, kw_only=True):
    """The whole file of claims. No field may be left out: an empty file would silently claim nothing."""

    schema: Literal[1]
    implementations: Annotated[dict[str, ImplementationClaims], Meta(min_length=1)]


_DECODER = msgspec.json.Decoder(ClaimsFile)


def beside(source: Path) -> Path:
    """Return the path of the claims of an implementation's file or folder."""
    return source / FOLDER_FILE if source.is_dir() else source.with_name(source.stem + ENDING)


def sources(folder: Path) -> list[Path]:
    """Return the files and folders in a folder of implementations that have claims beside them, also those that were
    removed and whose claims are left. For a file, or a folder that is a package, return only itself."""
    if folder.suffix == ".py" or (folder / "__init__.py").exists():
        return [folder]
    files = (file.with_name(file.name.removesuffix(ENDING) + ".py") for file in folder.glob(f"*{ENDING}"))
    folders = (file.parent for file in folder.glob(f"*/{FOLDER_FILE}"))
    return sorted(path for path in (*files, *folders) if path.name[0] not in "._")


def read(source: Path) -> dict[str, ImplementationClaims]:
    """Return the claims beside a file or folder, by implementation; empty if there are none. Raises ClaimsError."""
    file = beside(source)
    try:
        return strict_json(content_of(file), _DECODER).implementations if file.exists() else {}
    except OSError as problem:
        raise ClaimsError(f"{file}: cannot be read ({problem.strerror})") from None
    except RecordError as problem:
        anew = f"delete it, and write it anew with `conformance claims write {source} RECORDS`"
        raise ClaimsError(f"{file}: {problem}; restore the file, or {anew}") from None


def load(paths: Iterable[Path]) -> dict[str, Claim]:
    """Return implementation -> the claim beside these files and folders; of one name, the first. Raises ClaimsError."""
    claims: dict[str, Claim] = {}
    for path in paths:
        for name, section in read(path).items():
            packages = tuple(section.versions)
            claim = Claim(name, path, beside(path), section.device, packages, section.problems, section.keys)
            claims.setdefault(name, claim)
    return claims


def claimed_as(record: Record) -> Case:
    """Return the case of a record with seed 0, as claims name it: they hold for every seed."""
    return replace(record.case, seed=0)


def _case(operator: str, problem: str, dtype: str, layout: str, distribution: str, other: str = "") -> Case:
    """Return the case that a problem and the words of a variant name; `other` is a storage or the name of a check."""
    storage, check = (other, "") if ":" in other else ("", other)
    return Case(operator, problem, dtype, layout, distribution, storage, check=check)


def enforced(record: Record, claims: Mapping[str, Claim]) -> Record:
    """Return the record, or a failure in its place if its case is claimed and unsupported."""
    claim = claims.get(record.implementation)
    if claim is None or record.status != "unsupported" or claimed_as(record) not in claim.cases:
        return record
    lost = claim.lost(record.status, record.reason)
    return msgspec.structs.replace(record, status="fail", reason=lost, failure=Failure(kind="claim"), undeclared=None)


def section(attempts: Sequence[Attempt], imports: Mapping[str, str]) -> ImplementationClaims:
    """Return what the records of one implementation in one run verify; records that did not pass verify nothing.

    `imports` are packages, with their versions, that it needs beside those that the records name.
    """
    wrong = {record.case for record in attempts if record.status in ("fail", "error")}  # a state may show only later
    passed = [record for record in attempts if record.status == "pass" and record.case not in wrong]
    variants: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for record in passed:
        words = filter(None, (record.dtype, record.layout, record.distribution, record.storage, record.check))
        variants[record.operator, " ".join(words)].add(record.problem)
    alike: defaultdict[str, defaultdict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for (operator, variant), problems in sorted(variants.items()):
        alike[operator][tuple(sorted(problems))].append(variant)
    named = {name: value for record in attempts for name, value in record.versions.items() if _is_package(name, value)}
    return ImplementationClaims(
        suite=__version__,
        level=attempts[0].run_level,
        seed=attempts[0].seed,
        device=attempts[0].device,
        versions=dict(sorted((dict(imports) | named).items())),
        problems=dict(sorted((record.problem, record.descriptor) for record in passed)),
        cases={
            operator: tuple(Verified(variants=tuple(v), problems=p) for p, v in groups.items())
            for operator, groups in alike.items()
        },
    )


def imported(source: Path) -> dict[str, str]:
    """Return the installed packages that a file or folder imports, with their versions, without the standard library,
    the suite and its own modules. Raises ClaimsError."""
    modules = set[str]()
    for file in [source] if source.is_file() else source.rglob("*.py"):
        try:
            nodes = list(ast.walk(ast.parse(content_of(file))))
        except (SyntaxError, ValueError) as problem:
            raise ClaimsError(f"{file}: is not Python ({problem})") from None
        modules.update(name.name for node in nodes if isinstance(node, ast.Import) for name in node.names)
        modules.update(node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level)
    brought = packages_distributions()
    packages = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    return {name: version(brought[name][0]) for name in packages - {"conformance"} if name in brought}


def _is_package(name: str, value: str) -> bool:
    """Return whether this is a package: `torch 2.13.0` is; `CUDA driver 13.0`, `device cpu` and `nki none` are not."""
    return name not in NOT_PACKAGES and " " not in name and bool(re.match(r"\d+\.", value))


def text(claims: dict[str, ImplementationClaims]) -> bytes:
    """Return claims as the content of a file that is read in a diff: one name a line."""
    document = msgspec.json.encode(ClaimsFile(schema=1, implementations=claims), order="deterministic")
    return msgspec.json.format(document, indent=1) + b"\n"
