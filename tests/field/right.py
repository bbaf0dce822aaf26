"""A right convolution in both layouts and the formats that fp32 holds, for known-bad kernels to spoil."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance import Implementation
from tests import kernels

DTYPES, LAYOUTS = ("fp32", "bf16", "fp16"), ("nchw", "nhwc")


def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    arrays: Any = [a if a is None else a.astype(np.float32) for a in (x, w, bias)]
    if layout == "nhwc":
        arrays[:2] = (np.moveaxis(a, -1, 1) for a in arrays[:2])
    y = kernels.conv_forward(*arrays, stride=stride, padding=padding, dilation=dilation, groups=groups).astype(x.dtype)
    return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if layout == "nhwc" else y


def implementation(name: str, kernel: Callable[..., Any], **declared: Any) -> Implementation:
    """One that has this kernel alone."""
    one = Implementation(name, **declared)

    @one.implements("conv_forward", dtypes=DTYPES, layouts=LAYOUTS)
    def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
        return kernel(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout)

    return one
