"""Products of narrow numbers whose scales are handed in, one for each block of rows, or columns, and of terms.

    y[m,n] = bias[n] + sum_t scale_a[m // sm, t] * scale_b[n // sn, t] * sum_{k in block t} a[m,k] * b[k,n]

Block t has the terms from t*sk to t*sk + sk - 1; the last block of each axis may be shorter. With one block for all it
is a product with a scale for each tensor; `sm1 sn1` has one for each row and each column, `sm1 sn1 sk32` the blocks of
the OCP Microscaling formats (MX, version 1.0, 2023), whose scales are powers of two, and `sm1 sn128 sk128` those of
DeepSeek-V3 (arXiv 2412.19437, section 3.3.2). y, scales and bias are fp32; layouts are those of a matrix product, and
scales never lie transposed.

*Errors.* An honest kernel scales in one of three ways: operands before they are multiplied, a' = a scale_a (1 + d_a)
and b' = b scale_b (1 + d_b); the sum of each block, by the rounded product of both scales, and adds these up; or, of
one block of terms, the sum at the end. d_a, d_b and the rounding of scale_a*scale_b are the same wherever these numbers
are used: a block of scales, or the few numbers of 8 bits beside one scale, give them to all of its results. They are
`constants`: in the first way two multiply each term; in the others one or, where the scales are multiplied in one
after the other, two. So two are allowed, and no element shares them with all others. What else is rounded is as
independent as the roundings of a sum: K - 1 additions, that of the bias, and one more multiplication. In the first way
this is that of each term, which adds u^2 sum (term)^2 = (u s2)^2 to the variance; in the others that of each block's
sum S_t, whose square is as large as the sum of the squares of its terms on average. So each counts as one more summand
of `conformance.judge.limits`: KS = K + bias + 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from conformance.operators.base import Arrays, ErrorModel, Given, Homogeneous, Request, Special, Spoil, Tensor
from conformance.operators.conv.operators import Products
from conformance.operators.double_double import Double
from conformance.operators.family import Family, Storages
from conformance.operators.matmul.operators import INNER_MISMATCH, Matmul
from conformance.operators.matmul_scaled.geometry import ScaledGeometry

_PRODUCT = Matmul()


class Places(NamedTuple):
    """The block of each row [M] and of each column [N], and that of each term [K] in the scales of a and of b."""

    rows: np.ndarray
    columns: np.ndarray
    terms_a: np.ndarray
    terms_b: np.ndarray


def places(geometry: ScaledGeometry) -> Places:
    """Return the blocks that the definition has."""
    sizes = (geometry.n, geometry.rows), (geometry.k, geometry.columns), (geometry.c, geometry.terms)
    rows, columns, terms = (np.arange(extent) // (length or max(1, extent)) for extent, length in sizes)
    return Places(rows, columns, terms, terms)


def scaled(geometry: ScaledGeometry, inputs: Given, dtype: Any = np.float64, at: Places | None = None) -> Arrays:
    """Return the inputs of the product of scaled operands: a, b and bias. In float64 they are exact."""
    at = at or places(geometry)
    scale_a, scale_b = (inputs[name].astype(dtype) for name in ("scale_a", "scale_b"))
    product = {name: inputs[name].astype(dtype) for name in ("a", "b", "bias") if name in inputs}
    return product | {
        "a": product["a"] * scale_a[np.ix_(at.rows, at.terms_a)],
        "b": product["b"] * scale_b[np.ix_(at.columns, at.terms_b)],
    }


def _one_block_more(geometry: ScaledGeometry, request: Request) -> Request:
    """Add scales of terms that there are not."""
    scale = request.inputs["scale_a"]
    return Request(request.inputs | {"scale_a": np.concatenate([scale, scale[:, -1:]], 1)}, request.parameters)


SCALES_MISMATCH: dict[str, Spoil] = {"scale_a with one block of terms more": _one_block_more}


@lru_cache(maxsize=1 << 12)
def _of_fp32(tensor: Tensor) -> Tensor:
    return replace(tensor, wide=True)


class MatmulScaled(Products):
    """a[M,K], b[K,N], scale_a, scale_b, bias[N]? -> y[M,N]. bias is always passed, None when absent."""

    name = family = "matmul_scaled"
    dtypes = ("fp8_e4m3", "fp8_e5m2", "int8")
    arguments, returns = ("a", "b", "scale_a", "scale_b", "bias"), ("y",)
    keywords = ("layout", "sm", "sn", "sk")
    data, operand, free_axis = "a", "b", 0
    homogeneous = Homogeneous(("scale_a", "bias"), ("y",), signs=False)
    invalid = INNER_MISMATCH | SCALES_MISMATCH

    @property
    def has_independent_images(self) -> bool:
        """Return False: rows share scales, so that some of the rows are another problem."""
        return False

    def tensor(self, geometry: ScaledGeometry, name: str) -> Tensor | None:
        """Return an argument or a result; all but the operands are fp32."""
        if name in ("scale_a", "scale_b"):
            scale: Tensor = getattr(geometry, name)
            return scale
        result = super().tensor(geometry, name)
        return _of_fp32(result) if result and name in ("y", "bias") else result

    def parameters(self, geometry: ScaledGeometry) -> dict[str, Any]:
        """Return how many rows, columns and terms share a scale; 0 for all."""
        return {"sm": geometry.rows, "sn": geometry.columns, "sk": geometry.terms}

    def special(self, geometry: ScaledGeometry) -> tuple[Special, ...]:
        """Return also a scale of zero, as a block of zeros has it, and one that is NaN, each in a block of its own."""
        (rows, parts), columns = geometry.scale_a.shape, geometry.scale_b.shape[0]
        zero: tuple[Special, ...] = (("scale_a", (rows // 2, parts - 1), 0.0),) if rows > 2 else ()
        leak: tuple[Special, ...] = (("scale_b", (columns // 2, parts // 2), np.nan),) if columns > 2 else ()
        return super().special(geometry) + zero + leak

    def nonfinite(self, geometry: ScaledGeometry) -> Iterator[Special]:
        """Yield the values of a product without scales, and a NaN in the scale of the last rows, if there are others.
        Of several blocks of terms, the last is zero in a: kernels that skip such blocks lose the NaN beside it."""
        if geometry.scale_a.shape[1] > 1:
            yield "a", (slice(None), slice((geometry.scale_a.shape[1] - 1) * geometry.terms, None)), 0.0
        yield from _PRODUCT.nonfinite(geometry)
        if geometry.scale_a.shape[0] > 2:
            yield "scale_a", (-1, -1), np.nan

    def flops(self, geometry: ScaledGeometry) -> int:
        """Return 2 * M*N*K; scaling is left out."""
        return _PRODUCT.flops(geometry)

    def errors(self, geometry: ScaledGeometry) -> ErrorModel:
        """Count K products, the bias and a multiplication, and two constants: see the module, "Errors"."""
        terms = geometry.c + geometry.bias + 1
        return ErrorModel({"y": terms}, span=terms, constants=2, shared_constant=False)

    def reference(self, geometry: ScaledGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute the product of scaled operands."""
        return _PRODUCT.reference(geometry, scaled(geometry, inputs, dtype), dtype)

    def exact(self, geometry: ScaledGeometry, inputs: Arrays) -> dict[str, Double]:
        """Return the product of scaled operands, which float64 holds, as high and low parts."""
        return _PRODUCT.exact(geometry, scaled(geometry, inputs))


FAMILY = Family(
    geometry=ScaledGeometry,
    operators=(MatmulScaled(),),
    distributions=("integer", "fixed", "natural", "impulse", "special", "nonfinite", "wide", "codes", "absorbed"),
    place=8,
    storages=Storages(once={0: ("scaled.rows-and-columns", "scaled.blocks", "scaled.tensor-bias")}),
    lacks=("large", "odd", "partial", "sizes", "sparse", "equal_shapes"),
)
