"""Products of activations with weights of 4 bits, of which blocks of terms share a scale and a zero point.

    y[m,n] = bias[n] + sum_k a[m,k] * (b[n,k] - zero[n, k // block]) * scale[n, k // block]

Numbers b and zero points are 0 to 15; zero points that are not given are 8. The kernel gets both as bytes of two
numbers, the first one in the low half: b uint8[N, ceil(K/2)], zero_point uint8[N, ceil(blocks/2)]; half a byte that is
left over is 0. a, scale, bias and y have the dtype of the problem. So it is in ONNX Runtime's MatMulNBits, which pads
the rows of b to whole blocks, b[N, blocks, block/2]; GPTQ packs the same numbers by 8 into words, and stores zero - 1.

*Errors.* An honest kernel works in one of three ways: it multiplies a by the weight w = (b - zero) * scale, which it
rounds once; by b * scale less zero * scale; or it takes the sum of the zero points, zero * sum a, off the sum of each
block. In the first way w is a rounded constant, the same for all terms of a block with the same number: `constants`.
In the others b * scale and zero * scale are two, and sums of both are added up that may cancel: their roundings are in
proportion to a * b * scale and to a * zero * scale. So errors are measured in s2 = sqrt(sum_k a^2 (b^2 + zero^2)
scale^2), which is sqrt(sum_k (a b scale)^2) of the two sums. What is rounded beside the K terms of each is the bias,
and one more multiplication: KS = K + bias + 1, as in `conformance.operators.matmul_scaled.operators`.

Infinities in a or in a scale have no unique result: they cancel to NaN where zero points are taken off sums.

w may be rounded to 16 bits before it is multiplied, as kernels do that hand it to a matrix unit. This is declared,
inputs="fp16" or "bf16": w is no number of the problem's dtype. On all data but `natural` scales have so few bits that
w, b * scale and zero * scale are exact in the dtype, and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from conformance.operators.base import Arrays, ErrorModel, Given, Homogeneous, Request, Special, Spoil, Tensor
from conformance.operators.conv.operators import Products
from conformance.operators.double_double import Double
from conformance.operators.family import Family, Storages
from conformance.operators.matmul.operators import Matmul, two_columns
from conformance.operators.matmul_int4.geometry import Int4Geometry

PRODUCT = Matmul()
MIDDLE = 8
"""Zero point of all weights where none is given."""


class Weights(NamedTuple):
    """Numbers [N, K], and of each of them the scale and the zero point."""

    numbers: np.ndarray
    scale: np.ndarray
    zero: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """Weights [N, K]."""
        return (self.numbers - self.zero) * self.scale


def block_of_terms(geometry: Int4Geometry) -> np.ndarray:
    """Return the number of the block of each term [K]."""
    return np.arange(geometry.c) // (geometry.block or geometry.c)


def zeros(geometry: Int4Geometry, inputs: Given, dtype: Any = np.float64) -> np.ndarray:
    """Return the zero points [N, blocks]."""
    if "zero_point" not in inputs:
        return np.full(geometry.scale.shape, MIDDLE, dtype)
    return inputs["zero_point"].astype(dtype)


def weights(geometry: Int4Geometry, inputs: Given, dtype: Any = np.float64) -> Weights:
    """Return what weights are made of."""
    block = block_of_terms(geometry)
    scale, zero = inputs["scale"].astype(dtype), zeros(geometry, inputs, dtype)
    return Weights(inputs["b"].astype(dtype), scale[:, block], zero[:, block])


def product_of(inputs: Given, weights: np.ndarray, dtype: Any = np.float64) -> Arrays:
    """Return the inputs of the product with these weights [N, K]: a, b and bias."""
    return {name: inputs[name].astype(dtype) for name in ("a", "bias") if name in inputs} | {"b": weights}


def _one_block_more(geometry: Int4Geometry, request: Request) -> Request:
    """Add scales of terms that there are not."""
    scale = request.inputs["scale"]
    return Request(request.inputs | {"scale": np.concatenate([scale, scale[:, -1:]], 1)}, request.parameters)


INVALID: dict[str, Spoil] = {
    "b with twice the terms": two_columns,
    "scale with one block of terms more": _one_block_more,
}


class MatmulInt4(Products):
    """a[M,K], b[N,K], scale[N,blocks], zero_point[N,blocks]?, bias[N]? -> y[M,N]. b and zero_point are packed, and
    zero_point and bias are always passed, None when absent."""

    name = family = "matmul_int4"
    dtypes = ("fp32", "bf16", "fp16")
    arguments, returns = ("a", "b", "scale", "zero_point", "bias"), ("y",)
    keywords = ("layout", "block")
    data, operand, free_axis = "a", "scale", 0
    homogeneous = Homogeneous(("a", "bias"), ("y",))
    invalid = INVALID

    @property
    def has_independent_images(self) -> bool:
        """Return True: a row of y depends on no other row of a."""
        return True

    def tensor(self, geometry: Int4Geometry, name: str) -> Tensor | None:
        """Return an argument or a result."""
        if name == "zero_point":
            return geometry.zero_point if geometry.has_zero_points else None
        if name == "b":
            return geometry.numbers
        return geometry.scale if name == "scale" else super().tensor(geometry, name)

    def special(self, geometry: Int4Geometry) -> tuple[Special, ...]:
        """Return NaN in the data, and none but that: see the module."""
        return tuple(special for special in super().special(geometry) if np.isnan(special[2]))

    def nonfinite(self, geometry: Int4Geometry) -> Iterator[Special]:
        """Yield NaN in the last row of a, in a scale of its own column, and infinities in the bias of others."""
        yield "a", (-1, geometry.c // 2), np.nan
        if geometry.k > 1:
            yield "scale", (-1, -1), np.nan
        for column, value in enumerate((np.inf, -np.inf)):
            if geometry.bias and column < geometry.k - 2:
                yield "bias", (column,), value

    @property
    def scattered(self) -> tuple[str, ...]:
        """Return no input: infinities have no unique result."""
        return ()

    def flops(self, geometry: Int4Geometry) -> int:
        """Return 2 * M*N*K; what is done to the weights is left out."""
        return PRODUCT.flops(geometry)

    def errors(self, geometry: Int4Geometry) -> ErrorModel:
        """Count K products, the bias and a multiplication, and two constants: see the module, "Errors"."""
        terms = geometry.c + geometry.bias + 1
        return ErrorModel({"y": terms}, span=terms, constants=2, shared_constant=False)

    def reference(self, geometry: Int4Geometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute the product with the weights."""
        return PRODUCT.reference(geometry, product_of(inputs, weights(geometry, inputs, dtype).values, dtype), dtype)

    def magnitude(self, geometry: Int4Geometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return s2 of the sums of numbers and of zero points together."""
        numbers, scale, zero = weights(geometry, inputs, dtype)
        return PRODUCT.magnitude(geometry, product_of(inputs, np.hypot(numbers, zero) * scale, dtype), dtype)

    def exact(self, geometry: Int4Geometry, inputs: Arrays) -> dict[str, Double]:
        """Return the product with the weights, which float64 holds, as high and low parts."""
        return PRODUCT.exact(geometry, product_of(inputs, weights(geometry, inputs).values))


FAMILY = Family(
    geometry=Int4Geometry,
    operators=(MatmulInt4(),),
    distributions=("integer", "fixed", "natural", "impulse", "special", "nonfinite", "wide"),
    place=9,
    storages=Storages(once={0: ("int4.zero-points", "int4.even-blocks", "int4.square")}),
    lacks=("large", "odd", "partial", "sizes", "sparse", "equal_shapes"),
)
