"""One cell of a table of times: verified first, on the same buffers; whatever does not pass has no time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance import Contract, Implementation, Unsupported
from conformance.execution.case import Case
from conformance.inputs import expectation
from conformance.problems import typed
from conformance.timing import measure
from conformance.timing.measure import Cell
from conformance.timing.measurement import Measurement
from tests import kernels
from tests.timing_fakes import CEILINGS, case_of

LARGE = replace(typed("n1 c16 h30 w30 k16 r3 s3 p1 b1"), name="unet.16x16@30")
Change = Callable[[np.ndarray, int], np.ndarray]


@pytest.fixture(autouse=True)
def _freed() -> Iterator[None]:
    """No tensors are left behind."""
    yield
    expectation.cache_clear()


def measured(case: Case, rounds: int = 5) -> Cell:
    return measure.measure(case, rounds, CEILINGS)


def fake(change: Change = lambda y, _: y, device: str = "cpu", **declared: Any) -> tuple[Implementation, list[int]]:
    """A right forward kernel whose result is changed, given how often it was called before; and its calls."""
    calls: list[int] = []
    implementation = Implementation("acme", device=device, contract=Contract())

    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        y = kernels.conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
        calls.append(1)
        return change(y, len(calls) - 1)

    implementation.implements("conv_forward", **declared)(conv_forward)
    return implementation, calls


def raising(problem: BaseException) -> Change:
    def change(y: np.ndarray, _: int) -> np.ndarray:
        raise problem

    return change


def with_element(difference: float, index: tuple[int, ...] = (0, 1, 2, 3)) -> Change:
    """One element is off."""

    def change(y: np.ndarray, _: int) -> np.ndarray:
        y[index] += np.float32(difference)
        return y

    return change


def test_a_right_kernel_is_timed_as_often_as_asked():
    implementation, calls = fake()
    found = measured(case_of(implementation))
    assert (found.status, found.reason) == ("pass", "")
    assert found.time is not None
    assert len(found.time.rounds) == 5
    assert len(calls) == 7  # the first, one to settle, five rounds
    assert min(*found.time.rounds, found.time.first) > 0


@pytest.mark.parametrize(("asked", "timed"), [(5, measure.MIN_ROUNDS), (2, 2)])
def test_a_slow_kernel_is_timed_least_often(monkeypatch: pytest.MonkeyPatch, asked: int, timed: int):
    monkeypatch.setattr(measure, "BUDGET", 0.0)
    implementation, calls = fake()
    found = measured(case_of(implementation), asked)
    assert found.time is not None
    assert (len(found.time.rounds), len(calls)) == (timed, timed + 2)


def test_rate_and_share_follow_from_the_median():
    found = Measurement(case_of(fake()[0]), (3e-6, 1e-6, 2e-6), 1.0, 1.0, 1.0, CEILINGS)
    operations = 2 * 2 * 4 * 6 * 6 * 4 * 9
    moved = 4 * (2 * 4 * 36 + 4 * 4 * 9 + 4 + 2 * 4 * 36)
    assert found.flops == operations / 2e-6
    assert moved / CEILINGS.bandwidth > operations / CEILINGS.flops
    assert found.share == moved / CEILINGS.bandwidth / 2e-6
    assert replace(found, ceilings=replace(CEILINGS, flops=1e6)).share == operations / 1e6 / 2e-6
    assert replace(found, ceilings=None).share is None


WRONG: dict[str, tuple[Change, str, str]] = {
    "element": (with_element(0.5), "fail", "y: 1 of 288 elements mismatched"),
    "later": (
        lambda y, calls: y + np.float32(calls > 2),
        "fail",
        "right when first called, wrong when called again: y:",
    ),
    "shape": (lambda y, _: y[:1], "fail", "y has shape (1, 4, 6, 6)"),
    "dtype": (lambda y, _: y.astype(np.float64), "fail", "y has dtype fp64; expected fp32"),
    "memory": (raising(MemoryError("4 GiB")), "error", "raised MemoryError: 4 GiB at "),
    "launch": (raising(RuntimeError("launch failed")), "error", "raised RuntimeError: launch failed at "),
    "exit": (raising(SystemExit(3)), "error", "raised SystemExit: 3 at "),
    "refuses": (raising(Unsupported("needs k % 32 == 0")), "unsupported", "needs k % 32 == 0"),
}


@pytest.mark.parametrize(("change", "status", "reason"), WRONG.values(), ids=WRONG)
def test_what_does_not_pass_has_no_time(change: Change, status: str, reason: str):
    implementation, _ = fake(change=change)
    found = measured(case_of(implementation))
    assert (found.status, found.time) == (status, None)
    assert found.reason.startswith(reason)


def test_a_kernel_that_is_wrong_at_once_is_not_called_again():
    implementation, calls = fake(change=with_element(0.5))
    measured(case_of(implementation))
    assert len(calls) == 1


def test_an_interrupt_ends_the_run():
    implementation, _ = fake(change=raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        measured(case_of(implementation))


def test_a_declared_limit_is_unsupported_and_a_waiver_waived():
    narrow, calls = fake(when=lambda p: p.k == 1)
    assert measured(case_of(narrow)).status == "unsupported"
    assert not calls
    waived, _ = fake(change=with_element(0.5))
    waived.waive("conv_forward", reason="one off", url="https://example.org/1")
    found = measured(case_of(waived))
    assert (found.status, found.time) == ("waived", None)
    assert found.reason.startswith("waived: one off (https://example.org/1)")


def test_differences_are_over_all_outputs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "BLOCK", 1000)
    found = measured(case_of(fake()[0], LARGE))
    wrong = measured(case_of(fake(change=with_element(7.0))[0], LARGE))
    assert found.accuracy is not None
    assert wrong.accuracy is not None
    assert 0 < found.accuracy.mean < found.accuracy.largest < 1e-4
    assert (wrong.accuracy.compared, wrong.accuracy.size) == (16 * 900, 16 * 900)
    assert wrong.accuracy.largest == pytest.approx(7.0, abs=1e-4)
    assert wrong.accuracy.mean - found.accuracy.mean == pytest.approx(7.0 / (16 * 900), rel=1e-4)


def test_a_broken_context_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch):
    def fails() -> None:
        raise RuntimeError("the context is lost")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(empty_cache=fails)))
    found = measured(case_of(fake(device="cuda")[0]))
    assert found.status == "pass"


def test_probes_compare_the_sampled_outputs():
    found = measured(case_of(fake()[0], LARGE, "probes"))
    assert found.accuracy is not None
    assert found.status == "pass"
    assert found.accuracy.size == 16 * 900
    assert 8 <= found.accuracy.compared < 16 * 900
    wrong = measured(case_of(fake(change=with_element(7.0))[0], LARGE, "probes"))
    assert (wrong.status, wrong.time) == ("fail", None)
