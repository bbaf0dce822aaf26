"""Matrix product of 8-bit tensors with an 8-bit result, alone and in batches.

Defined as ONNX QLinearMatMul and TFLite's FULLY_CONNECTED, with a scale per column:

    sum[m,n] = bias[n] + sum_k (a[m,k] - za) (b[k,n] - zb)
    y[m,n]   = saturate(round(scale[n] * sum[m,n]) + zy)

ONNX writes scale[n] as a_scale * b_scale[n] / y_scale, and has no bias; all products of a batch have the same scales.
Which results are correct: `conformance.operators.requantized`. How a product appears to the suite, and its layouts:
`conformance.operators.matmul`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.operators.base import Tensor
from conformance.operators.family import Family, Storages
from conformance.operators.matmul.operators import INNER_MISMATCH, Matmul
from conformance.operators.matmul_requantized.geometry import RequantizedMatmulGeometry
from conformance.operators.requantized import Requantized


class MatmulRequantized(Requantized):
    """a[M,K], b[K,N], bias[N]?, scale[N] -> y[M,N]; of a batch a[B,M,K], b[B,K,N] -> y[B,M,N]. bias is always passed,
    None when absent."""

    name = family = "matmul_requantized"
    linear = Matmul()
    arguments = ("a", "b", "bias", "scale")
    keywords = ("a_zero_point", "b_zero_point", "y_zero_point", "layout")
    data, operand = "a", "b"
    invalid = INNER_MISMATCH

    def tensor(self, geometry: RequantizedMatmulGeometry, name: str) -> Tensor | None:
        """Return an argument or the result; a batch has a scale for each column of one product."""
        result = super().tensor(geometry, name)
        return replace(result, shape=(geometry.k // geometry.groups,)) if result and name == "scale" else result

    def along(self, geometry: RequantizedMatmulGeometry, values: np.ndarray) -> np.ndarray:
        """Repeat the scales for each product of a batch."""
        return np.tile(values, geometry.groups)

    def by_scale(self, geometry: RequantizedMatmulGeometry, sums: np.ndarray) -> np.ndarray:
        """Rearrange sums [M, batch * N] as [N, M * batch]."""
        return sums.reshape(sums.shape[0] * geometry.groups, geometry.k // geometry.groups).T


FAMILY = Family(
    geometry=RequantizedMatmulGeometry,
    operators=(MatmulRequantized(),),
    distributions=("scales", "ties", "cancelled", "natural", "special"),
    place=7,
    storages=Storages(once={0: ("qmatmul.both", "qmatmul.fp8-batch", "qmatmul.both-tails")}),
    lacks=("large", "odd", "equal_shapes", "partial", "sizes", "sparse"),
)
