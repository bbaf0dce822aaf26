"""Matrix products, alone and in batches.

    y[m,n] = bias[n] + sum_k a[m,k] * b[k,n]

A product of real numbers (a bf16 product is one of bf16 operands with sums of its own, see `conformance.contract`), as
in torch.matmul, torch.bmm, ONNX MatMul and BLAS' GEMM with alpha = 1 and beta = 0. How a product appears to the suite:
`conformance.operators.matmul.geometry`; layouts (`nn`, `nt`, `tn`, `tt`) say which operands lie transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.dtypes import DECLARABLE, TRAINED
from conformance.operators import special_values
from conformance.operators.base import Arrays, ErrorModel, Given, Homogeneous, Request, Special, Spoil, Tensor
from conformance.operators.conv.operators import Products
from conformance.operators.family import LINEAR, Family, Storages
from conformance.operators.matmul.geometry import MatmulGeometry


def by_product(rows: np.ndarray, batch: int) -> np.ndarray:
    """View a [M, batch * K] as [batch, M, K]."""
    return rows.reshape(len(rows), batch, rows.shape[1] // batch).swapaxes(0, 1)


def by_rows(products: np.ndarray) -> np.ndarray:
    """Rearrange [batch, M, N] as [M, batch * N]."""
    batch, rows, columns = products.shape
    return np.ascontiguousarray(products.swapaxes(0, 1)).reshape(rows, batch * columns)


def _one_term_fewer(geometry: MatmulGeometry, request: Request) -> Request | None:
    """Leave the last term of every sum out of b; None where there is none."""
    b = request.inputs["b"][:, :-1]
    return Request(request.inputs | {"b": b}, request.parameters) if geometry.c else None


def _two_columns(geometry: MatmulGeometry, request: Request) -> Request | None:
    """Give b's columns twice as many terms; None where there are none."""
    b = request.inputs["b"]
    return Request(request.inputs | {"b": np.concatenate([b, b], 1)}, request.parameters) if geometry.c else None


def _vector(geometry: MatmulGeometry, request: Request) -> Request:
    """Hand b over without one of its axes."""
    return Request(request.inputs | {"b": request.inputs["b"][:, :1].reshape(-1)}, request.parameters)


INNER_MISMATCH: dict[str, Spoil] = {
    "b with one term fewer than a": _one_term_fewer,
    "b with twice the terms": _two_columns,
}


@lru_cache(maxsize=1 << 12)
def _of_sums(tensor: Tensor) -> Tensor:
    """Return a tensor marked as sums, whose format differs for 8-bit inputs."""
    return replace(tensor, sums=True)


class Matmul(Products):
    """a[M,K], b[K,N], bias[N]? -> y[M,N]; of a batch a[B,M,K], b[B,K,N] -> y[B,M,N]. bias is always passed, None when
    absent."""

    name = family = "matmul"
    dtypes = tuple(name for name in DECLARABLE if name not in TRAINED)
    arguments, returns = ("a", "b", "bias"), ("y",)
    keywords = ("layout",)
    capabilities = ("into",)
    data, operand, free_axis = "a", "b", 0
    homogeneous = Homogeneous(("a", "bias"), ("y",))
    invalid = INNER_MISMATCH

    def tensor(self, geometry: MatmulGeometry, name: str) -> Tensor | None:
        """Return an argument or a result; the result and the bias are sums, whose format differs for 8-bit inputs."""
        result = super().tensor(geometry, name)
        return _of_sums(result) if result and name in ("y", "bias") else result

    def nonfinite(self, geometry: MatmulGeometry) -> Iterator[Special]:
        """Yield also columns of b, and numbers of the bias of other columns."""
        yield from super().nonfinite(geometry)
        for name, index, value in special_values.apart(
            geometry.k, special_values.filters_and_bias((0,) if geometry.c else None, geometry.bias)
        ):
            yield "b" if name == "w" else name, index, value

    def errors(self, geometry: MatmulGeometry) -> ErrorModel:
        """Count K products and the bias."""
        terms = geometry.c // geometry.groups + geometry.bias
        return ErrorModel({"y": terms}, span=terms)

    def flops(self, geometry: MatmulGeometry) -> int:
        """Return 2 * M*N*K of all products."""
        return 2 * geometry.y.size * (geometry.c // geometry.groups)

    def reference(self, geometry: MatmulGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute y = a b + bias."""
        batch = geometry.groups
        a = by_product(inputs["a"].astype(dtype), batch)
        b = inputs["b"].astype(dtype).reshape(batch, geometry.k // batch, geometry.c // batch)
        y = by_rows(a @ b.swapaxes(1, 2))
        if geometry.bias:
            y += inputs["bias"].astype(dtype)
        return {"y": y}


FAMILY = Family(
    geometry=MatmulGeometry,
    operators=(Matmul(),),
    distributions=(*LINEAR, "large", "small", "codes", "absorbed"),
    place=6,
    storages=Storages(
        everywhere=("matmul.plain", "matmul.batch", "matmul.bias", "matmul.square"),
        large=("head.reduced", "experts.reduced"),
        odd=("matmul.dot",),
        one_image=("matmul.one-row",),
    ),
    partial=("mm m5 n7 k9 bias1", "mm b3 m4 n6 k5", "mm m33 n17 k12"),
    lacks=("equal_shapes", "sizes", "sparse"),
)
