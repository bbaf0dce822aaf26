"""Wrong results that differ from call to call are told from those that a formula explains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance.diagnosis.diagnose import NEVER_WRITTEN, READ_UNWRITTEN
from conformance.engine.check import check
from conformance.execution import nondeterminism
from conformance.execution.nondeterminism import ALIKE_IN_MEMORY, CALLS, DIFFERS, UNNOTICED
from conformance.execution.process import Crash
from conformance.execution.verify import verify
from tests import kernels
from tests.kit import SUMS, trial_of


def calling(change: Callable[[np.ndarray, int], None]) -> Callable[..., Any]:
    """A right convolution whose result is changed by its place among all calls, from 1 on."""
    calls = 0

    def conv_forward(x: Any, w: Any, bias: Any, **parameters: Any) -> np.ndarray:
        nonlocal calls
        calls += 1
        y: np.ndarray = kernels.conv_forward(x, w, bias, **parameters)
        change(y, calls)
        return y

    return conv_forward


def wrong_in(first: int) -> Callable[[np.ndarray, int], None]:
    def change(y: np.ndarray, call: int) -> None:
        y[0, 0, 0, 0] += 0.5 * (call <= first)

    return change


@pytest.mark.parametrize("storage", ["", "x:crop"])
def test_a_result_that_is_wrong_in_some_calls_says_in_how_many_and_by_how_much(storage: str):
    """A race in 5% of the calls was told that it reads past the end of w: it was right with contiguous operands."""
    verdict = verify(trial_of(calling(wrong_in(1)), storage=storage))
    assert verdict.status == "fail"
    first, judged, *_ = verdict.reason.splitlines()
    assert first == f"{DIFFERS}: wrong in 1 of {CALLS} calls on the same inputs, by up to 0.5"
    assert judged.startswith("y: 1 of ")
    assert verdict.diagnosis is None


def by_memory(kept: list[np.ndarray]) -> Callable[..., Any]:
    """A convolution that is wrong in every other memory that its image lies in."""

    def conv_forward(x: Any, w: Any, bias: Any, **parameters: Any) -> np.ndarray:
        place = next((n for n, known in enumerate(kept) if known.ctypes.data == x.ctypes.data), len(kept))
        kept[place:] = kept[place:] or [x]  # which is not freed
        y: np.ndarray = kernels.conv_forward(x, w, bias, **parameters)
        return y + np.float32(place % 2 == 0)

    return conv_forward


def test_what_depends_on_where_inputs_lie_is_no_chance():
    """Filters that are kept by their address: two users took the suite for flaky."""
    first = verify(trial_of(by_memory([]))).reason.splitlines()[0]
    assert first.startswith(f"{DIFFERS}: wrong in 5 of {CALLS} calls on the same inputs, by up to ")
    assert first.endswith(f"; {ALIKE_IN_MEMORY.format('x')}")

    def every_other(y: np.ndarray, call: int) -> None:
        y += call % 2

    by_turns = verify(trial_of(calling(every_other))).reason.splitlines()[0]
    assert by_turns == f"{DIFFERS}: wrong in 5 of {CALLS} calls on the same inputs, by up to 1"


def packing(packed: dict[int, np.ndarray]) -> Callable[..., Any]:
    """A convolution that keeps its filters by their address, whatever lies there later."""

    def conv_forward(x: Any, w: Any, bias: Any, **parameters: Any) -> np.ndarray:
        kept = packed.setdefault(w.ctypes.data, w.copy())
        y: np.ndarray = kernels.conv_forward(x, kept, bias, **parameters)
        return y

    return conv_forward


def test_what_is_kept_by_address_is_not_called_chance_and_fails_when_it_is_run_alone():
    """Wrong in one call of ten, because an earlier call's filters had lain there, and right when it was reproduced."""
    trial = trial_of(packing({}))
    alone = verify(trial, again=True)
    assert alone.status == "fail"
    assert alone.reason == UNNOTICED.format("w")
    assert alone.failure is not None
    assert alone.failure.kind == "differs"

    stale = iter([True])

    def sometimes(x: Any, w: Any, bias: Any, **parameters: Any) -> np.ndarray:
        y: np.ndarray = keeping(x, w, bias, **parameters)
        return y + np.float32(next(stale, False))

    keeping = packing({})
    assert verify(trial_of(sometimes)).reason.splitlines()[0].endswith(f"; {UNNOTICED.format('w')}")


@pytest.mark.parametrize(
    ("weight", "cause"), [(0, NEVER_WRITTEN), (1, READ_UNWRITTEN)], ids=["never written", "read beyond the end"]
)
def test_results_that_hold_free_memory_are_told_from_chance(monkeypatch: pytest.MonkeyPatch, weight: int, cause: str):
    """Garbage was another number in each call: no condition of two strangers' kernels was looked for. A kernel that
    adds what lies beyond its input was said not to write its results."""
    in_memory = [np.float32(1)]

    def fill(bridge: Any, tensors: Any, blocks: int, byte: int) -> None:
        in_memory[:] = np.full(4, byte, np.uint8).view(np.float32)

    def change(y: np.ndarray, call: int) -> None:
        y[..., -1] = weight * y[..., -1] + in_memory[0]
        in_memory[0] *= 2

    monkeypatch.setattr(nondeterminism, "fill_freed_memory", fill)
    verdict = verify(trial_of(calling(change)))
    assert f"likely cause: {cause}" in str(verdict.diagnosis)
    assert DIFFERS not in verdict.reason


def test_results_that_are_nan_whatever_lies_in_memory_are_not_said_to_depend_on_it():
    """An infinity times a zero, read beyond the end of a sum, was taken for memory that is never written."""

    def spread(y: np.ndarray, call: int) -> None:
        y[..., -1] = np.nan

    verdict = verify(trial_of(calling(spread)))
    assert verdict.status == "fail"
    assert verdict.diagnosis is None or not {NEVER_WRITTEN, READ_UNWRITTEN} & {*verdict.diagnosis.names}


def test_a_result_that_is_wrong_in_the_same_way_every_time_is_diagnosed():
    assert DIFFERS not in verify(trial_of(calling(wrong_in(1000)))).reason


def test_sums_in_another_order_in_every_call_do_not_hide_the_mistake():
    def change(y: np.ndarray, call: int) -> None:
        y[..., -1] = 0
        y *= np.float32(1 + 1e-6 * (call % 2))

    assert "likely cause: last column of y" in verify(trial_of(calling(change), SUMS)).reason


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (RuntimeError("once is enough"), "raised RuntimeError: once is enough at "),
        (Crash("no answer within 60 s\nafter 60 s"), "no answer within 60 s"),
    ],
)
def test_another_call_that_raises_leaves_the_first_verdict_and_is_the_last_one(raised: BaseException, said: str):
    """A kernel that hangs in its second call was waited for in every wrong case, whose verdict was the hang."""
    made = []

    def change(y: np.ndarray, call: int) -> None:
        made.append(call)
        y[0] = 0
        if call == 2:
            raise raised

    case = trial_of(calling(change))
    found = [verify(case) for _ in range(2)]
    assert [(one.status, DIFFERS in one.reason) for one in found] == [("fail", False)] * 2
    assert made == [1, 2, 3]
    assert f"\ncalled again on the same inputs: {said}" in found[0].reason
    assert "called again" not in found[1].reason


def raising(y: np.ndarray, call: int) -> None:
    if call == 3:
        raise ValueError("no")


def wrong_in_one_of_three(y: np.ndarray, call: int) -> None:
    y *= 1 + (call % 3 == 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (wrong_in_one_of_three, f"{DIFFERS}: wrong in 3 of {CALLS} calls on the same inputs\ny: "),
        (raising, "called again on the same inputs: raised ValueError: no at "),
    ],
    ids=["wrong", "raises"],
)
def test_where_one_case_is_all_that_is_verified_the_kernel_is_called_again(
    change: Callable[[np.ndarray, int], None], said: str
):
    """`check` saw the first call of a kernel that is wrong in one of three, which is right."""
    result = check(calling(change), "n1 c2 h4 w4 k2 r3 s3 p1", operator="conv_forward")
    assert result.status == "fail"
    assert result.reason.startswith(said)
    assert result.mismatched.any() == (change is wrong_in_one_of_three)


def test_where_one_case_is_all_a_kernel_is_called_ten_times():
    calls: list[int] = []
    assert check(calling(lambda _, call: calls.append(call)), "n1 c2 h4 w4 k2 r3 s3 p1", operator="conv_forward").passed
    assert len(calls) == CALLS + 2 * 2  # and two with other numbers in each input's memory
