"""A virtual environment for each engine: the packages of its extra in this package, and the suite."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.execution.implementation_names import PREFIX
from conformance.resources import CHECKOUT, ENGINES, IMPLS
from conformance.survey.survey_file import SurveyError

DISTRIBUTION = "kernel-conformance"
NATIVE = {"torch": "torch_native", "jax": "jax_native", "numba": "numba_cpu"}
"""Engines whose implementations take part in every run -> their folder in `impls/`; each other engine is a file of its
name in `impls/engines/`, with an extra `engine-NAME`. The first package of an extra is the engine."""
STAMP = "conformance.json"
"""File in an environment that records what it was made of."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An engine that is to be surveyed."""

    engine: str
    variants: bool = False
    """Whether all of its variants run, at smoke level: most are a switch, which a few cases show."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return f"{self.engine}-variants" if self.variants else self.engine

    @property
    def extra(self) -> str:
        """Name of the engine's extra of this package."""
        return self.engine if self.engine in NATIVE else f"{PREFIX}{canonicalize_name(self.engine)}"

    @property
    def implementations(self) -> str:
        """Name that `conformance run` is given."""
        return NATIVE.get(self.engine, self.engine)


def engines() -> list[str]:
    """Return the names of all engines that a survey knows."""
    return [*NATIVE, *sorted(path.stem for path in ENGINES.glob("[!_]*.py"))]


def file_of(stem: str) -> Path:
    """Return the file or folder of an engine."""
    return IMPLS / stem if (IMPLS / stem).is_dir() else ENGINES / f"{stem}.py"


def requirements(wanted: Wanted) -> list[str]:
    """Return the requirements that pip installs for an engine. Raises SurveyError where this package has no extra of
    its name."""
    found = [Requirement(text) for text in _extra(wanted.extra)]
    found = [one for one in found if one.marker is None or one.marker.evaluate()]
    if not found:
        raise SurveyError(f"{wanted.engine}: {DISTRIBUTION} has no extra {wanted.extra!r}; add one to pyproject.toml")
    return [str(one) for one in found]


def _extra(name: str) -> list[str]:
    """Return the requirements of an extra: those in the checkout's pyproject.toml, else those of the installed
    package."""
    if CHECKOUT is not None:
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        return [text for extra, texts in project["optional-dependencies"].items() if extra == name for text in texts]
    ours = (text.rpartition(" extra == ") for text in requires(DISTRIBUTION) or ())
    return [text.rpartition(";")[0] for text, _, extra in ours if extra.strip("'\"") == name]


def python_of(folder: Path, wanted: Wanted) -> Path:
    """Return the path of an environment's interpreter, in a folder of environments."""
    scripts = "Scripts" if sys.platform == "win32" else "bin"
    return (folder / wanted.engine / scripts / f"python{sysconfig.get_config_var('EXE') or ''}").absolute()


class Environments:
    """A folder of virtual environments, each made once."""

    def __init__(self, folder: Path, suite: Path | None) -> None:
        """`suite` is installed as the suite: this checkout, unless given. Raises SurveyError without either."""
        if suite is None and CHECKOUT is None:
            raise SurveyError(
                "--suite: give the wheel of kernel-conformance that is to be installed beside each engine"
            )
        self.folder, self._suite = folder, (suite or CHECKOUT or Path()).absolute()

    def made(self, wanted: Wanted) -> dict[str, str]:
        """Make an environment, unless it is there; return name -> version of the engine's packages. Raises SurveyError
        with the last lines of pip."""
        asked = requirements(wanted)
        stamp = self.folder / wanted.engine / STAMP
        recipe = {"suite": str(self._suite), "requirements": asked, "python": sys.version}
        if not stamp.is_file() or json.loads(stamp.read_text()) != recipe:
            self._make(wanted, asked)
            stamp.write_text(json.dumps(recipe))
        listed = json.loads(self._run(wanted, ["pip", "list", "--format=json", "--disable-pip-version-check"]))
        names = {canonicalize_name(Requirement(one).name) for one in asked}
        return {one["name"]: one["version"] for one in listed if canonicalize_name(one["name"]) in names}

    def variants(self, wanted: Wanted) -> bool:
        """Return whether the engine's file declares any variants."""
        path = file_of(wanted.implementations)
        rows = json.loads(self._run(wanted, ["conformance", "list", "implementations", str(path), "--json"]))
        return any(row["variants"] for row in rows)

    def _make(self, wanted: Wanted, asked: Sequence[str]) -> None:
        folder = self.folder / wanted.engine
        try:
            venv.create(folder, clear=True, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SurveyError(f"{folder}: no environment can be made ({error})") from None
        constraints = (CHECKOUT or Path()) / "constraints.txt"  # the tested versions
        bound = ["-c", str(constraints)] if constraints.is_file() else []
        # a checkout is installed as editable, so that its current state is verified
        suite = ["-e", str(self._suite)] if self._suite.is_dir() else [str(self._suite)]
        self._run(wanted, ["pip", "install", "--quiet", *bound, *suite, *asked])

    def _run(self, wanted: Wanted, words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [python_of(self.folder, wanted), "-m", *words], capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
            raise SurveyError(f"{wanted.name}: {' '.join(words[:2])}: {' '.join(last) or 'failed without a word'}")
        return done.stdout
