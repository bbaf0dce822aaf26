"""Arguments and results of the three directions of a convolution: everything that a caller needs.

Shapes are given for two dimensions; one dimension has only W and S, three dimensions have D and T before H and R.

Signatures are separate from the arithmetic, because the process that runs a kernel must not find references.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from conformance.dtypes import DECLARABLE, TRAINED, WHOLE
from conformance.operators.base import Operator, Tensor
from conformance.operators.conv.geometry import ConvGeometry

FLOATING = tuple(name for name in DECLARABLE if name not in WHOLE)
_KEYWORDS = ("stride", "padding", "dilation", "groups", "layout")


class Convolution(Operator):
    """Base of the three directions."""

    family = "conv"
    keywords: tuple[str, ...] = _KEYWORDS

    def tensor(self, geometry: ConvGeometry, name: str) -> Tensor | None:
        """Return an argument or a result; results and the bias are sums, whose format differs for 8-bit inputs."""
        result = super().tensor(geometry, name)
        return _of_sums(result) if result and (name in self.returns or name == "bias") else result


@lru_cache(maxsize=1 << 12)
def _of_sums(tensor: Tensor) -> Tensor:
    """Return a tensor marked as sums; cached, because a plan asks for the same tensors thousands of times."""
    return replace(tensor, sums=True)


class Forward(Convolution):
    """x[N,C,H,W], w[K,C/g,R,S], bias[K]? -> y[N,K,P,Q]. bias is always passed, None when absent."""

    name = "conv_forward"
    dtypes = tuple(name for name in DECLARABLE if name not in TRAINED)
    arguments = ("x", "w", "bias")
    returns = ("y",)
    capabilities = ("into",)


class BackwardData(Convolution):
    """dy[N,K,P,Q], w[K,C/g,R,S] -> dx[N,C,H,W]."""

    name = "conv_backward_data"
    dtypes = FLOATING
    arguments = ("dy", "w")
    returns = ("dx",)
    keywords = (*_KEYWORDS, "input_size")
    capabilities = ("into",)


class BackwardWeight(Convolution):
    """x[N,C,H,W], dy[N,K,P,Q] -> dw[K,C/g,R,S], and dbias[K] where the problem has a bias."""

    name = "conv_backward_weight"
    dtypes = FLOATING
    arguments = ("x", "dy")
    returns = ("dw", "dbias")
    keywords = (*_KEYWORDS, "kernel_size", "with_bias")
    capabilities = ("output_mask", "into")


SIGNATURES: dict[str, Operator] = {
    operator.name: operator for operator in (Forward(), BackwardData(), BackwardWeight())
}
"""Name of a direction -> its signature."""
