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


def requirements(target: Wanted) -> list[str]:
    """Return the requirements that pip installs for an engine. Raises SurveyError where this package has no extra of
    its name."""
    requirements = [Requirement(text) for text in _extra(target.extra)]
    requirements = [
        requirement for requirement in requirements if requirement.marker is None or requirement.marker.evaluate()
    ]
    if not requirements:
        raise SurveyError(f"{target.engine}: {DISTRIBUTION} has no extra {target.extra!r}; add one to pyproject.toml")
    return [str(requirement) for requirement in requirements]


def _extra(name: str) -> list[str]:
    """Return the requirements of an extra: those in the checkout's pyproject.toml, else those of the installed
    package."""
    if CHECKOUT is not None:
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        return [text for extra, texts in project["optional-dependencies"].items() if extra == name for text in texts]
    ours = (text.rpartition(" extra == ") for text in requires(DISTRIBUTION) or ())
    return [text.rpartition(";")[0] for text, _, extra in ours if extra.strip("'\"") == name]


def python_of(folder: Path, target: Wanted) -> Path:
    """Return the path of an environment's interpreter, in a folder of environments."""
    scripts = "Scripts" if sys.platform == "win32" else "bin"
    return (folder / target.engine / scripts / f"python{sysconfig.get_config_var('EXE') or ''}").absolute()


class Environments:
    """A folder of virtual environments, each made once."""

    def __init__(self, folder: Path, suite: Path | None) -> None:
        """`suite` is installed as the suite: this checkout, unless given. Raises SurveyError without either."""
        if suite is None and CHECKOUT is None:
            raise SurveyError(
                "--suite: give the wheel of kernel-conformance that is to be installed beside each engine"
            )
        self.folder, self._suite = folder, (suite or CHECKOUT or Path()).absolute()

    def ensure(self, target: Wanted) -> dict[str, str]:
        """Make an environment, unless it is there; return name -> version of the engine's packages. Raises SurveyError
        with the last lines of pip."""
        needed = requirements(target)
        stamp = self.folder / target.engine / STAMP
        recipe = {"suite": str(self._suite), "requirements": needed, "python": sys.version}
        if not stamp.is_file() or json.loads(stamp.read_text()) != recipe:
            self._make(target, needed)
            stamp.write_text(json.dumps(recipe))
        listed = json.loads(self._run(target, ["pip", "list", "--format=json", "--disable-pip-version-check"]))
        names = {canonicalize_name(Requirement(text).name) for text in needed}
        return {
            package["name"]: package["version"] for package in listed if canonicalize_name(package["name"]) in names
        }

    def variants(self, target: Wanted) -> bool:
        """Return whether the engine's file declares any variants."""
        path = file_of(target.implementations)
        rows = json.loads(self._run(target, ["conformance", "list", "implementations", str(path), "--json"]))
        return any(row["variants"] for row in rows)

    def _make(self, target: Wanted, needed: Sequence[str]) -> None:
        folder = self.folder / target.engine
        try:
            venv.create(folder, clear=True, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SurveyError(f"{folder}: no environment can be made ({error})") from None
        constraints = (CHECKOUT or Path()) / "constraints.txt"  # the tested versions
        bound = ["-c", str(constraints)] if constraints.is_file() else []
        # a checkout is installed as editable, so that its current state is verified
        suite = ["-e", str(self._suite)] if self._suite.is_dir() else [str(self._suite)]
        self._run(target, ["pip", "install", "--quiet", *bound, *suite, *needed])

    def _run(self, target: Wanted, words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [python_of(self.folder, target), "-m", *words], capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
            raise SurveyError(f"{target.name}: {' '.join(words[:2])}: {' '.join(last) or 'failed without a word'}")
        return done.stdout
