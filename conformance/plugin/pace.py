"""How long a run will take, said before its first test: where every call compiles, `standard` takes hours.

Of the pace of an earlier run, whose records `--pace` names, or else, on a Neuron device, of what compilers take there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

import pytest

from conformance.execution.case import Case
from conformance.implementations.devices import NEURON, missing
from conformance.plugin.options import devices_asked
from conformance.plugin.progress import duration
from conformance.reporting.table import many
from conformance.results.reading import RecordError, UnfinishedError, decode, lines

COMPILES = (2.0, 60.0)
"""Seconds that Neuron's compiler takes for one kernel or graph of an operator's size, as its users report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    group = parser.getgroup("conformance")
    group.addoption("--pace", metavar="FILE", help="say how long it will take, by the records of an earlier run")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Say it. Where pytest-xdist has workers, the process that writes collects nothing, and none is said."""
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.option.collectonly or not session.items:
        return
    file, here = config.getoption("--pace"), [name for name in devices_asked(config) if name in NEURON]
    if file is not None:
        text = by_records(config.invocation_params.dir / file, len(session.items))
    elif any(not missing(name) for name in here):
        text = by_reports(len(session.items), programs(session.items))
    else:
        return
    reporter.ensure_newline()
    reporter.write_line(text)


def programs(items: Iterable[pytest.Item]) -> int:
    """How many different ones tests need at least: kernels that compile per shape have one for a problem in a dtype and
    layout. What checks of behaviour compile beside their own is not known before they run."""
    found = set()
    for item in items:
        case = item.callspec.params.get("case") if isinstance(item, pytest.Function) else None
        if isinstance(case, Case) and case.implementation.compiles_per_shape:
            variant = case.variant
            operator, geometry = case.operator.name, case.problem.geometry
            found.add((case.implementation.name, operator, geometry, variant.dtype, variant.layout))
    return len(found)


def by_reports(tests: int, compiled: int) -> str:
    """Where that many programs are compiled."""
    least, most = (duration(compiled * seconds) for seconds in COMPILES)
    pace = f"{COMPILES[0]:g} to {COMPILES[1]:g} s each, as users report"
    return (
        f"estimate: {many(tests, 'test')} need {many(compiled, 'program')}, {pace}: {least} to {most} of compiling; "
        "less where the compile cache holds some"
    )


def by_records(path: Path, tests: int) -> str:
    """At the mean of the cases that the records hold. Raises pytest.UsageError where the file cannot be read."""
    try:
        found = [decode(line) for _, line in lines(path.read_bytes(), path.name)]
    except (OSError, RecordError, UnfinishedError) as error:
        raise pytest.UsageError(f"--pace {path}: cannot be read ({error})") from None
    seconds = [record.seconds["total"] for record in found if "total" in record.seconds]
    if not seconds:
        return f"estimate: none, because {path.name} has no case that ran"
    mean = statistics.fmean(seconds)
    pace = f"{mean:.2g} s each, as the {many(len(seconds), 'case')} of {path.name} took on average"
    return f"estimate: {many(tests, 'test')}, {pace}: {duration(mean * tests)}"
