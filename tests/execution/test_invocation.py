"""The one way to call a kernel: what it is given, in which order, and which results are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import Contract, Implementation
from conformance.execution.invocation import Invocation
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations.bridges.numpy import NumpyArrays
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from tests import kernels
from tests.kit import trial_of

Y = (2, 4, 6, 5)


class Watched(NumpyArrays):
    """NumPy arrays on a device that has not finished until somebody waits for it."""

    log: list[str] = []  # noqa: RUF012

    def from_host(self, array: np.ndarray) -> np.ndarray:
        self.log.append("from_host")
        return super().from_host(array)

    def synchronize(self, result: Any) -> None:
        self.log.append("synchronize")

    def to_host(self, array: Any) -> np.ndarray:
        self.log.append("to_host")
        return super().to_host(array)


@pytest.fixture
def log() -> list[str]:
    Watched.log = []
    return Watched.log


def invocation(kernel: Callable[..., Any], layout: str = "nchw") -> Invocation:
    return trial_of(kernel, "n2 c3 h6 w5 k4 r3 s3 p1", layout=layout, arrays=Watched()).invocation()


def inputs() -> dict[str, np.ndarray]:
    return {"x": np.zeros((2, 3, 6, 5), np.float32), "w": np.zeros((4, 3, 3, 3), np.float32)}


def test_a_call_waits_for_the_device_before_results_are_fetched(log: list[str]):
    def kernel(x, w, bias):
        log.append("kernel")
        return np.zeros(Y, np.float32)

    bound = invocation(kernel)
    bound.outputs(bound.call(bound.to_device(inputs())))
    assert log[log.index("kernel") :][:3] == ["kernel", "synchronize", "to_host"]


def test_a_kernel_gets_the_keywords_that_it_names_and_none_for_what_is_absent(log: list[str]):
    seen: dict[str, Any] = {}

    def kernel(x, w, bias, *, padding, layout):
        seen.update(x=x.shape, w=w.shape, bias=bias, padding=padding, layout=layout)
        return np.zeros((2, 6, 5, 4), np.float32)

    bound = invocation(kernel, "nhwc")
    outputs = bound.outputs(bound.call(bound.to_device(inputs())))
    assert seen == {"x": (2, 6, 5, 3), "w": (4, 3, 3, 3), "bias": None, "padding": ((1, 1), (1, 1)), "layout": "nhwc"}
    assert outputs["y"].shape == Y


def test_parameters_are_passed_by_name_whether_or_not_they_are_keyword_only():
    def kernel(x, w, bias, stride, padding, mine=3):
        assert (stride, padding, mine) == ((1, 1), ((1, 1), (1, 1)), 3)
        return np.zeros(Y, np.float32)

    bound = invocation(kernel)
    assert bound.call(bound.to_device(inputs()))[0].shape == Y


def spoils(x, w, bias, **parameters):
    """Right, and then writes to an input."""
    y = kernels.conv_forward(x, w, bias, **parameters)
    x[...] = 3
    return y


@pytest.mark.parametrize(
    ("contract", "distribution", "found"),
    [
        (Contract(algorithm="winograd-f4"), "special", "unsupported: winograd-f4 spreads NaN and Inf"),
        (Contract(algorithm="fft"), "sparse", "unsupported: sparse data has no one result"),
        (Contract(), "fixed", "fail: input x was written to"),
    ],
    ids=["require_declared", "require_one_result", "require_inputs_untouched"],
)
def test_a_guard_of_verify_stops_what_the_others_let_pass(contract: Contract, distribution: str, found: str):
    """No other test failed where one of these was left out."""
    one = Implementation("spoils", contract=contract)
    one.implements("conv_forward")(spoils)
    variant = Variant("fp32", "nchw", distribution)
    verdict = verify(Trial(one, OPERATORS["conv_forward"], typed("n1 c2 h4 w4 k2 r3 s3 p1"), variant, 0))
    assert f"{verdict.status}: {verdict.reason}".startswith(found)
