"""The kit's right convolution for known-bad kernels to spoil, in both layouts and the formats that fp32 holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance import Implementation
from tests.field import _kit


def conv_forward(x, w, bias, **parameters):
    return _kit.conv_forward([x, w, bias], parameters)


def implementation(name: str, kernel: Callable[..., Any], **declared: Any) -> Implementation:
    """One that has this kernel alone."""
    one = Implementation(name, **declared)
    one.implements("conv_forward", dtypes=("fp32", "bf16", "fp16"), layouts=_kit.BOTH)(kernel)
    return one
