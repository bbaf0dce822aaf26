"""Mistakes of scaled products: which scale an element gets, what is made of the scales, and what is scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE, WHOLE, name_of
from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import tails_of_sums
from conformance.operators.matmul import mistakes as of_products
from conformance.operators.matmul.operators import Matmul
from conformance.operators.matmul_scaled.geometry import ScaledGeometry
from conformance.operators.matmul_scaled.operators import Places, places, scaled
from conformance.operators.mistakes import Compute, InapplicableError, Mistake

NAME = ("matmul_scaled",)
_PRODUCT = Matmul()


def _placed(change: Callable[[ScaledGeometry, Places], Places]) -> Compute:
    """Return the computation in which elements get the scales of other blocks; numbers beyond the last block stand for
    the last one, below the first for the first one."""

    def compute(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        right, (rows, parts), columns = places(g), g.scale_a.shape, g.scale_b.shape[0]
        counts = (rows, columns, parts, parts)
        limited = Places(*(np.clip(new, 0, count - 1) for new, count in zip(change(g, right), counts, strict=True)))
        if all(np.array_equal(old, new) for old, new in zip(right, limited, strict=True)):
            raise InapplicableError
        return _PRODUCT.reference(g, scaled(g, inputs, dtype, limited), dtype)

    return compute


def _of_terms(change: Callable[[ScaledGeometry, np.ndarray], np.ndarray], operands: str = "ab") -> Compute:
    """Return the computation with other blocks of terms for the scales of `operands`."""

    def changed(g: ScaledGeometry, at: Places) -> Places:
        terms_a, terms_b = (
            change(g, terms) if operand in operands else terms
            for operand, terms in zip("ab", (at.terms_a, at.terms_b), strict=True)
        )
        return at._replace(terms_a=terms_a, terms_b=terms_b)

    return _placed(changed)


def _by_length(change: Callable[[int], int]) -> Compute:
    """Return the computation with blocks of terms of another length."""

    def terms(g: ScaledGeometry, _: np.ndarray) -> np.ndarray:
        if (length := change(g.terms)) < 1 or not g.terms:
            raise InapplicableError
        return np.arange(g.c) // length

    return _of_terms(terms)


def _of_lines(change: Callable[[np.ndarray], np.ndarray], axis: str) -> Compute:
    """Return the computation with other blocks of `rows` or `columns`."""
    return _placed(lambda g, at: at._replace(**{axis: change(getattr(at, axis))}))


def _lines_of_length(change: Callable[[int], int], axis: str) -> Compute:
    """Return the computation with another number of rows or columns to a scale."""

    def changed(g: ScaledGeometry, at: Places) -> Places:
        length: int = getattr(g, axis)
        if change(length) < 1 or not length:
            raise InapplicableError
        return at._replace(**{axis: np.arange(len(getattr(at, axis))) // change(length)})

    return _placed(changed)


_BLOCKS: dict[str, Compute] = {
    "scales of the block of terms before": _of_terms(lambda g, terms: np.maximum(terms - 1, 0)),
    "scales of the next block of terms": _of_terms(lambda g, terms: terms + 1),
    "scales of the first block of terms for all": _of_terms(lambda g, terms: 0 * terms),
    "scales of the last block of terms for all": _of_terms(lambda g, terms: 0 * terms + terms[-1]),
    "blocks of terms in reverse": _of_terms(lambda g, terms: terms[-1] - terms),
    "scale of b of the next block of terms": _of_terms(lambda g, terms: terms + 1, "b"),
    "scale of a of the first block of terms for all": _of_terms(lambda g, terms: 0 * terms, "a"),
    "scale of b of the first block of terms for all": _of_terms(lambda g, terms: 0 * terms, "b"),
    "blocks of half as many terms": _by_length(lambda length: length // 2),
    "blocks of twice as many terms": _by_length(lambda length: 2 * length),
    "blocks with a term too many": _by_length(lambda length: length + 1),
    "blocks with a term too few": _by_length(lambda length: length - 1),
    "scales of whole blocks for the short last block of terms": _of_terms(
        lambda g, terms: np.where(terms == _short(g), terms - 1, terms)
    ),
}
_LINES: dict[str, Compute] = {
    "scale of the row, or block of rows, before": _of_lines(lambda rows: np.maximum(rows - 1, 0), "rows"),
    "scale of the next row, or block of rows": _of_lines(lambda rows: rows + 1, "rows"),
    "scale of the first row for all": _of_lines(lambda rows: 0 * rows, "rows"),
    "scale of the column, or block of columns, before": _of_lines(lambda rows: np.maximum(rows - 1, 0), "columns"),
    "scale of the next column, or block of columns": _of_lines(lambda rows: rows + 1, "columns"),
    "scale of the first column for all": _of_lines(lambda rows: 0 * rows, "columns"),
    "half as many rows to a scale": _lines_of_length(lambda length: length // 2, "rows"),
    "half as many columns to a scale": _lines_of_length(lambda length: length // 2, "columns"),
    "twice as many rows to a scale": _lines_of_length(lambda length: 2 * length, "rows"),
    "twice as many columns to a scale": _lines_of_length(lambda length: 2 * length, "columns"),
    "rows counted through the blocks by turns": _placed(
        lambda g, at: at._replace(rows=np.arange(g.n) % g.scale_a.shape[0])
    ),
    "columns counted through the blocks by turns": _placed(
        lambda g, at: at._replace(columns=np.arange(g.k) % g.scale_b.shape[0])
    ),
    "terms counted through the blocks by turns": _of_terms(lambda g, terms: np.arange(g.c) % (terms[-1] + 1)),
}


def _short(g: ScaledGeometry) -> int:
    """Return the number of the last block of terms. Raises InapplicableError where it is a whole one."""
    if not g.terms or not g.c % g.terms:
        raise InapplicableError
    return g.c // g.terms


Scales = tuple[np.ndarray, np.ndarray]


def _of_scales(change: Callable[[np.ndarray, np.ndarray], Scales]) -> Compute:
    """Return the computation with other scales of the same shapes."""

    def compute(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        right = inputs["scale_a"].astype(np.float64), inputs["scale_b"].astype(np.float64)
        scale_a, scale_b = change(*right)
        if all(np.array_equal(*pair, equal_nan=True) for pair in zip((scale_a, scale_b), right, strict=True)):
            raise InapplicableError
        return operator.reference(g, inputs | {"scale_a": scale_a, "scale_b": scale_b}, dtype)

    return compute


def _exchanged(a: np.ndarray, b: np.ndarray) -> Scales:
    if a.shape != b.shape or a.size == 1:
        raise InapplicableError
    return b, a


def _transposed(scale: np.ndarray) -> np.ndarray:
    """Read scales in column-major order."""
    if 1 in scale.shape:
        raise InapplicableError
    return np.ascontiguousarray(scale.T).reshape(scale.shape)


def _rounded(dtype: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda scale: scale.astype(np.float32).astype(STORAGE[dtype]).astype(np.float64)


def _power(scale: np.ndarray) -> np.ndarray:
    """Round down to a power of two, as E8M0 holds them."""
    significand, exponent = np.frexp(scale)
    return np.where(significand > 0, np.ldexp(0.5, exponent), scale)


def _both(change: Callable[[np.ndarray], np.ndarray]) -> Compute:
    return _of_scales(lambda a, b: (change(a), change(b)))


_SCALES: dict[str, Compute] = {
    "scales of a and b exchanged": _of_scales(_exchanged),
    "scales inverted": _both(lambda scale: 1 / scale),
    "scale of b inverted": _of_scales(lambda a, b: (a, 1 / b)),
    "scales applied twice": _both(np.square),
    "scale of a applied twice": _of_scales(lambda a, b: (a**2, b)),
    "scale of a left out": _of_scales(lambda a, b: (np.ones_like(a), b)),
    "scale of b left out": _of_scales(lambda a, b: (a, np.ones_like(b))),
    "scales left out": _both(np.ones_like),
    "scales twice as large": _of_scales(lambda a, b: (2 * a, b)),
    "scales half as large": _of_scales(lambda a, b: (a / 2, b)),
    "scales rounded to bf16": _both(_rounded("bf16")),
    "scales rounded to fp16": _both(_rounded("fp16")),
    "scales rounded to powers of two": _both(_power),
    "scales of zero taken for 1": _both(lambda scale: np.where(scale == 0, 1.0, scale)),
    "scales that are NaN taken for 0": _both(lambda scale: np.where(np.isnan(scale), 0.0, scale)),
    "scales held within the range of fp16": _both(lambda scale: np.clip(scale, 2.0**-24, 65504.0)),
    "NaN of a scale spreads to the block after": _both(
        lambda scale: np.where(np.isnan(np.roll(scale, 1, 0)), np.nan, scale)
    ),
    "scales of a read in column-major order": _of_scales(lambda a, b: (_transposed(a), b)),
    "scales of b read in column-major order": _of_scales(lambda a, b: (a, _transposed(b))),
}


def _last_block(factor: Callable[[np.ndarray, np.ndarray], Any]) -> Compute:
    """Return the computation in which the short last block of terms has another product of scales, given the right
    ones [M, 1] and [N, 1]."""

    def compute(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        _short(g)
        at, last = places(g), slice(g.c // g.terms * g.terms, None)
        operands = scaled(g, inputs, dtype)
        scale_a, scale_b = inputs["scale_a"][at.rows, -1:], inputs["scale_b"][at.columns, -1:]
        kept = {name: operands[name].copy() for name in ("a", "b")}
        a, b = (inputs[name][:, last].astype(dtype) for name in ("a", "b"))
        kept["a"][:, last], kept["b"][:, last] = a * factor(scale_a, scale_a), b * factor(scale_b, scale_b)
        return _PRODUCT.reference(g, operands | kept, dtype)

    return compute


_LAST: dict[str, Compute] = {
    "short last block of terms not scaled": _last_block(lambda scale, _: np.ones_like(scale)),
    "short last block of terms dropped": _last_block(lambda scale, _: np.zeros_like(scale)),
}


def block_sums(g: ScaledGeometry, inputs: Arrays) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the exact sum of each block of terms [M, N] and the product of its scales."""
    at, length = places(g), g.terms or g.c
    a, b, scale_a, scale_b = (inputs[name].astype(np.float64) for name in ("a", "b", "scale_a", "scale_b"))
    for block, start in enumerate(range(0, g.c, length)):
        terms = slice(start, start + length)
        yield a[:, terms] @ b[:, terms].T, scale_a[at.rows, block, None] * scale_b[at.columns, block]


def by_blocks(add: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Compute:
    """Return the computation that adds blocks up by `add(total, sum of the block, its scale)`."""

    def compute(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        total = np.zeros((g.n, g.k))
        for sums, scale in block_sums(g, inputs):
            total = add(total, sums, scale)
        return {"y": (total + (inputs["bias"].astype(np.float64) if g.bias else 0.0)).astype(dtype)}

    return compute


_SUMS: dict[str, Compute] = {
    "sums of blocks rounded to bf16 before they are scaled": by_blocks(
        lambda total, sums, scale: total + _rounded("bf16")(sums) * scale
    ),
    "sums of blocks rounded to fp16 before they are scaled": by_blocks(
        lambda total, sums, scale: total + _rounded("fp16")(sums) * scale
    ),
    "scaled sums added in bf16": by_blocks(lambda total, sums, scale: _rounded("bf16")(total + sums * scale)),
    "sum so far scaled with each block": by_blocks(lambda total, sums, scale: (total + sums) * scale),
}


def _operands_rounded(format: str) -> Compute:
    """Round scaled operands before they are multiplied."""

    def compute(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        operands = scaled(g, inputs)
        rounded = {name: _rounded(format)(operands[name]) for name in ("a", "b")}
        return _PRODUCT.reference(g, operands | rounded, dtype)

    return compute


def _bias_scaled(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Scale the bias like the last block."""
    *_, (_, scale) = block_sums(g, inputs)
    bias = inputs["bias"].astype(np.float64)
    return {"y": (operator.reference(g, inputs)["y"] + (scale - 1) * bias).astype(dtype)}


def _as_unsigned(name: str) -> Compute:
    def compute(operator: Operator, g: ScaledGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        if name_of(inputs[name].dtype) not in WHOLE:
            raise InapplicableError
        return operator.reference(g, inputs | {name: inputs[name].astype(np.float64) % 256}, dtype)

    return compute


_OF_EIGHT_BITS: dict[str, Compute] = {
    "a read as unsigned": _as_unsigned("a"),
    "b read as unsigned": _as_unsigned("b"),
}
_OPERANDS: dict[str, Compute] = {
    "scaled operands rounded to bf16": _operands_rounded("bf16"),
    "scaled operands rounded to fp16": _operands_rounded("fp16"),
}


def _of_product() -> Iterator[Mistake]:
    """Yield the mistakes that a product without scales can have, but for those of batches."""
    for mistake in of_products.MISTAKES:
        is_forward = not mistake.operators or of_products.FORWARD in mistake.operators
        if is_forward and mistake.kind != "groups" and not mistake.name.startswith("tail of the sum"):
            yield replace(mistake, operators=NAME)
    yield from tails_of_sums(dict.fromkeys(NAME, ("b", 2)))


MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "scales", compute, NAME) for name, compute in (_BLOCKS | _LINES | _LAST | _SCALES).items()),
    *(Mistake(name, "scales", compute, NAME) for name, compute in (_SUMS | _OPERANDS | _OF_EIGHT_BITS).items()),
    Mistake("bias scaled, too", "bias", _bias_scaled, NAME, lambda g: g.bias),
    *_of_product(),
)
