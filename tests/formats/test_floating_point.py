"""The floating-point mode is seen for what it is, and only where it is changed."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from conformance.floating_point import mode

ROUNDING = {
    "results are rounded downwards": {"x86_64": 0x400, "aarch64": 0x800000},
    "results are rounded upwards": {"x86_64": 0x800, "aarch64": 0x400000},
    "results are rounded towards zero": {"x86_64": 0xC00, "aarch64": 0xC00000},
}
"""FE_DOWNWARD, FE_UPWARD and FE_TOWARDZERO of glibc."""


GLIBC = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="the numbers are glibc's"
)


@contextmanager
def switched(switch: Callable[[int], object], value: int) -> Iterator[None]:
    """A mode for the length of a block: it is the thread's, and the next test's. 0 and False are the default."""
    switch(value)
    try:
        yield
    finally:
        switch(type(value)(0))


def test_default_mode() -> None:
    assert mode() == ()


def test_flush_to_zero() -> None:
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush")
    with switched(torch.set_flush_denormal, True):
        found = mode()
    assert found == ("subnormal inputs are taken for zero", "subnormal results are flushed to zero")
    assert mode() == ()


@GLIBC
@pytest.mark.parametrize("meaning", ROUNDING)
def test_rounding(meaning: str) -> None:
    with switched(ctypes.CDLL("libm.so.6").fesetround, ROUNDING[meaning][platform.machine()]):
        found = mode()
    assert found == (meaning,)


def test_numpy_settings_do_not_matter() -> None:
    with np.errstate(all="raise"):
        assert mode() == ()
