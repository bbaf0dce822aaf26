"""Mistakes of matrix products: operands, tails, batches and biases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import (
    bias_twice,
    first_group,
    in_reverse,
    neighbour,
    rounded_before_bias,
    tails_of_sums,
)
from conformance.operators.image_mistakes import TILES, within_tiles
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.mistakes import (
    Change,
    Compute,
    InapplicableError,
    Mistake,
    misread,
    on_outputs,
    rolled,
    zeroed,
)

FORWARD, BACKWARD_A, BACKWARD_B = "matmul", "matmul_backward_a", "matmul_backward_b"
OPERANDS = {
    FORWARD: {"a": "a", "b": "b", "y": "y"},
    BACKWARD_A: {"a": "da", "b": "b", "y": "dy"},
    BACKWARD_B: {"a": "a", "b": "db", "y": "dy"},
}
"""Operator -> role of a tensor -> its name there: of a gradient it was said that "a is read in column-major order"."""


def transposed(array: np.ndarray, g: MatmulGeometry) -> np.ndarray:
    """Exchange the axes of a square matrix of each product."""
    if g.groups > 1 or array.shape[0] != array.shape[1]:
        raise InapplicableError
    return array.T


def other_order(array: np.ndarray, g: MatmulGeometry) -> np.ndarray:
    """Read a matrix in the order of the other axis: rows take the place of columns, of another length."""
    if g.groups > 1 or 1 in array.shape:
        raise InapplicableError
    return np.ascontiguousarray(array.T).reshape(array.shape)


def by_lines(line: int) -> Change:
    """Return a change that reads rows as if they were `line` elements longer in memory than they are (or shorter)."""

    def change(array: np.ndarray, g: MatmulGeometry) -> np.ndarray:
        if g.groups > 1 or 1 in array.shape or array.shape[1] + line < 1:
            raise InapplicableError
        places = np.arange(array.shape[0])[:, None] * (array.shape[1] + line) + np.arange(array.shape[1])
        return array.reshape(-1)[np.minimum(places, array.size - 1)]

    return change


def rows_beyond(tile: int) -> Compute:
    return on_outputs(lambda array, g: within_tiles(array, (0,), tile), "y", "da")


def columns_beyond(tile: int) -> Compute:
    def change(array: np.ndarray, g: MatmulGeometry) -> np.ndarray:
        return within_tiles(array.reshape(len(array), g.groups, -1), (2,), tile).reshape(array.shape)

    return on_outputs(change, "y", "da")


def _db_beyond(tile: int) -> Compute:
    return on_outputs(lambda db, g: within_tiles(db, (1,), tile), "db")


_first_alone = on_outputs(
    lambda array, g: zeroed(slice(None), slice(array.shape[1] // g.groups, None))(array, g), "y", "da"
)


def _along_rows(operator: Operator, g: MatmulGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Add the bias of a column to a row."""
    bias = inputs["bias"].astype(dtype)
    y = operator.reference(g, inputs, dtype)["y"] - bias
    return {"y": y + np.resize(bias, len(y))[:, None]}


def _dbias_without_last(operator: Operator, g: MatmulGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    return operator.reference(g, inputs, dtype) | {"dbias": inputs["dy"][:-1].sum(axis=0, dtype=dtype)}


_OPERANDS: dict[str, Compute] = {
    "{a} taken for its transpose": misread(a=transposed),
    "{b} taken for its transpose": misread(b=transposed),
    "{y} taken for its transpose": misread(y=transposed),
    "{a} in column-major order": misread(a=other_order),
    "{b} in the other order": misread(b=other_order),
    "{y} in column-major order": misread(y=other_order),
    "leading dimension of {a} one too large": misread(a=by_lines(1)),
    "leading dimension of {a} one too small": misread(a=by_lines(-1)),
    "row of {a} before": misread(a=rolled(0)),
    "next row of {a}": misread(a=rolled(0, -1)),
    "column of {b} before": misread(b=rolled(0)),
    "next column of {b}": misread(b=rolled(0, -1)),
    "columns of {a} moved by one": misread(a=rolled(1)),
    "first row of {a} for every row": misread(a=lambda a, g: np.repeat(a[:1], g.n, axis=0)),
    "last row left out": misread(y=zeroed(-1)),
    "last column left out": misread(y=zeroed(slice(None), -1)),
}
_TERMS: dict[str, Compute] = {
    "last term left out": misread(a=zeroed(slice(None), -1)),
    "first term left out": misread(a=zeroed(slice(None), 0)),
}
_BATCHES: dict[str, Compute] = {
    "{a} of the first product for every product": misread(a=first_group(1)),
    "{b} of the first product for every product": misread(b=first_group(0)),
    "{a} of the product before": misread(a=neighbour(1)),
    "{b} of the product before": misread(b=neighbour(0)),
    "{b} of the next product": misread(b=neighbour(0, -1)),
    "products in reverse": misread(a=in_reverse(1)),
    "last product left out": misread(y=lambda y, g: zeroed(slice(None), slice(g.k - g.k // g.groups, None))(y, g)),
}
_BIASES: dict[str, Compute] = {
    "bias missing": misread(bias=lambda bias, g: np.zeros_like(bias)),
    "bias of the column before": misread(bias=rolled(0)),
    "bias of the first column for all": misread(bias=lambda bias, g: np.repeat(bias[:1], g.k)),
    "bias added along the rows": _along_rows,
    "bias added twice": bias_twice,
}

_OF_DBIAS: dict[str, Compute] = {
    "dbias missing": misread(bias=lambda bias, g: np.zeros_like(bias)),
    "dbias of the column before": misread(bias=rolled(0)),
    "dbias averaged instead of summed": on_outputs(lambda dbias, g: dbias / max(1, g.n), "dbias"),
    "dbias without the last row": _dbias_without_last,
}

_TAILS = (
    ("rows", rows_beyond, (FORWARD, BACKWARD_A)),
    ("columns", columns_beyond, (FORWARD, BACKWARD_A)),
    ("rows of db", _db_beyond, (BACKWARD_B,)),
)


def named_by_operator(
    computes: Mapping[str, Compute], kind: str, when: Callable[[Any], bool] = lambda g: True
) -> Iterator[Mistake]:
    """Yield mistakes whose names have the operands as each operator calls them."""
    for template, compute in computes.items():
        operators = defaultdict[str, list[str]](list)
        for operator, operands in OPERANDS.items():
            operators[template.format_map(operands)].append(operator)
        for name, those in operators.items():
            yield Mistake(name, kind, compute, (*those,), when)


def of_forward(mistakes: Iterable[Mistake]) -> tuple[Mistake, ...]:
    """Return the mistakes of a product, for the operators of a family that has no gradients."""
    return tuple(replace(mistake, operators=()) for mistake in mistakes if FORWARD in mistake.operators)


ORDERS = tuple(named_by_operator(_OPERANDS, "index"))
"""Mistakes about the order of operands and results, and about rows and columns."""
BATCHES = tuple(named_by_operator(_BATCHES, "groups", lambda g: g.groups > 1))

MISTAKES: tuple[Mistake, ...] = (
    *ORDERS,
    *(Mistake(name, "index", compute) for name, compute in _TERMS.items()),
    *(
        Mistake(f"rows beyond tiles of {tile} dropped", "index", rows_beyond(tile), (FORWARD, BACKWARD_A))
        for tile in TILES
    ),
    *(
        Mistake(f"columns beyond tiles of {tile} dropped", "index", columns_beyond(tile), (FORWARD, BACKWARD_A))
        for tile in TILES
    ),
    *(
        Mistake(f"rows of db beyond tiles of {tile} dropped", "index", _db_beyond(tile), (BACKWARD_B,))
        for tile in TILES
    ),
    *tails_of_sums({FORWARD: ("b", 2), BACKWARD_A: ("b", 1), BACKWARD_B: ("dy", 0)}),
    *BATCHES,
    Mistake(
        "dy of the first product for every product",
        "groups",
        misread(y=first_group(1)),
        (BACKWARD_A, BACKWARD_B),
        lambda g: g.groups > 1,
    ),
    Mistake("first product alone computed", "groups", _first_alone, (FORWARD, BACKWARD_A), lambda g: g.groups > 1),
    *(Mistake(name, "bias", compute, (FORWARD,), lambda g: g.bias) for name, compute in _BIASES.items()),
    *(Mistake(name, "bias", compute, (BACKWARD_B,), lambda g: g.bias) for name, compute in _OF_DBIAS.items()),
)

FURTHER: tuple[Mistake, ...] = (rounded_before_bias(FORWARD),)
