"""Matrix products that are scaled and added to a matrix, alone and in batches.

    y[m,n] = alpha * sum_k a[m,k] * b[k,n] + beta * c[m,n]

as GEMM of BLAS, torch.addmm and baddbmm, and ONNX Gemm have it. With beta = 0, c is not read: it need not be set, and
is full of NaN in the inputs (Dongarra et al., "A set of level 3 basic linear algebra subprograms", 1990, section 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.dtypes import TRAINED
from conformance.operators import special_values
from conformance.operators.base import Arrays, ErrorModel, Given, Homogeneous, Request, Special, Spoil, Tensor
from conformance.operators.descriptor import PARTS
from conformance.operators.double_double import Double, added, two_product
from conformance.operators.family import Family, Storages
from conformance.operators.gemm.geometry import GemmGeometry
from conformance.operators.matmul.operators import FLOATING, INNER_MISMATCH, Matmul


def _one_row_fewer(geometry: GemmGeometry, request: Request) -> Request | None:
    """Leave the last row of c out; None where c has one row, which libraries repeat for all, or is not read."""
    c = request.inputs["c"]
    return Request(request.inputs | {"c": c[:-1]}, request.parameters) if geometry.n > 2 and geometry.beta else None


def _scaled(values: Double, factor: float) -> Double:
    """Return the product of double-double numbers and a factor of few bits."""
    high, error = two_product(values[0], np.full_like(values[0], factor))
    return added((high, np.where(np.isfinite(high), error, 0)), (np.zeros_like(high), values[1] * factor))


class Gemm(Matmul):
    """a[M,K], b[K,N], c[M,N] -> y[M,N]; of a batch a[B,M,K], b[B,K,N], c[B,M,N] -> y[B,M,N]."""

    name = "gemm"
    family = "gemm"
    dtypes = tuple(name for name in FLOATING if name not in TRAINED)
    arguments = ("a", "b", "c")
    keywords = ("layout", "alpha", "beta")
    capabilities = ()
    homogeneous = Homogeneous(("a", "c"), ("y",))
    invalid: Mapping[str, Spoil] = INNER_MISMATCH | {"c with a row fewer than a": _one_row_fewer}
    gradients = ()
    cofactor = ""
    sparse = ()

    def tensor(self, geometry: GemmGeometry, name: str) -> Tensor | None:  # type: ignore[override]
        """Return an argument or a result; c has the shape and the format of y."""
        return super().tensor(geometry, "y" if name == "c" else name)

    def unread(self, geometry: GemmGeometry) -> tuple[str, ...]:
        """Return c where beta is 0."""
        return () if geometry.beta else ("c",)

    def addends(self, geometry: GemmGeometry) -> dict[str, int]:
        """Return c, with the sign of beta relative to that of alpha."""
        return {"c": -1 if geometry.alpha * geometry.beta < 0 else 1}

    def determines(self, geometry: GemmGeometry, distribution: str) -> bool:
        """Return False for terms that an accumulator absorbs, and for numbers at the ends of the range, where they are
        multiplied by a factor: the bounds of the former are those of sums, and the latter leave the range."""
        is_plain = all(factor in (-1, 0, 1) for factor in (geometry.alpha, geometry.beta))
        return is_plain or distribution not in ("absorbed", "range", "subnormal")

    def nonfinite(self, geometry: GemmGeometry) -> Iterator[Special]:  # type: ignore[override]
        """Yield also NaN and infinities in c, apart from those of b."""
        yield from super().nonfinite(geometry)
        if geometry.beta and geometry.n > 1:
            values = [("c", (geometry.n // 2,), value) for value in special_values.NONFINITE]
            for name, (column, row), value in special_values.apart(geometry.k, values):
                yield name, (row, column), value

    def errors(self, geometry: GemmGeometry) -> ErrorModel:  # type: ignore[override]
        """Count K products and c, and a rounding for each factor that is no power of two: it is as large as that of an
        addition to the sum. The span counts both factors in units of their last bits."""
        terms, factors = geometry.c // geometry.groups, (geometry.alpha, geometry.beta)
        rounded = sum(bool(factor) and bool(np.frexp(abs(factor))[0] != 0.5) for factor in factors)
        whole = [round(abs(factor) * PARTS) for factor in factors]
        unit = min((part & -part for part in whole if part), default=1)
        weights = [part // unit for part in whole]
        return ErrorModel(
            {"y": terms + bool(geometry.beta) + rounded},
            span=max(1, weights[0] * terms + weights[1], PARTS // unit),
            exact_on_integers=all(factor in (-1, 0, 1) for factor in factors),
            factor=max(1.0, *map(abs, factors)),
        )

    def reference(self, geometry: GemmGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:  # type: ignore[override]
        """Compute y = alpha a b + beta c; without c where it is not given, or not read."""
        y = super().reference(geometry, inputs, dtype)["y"] * np.dtype(dtype).type(geometry.alpha)
        if geometry.beta and "c" in inputs:
            y += np.dtype(dtype).type(geometry.beta) * inputs["c"].astype(dtype)
        return {"y": y}

    def magnitude(self, geometry: GemmGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return s2 = sqrt(alpha^2 a^2 b^2 + beta^2 c^2)."""
        squares = {name: np.square(array.astype(dtype)) for name, array in inputs.items()}
        y = Matmul.reference(self, geometry, squares, dtype)["y"] * np.dtype(dtype).type(geometry.alpha**2)
        if geometry.beta:
            y += np.dtype(dtype).type(geometry.beta**2) * squares["c"]
        return {"y": np.sqrt(y)}

    def normwise(self, geometry: GemmGeometry, inputs: Given, dropped: float) -> np.ndarray:
        """Return the scale of errors of slices of the product."""
        return abs(geometry.alpha) * super().normwise(replace(geometry, alpha=1.0, beta=0.0), inputs, dropped)

    def exact(self, geometry: GemmGeometry, inputs: Arrays) -> dict[str, Double]:
        """Scale the product, and add c, in double-double arithmetic."""
        y = _scaled(super().exact(replace(geometry, alpha=1.0, beta=0.0), inputs)["y"], geometry.alpha)
        if geometry.beta:
            c = inputs["c"].astype(np.float64)
            y = added(y, _scaled((c, np.zeros_like(c)), geometry.beta))
        return {"y": y}


FAMILY = Family(
    geometry=GemmGeometry,
    operators=(Gemm(),),
    distributions=(
        *("integer", "fixed", "natural", "impulse", "special", "nonfinite"),
        *("range", "subnormal", "wide", "absorbed"),
    ),
    place=7,
    storages=Storages(once={0: ("gemm.plain", "gemm.batch", "gemm.odd")}),
    lacks=("equal_shapes", "large", "odd", "partial", "sizes", "sparse"),
)
