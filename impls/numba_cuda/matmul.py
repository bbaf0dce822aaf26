"""Matrix products and their gradients: the product that convolutions are computed as, without windows.

A matrix lies anywhere, with a step from row to row, from column to column, and from product to product of a batch, so
that a transposed operand is one with two steps exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .conv import Engine, multiply
from .memory import Tensor, empty, tensor
from .product import Composite, Product
from .reduce import channel_sums

LAYOUTS = ("nn", "nt", "tn", "tt")
NO_DIGIT = (1, 0, 0, 0, 0)


@dataclass(frozen=True)
class Matrix:
    """A matrix, or a batch of them, in a tensor: extents and steps of products, rows and columns."""

    tensor: Tensor
    sizes: tuple[int, int, int]
    steps: tuple[int, int, int]

    @classmethod
    def of(cls, of: Tensor, letter: str = "n") -> Matrix:
        """Return the matrix in a tensor that lies transposed if its letter is t."""
        sizes, steps = ((*(lone,) * (3 - len(of.shape)), *values) for lone, values in ((1, of.shape), (0, of.strides)))
        matrix = cls(of, sizes, steps)
        return matrix.turned if letter == "t" else matrix

    @property
    def turned(self) -> Matrix:
        """Return the transpose."""
        (batch, *sizes), (step, *steps) = self.sizes, self.steps
        return replace(self, sizes=(batch, *reversed(sizes)), steps=(step, *reversed(steps)))


def _composite(count: int, step: int, other: int) -> Composite:
    """Return a row, a column or a term: one digit, with its steps in the second operand and in the other tensor."""
    return Composite((0, 0, 0, 0), ((count, step, 0, 0, other), NO_DIGIT, NO_DIGIT))


def _product(first: Matrix, second: Matrix, out: Matrix) -> Product:
    """Return out = first second; a column of the result is a row of a convolution's product, as filters are."""
    (batch, rows, terms), (_, inner, columns) = first.sizes, second.sizes
    if first.sizes[0] != second.sizes[0] or terms != inner:
        raise ValueError(f"{first.tensor.shape} and {second.tensor.shape} cannot be multiplied")
    of_rows = _composite(rows, first.steps[1], out.steps[1])
    of_terms = _composite(terms, first.steps[2], second.steps[1])
    return Product(
        columns, batch, of_rows, of_terms, (second.steps[2], second.steps[0]), first.steps[0],
        (out.steps[2], out.steps[0]), (1, 1), of_rows,
    )  # fmt: skip


def _matrices(first: Any, second: Any, letters: str) -> tuple[Matrix, Matrix]:
    operands = tensor(first), tensor(second)
    if operands[0].dtype != operands[1].dtype:
        raise TypeError(f"matrices are {operands[0].dtype} and {operands[1].dtype}; they must have one dtype")
    return Matrix.of(operands[0], letters[0]), Matrix.of(operands[1], letters[1])


@dataclass(frozen=True)
class Products:
    """The products on one engine. Results have the dtype of the operands."""

    engine: Engine

    @property
    def kernels(self) -> tuple[Callable[..., Any], ...]:
        return self.matmul, self.matmul_backward_a, self.matmul_backward_b

    def _multiplied(self, first: Matrix, second: Matrix, letter: str = "n", bias: Tensor | None = None) -> Any:
        """Return first second, which lies transposed if its letter is t."""
        batch = first.tensor.shape[:-2]
        shape = (first.sizes[1], second.sizes[2])
        out = Matrix.of(empty((*batch, *(reversed(shape) if letter == "t" else shape)), first.tensor.dtype), letter)
        product = _product(first, second, out)
        return multiply(self.engine, [product], out.tensor, second.tensor, first.tensor, bias)

    def matmul(self, a: Any, b: Any, bias: Any, *, layout: str) -> Any:
        """Return y = a b + bias."""
        return self._multiplied(*_matrices(a, b, layout), bias=None if bias is None else tensor(bias))

    def matmul_backward_a(self, dy: Any, b: Any, *, layout: str) -> Any:
        """Return da = dy b^T, as a lies."""
        rows, columns = _matrices(dy, b, f"n{layout[1]}")
        return self._multiplied(rows, columns.turned, layout[0])

    def matmul_backward_b(self, a: Any, dy: Any, *, layout: str, with_bias: bool) -> Any:
        """Return db = a^T dy, as b lies, and dbias."""
        rows, columns = _matrices(a, dy, f"{layout[0]}n")
        db = self._multiplied(rows.turned, columns, layout[1])
        if not with_bias:
            return db
        matrix = columns.tensor
        pixels = replace(matrix, shape=(*matrix.shape, 1, 1), strides=(*matrix.strides, 0, 0))
        count = matrix.shape[1:]
        dbias, nothing = empty(count, matrix.dtype), empty(count, np.dtype(matrix.format.wide))
        channel_sums(dbias, pixels, pixels, nothing)
        return db, dbias.array
