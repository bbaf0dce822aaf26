"""A tiny project of its own for every test, to run the suite in."""

from __future__ import annotations

import gc
import importlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance import Unavailable
from conformance.execution.process import Limits
from conformance.execution.workers import Workers
from conformance.operators.mistakes import Mistake
from tests.kit import CEILINGS, command, source

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session", autouse=True)
def _imported_once() -> None:
    """scipy.stats cannot be imported twice, and pytester forgets what a run has imported. Not with this file, which
    pytest reads at the start of every run in the checkout."""
    importlib.import_module("scipy.stats")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Make the tests without a collection of garbage, and let later ones pass them over with all that is imported by
    then: looking at 700,000 objects of which none can go took a third of the collection of tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


LONG = 60.0
"""Seconds of a run from which on its slowest files are listed."""
SLOWEST = 15


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the files that a long run has spent most in, with their slowest tests: CI is as long as these."""
    seconds, slowest = defaultdict[str, float](float), dict[str, tuple[float, str]]()
    reports = [one for found in terminalreporter.stats.values() for one in found if isinstance(one, pytest.TestReport)]
    for report in reports:
        file, _, test = report.nodeid.partition("::")
        seconds[file] += report.duration
        slowest[file] = max(slowest.get(file, (0.0, "")), (report.duration, test))
    total = sum(seconds.values())
    if total < LONG:
        return
    terminalreporter.section(f"slowest files: {total:.0f} s in all")
    for file, spent in sorted(seconds.items(), key=lambda one: -one[1])[:SLOWEST]:
        most, test = slowest[file]
        terminalreporter.write_line(f"{spent:6.1f} s  {file}  ({most:.1f} s: {test})")


TINY = "n1 c2 h4 w4 k2 r3 s3 p1"
USUAL = {
    "--problem": TINY,
    "--dtype": "fp32",
    "--layout": "nchw",
    "--distribution": "integer",
    "--records": "records.jsonl",
}

CONFTEST = 'pytest_plugins = ["conformance.plugin"]'
SUITE = """
import pytest

@pytest.mark.verifies("conv_forward")
def test_conv_forward(verify, case):
    verify(case)
"""


@dataclass(frozen=True)
class Outcome:
    """What a run of the tiny project came to."""

    exit: int
    text: str
    records: list[dict[str, Any]]

    @property
    def statuses(self) -> Counter[str]:
        """Cases by status."""
        return sum((Counter({record["status"]: record["cases"]}) for record in self.records), Counter())

    def of(self, implementation: str) -> dict[str, Any]:
        """The only record of an implementation (or broken file)."""
        (found,) = (r for r in self.records if Path(r["implementation"]).name == implementation)
        return found


class Project:
    """A folder with the plugin, one suite, and the implementations that a test adds."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.folder = pytester.path
        pytester.makeconftest(CONFTEST)
        pytester.makeini("[pytest]\nimpls = impls\ntestpaths = suite\naddopts = -p no:cacheprovider\n")
        self.write("suite/test_suite.py", SUITE)
        (self.folder / "impls").mkdir()

    def write(self, path: str, text: str) -> Path:
        """A file of the project."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def kernel(self, name: str = "acme", folder: str = "impls", body: str = "return y", **changes: str) -> Path:
        """An implementation in a file of its name, right unless `changes` say otherwise."""
        return self.write(f"{folder}/{name}.py", source(name, body, **changes))

    def run(self, *arguments: str, keep: bool = False) -> Outcome:
        """Run the command line in this process, on one tiny case unless the arguments select others; `keep` what is in
        the file of records."""
        given = [option for option in USUAL if _given(option, arguments)]
        usual = [f"{option}={value}" for option, value in USUAL.items() if option not in given]
        usual += [] if _given("--operator", arguments) else ["--operator=conv_forward"]
        usual += [] if keep or _given("--resume", arguments) else ["--overwrite"]
        usual += [] if _given("--impl", arguments) else ["--impl=impls"]
        return Outcome(*command("run", *arguments, *usual), self.records())

    def pytest(self, *arguments: str, subprocess: bool = False, patience: float = 60, keep: bool = False) -> Outcome:
        """Run the suite by pytest, on one tiny case unless the arguments select others; `keep` what is in the file of
        records. Benchmarks have problems of their own, and trainings data."""
        suite = (self.folder / "suite/test_suite.py").read_text()
        apart = {"--problem"} if "mark.benchmarks" in suite else set[str]()
        apart |= {"--problem", "--distribution"} if "mark.trains" in suite else set[str]()
        given = {option for option in USUAL if _given(option, arguments) or option in apart}
        usual = [f"{option}={value}" for option, value in USUAL.items() if option not in given]
        usual += [] if keep or _given("--resume", arguments) else ["--overwrite"]
        if subprocess:
            result = self.pytester.runpytest_subprocess(*arguments, *usual, timeout=patience)
        else:
            result = self.pytester.runpytest_inprocess(*arguments, *usual)
        return Outcome(int(result.ret), f"{result.stdout.str()}\n{result.stderr.str()}", self.records())

    def records(self, name: str = "records.jsonl") -> list[dict[str, Any]]:
        """The records that are on disk, read as strict JSON, without the lines that begin and end a run."""
        return [line for line in self.lines(name) if line["kind"] not in ("header", "footer")]

    def lines(self, name: str = "records.jsonl") -> list[dict[str, Any]]:
        """All lines of a file of records, read as strict JSON."""
        file = self.folder / name
        lines = file.read_text().splitlines() if file.is_file() else []
        return [json.loads(line, parse_constant=_refuse) for line in lines]


def _given(option: str, arguments: tuple[str, ...]) -> bool:
    return any(argument.split("=")[0] == option for argument in arguments)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project, untouched by the plugins and settings of the run around it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "300")
    for name in ("PYTEST_XDIST_WORKER", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Project(pytester)


def absence(require: Callable[[], None]) -> str:
    """The reason that `require` of a bridge or a toolchain gives; empty where all is here."""
    try:
        require()
    except Unavailable as reason:
        return str(reason)
    return ""


def no_traceback_of_ours(text: str) -> bool:
    """Return whether a message speaks about the user's files and nobody else's.

    Python itself names `conformance/__init__.py` where a file imports what the package does not have.
    """
    package = ROOT / "conformance"
    text = text.replace(str(package / "__init__.py"), "")
    return not any(mark in text for mark in ("Traceback", "INTERNALERROR", str(package)))


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Processes of kernels, which end with the test."""
    with Workers(Limits(seconds=60)) as workers:
        yield workers


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take as many threads as a worker of pytest-xdist lets numba have; benchmarks give everybody the same number."""
    monkeypatch.setattr("conformance.timing.conditions.cores", lambda: 1)


@pytest.fixture(scope="module")
def mistakes_computed_once() -> Iterator[None]:
    """Compute each mistake once on the same inputs: diagnosis compares every planted one with the whole library."""
    results: dict[Any, Any] = {}

    def once(compute: Callable[..., Any]) -> Callable[..., Any]:
        def outputs(self: Mistake, *arguments: Any) -> Any:
            workload, inputs, *dtype = arguments
            key = (compute.__name__, self.name, workload, id(inputs), *dtype)
            if key not in results:
                results[key] = inputs, compute(self, *arguments)  # held, so that nothing else gets their id
            return results[key][1]

        return outputs

    with pytest.MonkeyPatch.context() as patch:
        for method in (Mistake.outputs, Mistake.read_beyond):
            patch.setattr(Mistake, method.__name__, once(method))
        yield


@pytest.fixture
def ceilings(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Ceilings that a test can calculate with, a function that gives others, and a machine that nobody looks at."""

    def give(ceilings: Any) -> None:
        monkeypatch.setattr("conformance.timing.roofline.measure_ceilings", lambda *_: ceilings)

    monkeypatch.setattr("conformance.timing.conditions.Conditions.look", lambda _: None)
    give(CEILINGS)
    return give
