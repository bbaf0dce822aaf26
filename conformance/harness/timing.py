"""Timing what was verified: the `timed` fixture and the table of ratios at the end of a run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.data import expectation
from conformance.harness import records
from conformance.harness.case import Absence, Case
from conformance.harness.implementation import Kernel
from conformance.harness.verify import prepare, verify

BASELINE = "torch-cpu"
ROUNDS = 7

Medians = dict[str, dict[str, dict[str, float]]]
"""Operator -> problem -> implementation -> median seconds."""

_MEDIANS = pytest.StashKey[Medians]()


def pytest_configure(config: pytest.Config) -> None:
    """A run starts without timings."""
    config.addinivalue_line("markers", "times(operator, problems): fixed-arm fp32 nchw cases of a table, to be timed")
    medians: Medians = defaultdict(lambda: defaultdict(dict))
    config.stash[_MEDIANS] = medians


@pytest.fixture
def timed(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[Case | Absence], None]:
    """A function that verifies a case and, only if it passes, times the kernel on those very inputs."""

    def run(case: Case | Absence) -> None:
        kernel = case.kernel if isinstance(case, Case) else case.reason
        if isinstance(case, Absence) or not isinstance(kernel, Kernel):
            pytest.skip(str(kernel))
        verdict = verify(case)
        if verdict.status != "pass":
            pytest.fail(f"not timed, {verdict.status}: {verdict.reason}", pytrace=False)
        call = prepare(case, kernel, expectation(case.recipe))
        benchmark.group = f"{case.operator.name} {case.problem.name}"
        benchmark.extra_info.update(records.record(case, verdict))
        benchmark.pedantic(call, rounds=ROUNDS, warmup_rounds=1)
        if benchmark.stats is not None:
            medians = request.config.stash[_MEDIANS][case.operator.name][case.problem.name]
            medians[case.implementation.name] = benchmark.stats.stats.median

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Speed relative to the baseline: by problem, and the geometric mean by operator."""
    medians = config.stash[_MEDIANS]
    if medians:
        terminalreporter.section(f"speed relative to {BASELINE} (higher is faster)")
        for line in ratios(medians):
            terminalreporter.write_line(line)


def ratios(medians: Medians) -> Iterator[str]:
    """A line per operator and problem, and one of geometric means; problems without a baseline are left out."""
    for operator, problems in medians.items():
        shares: defaultdict[str, list[float]] = defaultdict(list)
        for problem, times in problems.items():
            base = times.get(BASELINE)
            others = {name: base / seconds for name, seconds in times.items() if base and name != BASELINE}
            for name, share in others.items():
                shares[name].append(share)
            if base and others:
                yield f"{operator:22}{problem:24}{BASELINE} {base * 1e3:.2f} ms  {_columns(others)}"
        if shares:
            means = {name: statistics.geometric_mean(values) for name, values in shares.items()}
            yield f"{operator:22}{'geometric mean':24}{_columns(means)}"


def _columns(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.2f}x" for name, value in values.items())
