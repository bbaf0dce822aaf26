"""Matrix products and their gradients: where operands lie, and the sizes that the kernel divides."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .host_conv import matching, tensors

LAYOUTS = ("nn", "nt", "tn", "tt")
Triple = tuple[int, int, int]


class Matrix(NamedTuple):
    """A contiguous matrix, or a batch of them: products, rows and columns, and the steps from one to the next."""

    array: np.ndarray
    sizes: Triple
    steps: Triple

    @property
    def turned(self) -> Matrix:
        """Return the transpose."""
        (batch, rows, columns), (step, down, across) = self.sizes, self.steps
        return Matrix(self.array, (batch, columns, rows), (step, across, down))


def _placed(shape: tuple[int, ...], letter: str) -> tuple[Triple, Triple]:
    """Return sizes and steps of a contiguous matrix, which lies transposed if its letter is t."""
    matrix = Matrix(np.empty(0), ((1, *shape)[-3], *shape[-2:]), (shape[-2] * shape[-1], shape[-1], 1))
    _, sizes, steps = matrix.turned if letter == "t" else matrix
    return sizes, steps


class Products:
    """a[M, K], b[K, N], y[M, N], or batches of these; layouts as everywhere in the suite."""

    def __init__(self, load: Callable[[str], ModuleType]):
        self.load = load

    def matmul(self, a: Any, b: Any, bias: Any, *, layout: str) -> np.ndarray:
        """Return y = a b + bias."""
        first, second = self._matrices(a, b, layout)
        return self._multiplied(first, second, bias=None if bias is None else tensors(bias)[0])

    def matmul_backward_a(self, dy: Any, b: Any, *, layout: str) -> np.ndarray:
        """Return da = dy b^T, as a lies."""
        first, second = self._matrices(dy, b, f"n{layout[1]}")
        return self._multiplied(first, second.turned, layout[0])

    def matmul_backward_b(self, a: Any, dy: Any, *, layout: str, with_bias: bool) -> Any:
        """Return db = a^T dy, as b lies, and dbias."""
        first, second = self._matrices(a, dy, f"{layout[0]}n")
        db = self._multiplied(first.turned, second, layout[1])
        if not with_bias:
            return db
        rows, columns = second.array.shape
        if not rows:
            return db, np.zeros(columns, second.array.dtype)
        return db, self.load("matmul").column_sums(second.array, rows, columns)

    def _matrices(self, first: Any, second: Any, letters: str) -> tuple[Matrix, Matrix]:
        left, right = tensors(first, second)
        return Matrix(left, *_placed(left.shape, letters[0])), Matrix(right, *_placed(right.shape, letters[1]))

    def _multiplied(
        self, first: Matrix, second: Matrix, letter: str = "n", bias: np.ndarray | None = None
    ) -> np.ndarray:
        """Return first second, which lies transposed if its letter is t."""
        (batch, rows, terms), (products, inner, columns) = first.sizes, second.sizes
        matching("products of a batch", products, batch)
        matching("terms of a sum", inner, terms)
        shape = (columns, rows) if letter == "t" else (rows, columns)
        shape = (*first.array.shape[:-2], *shape)
        if not min(batch, rows, columns, terms):  # the toolchain takes no tensor without elements
            return np.zeros(shape, first.array.dtype) + (0 if bias is None else bias)
        place = _placed(shape, letter)
        multiply = self.load("matmul").multiply
        return multiply(
            first.array, second.array, bias, bias is not None, terms, shape, first.steps, second.steps, place
        )
