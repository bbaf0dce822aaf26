"""Exact products of matrices that are zero almost everywhere, by pairs of elements: operands beyond 2^31 elements."""

from __future__ import annotations

from functools import partial

import numpy as np

from conformance.operators.base import Arrays
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.sparse import Nonzero, Places, SparseRule, added, beside_powers, joined

_A, _B, _Y = ("m", "k"), ("n", "k"), ("m", "n")
AXES = {"a": _A, "da": _A, "b": _B, "db": _B, "y": _Y, "dy": _Y}
"""Tensor -> the indices of an element within its product, as `MatmulGeometry` has them in canonical order."""
Index = dict[str, np.ndarray]
"""The product of a batch, as `batch`, and m, n or k of each element."""


def _sizes(g: MatmulGeometry) -> dict[str, int]:
    return {"m": g.n, "n": g.k // g.groups, "k": g.c // g.groups}


def _index(g: MatmulGeometry, name: str, places: np.ndarray) -> Index:
    """Return the indices of elements at flat positions of the canonical array."""
    first, second = AXES[name]
    sizes = _sizes(g)
    if first == "n":  # the columns of b, product after product, are rows of its canonical array
        rows, inner = np.divmod(places, sizes[second])
        batch, outer = np.divmod(rows, sizes[first])
    else:
        outer, columns = np.divmod(places, g.groups * sizes[second])
        batch, inner = np.divmod(columns, sizes[second])
    return {"batch": batch, first: outer, second: inner}


def _places(g: MatmulGeometry, name: str, index: Index) -> np.ndarray:
    """Return the flat positions of elements in the canonical array."""
    first, second = AXES[name]
    sizes = _sizes(g)
    if first == "n":
        return (index["batch"] * sizes[first] + index[first]) * sizes[second] + index[second]
    return (index[first] * g.groups + index["batch"]) * sizes[second] + index[second]


def _summed(first: str, second: str) -> str:
    """Return the index that two operands share and a sum runs over."""
    (letter,) = {*AXES[first]} & {*AXES[second]}
    return letter


def rule(first: str, second: str, output: str) -> SparseRule:
    """Return the rule for the nonzero elements of the product of two operands."""
    return partial(_nonzero, first, second, output)


def _nonzero(first: str, second: str, output: str, g: MatmulGeometry, inputs: Arrays, places: Places) -> Nonzero:
    summed = _summed(first, second)
    indices = [_index(g, name, places[name]) for name in (first, second)]
    keyed = [
        (index["batch"] * _sizes(g)[summed] + index[summed], inputs[name].reshape(-1)[places[name]].astype(np.float64))
        for name, index in zip((first, second), indices, strict=True)
    ]
    place, partner, products = joined(*keyed)
    pairs = {letter: array[place] for letter, array in indices[0].items()}
    pairs |= {letter: array[partner] for letter, array in indices[1].items() if letter not in pairs}
    return added([(_places(g, output, pairs), products)])


def reached(first: str, second: str, output: str, g: MatmulGeometry) -> dict[str, np.ndarray]:
    """Return a position in each operand for every result beside a power of two, such that their product is a term of
    it: by rows, by columns, and product after product, as a batch lies in memory."""
    summed, sizes = _summed(first, second), _sizes(g)
    if not sizes[summed]:
        return {}
    batched = {"batch": g.groups, **{letter: sizes[letter] for letter in AXES[output]}}
    shape = [*batched.values()]
    linear = beside_powers((shape[0], shape[1] * shape[2]))
    index = dict(zip(batched, np.unravel_index(linear, shape), strict=True))
    whole = _index(g, output, beside_powers((g.groups * shape[1], shape[2])))
    index = {letter: np.concatenate([array, whole[letter]]) for letter, array in index.items()}
    index[summed] = np.arange(len(index["batch"])) % sizes[summed]
    return {name: _places(g, name, index) for name in (first, second)}
