"""Matrix products with a bias, a residual and an activation in one kernel, alone and in batches.

    y = act(a b + bias + residual)

The product is that of `conformance.operators.matmul`; residual and y have the same shape. Libraries call what follows
the product its epilogue (cuBLASLt's CUBLASLT_EPILOGUE_GELU_BIAS and RELU_BIAS, CUTLASS' LinearCombination). What the
activations are: `conformance.operators.activations`.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.operators import special_values
from conformance.operators.activations import Activated
from conformance.operators.base import Special
from conformance.operators.family import Family, Storages
from conformance.operators.matmul.operators import INNER_MISMATCH, Matmul
from conformance.operators.matmul_activation.geometry import MatmulActivationGeometry


class MatmulActivation(Activated):
    """a[M,K], b[K,N], bias[N]?, residual[M,N]? -> y[M,N]; of a batch a[B,M,K], b[B,K,N], residual[B,M,N]? -> y[B,M,N].
    bias and residual are always passed, None when absent."""

    name = family = "matmul_activation"
    linear = Matmul()
    arguments = ("a", "b", "bias", "residual")
    keywords = ("layout", "activation")
    data, operand, free_axis = "a", "b", 0
    invalid = INNER_MISMATCH

    def nonfinite(self, geometry: MatmulActivationGeometry) -> Iterator[Special]:
        """Yield the values of a product, and a NaN and infinities in the last row of the residual, in columns of their
        own."""
        yield from self.bounded(geometry, [*self.linear.nonfinite(geometry)])
        if geometry.residual and geometry.n > 1:
            values = self.bounded(geometry, [("residual", (), value) for value in special_values.NONFINITE])
            for name, (column,), value in special_values.apart(geometry.k, values):
                yield name, (geometry.n - 1, column), value


FAMILY = Family(
    geometry=MatmulActivationGeometry,
    operators=(MatmulActivation(),),
    distributions=("fixed", "bent", "integer", "natural", "impulse", "special", "nonfinite", "wide"),
    place=7,
    goldens=("matmul_activation mact.gelu fp32 bent",),
    storages=Storages(once={0: ("mact.relu", "mact.relu6")}),
    lacks=("equal_shapes", "large", "odd", "partial", "sizes", "sparse"),
)
