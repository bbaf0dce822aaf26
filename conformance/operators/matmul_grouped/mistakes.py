"""Mistakes of grouped matrix products: rows taken for those of another group, tiles across borders, gradients of groups
without rows, and tails."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from conformance.operators.base import Arrays, Operator
from conformance.operators.conv.mistakes import tails_of_sums
from conformance.operators.image_mistakes import within_tiles
from conformance.operators.matmul_grouped.geometry import TILES, GroupedGeometry
from conformance.operators.mistakes import Compute, InapplicableError, Mistake, misread, on_outputs, rolled, zeroed

FORWARD = "matmul_grouped"
BACKWARD_A, BACKWARD_B = f"{FORWARD}_backward_a", f"{FORWARD}_backward_b"
OF_ROWS = (FORWARD, BACKWARD_A)
NONE = -1
"""Number of the group of a row that is left out."""

Assign = Callable[[GroupedGeometry], np.ndarray]
"""Geometry -> the group that a kernel takes each row for."""


def groups_of_rows(g: GroupedGeometry) -> np.ndarray:
    """Return the number of each row's group."""
    return np.repeat(np.arange(g.groups), g.sizes)


def _assigned(assign: Assign) -> Compute:
    """Return the mistake of a kernel that takes rows for those of other groups."""

    def compute(operator: Operator, g: GroupedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
        taken = assign(g)
        if (taken == groups_of_rows(g)).all():
            raise InapplicableError
        values = {name: array.astype(dtype) for name, array in inputs.items()}
        (name,) = operator.returns
        output = np.zeros(operator.outputs(g)[name].shape, dtype)
        for group, (_, of_b) in enumerate(g.blocks()):
            rows = taken == group
            if name == "db":
                output[of_b] = values["dy"][rows].T @ values["a"][rows]
            else:
                b = values["b"][of_b]
                output[rows] = values[operator.data][rows] @ (b.T if name == "y" else b)
        return {name: output}

    return compute


def _by_sizes(change: Callable[[np.ndarray], Any]) -> Assign:
    """Return the groups of rows of a kernel that takes other sizes for those of the groups; rows that they lack are
    left out."""

    def assign(g: GroupedGeometry) -> np.ndarray:
        taken = np.repeat(np.arange(g.groups), change(np.array(g.sizes)))[: g.n]
        return np.pad(taken, (0, g.n - len(taken)), constant_values=NONE)

    return assign


def _by_ends(change: Callable[[np.ndarray], Any]) -> Assign:
    """Return the groups of rows of a kernel that takes other numbers for the ends of the groups, each of which begins
    where the one before ends."""

    def assign(g: GroupedGeometry) -> np.ndarray:
        taken, start = np.full(g.n, NONE), 0
        for group, end in enumerate(change(np.cumsum(g.sizes)).tolist()):
            taken[start:end] = group
            start = end
        return taken

    return assign


def _multiplied_by_zeros(operator: Operator, g: GroupedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    """Multiply all rows by the b of every group, with zeros in place of those of other groups: zero times infinity is
    NaN."""
    output = np.zeros(operator.outputs(g)[operator.returns[0]].shape, dtype)
    for group, (_, of_b) in enumerate(g.blocks()):
        others = (groups_of_rows(g) != group)[:, None]
        values = {name: array[of_b] if name == "b" else array for name, array in inputs.items()}
        values = {name: array.astype(dtype) for name, array in values.items()}
        data = np.where(others, 0, values[operator.data])
        if "b" in values:
            output += data @ (values["b"] if operator.data == "dy" else values["b"].T)
        else:
            output[of_b] = values["dy"].T @ data
    return {operator.returns[0]: output}


def _places(g: GroupedGeometry) -> np.ndarray:
    """Return the place of each row within its group."""
    starts = np.array([*accumulate(g.sizes, initial=0)][:-1])
    return np.arange(g.n) - starts[groups_of_rows(g)]


def _kept(holds: Callable[[GroupedGeometry, np.ndarray], Any]) -> Assign:
    """Return the groups of rows of a kernel that leaves out the rows of which `holds` of their groups is false."""

    def assign(g: GroupedGeometry) -> np.ndarray:
        groups = groups_of_rows(g)
        return np.where(holds(g, groups), groups, NONE)

    return assign


def _rows_of(g: GroupedGeometry, groups: np.ndarray) -> np.ndarray:
    """Return the number of rows of each row's group."""
    return np.array(g.sizes)[groups]


def _across(tile: int) -> Assign:
    """Return the groups of rows in tiles that take all of their rows for those of the first row's group."""
    return lambda g: groups_of_rows(g)[np.arange(g.n) // tile * tile]


def _ends_at(tile: int, up: int) -> Assign:
    """Return the groups of rows where each group but the last ends at a multiple of a tile, before or behind its
    own end."""
    return lambda g: _by_ends(lambda ends: np.append((ends[:-1] + up * (tile - 1)) // tile * tile, g.n))(g)


def _whole_tiles(tile: int) -> Assign:
    return _kept(lambda g, groups: _places(g) < _rows_of(g, groups) // tile * tile)


def _without_empty(g: GroupedGeometry) -> np.ndarray:
    """Return the groups of rows, counted without those that have no rows, which a kernel has left out of its list."""
    return np.cumsum(np.array(g.sizes) > 0)[groups_of_rows(g)] - 1


_ASSIGNED: dict[str, Assign] = {
    "rows of every group taken for the first group's": lambda g: np.zeros(g.n, int),
    "rows of every group taken for the last group's": lambda g: np.full(g.n, g.groups - 1),
    "rows taken for those of the group before": lambda g: (groups_of_rows(g) - 1) % g.groups,
    "rows taken for those of the next group": lambda g: (groups_of_rows(g) + 1) % g.groups,
    "groups in reverse": lambda g: g.groups - 1 - groups_of_rows(g),
    "rows dealt out to the groups in turn": lambda g: np.arange(g.n) % g.groups,
    "sizes of the groups read as their ends": lambda g: _by_ends(lambda ends: np.array(g.sizes))(g),
    "ends of the groups read as their sizes": _by_sizes(np.cumsum),
    "sizes of the group before": _by_sizes(lambda sizes: np.roll(sizes, 1)),
    "sizes of the next group": _by_sizes(lambda sizes: np.roll(sizes, -1)),
    "sizes in reverse": _by_sizes(lambda sizes: sizes[::-1]),
    "sizes sorted, smallest first": _by_sizes(np.sort),
    "sizes sorted, largest first": _by_sizes(lambda sizes: np.sort(sizes)[::-1]),
    "groups taken for equal ones": lambda g: _by_sizes(lambda sizes: np.full(g.groups, g.n // g.groups))(g),
    "groups taken for equal ones, the rest for the last": (
        lambda g: np.minimum(np.arange(g.n) // max(1, g.n // g.groups), g.groups - 1)
    ),
    "groups taken for equal ones, rounded up": lambda g: np.arange(g.n) // max(1, -(-g.n // g.groups)),
    "a group without rows given one row": _by_sizes(lambda sizes: np.maximum(sizes, 1)),
    "groups without rows not counted": _without_empty,
    "last group left out": _kept(lambda g, groups: groups < g.groups - 1),
    "first group left out": _kept(lambda g, groups: groups > 0),
    "first group alone computed": _kept(lambda g, groups: groups == 0),
    "groups behind one without rows left out": (lambda g: _kept(lambda _, groups: groups < (*g.sizes, 0).index(0))(g)),
    "rows beyond an equal share of a group dropped": _kept(lambda g, groups: _places(g) < -(-g.n // g.groups)),
    "groups of one row left out": _kept(lambda g, groups: _rows_of(g, groups) > 1),
    "last row of each group left out": _kept(lambda g, groups: _places(g) < _rows_of(g, groups) - 1),
    "first row of each group left out": _kept(lambda g, groups: _places(g) > 0),
    "last row of each group taken for the next one's": _by_ends(lambda ends: np.append(ends[:-1] - 1, ends[-1])),
    "first row of each group taken for the one's before": _by_ends(lambda ends: np.append(ends[:-1] + 1, ends[-1])),
}
_OF_TILES: dict[str, Callable[[int], Assign]] = {
    "tiles of {} rows computed with the group of their first row": _across,
    "ends of groups rounded down to tiles of {}": lambda tile: _ends_at(tile, 0),
    "ends of groups rounded up to tiles of {}": lambda tile: _ends_at(tile, 1),
    "rows of each group beyond tiles of {} dropped": _whole_tiles,
}


def _each_of(change: Callable[[np.ndarray, GroupedGeometry], np.ndarray]) -> Compute:
    """Return the mistake that changes db[G, N, K]."""
    return on_outputs(lambda db, g: change(db.reshape(g.groups, -1, db.shape[1]), g).reshape(db.shape), "db")


def _left_over(db: np.ndarray, g: GroupedGeometry) -> np.ndarray:
    """Leave in a group without rows the sums of the last group before that has some."""
    if 0 not in g.sizes:
        raise InapplicableError
    latest = np.maximum.accumulate(np.where(np.array(g.sizes) > 0, np.arange(g.groups), 0))
    return db[latest]


def _over_all_rows(operator: Operator, g: GroupedGeometry, inputs: Arrays, dtype: Any) -> Arrays:
    db = inputs["dy"].astype(dtype).T @ inputs["a"].astype(dtype)
    return {"db": np.tile(db, (g.groups, 1))}


_OF_DB: dict[str, Compute] = {
    "db of a group without rows left over from the group before": _each_of(_left_over),
    "db of each group added to those before": _each_of(lambda db, g: np.cumsum(db, axis=0)),
    "db of each group summed over all rows": _over_all_rows,
    "db averaged over the rows of a group": _each_of(lambda db, g: db / np.maximum(1, g.sizes)[:, None, None]),
}


def _transposed(b: np.ndarray, g: GroupedGeometry) -> np.ndarray:
    """Exchange the axes of the square b of each group."""
    if g.k != b.shape[1] * g.groups:
        raise InapplicableError
    return b.reshape(g.groups, -1, b.shape[1]).swapaxes(1, 2).reshape(b.shape)


def _in_turn(b: np.ndarray, g: GroupedGeometry) -> np.ndarray:
    """Read b as if its columns lay in turn, one of each group."""
    return b.reshape(-1, g.groups, b.shape[1]).swapaxes(0, 1).reshape(b.shape)


_OPERANDS: dict[str, Compute] = {
    "b of each group taken for its transpose": misread(b=_transposed),
    "columns of b taken from the groups in turn": misread(b=_in_turn),
    "row of a before": misread(a=rolled(0)),
    "next row of a": misread(a=rolled(0, -1)),
    "column of b before, of any group": misread(b=rolled(0)),
    "next column of b, of any group": misread(b=rolled(0, -1)),
    "terms of a moved by one": misread(a=rolled(1)),
    "last row left out": misread(y=zeroed(-1)),
    "last column left out": misread(y=zeroed(slice(None), -1)),
    "last term left out": misread(a=zeroed(slice(None), -1)),
    "first term left out": misread(a=zeroed(slice(None), 0)),
}


def _columns_beyond(tile: int) -> Compute:
    return on_outputs(lambda array, g: within_tiles(array, (1,), tile), "y", "da")


MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, "groups", _assigned(assign)) for name, assign in _ASSIGNED.items()),
    *(
        Mistake(name.format(tile), "groups", _assigned(assign(tile)))
        for name, assign in _OF_TILES.items()
        for tile in TILES
    ),
    Mistake("rows of other groups multiplied by zeros", "groups", _multiplied_by_zeros),
    *(Mistake(name, "groups", compute, (BACKWARD_B,)) for name, compute in _OF_DB.items()),
    *(Mistake(name, "index", compute) for name, compute in _OPERANDS.items()),
    *(
        Mistake(f"columns beyond tiles of {tile} dropped", "index", _columns_beyond(tile), OF_ROWS)
        for tile in TILES[:-1]
    ),
    *tails_of_sums({FORWARD: ("b", 2), BACKWARD_A: ("b", 1)}),
)
