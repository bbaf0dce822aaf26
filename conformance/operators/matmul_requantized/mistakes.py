"""Mistakes of requantized matrix products: zero points and their products, scales, rounding, overflow of 8 bits, and
those of a plain product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.operators.image_mistakes import TILES, within_tiles
from conformance.operators.matmul.mistakes import BATCHES, ORDERS, columns_beyond, of_forward, rows_beyond
from conformance.operators.matmul.operators import by_product, by_rows
from conformance.operators.matmul_requantized.geometry import RequantizedMatmulGeometry as Geometry
from conformance.operators.matmul_requantized.steps import (
    Read,
    Steps,
    Sums,
    as_it_is,
    exact_sums,
    of_columns,
    of_rows,
    of_terms,
    products,
)
from conformance.operators.mistakes import Compute, InapplicableError, Mistake, misread
from conformance.operators.requantized_geometry import HIGHEST, LOWEST
from conformance.operators.requantized_mistakes import (
    FP8,
    OF_FP8,
    OF_SUMS,
    OF_WHOLE,
    SIGNED,
    UNSIGNED,
    WHOLE_NUMBERS,
    as_signed,
    biases,
    formats_of,
    moved,
    negated,
    scales,
    with_steps,
)
from conformance.operators.requantized_steps import pairs_saturated, wrapped

_with = partial(with_steps, Steps)

_EXCHANGED: dict[str, Compute] = {
    "zero point of a not taken off": misread(lambda g: replace(g, a_zero_point=0)),
    "zero point of b not taken off": misread(lambda g: replace(g, b_zero_point=0)),
    "zero point of a added": misread(lambda g: replace(g, a_zero_point=negated(g.a_zero_point))),
    "zero point of b added": misread(lambda g: replace(g, b_zero_point=negated(g.b_zero_point))),
    "zero point of y left out": misread(lambda g: replace(g, y_zero_point=0)),
    "zero point of y taken off": misread(lambda g: replace(g, y_zero_point=negated(g.y_zero_point))),
    "zero points of a and b exchanged": misread(
        lambda g: replace(g, a_zero_point=g.b_zero_point, b_zero_point=g.a_zero_point)
    ),
    "zero points of a and y exchanged": misread(
        lambda g: replace(g, a_zero_point=g.y_zero_point, y_zero_point=g.a_zero_point)
    ),
    "zero points of b and y exchanged": misread(
        lambda g: replace(g, b_zero_point=g.y_zero_point, y_zero_point=g.b_zero_point)
    ),
}


def _of_rows_of_b(g: Geometry, b: np.ndarray) -> np.ndarray:
    """Return the zero point of a times sums over the columns of b, one for each term, as if these were the columns."""
    if not b.shape[1]:
        raise InapplicableError
    sums = products(g, b).sum(axis=1)
    return g.a_zero_point * sums[:, np.arange(g.k // g.groups) % sums.shape[1]].reshape(-1)


def _of_columns_of_a(g: Geometry, a: np.ndarray) -> np.ndarray:
    """Return the zero point of b times sums over the rows of a, one for each term, as if these were the rows."""
    if not a.shape[1]:
        raise InapplicableError
    sums = by_product(a, g.groups).sum(axis=1)
    of_row = sums[:, np.arange(len(a)) % sums.shape[1]].T
    return g.b_zero_point * np.repeat(of_row, g.k // g.groups, axis=1)


def _narrow_columns(g: Geometry, b: np.ndarray) -> np.ndarray:
    return g.a_zero_point * wrapped(b.sum(axis=1), 16)


def _narrow_rows(g: Geometry, a: np.ndarray) -> np.ndarray:
    sums = by_product(a, g.groups).sum(axis=2).T
    return g.b_zero_point * np.repeat(wrapped(sums, 16), g.k // g.groups, axis=1)


def _taken_off(
    columns: Read = of_columns,
    rows: Read = of_rows,
    terms: Callable[[int], int] = lambda count: count,
    added: Sums = exact_sums,
    dtypes: frozenset[str] = WHOLE_NUMBERS,
) -> Compute:
    """Return the mistake of a kernel that multiplies a and b as they are, by `added`, and then takes off za * columns +
    zb * rows - za * zb * terms."""

    def sums(g: Geometry, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        both = of_terms(g, terms(g.c // g.groups))
        return added(g, a, b) - columns(g, b) - rows(g, a) + both

    return _with(dtypes, rows=as_it_is, columns=as_it_is, sums=sums)


def _rounded_up(tile: int) -> Callable[[int], int]:
    return lambda count: -(-count // tile) * tile


MOST_TERMS = 1 << 13
"""Longest sum that is added pair by pair, which takes a moment."""


def _in_pairs(g: Geometry, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if g.c // g.groups > MOST_TERMS:
        raise InapplicableError
    return by_rows(pairs_saturated(by_product(a, g.groups), products(g, b).swapaxes(1, 2)))


_CORRECTED: dict[str, Compute] = {
    "product of the zero points left out": _taken_off(terms=lambda count: 0),
    "product of the zero points added twice": _taken_off(terms=lambda count: 2 * count),
    "product of the zero points taken off": _taken_off(terms=lambda count: -count),
    "product of the zero points added once, not for each term": _taken_off(terms=lambda count: 1),
    **{
        f"product of the zero points added for K rounded up to {tile}": _taken_off(terms=_rounded_up(tile))
        for tile in (4, 8, 16, 32, 64)
    },
    "zero point of a taken off with the sums of b's rows": _taken_off(columns=_of_rows_of_b),
    "zero point of b taken off with the sums of a's columns": _taken_off(rows=_of_columns_of_a),
    "sums of the columns of b wrap around at 16 bits": _taken_off(columns=_narrow_columns),
    "sums of the rows of a wrap around at 16 bits": _taken_off(rows=_narrow_rows),
    "zero point of b taken off with the sum of the first row": _taken_off(rows=lambda g, a: of_rows(g, a)[:1]),
    "zero point of a taken off with the sum of the first column": _taken_off(columns=lambda g, b: of_columns(g, b)[:1]),
    "zero point of a taken off with the sums of the next column": _taken_off(
        columns=lambda g, b: np.roll(of_columns(g, b), -1)
    ),
    "zero point of b taken off with the sums of the next row": _taken_off(
        rows=lambda g, a: np.roll(of_rows(g, a), -1, 0)
    ),
}
_OF_BATCHES: dict[str, Compute] = {
    "zero point of a taken off with the column sums of the first product": _taken_off(
        columns=lambda g, b: np.tile(of_columns(g, b)[: g.k // g.groups], g.groups)
    ),
    "zero point of b taken off with the row sums of the first product": _taken_off(
        rows=lambda g, a: np.tile(of_rows(g, a)[:, : g.k // g.groups], g.groups)
    ),
}

_OF_UNSIGNED: dict[str, Compute] = {
    "sums of two products saturate at 16 bits": _taken_off(added=_in_pairs, dtypes=UNSIGNED),
    **{
        name: _with(UNSIGNED, rows=rows)
        for name, rows in (
            ("a read as signed", lambda g, a: as_signed(a) - g.a_zero_point),
            ("a and its zero point read as signed", lambda g, a: as_signed(a) - as_signed(g.a_zero_point)),
            ("zero point of a read as signed", lambda g, a: a - as_signed(g.a_zero_point)),
            ("128 taken off of a instead of its zero point", lambda g, a: a - 128),
            ("128 taken off of a beside its zero point", lambda g, a: a - 128 - g.a_zero_point),
            ("a saturates at 127", lambda g, a: np.minimum(a, HIGHEST) - g.a_zero_point),
            ("a less its zero point saturates at 0", lambda g, a: np.maximum(a - g.a_zero_point, 0)),
        )
    },
}

_READ: dict[str, dict[str, Read]] = {
    "zero point of a taken off twice": {"rows": lambda g, a: a - 2 * g.a_zero_point},
    "zero point of b taken off twice": {"columns": lambda g, b: b - 2 * g.b_zero_point},
    "zero point of y taken off of a": {"rows": lambda g, a: a - g.y_zero_point},
    "a read as unsigned": {"rows": lambda g, a: a % 256 - g.a_zero_point},
    "b read as unsigned": {"columns": lambda g, b: b % 256 - g.b_zero_point},
    "zero point of a read as unsigned": {"rows": lambda g, a: a - g.a_zero_point % 256},
    "zero point of b read as unsigned": {"columns": lambda g, b: b - g.b_zero_point % 256},
    "a less its zero point wraps around at 8 bits": {"rows": lambda g, a: wrapped(a - g.a_zero_point)},
    "b less its zero point wraps around at 8 bits": {"columns": lambda g, b: wrapped(b - g.b_zero_point)},
    "a less its zero point saturates at 8 bits": {"rows": lambda g, a: np.clip(a - g.a_zero_point, LOWEST, HIGHEST)},
    "b less its zero point saturates at 8 bits": {"columns": lambda g, b: np.clip(b - g.b_zero_point, LOWEST, HIGHEST)},
}
_SIGNED_ALONE = {"a read as unsigned", "zero point of a read as unsigned"}


def _kept(which: Callable[[np.ndarray], np.ndarray]) -> Read:
    """Return the step that multiplies some terms of each sum alone; `which` changes a [batch, M, K]."""
    return lambda g, a: by_rows(which(by_product(a - g.a_zero_point, g.groups)))


def _within(tile: int) -> Read:
    return _kept(lambda a: within_tiles(a, (2,), tile))


def _without(term: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(a: np.ndarray) -> np.ndarray:
        if a.shape[2]:
            a[..., term] = 0
        return a

    return change


_TERMS: dict[str, Read] = {
    "last term left out": _kept(_without(-1)),
    "first term left out": _kept(_without(0)),
    **{f"tail of the sum beyond tiles of {tile} dropped": _within(tile) for tile in TILES},
}


def _by_row(g: Geometry, sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Multiply each row by a scale, in turn."""
    return sums * np.resize(scale[: g.k // g.groups], len(sums))[:, None]


_ALONG_ROWS: dict[str, Any] = {"with_bias": lambda sums, bias, scale: sums + np.resize(bias, len(sums))[:, None]}

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "formats", compute) for name, compute in (_EXCHANGED | _CORRECTED).items()),
    *(Mistake(name, "formats", compute, when=lambda g: g.groups > 1) for name, compute in _OF_BATCHES.items()),
    *(
        Mistake(name, "formats", _with(SIGNED if name in _SIGNED_ALONE else WHOLE_NUMBERS, **steps))
        for name, steps in _READ.items()
    ),
    *(Mistake(name, "formats", _with(formats_of(name), stored=store)) for name, store in OF_WHOLE.items()),
    Mistake("zero point of a added to y", "formats", _with(WHOLE_NUMBERS, stored=moved(lambda g: g.a_zero_point))),
    Mistake("zero point of b added to y", "formats", _with(WHOLE_NUMBERS, stored=moved(lambda g: g.b_zero_point))),
    *(Mistake(name, "formats", _with(FP8, stored=store)) for name, store in OF_FP8.items()),
    *(Mistake(name, "formats", _with(scale=scale)) for name, scale in scales("column").items()),
    Mistake("scale of the row instead of the column", "formats", _with(scaled=_by_row)),
    *(Mistake(name, "formats", _with(**steps), when=lambda g: g.bias) for name, steps in biases("column").items()),
    Mistake("bias added along the rows", "formats", _with(**_ALONG_ROWS), when=lambda g: g.bias),
    *(Mistake(name, "formats", _with(WHOLE_NUMBERS, **steps)) for name, steps in OF_SUMS.items()),
    *(Mistake(name, "formats", compute) for name, compute in _OF_UNSIGNED.items()),
    *of_forward(ORDERS),
    *(Mistake(name, "index", _with(rows=rows)) for name, rows in _TERMS.items()),
    *(Mistake(f"rows beyond tiles of {tile} dropped", "index", rows_beyond(tile)) for tile in TILES),
    *(Mistake(f"columns beyond tiles of {tile} dropped", "index", columns_beyond(tile)) for tile in TILES),
    *of_forward(BATCHES),
)
