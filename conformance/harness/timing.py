"""Timing what was verified: the `timed` fixture and the table of ratios at the end of a run."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from conformance.data import expectation
from conformance.harness.case import Absence, Case
from conformance.harness.implementation import Kernel
from conformance.harness.plugin import PROPERTY
from conformance.harness.verify import prepare
from conformance.speed.measure import known_ceilings, share
from conformance.speed.relative import Timing, baseline, means, ratios
from conformance.speed.table import figures

ROUNDS, LEAST = 7, 3
SLOW = 3.0
"""Seconds of a first call from which the fewer rounds are enough."""

_TIMINGS = pytest.StashKey[list[Timing]]()
_VERIFIED = pytest.StashKey[list[bool]]()


def pytest_configure(config: pytest.Config) -> None:
    """A run starts without timings."""
    config.addinivalue_line("markers", "times(operator, problems): fixed-arm fp32 nchw cases of a table, to be timed")
    config.stash[_TIMINGS] = []
    config.stash[_VERIFIED] = []


@pytest.fixture
def timed(
    request: pytest.FixtureRequest, judged: Callable[[Case | Absence], None], benchmark: Any
) -> Callable[[Case | Absence], None]:
    """A function that verifies a case and, only if it passes, times the kernel on those very inputs."""

    def run(case: Case | Absence) -> None:
        verified = request.config.stash[_VERIFIED]
        verified.append(False)
        judged(case)  # ends the test unless the verdict is `pass`
        verified[-1] = True
        assert isinstance(case, Case)
        kernel = case.kernel
        assert isinstance(kernel, Kernel)
        call = prepare(case, kernel, expectation(case.recipe))
        benchmark.group = f"{case.operator.name} {case.problem.name}"
        record = json.loads(str(dict(request.node.user_properties)[PROPERTY]))
        benchmark.extra_info.update(record)
        slow = record["seconds"]["kernel"] > SLOW
        benchmark.pedantic(call, rounds=LEAST if slow else ROUNDS, warmup_rounds=1)
        if benchmark.stats is not None:
            request.config.stash[_TIMINGS].append(_timing(case, benchmark.stats.stats.median))

    return run


def _timing(case: Case, seconds: float) -> Timing:
    device = case.implementation.device
    names = device, case.operator.name, case.problem.name, case.implementation.name
    return Timing(*names, seconds, share(case, seconds, known_ceilings(device)))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that was asked for times and could verify nothing does not end well."""
    verified = session.config.stash[_VERIFIED]
    if verified and not any(verified) and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Speed relative to torch on the same device: by problem, and the geometric mean by operator."""
    timings = config.stash[_TIMINGS]
    if timings:
        terminalreporter.section("speed relative to torch on the same device (higher is faster), share of the roofline")
        for line in lines(timings, terminalreporter._tw.fullwidth - 1):
            terminalreporter.write_line(line)


def lines(timings: Sequence[Timing], width: int) -> Iterator[str]:
    """An entry per operator, problem and device, baseline first, and one of geometric means per operator."""
    found = ratios(timings)
    for operator, problem, device in dict.fromkeys((t.operator, t.problem, t.device) for t in timings):
        here = [t for t in timings if (t.operator, t.problem, t.device) == (operator, problem, device)]
        here.sort(key=lambda t: t.implementation != baseline(device))
        words = "; ".join(_entry(t, found.get((operator, problem, t.implementation))) for t in here)
        yield from _wrapped(f"{operator} {problem}: {words}", width)
    for operator in dict.fromkeys(t.operator for t in timings):
        own = {name: pair for (of, name), pair in means(found).items() if of == operator}
        words = ", ".join(f"{name} {mean:.2f}x of {count}" for name, (mean, count) in own.items())
        yield from _wrapped(f"{operator} geometric mean: {words}", width) if words else ()


def _entry(timing: Timing, ratio: float | None) -> str:
    told = f"{timing.seconds * 1e3:.3g} ms" if ratio is None else f"{figures(ratio)}x"
    return f"{timing.implementation} {told}" + ("" if timing.share is None else f" ({timing.share:.0%})")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="    ", break_on_hyphens=False)
