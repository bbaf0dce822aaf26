"""Mistakes of products with weights of 4 bits: how numbers are unpacked, which zero point and which scale a number
gets, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE, name_of
from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import rounded_before_bias, tails_of_sums
from conformance.operators.matmul import mistakes as of_products
from conformance.operators.matmul_int4.geometry import Int4Geometry
from conformance.operators.matmul_int4.operators import (
    MIDDLE,
    PRODUCT,
    Weights,
    block_of_terms,
    product_of,
    weights,
    zeros,
)
from conformance.operators.mistakes import Compute, InapplicableError, Mistake

NAME = ("matmul_int4",)
LARGEST = 15
Blocks = Callable[[Int4Geometry, np.ndarray], np.ndarray]
"""(geometry, number of the block of each term) -> the number of another block."""


def _with(change: Callable[[Int4Geometry, Arrays, Weights], np.ndarray]) -> Compute:
    """Return the computation with other weights. Inapplicable where all of them are right."""

    def compute(operator: Operator, g: Int4Geometry, inputs: Arrays, dtype: Any) -> Arrays:
        right = weights(g, inputs)
        wrong = change(g, inputs, right)
        if np.array_equal(wrong, right.values, equal_nan=True):
            raise InapplicableError
        return PRODUCT.reference(g, product_of(inputs, wrong, dtype), dtype)

    return compute


def _numbers(change: Callable[[np.ndarray], np.ndarray]) -> Compute:
    """Return the computation with other numbers [N, K]."""
    return _with(lambda g, inputs, right: right._replace(numbers=change(right.numbers)).values)


def _in_place(g: Int4Geometry, values: np.ndarray) -> np.ndarray:
    """Return what belongs to blocks [N, blocks] for each number [N, K]."""
    return values[:, block_of_terms(g)]


def _zeros(change: Callable[[np.ndarray], np.ndarray]) -> Compute:
    """Return the computation with other zero points [N, blocks]."""
    return _with(
        lambda g, inputs, right: right._replace(zero=_in_place(g, change(zeros(g, inputs)))).values,
    )


def _scales(change: Callable[[np.ndarray], np.ndarray]) -> Compute:
    """Return the computation with other scales [N, blocks]."""
    return _with(
        lambda g, inputs, right: right._replace(scale=_in_place(g, change(inputs["scale"].astype(np.float64)))).values
    )


def _blocks(change: Blocks, parts: str = "scale zero") -> Compute:
    """Return the computation in which numbers get the scale, the zero point or both of other blocks; those beyond the
    last block are of the last one, below the first of the first one."""

    def changed(g: Int4Geometry, inputs: Arrays, right: Weights) -> np.ndarray:
        of_blocks = {"scale": inputs["scale"].astype(np.float64), "zero": zeros(g, inputs)}
        at = np.clip(change(g, block_of_terms(g)), 0, g.scale.shape[1] - 1)
        return right._replace(**{part: of_blocks[part][:, at] for part in parts.split()}).values

    return _with(changed)


def _by_length(change: Callable[[int], int]) -> Blocks:
    """Return the blocks of another length."""

    def moved(g: Int4Geometry, _: np.ndarray) -> np.ndarray:
        if not g.block:
            raise InapplicableError
        return np.arange(g.c) // change(g.block)

    return moved


def _short(g: Int4Geometry) -> int:
    """Return the number of the last block of terms. Raises InapplicableError where it is a whole one."""
    if not g.block or not g.c % g.block:
        raise InapplicableError
    return g.c // g.block


def swapped(numbers: np.ndarray) -> np.ndarray:
    """Exchange the halves of each byte; the half that is left over is 0."""
    even = np.concatenate([numbers, np.zeros((len(numbers), numbers.shape[1] % 2))], axis=1)
    return even.reshape(len(numbers), -1, 2)[:, :, ::-1].reshape(even.shape)[:, : numbers.shape[1]]


def _bytes(numbers: np.ndarray) -> np.ndarray:
    """Take each byte for one number of which the other half is shifted out: numbers of a pair are the first one."""
    return np.repeat(numbers[:, ::2], 2, axis=1)[:, : numbers.shape[1]]


def _halves(numbers: np.ndarray) -> np.ndarray:
    """Take low halves for the first half of a row, and high ones for the second."""
    return np.concatenate([numbers[:, ::2], numbers[:, 1::2]], axis=1)


def _halves_of_blocks(g: Int4Geometry, inputs: Arrays, right: Weights) -> np.ndarray:
    """Take low halves for the first half of each block, and high ones for the second."""
    parts = [_halves(right.numbers[:, start : start + (g.block or g.c)]) for start in range(0, g.c, g.block or g.c)]
    return right._replace(numbers=np.concatenate(parts, axis=1)).values


def _from_above(numbers: np.ndarray) -> np.ndarray:
    """Read bytes of a row in reverse within words of 32 bits."""
    words = numbers.shape[1] // 8 * 8
    if not words:
        raise InapplicableError
    turned = numbers[:, :words].reshape(len(numbers), -1, 4, 2)[:, :, ::-1].reshape(len(numbers), words)
    return np.concatenate([turned, numbers[:, words:]], axis=1)


def _signed(numbers: np.ndarray) -> np.ndarray:
    """Read numbers in two's complement, in place of taking 8 off: 8 to 15 are -8 to -1."""
    return np.where(numbers > LARGEST // 2, numbers - 16, numbers) + MIDDLE


_NUMBERS: dict[str, Compute] = {
    "halves of each byte exchanged": _numbers(swapped),
    "low half of each byte read twice": _numbers(_bytes),
    "low halves for the first half of a row, high ones for the second": _numbers(_halves),
    "low halves for the first half of a block, high ones for the second": _with(_halves_of_blocks),
    "bytes of a word read in reverse": _numbers(_from_above),
    "numbers read in two's complement": _numbers(_signed),
    "last number of an odd row dropped": _with(
        lambda g, inputs, right: np.where((np.arange(g.c) == g.c - 1) & bool(g.c % 2), 0.0, right.values)
    ),
    "numbers of the column before": _numbers(lambda numbers: np.roll(numbers, 1, axis=0)),
    "numbers moved by one": _numbers(lambda numbers: np.roll(numbers, 1, axis=1)),
    "numbers beyond 7 taken for 7": _numbers(lambda numbers: np.minimum(numbers, 7)),
}
_ZEROS: dict[str, Compute] = {
    "zero points ignored": _zeros(np.zeros_like),
    "8 taken off in place of the zero points": _zeros(lambda zero: np.full_like(zero, MIDDLE)),
    "7 taken off in place of 8": _zeros(lambda zero: np.where(zero == MIDDLE, 7, zero)),
    "1 added to zero points, as if they were stored less 1": _zeros(lambda zero: zero + 1),
    "zero points 1 too small": _zeros(lambda zero: zero - 1),
    "zero points added": _zeros(np.negative),
    "zero points and 8 taken off": _zeros(lambda zero: zero + MIDDLE),
    "zero points read in two's complement": _zeros(lambda zero: np.where(zero > 7, zero - 16, zero)),
    "zero points of 0 taken for 8": _zeros(lambda zero: np.where(zero == 0, MIDDLE, zero)),
    "halves of each byte of the zero points exchanged": _zeros(swapped),
    "low half of each byte of the zero points read twice": _zeros(_bytes),
    "zero points of the column before": _zeros(lambda zero: np.roll(zero, 1, axis=0)),
    "zero points of the first column for all": _zeros(lambda zero: np.repeat(zero[:1], len(zero), axis=0)),
    "zero points read in column-major order": _zeros(lambda zero: _transposed(zero)),
    "zero points packed without a gap between columns": _zeros(lambda zero: _without_gap(zero)),
    "zero points of the first block for all": _blocks(lambda g, block: 0 * block, "zero"),
    "zero points of the block before": _blocks(lambda g, block: block - 1, "zero"),
    "zero points of the next block": _blocks(lambda g, block: block + 1, "zero"),
    "zero points not scaled": _with(lambda g, inputs, right: right.numbers * right.scale - right.zero),
    "negative weights held at 0": _with(lambda g, inputs, right: np.maximum(right.values, 0)),
    "numbers less zero points wrap around at 4 bits": _with(
        lambda g, inputs, right: ((right.numbers - right.zero + 8) % 16 - 8) * right.scale
    ),
}


def _transposed(values: np.ndarray) -> np.ndarray:
    """Read what belongs to blocks in column-major order."""
    if 1 in values.shape:
        raise InapplicableError
    return np.ascontiguousarray(values.T).reshape(values.shape)


def _without_gap(zero: np.ndarray) -> np.ndarray:
    """Read zero points as if an odd number of blocks left no half of a byte over."""
    if zero.shape[1] % 2 == 0:
        raise InapplicableError
    padded = np.concatenate([zero, np.zeros((len(zero), 1))], axis=1).reshape(-1)
    return padded[: zero.size].reshape(zero.shape)


def _rounded(dtype: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: values.astype(np.float32).astype(STORAGE[dtype]).astype(np.float64)


_SCALES: dict[str, Compute] = {
    "scales left out": _scales(np.ones_like),
    "scales applied twice": _scales(np.square),
    "scales inverted": _scales(lambda scale: 1 / scale),
    "scales read in column-major order": _scales(_transposed),
    "scales of the column before": _scales(lambda scale: np.roll(scale, 1, axis=0)),
    "scales of the first column for all": _scales(lambda scale: np.repeat(scale[:1], len(scale), axis=0)),
    "scales of the first block for all": _blocks(lambda g, block: 0 * block, "scale"),
    "scales of the block before": _blocks(lambda g, block: block - 1, "scale"),
    "scales of the next block": _blocks(lambda g, block: block + 1, "scale"),
    "scales rounded to powers of two": _scales(lambda scale: np.ldexp(0.5, np.frexp(scale)[1])),
    "scales that are NaN taken for 0": _scales(np.nan_to_num),
}
_BLOCKS: dict[str, Compute] = {
    "blocks of half as many terms": _blocks(_by_length(lambda length: length // 2)),
    "blocks of twice as many terms": _blocks(_by_length(lambda length: 2 * length)),
    "blocks with a term too many": _blocks(_by_length(lambda length: length + 1)),
    "blocks with a term too few": _blocks(_by_length(lambda length: length - 1)),
    "blocks counted in bytes": _blocks(lambda g, block: np.arange(g.c) // (2 * (g.block or g.c))),
    "terms counted through the blocks by turns": _blocks(lambda g, block: np.arange(g.c) % (block[-1] + 1)),
    "scale and zero point of the block before for a short last block": _blocks(
        lambda g, block: np.where(block == _short(g), block - 1, block)
    ),
    "short last block dropped": _with(
        lambda g, inputs, right: np.where(block_of_terms(g) == _short(g), 0.0, right.values)
    ),
    "short last block not scaled": _with(
        lambda g, inputs, right: right._replace(scale=np.where(block_of_terms(g) == _short(g), 1.0, right.scale)).values
    ),
}


def _weights_in(dtype: str) -> Compute:
    """Round weights on the way."""
    return _with(lambda g, inputs, right: _rounded(dtype)(right.values))


def _zero_term_rounded(operator: Operator, g: Int4Geometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Round the product of a zero point and a scale to the 16 bits of the scale."""
    if (stored := name_of(inputs["scale"].dtype)) not in ("bf16", "fp16"):
        raise InapplicableError
    right = weights(g, inputs)
    rounded = _rounded(stored)((MIDDLE - right.zero) * right.scale)
    return PRODUCT.reference(g, product_of(inputs, (right.numbers - MIDDLE) * right.scale + rounded, dtype), dtype)


def _bias_of_weights(operator: Operator, g: Int4Geometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Scale the bias like the last block."""
    bias = inputs["bias"].astype(np.float64) * inputs["scale"][:, -1].astype(np.float64)
    return operator.reference(g, inputs | {"bias": bias}, dtype)


_PRECISION: dict[str, Compute] = {
    "weights rounded to bf16": _weights_in("bf16"),
    "weights rounded to fp16": _weights_in("fp16"),
    "scales rounded to bf16": _scales(_rounded("bf16")),
    "scales rounded to fp16": _scales(_rounded("fp16")),
    "zero points times scales rounded to 16 bits": _zero_term_rounded,
}


def _of_product() -> Iterator[Mistake]:
    """Yield the mistakes that a product of plain matrices can have, but for those of batches and of b, which is
    packed."""
    for mistake in of_products.MISTAKES:
        is_forward = not mistake.operators or of_products.FORWARD in mistake.operators
        of_b = mistake.name.startswith("b ") or "of b" in mistake.name
        if is_forward and mistake.kind != "groups" and not of_b and not mistake.name.startswith("tail of the sum"):
            yield replace(mistake, operators=NAME)
    yield from tails_of_sums(dict.fromkeys(NAME, ("a", 1)))


MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "formats", compute, NAME) for name, compute in (_NUMBERS | _ZEROS).items()),
    *(Mistake(name, "scales", compute, NAME) for name, compute in (_SCALES | _BLOCKS | _PRECISION).items()),
    Mistake("bias scaled, too", "bias", _bias_of_weights, NAME, lambda g: g.bias),
    *_of_product(),
)

FURTHER: tuple[Mistake, ...] = (rounded_before_bias(*NAME),)
