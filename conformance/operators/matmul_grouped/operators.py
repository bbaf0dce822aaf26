"""Grouped matrix products, as mixtures of experts have them: each row is multiplied by the b of its group.

    y[m,n] = sum_k a[m,k] * b[g,k,n]            m in group g
    da[m,k] = sum_n dy[m,n] * b[g,k,n]          m in group g
    db[g,k,n] = sum of a[m,k] * dy[m,n] over the rows m of group g; zero if it has none

The rows of a group lie one after another, and the groups in order: `sizes` has the number of rows of each. As in
torch.nn.functional.grouped_mm, which gets the end of each group, and in jax.lax.ragged_dot. There is no bias: neither
of them has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from conformance.dtypes import FILTERS
from conformance.operators import special_values
from conformance.operators.base import Arrays, ErrorModel, Given, Homogeneous, Request, Special, Spoil
from conformance.operators.family import LINEAR, Family, Storages
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.matmul.operators import (
    FLOATING,
    INNER_MISMATCH,
    Matmul,
    MatmulBackwardA,
    MatmulBackwardB,
    Product,
)
from conformance.operators.matmul_grouped.geometry import GroupedGeometry


def _resized(request: Request, *sizes: int) -> Request:
    return Request(request.inputs, {**request.parameters, "sizes": sizes})


def _beyond(geometry: GroupedGeometry, request: Request) -> Request:
    """Give the last group a row more than there is."""
    return _resized(request, *geometry.sizes[:-1], geometry.sizes[-1] + 1)


def _negative(geometry: GroupedGeometry, request: Request) -> Request:
    """Give the first group a negative size, and the second one the rows that are missing."""
    first, second, *rest = geometry.sizes
    return _resized(request, -1, first + second + 1, *rest)


def _one_group_fewer(geometry: GroupedGeometry, request: Request) -> Request:
    """Take the last two groups for one."""
    *rest, first, second = geometry.sizes
    return _resized(request, *rest, first + second)


def _one_column_fewer(geometry: GroupedGeometry, request: Request) -> Request | None:
    dy = request.inputs["dy"]
    return Request(request.inputs | {"dy": dy[:, :-1]}, request.parameters) if dy.size else None


def _one_row_fewer(geometry: GroupedGeometry, request: Request) -> Request | None:
    dy = request.inputs["dy"]
    return Request(request.inputs | {"dy": dy[:-1]}, request.parameters) if dy.size else None


SIZES_MISMATCH: dict[str, Spoil] = {
    "sizes of one row more than a has": _beyond,
    "a negative size": _negative,
}
"""Requests whose rows are not those of the groups."""
GROUPS_MISMATCH: dict[str, Spoil] = SIZES_MISMATCH | {"sizes of one group fewer than b has": _one_group_fewer}


class _Grouped(Product):
    """Base of the grouped product and its gradients: for the rows of one group, each of them is `of_group`, an operator
    of the family `matmul`."""

    family = "matmul_grouped"
    keywords = ("layout", "sizes")
    capabilities = ("into",)
    of_group: Product

    @property
    def has_independent_images(self) -> bool:
        """Return False: a row that is computed alone, or in another place, belongs to another group."""
        return False

    def _products(self, geometry: GroupedGeometry, inputs: Given) -> Iterator[tuple[slice, MatmulGeometry, Arrays]]:
        """Yield the product of each group that has rows: its place in the output, its sizes and its inputs."""
        columns, terms = geometry.k // geometry.groups, geometry.c // geometry.groups
        for rows, of_b in geometry.blocks():
            if rows.stop > rows.start:
                product = MatmulGeometry(rows.stop - rows.start, terms, columns)
                parts = {name: array[of_b if name == "b" else rows] for name, array in inputs.items()}
                yield of_b if self.returns[0] == "db" else rows, product, parts

    def reference(self, geometry: GroupedGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute the product of each group."""
        ((name, tensor),) = self.outputs(geometry).items()
        output = np.zeros(tensor.shape, dtype)
        for place, product, parts in self._products(geometry, inputs):
            output[place] = self.of_group.reference(product, parts, dtype)[name]
        return {name: output}

    def normwise(self, geometry: GroupedGeometry, inputs: Given, dropped: float) -> np.ndarray:
        """Return the scale of errors of slices, of each group by itself; zero where nothing is added up."""
        (tensor,) = self.outputs(geometry).values()
        scale = np.zeros(tensor.shape)
        for place, product, parts in self._products(geometry, inputs):
            scale[place] = self.of_group.normwise(product, parts, dropped)
        return scale


def _first_column(geometry: GroupedGeometry) -> int:
    """Return the row of b with the first column of the first group that has rows, or of the first of all."""
    first = next((group for group, size in enumerate(geometry.sizes) if size), 0)
    return first * (geometry.k // geometry.groups)


class MatmulGrouped(_Grouped):
    """a[M,K], b[G,K,N] -> y[M,N]."""

    name = "matmul_grouped"
    dtypes = tuple(name for name in Matmul.dtypes if name not in FILTERS)
    arguments, returns = ("a", "b"), ("y",)
    data, operand, free_axis = "a", "b", 0
    homogeneous = Homogeneous(("a",), ("y",))
    invalid = INNER_MISMATCH | GROUPS_MISMATCH
    gradients = ("matmul_grouped_backward_a", "matmul_grouped_backward_b")
    cofactor = "dy"
    of_group = Matmul()

    def nonfinite(self, geometry: GroupedGeometry) -> Iterator[Special]:
        """Yield also columns of b of the first group with rows; and in a a last term that is zero in every row, beside
        NaN and infinity in b: kernels that skip tiles of zeros lose these."""
        columns, terms = geometry.k // geometry.groups, geometry.c // geometry.groups
        first = _first_column(geometry)
        if terms > 1:
            yield "a", (slice(None), -1), 0.0
            for column, value in ((0, np.nan), (1, np.inf)):
                if columns > column + 1:
                    yield "b", (first + column, -1), value
        yield from super().nonfinite(geometry)
        values: list[Special] = [("b", (0,), value) for value in special_values.NONFINITE] if terms else []
        for name, (column, term), value in special_values.apart(columns, values):
            yield name, (first + column, term), value

    def errors(self, geometry: GroupedGeometry) -> ErrorModel:
        """Count K products."""
        terms = geometry.c // geometry.groups
        return ErrorModel({"y": terms}, span=terms)


class MatmulGroupedBackwardA(_Grouped):
    """dy[M,N], b[G,K,N] -> da[M,K]."""

    name = "matmul_grouped_backward_a"
    dtypes = FLOATING
    arguments, returns = ("dy", "b"), ("da",)
    data, operand, free_axis = "dy", "b", 1
    homogeneous = Homogeneous(("dy",), ("da",))
    invalid: Mapping[str, Spoil] = {"dy with a column fewer than b": _one_column_fewer, **GROUPS_MISMATCH}
    cofactor = "a"
    of_group = MatmulBackwardA()

    def nonfinite(self, geometry: GroupedGeometry) -> Iterator[Special]:
        """Yield also terms of the first column of b, of the first group with rows."""
        yield from super().nonfinite(geometry)
        values: list[Special] = [("b", (), value) for value in special_values.NONFINITE] if geometry.c else []
        for name, (term,), value in special_values.apart(geometry.c // geometry.groups, values):
            yield name, (_first_column(geometry), term), value

    def errors(self, geometry: GroupedGeometry) -> ErrorModel:
        """Count N products."""
        terms = geometry.k // geometry.groups
        return ErrorModel({"da": terms}, span=terms)


class MatmulGroupedBackwardB(_Grouped):
    """a[M,K], dy[M,N] -> db[G,K,N]."""

    name = "matmul_grouped_backward_b"
    dtypes = FLOATING
    arguments, returns = ("a", "dy"), ("db",)
    data, operand, free_axis = "a", "dy", 1
    homogeneous = Homogeneous(("dy",), ("db",))
    invalid: Mapping[str, Spoil] = {"dy with a row fewer than a": _one_row_fewer, **SIZES_MISMATCH}
    cofactor = "b"
    of_group = MatmulBackwardB()

    def special(self, geometry: GroupedGeometry) -> tuple[Special, ...]:
        """Return also a NaN in the middle column of dy, which shows leaks between columns."""
        columns = geometry.k // geometry.groups
        leak: tuple[Special, ...] = (("dy", (0, columns // 2), np.nan),) if columns >= 3 else ()
        return super().special(geometry) + leak

    def nonfinite(self, geometry: GroupedGeometry) -> Iterator[Special]:
        """Yield also places in the first row of dy."""
        yield from super().nonfinite(geometry)
        values: list[Special] = [("dy", (), value) for value in special_values.NONFINITE]
        for name, (column,), value in special_values.apart(geometry.k // geometry.groups, values):
            yield name, (0, column), value

    def errors(self, geometry: GroupedGeometry) -> ErrorModel:
        """Count the rows of the largest group."""
        terms = max(geometry.sizes)
        return ErrorModel({"db": terms}, span=terms)

    def determines(self, geometry: GroupedGeometry, distribution: str) -> bool:
        """Return False for `large`, in which the second half of all rows cancels the first one: the sums of a group
        overflow."""
        return distribution != "large"


FAMILY = Family(
    geometry=GroupedGeometry,
    operators=(MatmulGrouped(), MatmulGroupedBackwardA(), MatmulGroupedBackwardB()),
    distributions=(*LINEAR, "large", "small", "codes", "absorbed"),
    place=7,
    storages=Storages(
        everywhere=("grouped.plain", "grouped.uneven", "grouped.empty", "grouped.one-column"),
        odd=("grouped.odd",),
    ),
    equal_shapes=("grouped g3 m16 n6 k6 uneven1", "grouped g6 m24 n8 k8"),
    partial=("grouped g3 m11 n7 k9 uneven1", "grouped g5 m21 n12 k7 uneven1 empty1"),
    lacks=("large", "sizes", "sparse"),
)
