"""Kernels that take few shapes meet terms that a short accumulator absorbs, in every dtype and kind of window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import Implementation
from conformance.execution.declared import Declared
from conformance.execution.selection import Selection
from conformance.execution.share import Ranked
from conformance.layouts import LAYOUTS
from conformance.operators import FAMILIES, OPERATORS
from conformance.problems import PROBLEMS, Problem, Variant
from conformance.problems.table import DISTRIBUTIONS, applies
from tests.report_samples import CONTRACT, as_read, sample, summary

SUMMING = [operator.name for family in FAMILIES.values() if "absorbed" in family.distributions
           for operator in family.operators]  # fmt: skip


def is_pointwise(geometry: Any) -> bool:
    return {*geometry.window} == {1}


def is_larger(geometry: Any) -> bool:
    return not is_pointwise(geometry)


def cases(
    operator: str, level: str, dtypes: tuple[str, ...], when: Callable[[Any], bool]
) -> list[tuple[Problem, Variant]]:
    """Return what a level asks of a kernel in channels first."""
    implementation, has_windows = Implementation("acme"), bool(FAMILIES[OPERATORS[operator].family].rank)
    implementation.implements(operator, dtypes=dtypes, when=when if has_windows else None)(lambda *arrays: np.zeros(1))
    selection = Selection(
        ("acme",), (), level, PROBLEMS, (operator,), OPERATORS[operator].dtypes, tuple(LAYOUTS), DISTRIBUTIONS, 0, ""
    )
    ranked = Ranked(selection)
    shares = ranked.share(Declared(implementation, operator, [p.geometry for p, _ in ranked.rows(operator).rows]))
    return [(p, v) for (p, _), share in zip(ranked.rows(operator).rows, shares, strict=True) for v in share
            if when(p.geometry) and v.dtype in dtypes]  # fmt: skip


@pytest.mark.parametrize("level", ["smoke", "standard", "full"])
@pytest.mark.parametrize(
    ("operator", "when"),
    [
        (name, when)
        for name in SUMMING
        for when in (is_pointwise, is_larger)
        if when is is_larger or FAMILIES[OPERATORS[name].family].rank
    ],
)
def test_each_dtype_meets_absorbed_terms_in_windows_of_one_element_and_larger(
    operator: str, when: Callable[[Any], bool], level: str
):
    """An fp8 kernel of 1x1 windows passed with 12 bits of declared 13: it was asked two cases."""
    dtypes = tuple(dtype for dtype in OPERATORS[operator].dtypes if applies("absorbed", dtype))
    met = {v.dtype for _, v in cases(operator, level, dtypes, when) if v.distribution == "absorbed"}
    adds = when is is_larger or operator != "avg_pool_forward"  # an average of one element is no sum
    assert met == ({*dtypes} if adds else set())


def test_a_kernel_of_8_bits_and_few_shapes_meets_every_distribution():
    met = {v.distribution for _, v in cases("conv_forward", "standard", ("fp8_e4m3",), is_pointwise)}
    assert met == {name for name in FAMILIES["conv"].distributions if applies(name, "fp8_e4m3")}


UNTRIED = "weaker contract: acme: hopper-fp8 sums (conv_forward fp8_e4m3 whose bits no case tried)"


def test_bits_that_are_declared_and_no_case_tried_are_said():
    """A kernel passed with fewer bits than it declared, and nothing said that none of its cases depended on them."""
    declared = sample(contract=CONTRACT | {"accumulate": "hopper-fp8"}, dtype="fp8_e4m3")
    assert UNTRIED in summary([as_read(declared)], 120)
    said = summary([as_read(declared), as_read(declared | {"distribution": "absorbed"})], 120)
    assert UNTRIED.replace(" whose bits no case tried", "") in said
    fp32 = sample(contract=CONTRACT | {"accumulate": "fp16"})
    assert "weaker contract: acme: fp16 sums (conv_forward fp32)" in summary([as_read(fp32)], 120)
