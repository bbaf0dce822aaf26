"""Impossible requests: refused with a word, refused without one, or answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.checks import check_behaviour
from conformance.checks.behaviour import invalid_arguments, worked_example_is_exact
from conformance.execution.trial import Trial
from conformance.execution.workers import Workers
from conformance.implementations import registry
from conformance.operators import FAMILIES, OPERATORS, ORDINARY
from conformance.problems import PROBLEMS
from conformance.resources import IMPLS
from tests import kernels, kit

BATCH_NORM = "bn n2 c4 h6 w5 k4 r3 s3 p1"


NUMPY = registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"]


def trial_of(operator: str, kernel: Callable[..., Any], text: str = "", layout: str = "") -> Trial:
    family = OPERATORS[operator].family
    problem = text or next(p for p in PROBLEMS if p.geometry.family == family)
    dtype, distribution = "fp32" if operator in ORDINARY else "int8", FAMILIES[family].distributions[0]
    return kit.trial_of(kernel, problem, operator, dtype=dtype, distribution=distribution, layout=layout)


def right_at_first(operator: str, later: Callable[..., Any], text: str = "", layout: str = "") -> Trial:
    """A kernel whose first call, which has valid arguments, is right; what it does later is given."""
    of_numpy = next(kernel.function for kernel in NUMPY.kernels if kernel.operator == operator)
    function = kernels.conv_forward if layout == "nhwc" else of_numpy
    calls = iter([function])

    @wraps(function)
    def kernel(*arrays, **keywords):
        return next(calls, later)(*arrays, **keywords)

    return trial_of(operator, kernel, text, layout)


def answers(*arguments, **keywords):
    return np.zeros(1)


def refuses(*arguments, **keywords):
    raise ValueError("no such problem")


def refuses_without_a_word(*arguments, **keywords):
    raise ValueError


@pytest.mark.parametrize("operator", OPERATORS)
def test_requests_that_are_answered_are_named(operator: str):
    verdict = check_behaviour(right_at_first(operator, answers), invalid_arguments)
    assert (verdict.status, list(verdict.facts.accepted)) == ("pass", list(OPERATORS[operator].invalid))


@pytest.mark.parametrize("operator", OPERATORS)
def test_refusals_are_not_named(operator: str):
    verdict = check_behaviour(right_at_first(operator, refuses), invalid_arguments)
    assert (verdict.status, list(verdict.facts.accepted)) == ("pass", [])


def test_refusal_without_a_word_is_named():
    verdict = check_behaviour(right_at_first("conv_forward", refuses_without_a_word), invalid_arguments)
    assert list(verdict.facts.accepted) == [
        f"{what} (refused without a message)" for what in OPERATORS["conv_forward"].invalid
    ]


def seen(operator: str, text: str) -> list[tuple[Any, ...]]:
    """Shapes and dtypes that a kernel is asked with, request by request."""
    calls = []

    def kernel(*arrays, **keywords):
        calls.append(tuple(None if a is None else (a.shape, a.dtype.name) for a in arrays) + (keywords,))
        raise ValueError("no such problem")

    check_behaviour(right_at_first(operator, kernel, text), invalid_arguments)
    return calls


def test_requests_are_impossible():
    unpadded = ((0, 0), (0, 0))
    window, channels, integers, *attributes, more_channels, another_rank, variance = seen("conv_bn_forward", BATCH_NORM)
    assert window[0][0] == (2, 4, 1, 1)
    assert window[-1]["padding"] == unpadded
    assert channels[0][0] == (2, 3, 6, 5)
    assert {array[1] for array in integers[:2]} == {"int32"}
    assert variance[0][0] == (1, 4, 1, 1)
    assert variance[1][0] == (4, 4, 1, 1)
    changed = [("stride", (0, 0)), ("dilation", (0, 0)), ("groups", 0), ("groups", -1), ("padding", ((-1, -1),) * 2)]
    for call, (name, value) in zip(attributes, changed, strict=True):
        assert call[0][0] == (2, 4, 6, 5)
        assert call[-1][name] == value
    assert (more_channels[1][0], another_rank[1][0]) == ((4, 8, 3, 3), (4, 4, 3))


@pytest.mark.parametrize(
    ("operator", "layout", "shape"),
    [
        ("conv_backward_data", "nchw", (8, 2, 3, 3)),  # the channels that dy has as well
        ("conv_forward", "nhwc", (4, 3, 3, 4)),
        ("conv_transpose_forward", "nchw", (8, 4, 3, 3)),
    ],
)
def test_filters_do_not_fit_to_the_other_operand(operator: str, layout: str, shape: tuple[int, ...]):
    shapes = []

    def kernel(*arrays, **keywords):
        shapes.append(arrays[1].shape)
        raise ValueError("no such problem")

    text = "convt n2 c4 h6 w5 k4 r3 s3" if "transpose" in operator else "n2 c2 h6 w5 k4 r3 s3 p1"
    assert check_behaviour(right_at_first(operator, kernel, text, layout), invalid_arguments).status == "pass"
    assert shapes[-2] == shape
    assert len(shapes[-1]) == 3


def test_what_a_kernel_does_not_take_is_not_tried():
    """Its result of the valid request was reported as one of dilation 0."""

    def kernel(x, w, bias, *, stride):
        if 0 in stride:
            raise ValueError(f"stride={stride}: must be positive")
        return kernels.conv_forward(x, w, bias, stride=stride, padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1)

    case = trial_of("conv_forward", kernel, "n2 c2 h6 w5 k4 r3 s3 u2")
    accepted = check_behaviour(case, invalid_arguments).facts.accepted
    assert not {"stride 0", "dilation 0", "groups 0", "groups -1", "padding -1"} & {*accepted}


def test_a_crash_names_the_argument(workers: Workers, tmp_path: Path):
    """A division by zero in compiled code ends the process; the message said nothing of stride 0."""
    divides = "    if 0 in stride: os.kill(os.getpid(), signal.SIGFPE)\n    y = "
    acme = kit.loaded(workers, tmp_path, kit.source(head="import os, signal").replace("    y = ", divides))
    verdict = check_behaviour(kit.trial_of(acme, distribution="integer"), invalid_arguments)
    assert verdict.status == "error"
    assert verdict.reason.splitlines()[0].startswith("crashed: its process was ended by SIGFPE")
    assert verdict.reason.splitlines()[0].endswith(", called with stride 0")


def pooled(half: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """A kernel for windows of 2x2 that does something to the sum before it is scaled."""

    def kernel(x):
        wide = x.astype(np.float32)
        total = wide[..., ::2, ::2] + wide[..., 1::2, ::2] + wide[..., ::2, 1::2] + wide[..., 1::2, 1::2]
        return (half(total) / 4).astype(x.dtype)

    return kernel


def test_tutorial_is_judged_exactly():
    text = "pool n1 c2 h6 w6 r2 s2"
    assert (
        check_behaviour(trial_of("avg_pool_forward", pooled(np.copy), text), worked_example_is_exact).status == "pass"
    )
    verdict = check_behaviour(
        trial_of("avg_pool_forward", pooled(lambda total: total * 1.0000002), text), worked_example_is_exact
    )
    assert verdict.status == "fail"
    assert "wrong result (on consecutive numbers)" in verdict.reason
    assert "must equal the exact result" in verdict.reason
