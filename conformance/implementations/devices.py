"""Which devices this machine has, found without any framework."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path


def _nodes(pattern: str) -> list[Path]:
    return list(Path("/dev").glob(pattern))


def _cpu() -> str:
    return ""


def _cuda() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1 cannot be loaded)"
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return "the NVIDIA driver does not start (cuInit failed)"
    return "" if count.value else "the NVIDIA driver lists no device"


def _rocm() -> str:
    return "" if Path("/dev/kfd").exists() else "no AMD compute driver (/dev/kfd is missing)"


_NEURON_INSTANCES = {"trn1": ("trn1",), "trn2": ("trn2",), "trn3": ("trn3",), "inf2": ("inf2",)}


def _neuron(kind: str) -> Callable[[], str]:
    def probe() -> str:
        if not _nodes("neuron[0-9]*"):
            return "no Neuron device (/dev/neuron* is missing)"
        product = Path("/sys/devices/virtual/dmi/id/product_name")
        instance = product.read_text().strip() if product.exists() else ""
        if instance.startswith(_NEURON_INSTANCES[kind]):
            return ""
        return f"the Neuron device here is not {kind} (instance type {instance or 'unknown'})"

    return probe


def _tpu() -> str:
    return (
        ""
        if _nodes("accel[0-9]*") or _nodes("vfio/[0-9]*")
        else "no TPU device (/dev/accel* and /dev/vfio/* are missing)"
    )


def _mps() -> str:
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return "" if apple else "not an Apple silicon machine"


def _xpu() -> str:
    return "" if _nodes("dri/renderD*") else "no Intel GPU (/dev/dri/renderD* is missing)"


DEVICES: dict[str, Callable[[], str]] = {
    "cpu": _cpu,
    "cuda": _cuda,
    "rocm": _rocm,
    **{kind: _neuron(kind) for kind in _NEURON_INSTANCES},
    "tpu": _tpu,
    "mps": _mps,
    "xpu": _xpu,
    "simulator": _cpu,
    "emulator": _cpu,
}
"""Marker -> probe. A probe returns why the device is not here, or nothing. `simulator` and `emulator` execute another
device's kernels on the CPU."""


@cache
def missing(device: str) -> str:
    """Why `device` is not on this machine; empty if it is."""
    return DEVICES[device]()
