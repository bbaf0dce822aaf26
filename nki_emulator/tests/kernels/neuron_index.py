"""Resolves the Neuron environments of tox.ini with pip, against wheels with the documented metadata and no content.

The vendor's index cannot be reached from everywhere, and its packages weigh gigabytes; what can be known without it is
whether the requirements have a solution, and of which release of the SDK that is.
"""

from __future__ import annotations

import configparser
import html
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nki_emulator.tests.kernels.neuron_fakes import DECOYS

ROOT = Path(__file__).parents[3]
TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "neuron_packages.toml").read_text())
BEFORE: list[str] = TABLE["before"]


class Conflict(Exception):
    """What pip says of requirements that have no solution."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A version of a package; `sdk` is empty for those of the general index."""

    name: str
    version: str
    python: str
    requires: tuple[str, ...] = ()
    stable: tuple[str, ...] = ()
    sdk: str = ""

    def write(self, folder: Path) -> str:
        """A wheel that pip reads, with nothing to install; its line on the package's page.

        Which Python it is for stands on the page alone: pip compares that of a wheel with its own.
        """
        stem = f"{self.name.replace('-', '_')}-{self.version}"
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self.version}"]
        lines += [f"Requires-Dist: {text}" for text in self.requires]
        if self.stable:
            lines += ["Provides-Extra: stable", *(f"Requires-Dist: {r}; extra == 'stable'" for r in self.stable)]
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
        link = html.escape(f"{stem}-py3-none-any.whl".replace("+", "%2B"))
        return f'<a href="{link}" data-requires-python="{html.escape(self.python)}">{link}</a>'


def wheels() -> list[Wheel]:
    """Those of the table, and the decoys of the general index."""
    found = [Wheel(package, version, ">=3.8") for package, version in DECOYS.values()]
    for name, versions in TABLE["general"].items():
        found += [Wheel(name, version, python, tuple(needs)) for version, (python, *needs) in versions.items()]
    for row in TABLE["packages"]:
        requires, stable = (tuple(row.get(kind, ())) for kind in ("requires", "stable"))
        found.append(Wheel(row["name"], row["version"], row["python"], requires, stable, row["sdk"]))
    return found


def index(folder: Path, found: Iterable[Wheel]) -> Path:
    """The folder, with a page and the wheels of each package."""
    for wheel in found:
        place = folder / canonical(wheel.name)
        place.mkdir(parents=True, exist_ok=True)
        with (place / "index.html").open("a") as page:
            page.write(wheel.write(place) + "\n")
    return folder


def resolve(requirements: Sequence[str], python: str, folder: Path) -> dict[str, str]:
    """Name -> version that pip would install for a version of Python, from this index alone. Raises Conflict."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    with tempfile.TemporaryDirectory() as target:
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report=-", f"--target={target}"]
        words += [f"--index-url={folder.as_uri()}", "--only-binary=:all:", f"--python-version={python}"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", *words, *requirements],
            env=settings | {"PIP_CONFIG_FILE": os.devnull},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise Conflict(done.stderr.strip())
    installed = [one["metadata"] for one in json.loads(done.stdout)["install"]]
    return {canonical(one["name"]): one["version"] for one in installed}


def canonical(name: str) -> str:
    """As the index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


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
