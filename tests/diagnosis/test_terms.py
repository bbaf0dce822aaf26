"""What is read off a kernel by calls with single terms."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from conformance.diagnosis.terms import read
from conformance.operators import OPERATORS, Arrays, parse

Change = Callable[[Arrays], Arrays]
CONV = "n2 c10 h6 w7 k4 r3 s3 p1 b1"
OF_INT8 = "n1 c3 h6 w7 k2 r2 s2 p1"
Q = "q n1 c4 h4 w5 k4 r2 s2 p1 b1 zx5 zy-9"


def zeroed(name: str, *at: Any) -> Change:
    """Inputs of which some elements are zero."""
    return times(0, name, *at)


def times(factor: float, name: str, *at: Any) -> Change:
    def changed(arrays: Arrays) -> Arrays:
        array = arrays[name].copy()
        array[at] = array[at] * factor
        return arrays | {name: array}

    return changed


def moved(name: str, by: int, axis: int = -1) -> Change:
    return lambda arrays: arrays | {name: np.roll(arrays[name], by, axis)}


def filled(name: str, value: float, *at: Any) -> Change:
    def changed(arrays: Arrays) -> Arrays:
        array = arrays[name].copy()
        array[at] = value
        return arrays | {name: array}

    return changed


ALL = slice(None)
LAST = (..., -1)
SAID: dict[tuple[str, str], tuple[Change | None, Change | None, str]] = {
    ("conv_forward", CONV): (zeroed("w", ALL, slice(8, None)), None, "terms with c 8..9 of 0..9 left out"),
    ("conv_forward", f"{CONV} d2"): (
        times(2, "w", ALL, slice(8, None)), None, "terms with c 8..9 of 0..9 counted twice",
    ),
    ("conv_forward", "n2 c10 h6 w7 k4 r1 s1"): (moved("x", 1, 1), None, "terms take x of another c"),
    ("conv_forward", "n2 c4 h6 w7 k6 r1 s2 g2"): (moved("x", 1), None, "terms take x"),
    ("conv_backward_data", "n1 c2 h6 w7 k4 r3 s3 g2 u2"): (
        zeroed("w", ..., -1), None, "terms with s = 2 (last) left out",
    ),
    ("conv_backward_data", "n1 c2 h6 w7 k4 r1 s1 g2"): (None, moved("dx", 1), "terms"),
    ("conv_backward_data", "n1 c2 h6 w7 k4 r1 s1 u1x2"): (
        None, filled("dx", np.nan, ..., slice(1, None, 2)),
        "results without a term are NaN, as if never written at every 2nd w from 1 to 5",
    ),
    ("conv_forward", OF_INT8): (zeroed("w", ..., 1), None, "terms with s = 1 (last) left out"),
    ("conv_backward_weight", CONV): (zeroed("dy", ALL, ALL, -1), None, "terms with p = 5 (last) left out"),
    ("conv_transpose_forward", "convt n1 c4 h3 w3 k4 r2 s2 u2 g2"): (
        zeroed("w", slice(1, None, 2)), None, "terms with c = 1 (last) left out",
    ),
    ("conv_transpose_backward_weight", "convt n3 c4 h3 w3 k4 r2 s2 u2 g2"): (
        zeroed("x", -1), None, "terms with n = 2 (last) left out",
    ),
    ("avg_pool_forward", "pool n1 c2 h5 w7 r3 s3 u2"): (
        None, times(0.5, "y", *LAST), "terms with w 4..6 of 0..6 divided by another number at q = 2 (last)",
    ),
    ("avg_pool_backward", "pool n1 c2 h7 w5 r1 s1 u2"): (
        None, lambda arrays: arrays | {"dx": arrays["dx"] + np.roll(arrays["dx"], 1, -2)},
        "terms added where there are none at 4 of 7 h",
    ),
    ("max_pool_forward", "maxpool n1 c2 h5 w7 r3 s3 u2"): (
        filled("x", -1, *LAST), None, "elements of windows with w = 6 (last) left out",
    ),
    ("max_pool_backward", "maxpool n1 c2 h5 w7 r3 s3 u2"): (
        zeroed("dy", *LAST), None, "gradients with q = 2 (last) left out",
    ),
    ("conv_requantized", Q): (zeroed("w", ..., 1, ALL), None, "terms with r = 1 (last) left out"),
}  # fmt: skip
"""Operator and problem -> what is done to inputs or outputs, and how what is said begins."""


def answer(operator: str, text: str, inputs: Change | None, outputs: Change | None, dtype: str = "fp32") -> str:
    workload = OPERATORS[operator].on(parse(text))

    def compute(given: Arrays) -> Arrays:
        found = workload.reference(inputs(given) if inputs else given)
        return outputs(found) if outputs else found

    return read(workload, dtype, compute)


@pytest.mark.parametrize(("operator", "text"), SAID)
def test_terms_are_named(operator: str, text: str):
    dtype = "int8" if operator == "conv_requantized" or text == OF_INT8 else "fp32"
    changed, after, said = SAID[operator, text]
    assert answer(operator, text, changed, after, dtype).startswith(said)
    assert answer(operator, text, None, None, dtype) == ""


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (zeroed("y", *LAST), "bias left out at q = 6 (last)"),
        (times(2, "y", *LAST), "bias counted twice at q = 6 (last)"),
        (moved("y", 1, 1), "bias of another channel: k = 0 has that of k = 3"),
    ],
)
def test_a_bias_is_looked_at_by_itself(outputs: Change, said: str):
    """Products are right: the bias alone is not."""

    def of_bias_alone(inputs: Arrays) -> Arrays:
        found = OPERATORS["conv_forward"].reference(geometry, inputs)
        return outputs(found) if inputs["bias"].any() else found

    geometry = parse(CONV)
    assert read(OPERATORS["conv_forward"].on(geometry), "fp32", of_bias_alone) == said


def test_a_scale_is_looked_at_by_itself():
    def of_scale_alone(inputs: Arrays) -> Arrays:
        wrong = inputs | {"scale": np.roll(inputs["scale"], 1)}
        return OPERATORS["conv_requantized"].reference(geometry, wrong)

    geometry = parse(Q)
    said = read(OPERATORS["conv_requantized"].on(geometry), "int8", of_scale_alone)
    assert said == "scale of another channel: k = 0 has that of k = 3"


def test_gradients_of_equal_maxima_are_looked_at_by_themselves():
    """Where all elements differ, a tie to the last maximum is right."""

    def last_first(inputs: Arrays) -> Arrays:
        turned = {name: np.ascontiguousarray(array[..., ::-1]) for name, array in inputs.items()}
        found = OPERATORS["max_pool_backward"].reference(geometry, turned)
        return {name: np.ascontiguousarray(array[..., ::-1]) for name, array in found.items()}

    geometry = parse("maxpool n1 c2 h3 w6 r1 s3 u1x3")
    said = read(OPERATORS["max_pool_backward"].on(geometry), "fp32", last_first)
    assert said == "of equal maxima, gradients are added at w + 2"


def test_the_maximum_of_minus_infinities_is_looked_at_by_itself():
    def lowest(inputs: Arrays) -> Arrays:
        found = OPERATORS["max_pool_forward"].reference(geometry, inputs)["y"]
        found[..., -1] = np.maximum(found[..., -1], -65504)
        return {"y": found}

    geometry = parse("maxpool n1 c2 h4 w6 r2 s3 u1x3")
    said = read(OPERATORS["max_pool_forward"].on(geometry), "fp32", lowest)
    assert said == "the maximum of minus infinities is -65504 at q = 1 (last)"


def test_answers_that_change_from_call_to_call_say_nothing():
    calls = count()

    def compute(inputs: Arrays) -> Arrays:
        found = OPERATORS["conv_forward"].reference(geometry, inputs)
        return {"y": found["y"] * (next(calls) + 1)}

    geometry = parse(CONV)
    assert read(OPERATORS["conv_forward"].on(geometry), "fp32", compute) == ""


def test_an_operator_whose_results_are_no_sums_is_left_alone():
    assert answer("conv_bn_forward", "bn n2 c3 h3 w3 k3 r3 s3 p1", None, None) == ""
