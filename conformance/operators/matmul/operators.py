"""Matrix products, alone and in batches.

    y[m,n] = bias[n] + sum_k a[m,k] * b[k,n]
    da[m,k] = sum_n dy[m,n] * b[k,n]
    db[k,n] = sum_m a[m,k] * dy[m,n],  dbias[n] = sum_m dy[m,n]

A product of real numbers (a bf16 product is one of bf16 operands with sums of its own, see `conformance.contract`), as
in torch.matmul, torch.bmm, ONNX MatMul and BLAS' GEMM with alpha = 1 and beta = 0. How a product appears to the suite:
`conformance.operators.matmul.geometry`; layouts (`nn`, `nt`, `tn`, `tt`) say which operands lie transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from conformance.dtypes import DECLARABLE, TRAINED, WHOLE
from conformance.operators import special_values
from conformance.operators.base import Arrays, ErrorModel, Given, Homogeneous, Operator, Request, Special, Spoil, Tensor
from conformance.operators.conv.operators import Products
from conformance.operators.family import LINEAR, Family, Storages
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.matmul.sparse import reached, rule
from conformance.operators.sparse import SparseRule


def by_product(rows: np.ndarray, batch: int) -> np.ndarray:
    """View a [M, batch * K] as [batch, M, K]."""
    return rows.reshape(len(rows), batch, rows.shape[1] // batch).swapaxes(0, 1)


def by_rows(products: np.ndarray) -> np.ndarray:
    """Rearrange [batch, M, N] as [M, batch * N]."""
    batch, rows, columns = products.shape
    return np.ascontiguousarray(products.swapaxes(0, 1)).reshape(rows, batch * columns)


def _columns(geometry: MatmulGeometry, b: np.ndarray, dtype: Any) -> np.ndarray:
    """View b as [batch, N, K]."""
    batch = geometry.groups
    return b.astype(dtype).reshape(batch, geometry.k // batch, geometry.c // batch)


def _without_last(geometry: MatmulGeometry, request: Request, axis: int) -> Request | None:
    """Leave the last row, or column, of dy out; None where a batch has the columns of all products side by side."""
    dy = request.inputs["dy"]
    if geometry.groups > 1 or not dy.size:
        return None
    return Request(request.inputs | {"dy": dy[:-1] if axis == 0 else dy[:, :-1]}, request.parameters)


def _one_term_fewer(geometry: MatmulGeometry, request: Request) -> Request | None:
    """Leave the last term of every sum out of b; None where there is none."""
    b = request.inputs["b"][:, :-1]
    return Request(request.inputs | {"b": b}, request.parameters) if geometry.c else None


def _two_columns(geometry: MatmulGeometry, request: Request) -> Request | None:
    """Give b's columns twice as many terms; None where there are none."""
    b = request.inputs["b"]
    return Request(request.inputs | {"b": np.concatenate([b, b], 1)}, request.parameters) if geometry.c else None


INNER_MISMATCH: dict[str, Spoil] = {
    "b with one term fewer than a": _one_term_fewer,
    "b with twice the terms": _two_columns,
}


@lru_cache(maxsize=1 << 12)
def _of_sums(tensor: Tensor) -> Tensor:
    """Return a tensor marked as sums, whose format differs for 8-bit inputs."""
    return replace(tensor, sums=True)


FLOATING = tuple(name for name in DECLARABLE if name not in WHOLE)


class Product(Products):
    """Base of the product and its gradients."""

    family = "matmul"
    keywords: tuple[str, ...] = ("layout",)

    def tensor(self, geometry: MatmulGeometry, name: str) -> Tensor | None:
        """Return an argument or a result; results and the bias are sums, whose format differs for 8-bit inputs."""
        result = super().tensor(geometry, name)
        return _of_sums(result) if result and (name in self.returns or name == "bias") else result

    def reached(self, geometry: MatmulGeometry) -> dict[str, np.ndarray]:
        """Return positions in both operands that are terms of results beside powers of two."""
        return reached(self.data, self.operand, self.returns[0], geometry)

    def flops(self, geometry: MatmulGeometry) -> int:
        """Return 2 * M*N*K of all products."""
        return 2 * geometry.y.size * (geometry.c // geometry.groups)


class Matmul(Product):
    """a[M,K], b[K,N], bias[N]? -> y[M,N]; of a batch a[B,M,K], b[B,K,N] -> y[B,M,N]. bias is always passed, None when
    absent."""

    name = "matmul"
    dtypes = tuple(name for name in DECLARABLE if name not in TRAINED)
    arguments, returns = ("a", "b", "bias"), ("y",)
    capabilities: tuple[str, ...] = ("into",)
    data, operand, free_axis = "a", "b", 0
    homogeneous = Homogeneous(("a", "bias"), ("y",))
    invalid: Mapping[str, Spoil] = INNER_MISMATCH
    gradients: tuple[str | Operator, ...] = ("matmul_backward_a", "matmul_backward_b")
    cofactor = "dy"
    sparse: tuple[tuple[str, SparseRule], ...] = (("y", rule("a", "b", "y")),)

    def nonfinite(self, geometry: MatmulGeometry) -> Iterator[Special]:
        """Yield also columns of b, and numbers of the bias of other columns; and NaN and infinity in the last row of b:
        kernels that read it again beyond the end, beside zeros, turn infinities into NaN. Where the last term is alone
        in a tile of 16, it is zero in every row of a: kernels that skip tiles of zeros lose what stands beside it."""
        terms = geometry.c // geometry.groups
        if terms > 1:
            if terms % 16 == 1:
                yield "a", (slice(None), slice(terms - 1, None, terms)), 0.0
            for column, value in ((0, np.nan), (1, np.inf)):
                if geometry.k > column + 1:
                    yield "b", (column, -1), value
        yield from super().nonfinite(geometry)
        for name, index, value in special_values.apart(
            geometry.k, special_values.filters_and_bias((0,) if geometry.c else None, geometry.bias)
        ):
            yield "b" if name == "w" else name, index, value

    def errors(self, geometry: MatmulGeometry) -> ErrorModel:
        """Count K products and the bias."""
        terms = geometry.c // geometry.groups + geometry.bias
        return ErrorModel({"y": terms}, span=terms)

    def reference(self, geometry: MatmulGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute y = a b + bias."""
        a, b = by_product(inputs["a"].astype(dtype), geometry.groups), _columns(geometry, inputs["b"], dtype)
        y = by_rows(a @ b.swapaxes(1, 2))
        if geometry.bias:
            y += inputs["bias"].astype(dtype)
        return {"y": y}


class MatmulBackwardA(Product):
    """dy[M,N], b[K,N] -> da[M,K]; of a batch as well."""

    name = "matmul_backward_a"
    dtypes = FLOATING
    arguments, returns = ("dy", "b"), ("da",)
    capabilities = ("into",)
    data, operand, free_axis = "dy", "b", 1
    homogeneous = Homogeneous(("dy",), ("da",))
    invalid: Mapping[str, Spoil] = {"dy with a column fewer than b": partial(_without_last, axis=1)}
    cofactor = "a"
    sparse: tuple[tuple[str, SparseRule], ...] = (("da", rule("dy", "b", "da")),)

    def nonfinite(self, geometry: MatmulGeometry) -> Iterator[Special]:
        """Yield also terms of the first column of b."""
        yield from super().nonfinite(geometry)
        values = [("b", (), value) for value in special_values.NONFINITE] if geometry.c else []
        for name, (term,), value in special_values.apart(geometry.c // geometry.groups, values):
            yield name, (0, term), value

    def errors(self, geometry: MatmulGeometry) -> ErrorModel:
        """Count N products."""
        terms = geometry.k // geometry.groups
        return ErrorModel({"da": terms}, span=terms)

    def reference(self, geometry: MatmulGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute da = dy b^T."""
        dy = by_product(inputs["dy"].astype(dtype), geometry.groups)
        return {"da": by_rows(dy @ _columns(geometry, inputs["b"], dtype))}


class MatmulBackwardB(Product):
    """a[M,K], dy[M,N] -> db[K,N], and dbias[N] where the product has a bias; of a batch as well."""

    name = "matmul_backward_b"
    dtypes = FLOATING
    arguments, returns = ("a", "dy"), ("db", "dbias")
    keywords = ("layout", "with_bias")
    capabilities = ("output_mask", "into")
    data, operand, free_axis = "a", "dy", 1
    homogeneous = Homogeneous(("dy",), ("db", "dbias"))
    invalid: Mapping[str, Spoil] = {"dy with a row fewer than a": partial(_without_last, axis=0)}
    cofactor = "b"
    sparse: tuple[tuple[str, SparseRule], ...] = (("db", rule("a", "dy", "db")),)

    def special(self, geometry: MatmulGeometry) -> tuple[Special, ...]:
        """Return also a NaN in the middle column of dy, which shows leaks between columns."""
        leak: tuple[Special, ...] = (("dy", (0, geometry.k // 2), np.nan),) if geometry.k >= 3 else ()
        return super().special(geometry) + leak

    def nonfinite(self, geometry: MatmulGeometry) -> Iterator[Special]:
        """Yield also places in the first row of dy."""
        yield from super().nonfinite(geometry)
        values = [("dy", (), value) for value in special_values.NONFINITE]
        for name, (column,), value in special_values.apart(geometry.k, values):
            yield name, (0, column), value

    def errors(self, geometry: MatmulGeometry) -> ErrorModel:
        """Count M terms for each output."""
        return ErrorModel(dict.fromkeys(self.outputs(geometry), geometry.n), span=geometry.n)

    def reference(self, geometry: MatmulGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute db = a^T dy, by columns of b; dbias = sum of the rows of dy."""
        a, dy = (by_product(inputs[name].astype(dtype), geometry.groups) for name in ("a", "dy"))
        outputs = {"db": (dy.swapaxes(1, 2) @ a).reshape(geometry.filter.shape)}
        if geometry.bias:
            outputs["dbias"] = inputs["dy"].sum(axis=0, dtype=dtype)
        return outputs


FAMILY = Family(
    geometry=MatmulGeometry,
    operators=(Matmul(), MatmulBackwardA(), MatmulBackwardB()),
    distributions=(*LINEAR, "large", "small", "codes", "absorbed"),
    place=6,
    storages=Storages(
        everywhere=(
            "matmul.plain",
            "matmul.batch",
            "matmul.bias",
            "matmul.one-column",
            "matmul.batch-outer",
            "matmul.batch-vector",
            "matmul.outer",
            "matmul.batch-column",
            "matmul.square",
        ),
        large=("head.reduced", "experts.reduced"),
        odd=("matmul.dot",),
        apart=("matmul.batch-vector", "matmul.batch-outer", "matmul.batch-square"),
        one_image=("matmul.one-row",),
    ),
    partial=("mm m5 n7 k9 bias1", "mm b3 m4 n6 k5", "mm m33 n17 k12"),
    lacks=("equal_shapes", "sizes"),
)
