"""Find out how a kernel adds: in which format it keeps partial sums, the largest sum that it holds, and whether a
result is the difference of two longer sums.

The terms of each call are chosen so that every order of addition in the declared format gives the exact result: ones
beside a power of two and its negative show a partial sum that cannot hold both (the idea of FPRev, Xie et al., USENIX
ATC 2025), and sums that grow term by term show the largest one.

This is not left to `conformance.reading`, which reads a single element of the output in three times as many calls, and
neither sums of whole numbers nor differences of running sums. That element is often right where a kernel fails: only
the tail of its results is added in another format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.diagnosis.terms import ELEMENTS, MAX_WORK, Compute, TermPlan, planned, zero_points, zeros
from conformance.dtypes import FORMATS, WHOLE, ends
from conformance.operators import Arrays, Workload

SMALLEST_POWER = 5
"""Least exponent of the large term: a kernel that is wrong with a smaller one is not imprecise, but wrong."""
CALLS = 32
"""Most calls on a problem."""
FAR = 1 << 30
"""An element beside which fp32 holds no ones."""
FULL_SCALE = 100
"""Requantized result of the largest sum."""

IsWrong = Callable[..., bool]
"""Function of inputs that returns whether the kernel's outputs, or those of them that a second argument chooses, differ
from the exact ones."""


def read(workload: Workload, dtype: str, compute: Compute, declared: Contract) -> str:
    """Return how the kernel adds, in words that follow the names of outputs; empty if sums are as its contract declares
    them, or if the operator has none. Raises what `compute` does."""
    plan = planned(workload)
    if plan is None or plan.terms == ELEMENTS:
        return ""
    if CALLS * max(workload.flops, workload.bytes(1)) > MAX_WORK:
        return ""

    def is_wrong(inputs: Arrays, among: Callable[[str, np.ndarray], Any] = lambda name, exact: ...) -> bool:
        outputs = compute(inputs)
        for name, exact in workload.reference(inputs).items():
            if name != "dbias":
                due = exact.astype(outputs[name].dtype)
                if not np.array_equal(outputs[name][among(name, exact)], due[among(name, exact)]):
                    return True
        return False

    if plan.selected == plan.coded:
        return _of_windows(workload, dtype, is_wrong) if plan.coded == "x" else ""
    if dtype in WHOLE:
        return _of_large_sums(workload, dtype, plan, is_wrong)
    return _of_formats(workload, dtype, plan, is_wrong, declared)


def _of_formats(workload: Workload, dtype: str, plan: TermPlan, is_wrong: IsWrong, declared: Contract) -> str:
    """Return in how many bits partial sums are kept, if these are fewer than declared."""
    extents = tuple(plan.axes.values())
    terms = int(np.prod(extents))
    stored = FORMATS[dtype]
    kept = declared.accumulator(dtype).precision
    if declared.splits > 1:
        kept = min(kept, FORMATS[declared.partials].precision)
    last = min(kept - 1, stored.emax - stored.emin)
    if declared.algorithm != "direct" or not 3 <= terms <= 1 << (kept - 1) or last <= SMALLEST_POWER:
        return ""  # transforms round sums of these numbers
    places = dict.fromkeys(((0, terms - 1), (0, terms // 2), (terms // 2, terms - 1), (0, 1)))

    def loses(power: int) -> bool:
        """Return whether a sum loses a small term beside one that is 2^power times as large."""
        large = 2.0 ** min(power, stored.emax)
        for first, second in places:
            values = np.full(terms, large / 2.0**power)
            values[first], values[second] = large, -large
            if is_wrong(_chosen(workload, dtype, plan, values.reshape(extents))):
                return True
        return False

    if not loses(last) or loses(SMALLEST_POWER):
        return ""
    bits = bisect_left(range(last), True, lo=SMALLEST_POWER + 1, key=loses)
    names = [name for name, format in FORMATS.items() if format.precision == bits]
    like = f", as {' or '.join(names)} has," if names else ""
    return f"partial sums are kept in {bits} bits{like} instead of {kept}"


def _of_large_sums(workload: Workload, dtype: str, plan: TermPlan, is_wrong: IsWrong) -> str:
    """Return the largest sum of 8-bit products that is right, if a larger one is wrong."""
    extents = tuple(plan.axes.values())
    terms = int(np.prod(extents))
    coded, selected = (ends(workload.inputs[name].stored_as(dtype)) for name in (plan.coded, plan.selected))
    zero, added = (zero_points(workload.geometry).get(name, 0) for name in (plan.coded, plan.selected))
    largest = max(reversed(coded), key=lambda value: abs(value - zero))
    largest -= int(np.sign(largest - zero)) * ((largest - zero) % 2 == 0)
    top = selected[1] - ((selected[1] - added) % 2 == 0)
    product = (top - added) * abs(largest - zero)
    if product <= 0:
        return ""

    def fails(count: int) -> bool:
        values = np.where(np.arange(terms) < count, top, added)
        values[count - 1] -= count % 2 == 0  # the sum is odd, and no float with fewer bits holds it
        inputs = _chosen(workload, dtype, plan, values.reshape(extents))
        inputs[plan.coded][...] = largest
        if "scale" in inputs:
            inputs["scale"][...] = FULL_SCALE / (product * terms)
        return is_wrong(inputs)

    if not fails(terms):
        return ""
    right = bisect_left(range(1, terms), True, key=fails)
    if right == 0:
        return ""
    for bits, what in ((15, "sums beyond 32,767 are wrong: they are kept in 16 bits"),
                       (24, "sums beyond 2^24 are rounded, as fp32 does")):  # fmt: skip
        if right * product <= 1 << bits < (right + 1) * product:
            return what
    return f"sums beyond {right * product:,} are wrong"


def _of_windows(workload: Workload, dtype: str, is_wrong: IsWrong) -> str:
    """Return whether averages are wrong where a large element lies outside of their windows."""
    inputs = zeros(workload, dtype)
    inputs["x"] += inputs["x"].dtype.type(1)
    if FORMATS[dtype].precision > FORMATS["fp32"].precision or is_wrong(inputs):
        return ""
    first: tuple[slice | int, ...] = (slice(None), slice(None), *[0] * workload.geometry.rank)
    inputs["x"][first] = min(FAR, 2.0 ** FORMATS[dtype].emax)
    if not is_wrong(inputs, lambda _, exact: exact <= 1):
        return ""
    return "averages depend on elements outside of their windows, as differences of running sums do"


def _chosen(workload: Workload, dtype: str, plan: TermPlan, values: np.ndarray) -> Arrays:
    """Return inputs whose terms have these values [plan.axes], the same ones for each result."""
    inputs, chosen = zeros(workload, dtype), workload.inputs[plan.selected]
    inputs[plan.coded] += inputs[plan.coded].dtype.type(1)
    spread = values.reshape([plan.axes.get(letter, 1) for letter in chosen.axes])
    if chosen.is_filter and chosen.axes[0] in plan.axes:  # in every group
        spread = np.concatenate([spread] * workload.geometry.groups)
    inputs[plan.selected][...] = spread
    return inputs
