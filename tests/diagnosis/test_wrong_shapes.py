"""A mistake has one name, whether or not it changes the output's shape. Kernels here are loops written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance.diagnosis import diagnose
from conformance.execution import verify as verifying
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed


def places(image, window, output, stride, padding, dilation, **_):
    """Every position of every window: where it is in the output, in the window and in the image, if it is inside."""
    for i, j, r, s in np.ndindex(*output, *window):
        row = i * stride[0] + r * dilation[0] - padding[0][0]
        column = j * stride[1] + s * dilation[1] - padding[1][0]
        if 0 <= row < image[0] and 0 <= column < image[1]:
            yield (..., i, j), (..., r, s), (..., row, column)


def size(image, window, stride, padding, dilation, ceil_mode=False, **_):
    found = []
    for extent, taps, u, (before, after), d in zip(image, window, stride, padding, dilation, strict=True):
        room = extent + before + after - d * (taps - 1) - 1
        count = (-(-room // u) if ceil_mode else room // u) + 1
        found.append(count - (ceil_mode and (count - 1) * u >= extent + before))
    return found


def conv_forward(x, w, bias, **given):
    output = size(x.shape[2:], w.shape[2:], **given)
    y = np.zeros((len(x), len(w), *output), np.float32)
    for at, tap, seen in places(x.shape[2:], w.shape[2:], output, **given):
        y[at] += x[seen] @ w[tap].T
    return y


def conv_backward_data(dy, w, input_size, **given):
    dx = np.zeros((len(dy), w.shape[1], *input_size), np.float32)
    for at, tap, seen in places(input_size, w.shape[2:], dy.shape[2:], **given):
        dx[seen] += dy[at] @ w[tap]
    return dx


def conv_backward_weight(x, dy, kernel_size, **given):
    dw = np.zeros((dy.shape[1], x.shape[1], *kernel_size), np.float32)
    for at, tap, seen in places(x.shape[2:], kernel_size, dy.shape[2:], **given):
        dw[tap] += dy[at].T @ x[seen]
    return dw


def conv_bn_forward(x, w, gamma, beta, running_mean, running_var, eps, momentum, **given):
    z = conv_forward(x, w, None, **given).astype(float)
    mean, var = z.mean((0, 2, 3)), z.var((0, 2, 3))
    y = (z - mean[:, None, None]) / np.sqrt(var + eps)[:, None, None] * gamma[:, None, None] + beta[:, None, None]
    unbiased = var * z[:, 0].size / (z[:, 0].size - 1)
    moved = (1 - momentum) * running_mean + momentum * mean, (1 - momentum) * running_var + momentum * unbiased
    return tuple(array.astype(np.float32) for array in (y, mean, var, *moved))


def max_pool_forward(x, kernel_size, **given):
    output = size(x.shape[2:], kernel_size, **given)
    y = np.full((*x.shape[:2], *output), -np.inf, np.float32)
    for at, _, seen in places(x.shape[2:], kernel_size, output, **given):
        y[at] = np.maximum(y[at], x[seen])
    return y


def avg_pool_forward(x, kernel_size, divisor_override, **given):
    given.setdefault("dilation", (1, 1))
    output = size(x.shape[2:], kernel_size, **given)
    y = np.zeros((*x.shape[:2], *output), np.float32)
    for at, _, seen in places(x.shape[2:], kernel_size, output, **given):
        y[at] += x[seen]
    return y / np.float32(divisor_override)


RESIZES = {kernel.__name__: kernel for kernel in (conv_forward, conv_bn_forward, max_pool_forward, avg_pool_forward)}
HAND = RESIZES | {kernel.__name__: kernel for kernel in (conv_backward_data, conv_backward_weight)}


def verdict_on(kernel: Callable[..., Any], operator: str, problem: str, layout: str = "nchw") -> Verdict:
    implementation = Implementation("planted")
    implementation.implements(operator, layouts=(layout,))(kernel)
    return verify(Trial(implementation, OPERATORS[operator], typed(problem), Variant("fp32", layout, "fixed"), 3))


def names(verdict: Verdict) -> tuple[str, ...]:
    assert verdict.diagnosis is not None
    return verdict.diagnosis.names


SEEN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "strides swapped": lambda g: {"stride": g["stride"][::-1]},
    "stride ignored": lambda g: {"stride": (1, 1)},
    "stride of W ignored": lambda g: {"stride": (g["stride"][0], 1)},
    "dilations swapped": lambda g: {"dilation": g["dilation"][::-1]},
    "dilation ignored": lambda g: {"dilation": (1, 1)},
    "padding swapped between H and W": lambda g: {"padding": g["padding"][::-1]},
    "padding ignored": lambda g: {"padding": ((0, 0), (0, 0))},
    "padding after ignored": lambda g: {"padding": tuple((before, 0) for before, _ in g["padding"])},
    "floor instead of ceil": lambda g: {"ceil_mode": False},
    "ceil instead of floor": lambda g: {"ceil_mode": True},
}
CONVOLUTIONS = {
    "strides swapped": "n2 c3 h9 w11 k4 r3 s3 u2x1 p1",
    "stride ignored": "n2 c3 h10 w12 k4 r3 s3 u2x3 p1",
    "stride of W ignored": "n2 c3 h10 w12 k4 r3 s3 u2x3 p1",
    "dilations swapped": "n2 c3 h10 w11 k4 r3 s3 d2x1 p2x1",
    "dilation ignored": "n2 c3 h11 w12 k4 r3 s3 u2x1 d2x3 p2",
    "padding swapped between H and W": "n2 c3 h9 w8 k4 r3 s3 p2x0",
    "padding ignored": "n2 c3 h8 w9 k4 r3 s3 u1x2 p2x1",
}
POOLINGS = {
    "strides swapped": "n2 c3 h9 w11 r3 s3 u2x1 p1",
    "stride ignored": "n2 c3 h10 w12 r3 s3 u2x4 p1",
    "stride of W ignored": "n2 c3 h10 w13 r4 s4 u2x3 p1",
    "padding ignored": "n2 c3 h8 w9 r4 s3 u1x2 p1",
    "padding after ignored": "n2 c3 h9 w9 r4 s4 u1x1 p0:2x1:2",
    "floor instead of ceil": "n2 c3 h9 w10 r2 s3 u2 ceil1",
    "ceil instead of floor": "n2 c3 h9 w10 r2 s3 u2",
}
CONVOLVED = ("conv_forward", "conv_backward_data", "conv_backward_weight")
PLANTED = [
    *((operator, *mistake) for operator in CONVOLVED for mistake in CONVOLUTIONS.items()),
    *(("conv_bn_forward", name, f"bn {problem}") for name, problem in CONVOLUTIONS.items()),
    *(("max_pool_forward", name, f"maxpool {problem}") for name, problem in POOLINGS.items()),
    ("max_pool_forward", "dilations swapped", "maxpool n2 c3 h9 w11 r3 s3 u1 d2x1 p1"),
    *(("avg_pool_forward", name, f"pool {problem} div9") for name, problem in POOLINGS.items()),
]


def planted(operator: str, name: str) -> Callable[..., Any]:
    """The kernel written by hand, which takes a parameter for something else."""
    by_hand, see = HAND[operator], SEEN.get(name, lambda given: {})
    return lambda *arrays, **given: by_hand(*arrays, **given | see(given))


@pytest.mark.parametrize(("operator", "problem"), [row[::2] for row in PLANTED if row[1] == "strides swapped"])
def test_loops_written_by_hand_are_right(operator: str, problem: str):
    assert verdict_on(planted(operator, "nothing"), operator, problem).status == "pass"


@pytest.mark.parametrize(("operator", "name", "problem"), PLANTED)
def test_mistake_is_named_whether_or_not_the_shape_changes(operator: str, name: str, problem: str):
    verdict = verdict_on(planted(operator, name), operator, problem)
    assert verdict.status == "fail"
    assert (" has shape " in verdict.reason.splitlines()[0]) == (operator in RESIZES)
    # what a gradient does not see beyond dy has other names besides
    assert name in (names(verdict)[:1] if operator in RESIZES else names(verdict))
    assert verdict.reason.splitlines()[-1] == str(verdict.diagnosis)


def test_stride_that_leaves_the_size_has_the_same_name():
    """The output is of the size that was asked for, and every window lies where the swapped strides put it."""

    def kernel(x, w, bias, *, stride, **given):
        y = np.zeros((len(x), len(w), *size(x.shape[2:], w.shape[2:], stride, **given)), np.float32)
        for at, tap, seen in places(x.shape[2:], w.shape[2:], y.shape[2:], stride[::-1], **given):
            y[at] += x[seen] @ w[tap].T
        return y

    assert names(verdict_on(kernel, "conv_forward", CONVOLUTIONS["strides swapped"]))[0] == "strides swapped"


def size_from_dy(dy, w, *, stride, padding, dilation, **_):
    axes = zip(dy.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    implied = [(p - 1) * u + d * (r - 1) + 1 - sum(sides) for p, r, u, sides, d in axes]
    return conv_backward_data(dy, w, input_size=implied, stride=stride, padding=padding, dilation=dilation)


def after(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *arrays, **given: change(HAND["conv_forward"](*arrays, **given))


TALL = "n2 c3 h9 w7 k4 r3 s3 p1"
ARRANGED = {
    "channels last": (after(lambda y: y.transpose(0, 2, 3, 1)), "y (dy) laid out as NHWC instead of NCHW"),
    "width first": (after(lambda y: y.transpose(0, 1, 3, 2)), "y laid out as NCWH instead of NCHW"),
    "flattened": (after(lambda y: y.reshape(-1)), "y: right values in another shape"),
    "another axis": (after(lambda y: y[None]), "y: right values in another shape"),
    "fp64": (after(lambda y: y.astype(np.float64)), "right values in another dtype"),
}


@pytest.mark.parametrize(("kernel", "name"), ARRANGED.values(), ids=ARRANGED)
def test_arrangement_is_named(kernel: Callable[..., Any], name: str):
    assert names(verdict_on(kernel, "conv_forward", TALL)) == (name,)


def test_layout_that_was_not_asked_for_is_named():
    def kernel(x, w, bias, **given):
        return conv_forward(x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2), bias, **given)

    assert names(verdict_on(kernel, "conv_forward", TALL, "nhwc")) == ("y laid out as NCHW instead of NHWC",)


def test_gradient_of_the_size_that_dy_implies_is_named():
    found = verdict_on(size_from_dy, "conv_backward_data", "n2 c4 h12 w13 k6 r3 s3 u2 p1")
    assert names(found) == ("size of the gradient taken from dy alone",)


def test_values_of_no_mistake_have_no_name():
    def kernel(*arrays, **given):
        y = planted("conv_forward", "strides swapped")(*arrays, **given)
        return np.random.default_rng(1).normal(size=y.shape).astype(np.float32)

    verdict = verdict_on(kernel, "conv_forward", CONVOLUTIONS["strides swapped"])
    assert (verdict.status, verdict.diagnosis) == ("fail", None)


def test_shape_alone_is_named_as_such_where_values_cost_too_much(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(diagnose, "AFFORDABLE", 1)
    verdict = verdict_on(planted("conv_forward", "strides swapped"), "conv_forward", CONVOLUTIONS["strides swapped"])
    assert verdict.reason.splitlines()[-1].startswith("likely cause: strides swapped")
    assert verdict.reason.endswith("(by the shape; the values are not explained)")


SHAPELESS = [(), (0,), (2, 4, 7), (0, 4, 7, 7), (1, 2, 4, 7, 9)]


@pytest.mark.parametrize("change", [
    *(lambda y, shape=shape: np.zeros(shape, np.float32) for shape in SHAPELESS),
    *(lambda y, dtype=dtype: y.astype(dtype) for dtype in (object, complex)),
])  # fmt: skip
def test_any_shape_and_what_is_no_real_number_fails(change: Callable[[Any], Any]):
    verdict = verdict_on(after(change), "conv_forward", "n2 c3 h7 w7 k4 r3 s3 p1")
    assert (verdict.status, verdict.diagnosis) == ("fail", None)


def test_no_mistake_is_tried_where_none_has_explained_anything(monkeypatch: pytest.MonkeyPatch):
    """A stranger's fault that has no name took three minutes of diagnosis, of a run that takes half a one."""
    known = diagnose.Diagnosis(("strides swapped",), 0.0)
    answers = iter([None, known, None, None, known])
    monkeypatch.setattr(verifying, "IN_VAIN", 2)
    monkeypatch.setattr(verifying, "diagnose", lambda *_, **__: next(answers))
    acme = Implementation("acme")
    acme.implements("conv_forward")(lambda x, w, bias, **given: 2 * conv_forward(x, w, bias, **given))
    problem = typed("n1 c2 h4 w4 k3 r2 s2")
    for seed in range(6):
        verdict = verify(Trial(acme, OPERATORS["conv_forward"], problem, Variant("fp32", "nchw", "fixed"), seed))
        assert (verdict.status, verdict.diagnosis) == ("fail", known if seed == 1 else None)
    assert [*answers] == [known]
