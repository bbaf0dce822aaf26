"""A requantized matrix product whose every step can be replaced: its mistakes, and calibration's correct and wrong
kernels, are made of these steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conformance.operators.base import Arrays
from conformance.operators.matmul.operators import by_product, by_rows
from conformance.operators.matmul_requantized.geometry import RequantizedMatmulGeometry
from conformance.operators.requantized_steps import Storing

Read = Callable[[RequantizedMatmulGeometry, np.ndarray], np.ndarray]
Sums = Callable[[RequantizedMatmulGeometry, np.ndarray, np.ndarray], np.ndarray]


def as_it_is(g: RequantizedMatmulGeometry, operand: np.ndarray) -> np.ndarray:
    return operand


def products(g: RequantizedMatmulGeometry, b: np.ndarray) -> np.ndarray:
    """View b [batch * N, K] as [batch, N, K]."""
    return b.reshape(g.groups, g.k // g.groups, g.c // g.groups)


def exact_sums(g: RequantizedMatmulGeometry, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return by_rows(by_product(a, g.groups) @ products(g, b).swapaxes(1, 2))


def of_columns(g: RequantizedMatmulGeometry, b: np.ndarray) -> np.ndarray:
    """Return the zero point of a times the sum of each column of b [batch * N]."""
    return g.a_zero_point * b.sum(axis=1)


def of_rows(g: RequantizedMatmulGeometry, a: np.ndarray) -> np.ndarray:
    """Return the zero point of b times the sum of each row of a, for each column [M, batch * N]."""
    of_row = a.reshape(len(a), g.groups, g.c // g.groups).sum(axis=2)
    return g.b_zero_point * np.repeat(of_row, g.k // g.groups, axis=1)


def of_terms(g: RequantizedMatmulGeometry, terms: int) -> int:
    """Return this many times the product of the zero points."""
    return terms * g.a_zero_point * g.b_zero_point


@dataclass(frozen=True, slots=True)
class Steps(Storing):
    """The steps of the sums, before those that follow.

    rows      (geometry, a) -> a as it is multiplied
    columns   (geometry, b) -> b as it is multiplied
    sums      (geometry, rows, columns) -> sums [M, batch * N] without the bias
    """

    rows: Read = lambda g, a: a - g.a_zero_point
    columns: Read = lambda g, b: b - g.b_zero_point
    sums: Sums = exact_sums

    def added_up(self, g: RequantizedMatmulGeometry, wide: Arrays) -> np.ndarray:
        """Return the sums of the inputs, in float64, without the bias."""
        return self.sums(g, self.rows(g, wide["a"]), self.columns(g, wide["b"]))
