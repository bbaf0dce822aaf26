"""Arithmetic with twice the digits of float64, against fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.operators import double_double

NUMBERS = st.floats(-1e30, 1e30, allow_subnormal=False).map(lambda v: v if abs(v) > 1e-30 else 0.0)
LISTS = st.lists(NUMBERS, min_size=1, max_size=40)
quick = settings(max_examples=60, deadline=None)


def fraction(double: Any) -> Fraction:
    return Fraction(float(double[0])) + Fraction(float(double[1]))


@quick
@given(NUMBERS, NUMBERS)
def test_two_sum_and_two_product_lose_nothing(a: float, b: float):
    first, second = np.array([a]), np.array([b])
    assert fraction(tuple(part[0] for part in double_double.two_sum(first, second))) == Fraction(a) + Fraction(b)
    product, error = double_double.two_product(first, second)
    assert Fraction(float(product[0])) + Fraction(float(error[0])) == Fraction(a) * Fraction(b)


@quick
@given(LISTS)
def test_sums_have_twice_the_digits(values: list[float]):
    exact, size = sum(map(Fraction, values)), sum(abs(Fraction(v)) for v in values)
    assert abs(fraction(double_double.summed(np.array(values))) - exact) <= size * len(values) * Fraction(2) ** -104


@quick
@given(LISTS, st.randoms(use_true_random=False))
def test_dot_products_have_twice_the_digits(values: list[float], random: Any):
    others = random.sample(values, len(values))
    terms = [Fraction(a) * Fraction(b) for a, b in zip(values, others, strict=True)]
    found = fraction(double_double.dot(np.array(values), np.array(others)))
    assert abs(found - sum(terms)) <= sum(map(abs, terms)) * len(values) * Fraction(2) ** -103


@quick
@given(NUMBERS, NUMBERS, st.integers(1, 10**7))
def test_quotients_have_twice_the_digits(a: float, b: float, by: int):
    high, low = double_double.two_sum(np.array([a]), np.array([b * 2.0**-53]))
    exact = (Fraction(float(high[0])) + Fraction(float(low[0]))) / by
    found = fraction(tuple(part[0] for part in double_double.divided((high, low), float(by))))
    assert abs(found - exact) <= abs(exact) * Fraction(2) ** -103


@quick
@given(LISTS, st.integers(8, 40))
def test_slices_add_up_and_are_narrow(values: list[float], bits: int):
    array = np.array(values)
    parts = list(double_double.sliced(array, bits, (0,)))
    largest = Fraction(float(np.max(np.abs(array))))
    for place, value in enumerate(values):
        left = Fraction(value) - sum(Fraction(float(part[place])) for part in parts)
        assert abs(left) <= largest * Fraction(2) ** (1 - double_double.COVERED)
    assert all(double_double.width(part) <= bits + 1 for part in parts)


WIDTHS = {"one": ([1.0], 1), "three": ([5.0, 1.0], 3), "apart": ([2.0**20, 2.0**-3], 24), "none": ([0.0, np.inf], 1)}


@pytest.mark.parametrize(("values", "bits"), WIDTHS.values(), ids=WIDTHS)
def test_width_counts_from_the_highest_bit_to_the_lowest(values: list[float], bits: int):
    assert double_double.width(np.array(values)) == bits
