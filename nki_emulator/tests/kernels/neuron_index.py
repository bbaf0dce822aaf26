"""Resolves the Neuron environments of tox.ini against the documented versions and requirements of the packages.

The vendor's index cannot be reached from everywhere, and its packages weigh gigabytes; what can be known without it is
whether the requirements have a solution, and of which release of the SDK that is.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name as canonical
from packaging.version import Version

from nki_emulator.tests.kernels.neuron_fakes import DECOYS

ROOT = Path(__file__).parents[3]
TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "neuron_packages.toml").read_text())
BEFORE: list[str] = TABLE["before"]


class Conflict(Exception):
    """Requirements that have no solution."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A version of a package; `sdk` is empty for those of the general index."""

    name: str
    version: str
    python: str
    requires: tuple[str, ...] = ()
    stable: tuple[str, ...] = ()
    sdk: str = ""


def wheels() -> list[Wheel]:
    """Those of the table, and the decoys of the general index."""
    found = [Wheel(package, version, ">=3.8") for package, version in DECOYS.values()]
    for name, versions in TABLE["general"].items():
        found += [Wheel(name, version, python, tuple(needs)) for version, (python, *needs) in versions.items()]
    for row in TABLE["packages"]:
        requires, stable = (tuple(row.get(kind, ())) for kind in ("requires", "stable"))
        found.append(Wheel(row["name"], row["version"], row["python"], requires, stable, row["sdk"]))
    return found


def resolve(requirements: Sequence[str], python: str, index: Sequence[Wheel]) -> dict[str, str]:
    """Name -> version for a version of Python, the newest that go together, as pip chooses them. Raises Conflict."""
    installable = [wheel for wheel in index if python in SpecifierSet(wheel.python)]
    newest = sorted(installable, key=lambda wheel: Version(wheel.version), reverse=True)
    found = _chosen([Requirement(text) for text in requirements], {}, newest)
    if found is None:
        raise Conflict(f"{', '.join(requirements)} for Python {python}")
    return {name: wheel.version for name, wheel in found.items()}


def _chosen(due: list[Requirement], chosen: dict[str, Wheel], index: Sequence[Wheel]) -> dict[str, Wheel] | None:
    """What is chosen already with what the requirements add to it; None if nothing fits."""
    if not due:
        return chosen
    first, *rest = due
    name = canonical(first.name)
    candidates = [chosen[name]] if name in chosen else [wheel for wheel in index if canonical(wheel.name) == name]
    for wheel in candidates:
        if first.specifier.contains(wheel.version):
            needs = (*wheel.requires, *(wheel.stable if "stable" in first.extras else ()))
            found = _chosen([*map(Requirement, needs), *rest], chosen | {name: wheel}, index)
            if found is not None:
                return found
    return None


def releases(found: Mapping[str, str]) -> dict[str, set[str]]:
    """Package of the SDK -> the releases that have this version of it; none for a decoy."""
    known = {package for package, _ in DECOYS.values()}
    return {
        name: {one.sdk for one in wheels() if (canonical(one.name), one.version) == (name, version) and one.sdk}
        for name, version in found.items()
        if name in known
    }


def own() -> list[str]:
    """What the suite itself needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def environments() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Environment of tox.ini that installs packages of the SDK -> its versions of Python, and its requirements."""
    ini = configparser.ConfigParser(interpolation=None)
    ini.read(ROOT / "tox.ini")
    packages, found = {package for package, _ in DECOYS.values()}, {}
    for section in ini.sections():
        for name in expanded(section.removeprefix("testenv:")):
            needs, pythons = (lines(ini.get(section, key, fallback=""), name) for key in ("deps", "base_python"))
            if packages & {canonical(re.split(r"[\[=<>~! ]", text)[0]) for text in needs}:
                words = re.findall(r"python([\d.]+)", " ".join(pythons))
                found[name] = (tuple(words), needs)
    return found


def expanded(section: str) -> list[str]:
    """The environments that a section of tox is for: `trn{1,2}` is trn1 and trn2."""
    before, brace, rest = section.partition("{")
    if not brace:
        return [section]
    choices, _, after = rest.partition("}")
    return [before + choice + end for choice in choices.split(",") for end in expanded(after)]


def lines(text: str, environment: str) -> tuple[str, ...]:
    """Those of a setting that are for an environment: what follows `a,b:` is for the factors a and b."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        factors, colon, rest = line.partition(": ")
        if not colon:
            found.append(line)
        elif {*factors.split(",")} & {*environment.split("-")}:
            found.append(rest)
    return tuple(found)
