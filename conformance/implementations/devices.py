"""The devices and the processor of this machine, found without any framework."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path


class Unavailable(Exception):
    """Raised where a required device, package or toolchain is missing here; the message is the reason."""


def _nodes(pattern: str) -> list[Path]:
    return list(Path("/dev").glob(pattern))


def _cpu() -> None:
    """Return at once: every machine has a CPU."""


def _cuda() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise Unavailable("no NVIDIA driver (libcuda.so.1 cannot be loaded)") from None
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        raise Unavailable("the NVIDIA driver does not start (cuInit failed)")
    if not count.value:
        raise Unavailable("the NVIDIA driver lists no device")


def _rocm() -> None:
    if not Path("/dev/kfd").exists():
        raise Unavailable("no AMD compute driver (/dev/kfd is missing)")


NEURON = {"trn1": 2, "trn2": 4, "trn3": 4, "inf2": 2}
"""Marker -> NeuronCores of a device as processes see them: by default a logical core of trn2 is two physical ones
(LNC=2), and trn3 is assumed to be the same."""


def _neuron(kind: str) -> Callable[[], None]:
    def probe() -> None:
        if not _nodes("neuron[0-9]*"):
            raise Unavailable("no Neuron device (/dev/neuron* is missing)")
        product = Path("/sys/devices/virtual/dmi/id/product_name")
        instance = product.read_text().strip() if product.exists() else ""
        if not instance.startswith(kind):
            raise Unavailable(f"the Neuron device here is not {kind} (instance type {instance or 'unknown'})")

    return probe


def neuron_cores() -> int:
    """Return how many NeuronCores this machine has, 0 if none; each belongs to one process until that ends."""
    split = os.environ.get("NEURON_LOGICAL_NC_CONFIG") == "1"
    for kind, cores in NEURON.items():
        if not missing(kind):
            return cores * len(_nodes("neuron[0-9]*")) * (2 if split and cores == 4 else 1)
    return 0


def _tpu() -> None:
    if not (_nodes("accel[0-9]*") or _nodes("vfio/[0-9]*")):
        raise Unavailable("no TPU device (/dev/accel* and /dev/vfio/* are missing)")


def _mps() -> None:
    if not (platform.system() == "Darwin" and platform.machine() == "arm64"):
        raise Unavailable("not an Apple silicon machine")


def _xpu() -> None:
    if not _nodes("dri/renderD*"):
        raise Unavailable("no Intel GPU (/dev/dri/renderD* is missing)")


DEVICES: dict[str, Callable[[], None]] = {
    "cpu": _cpu,
    "cuda": _cuda,
    "rocm": _rocm,
    **{kind: _neuron(kind) for kind in NEURON},
    "tpu": _tpu,
    "mps": _mps,
    "xpu": _xpu,
    "simulator": _cpu,
    "emulator": _cpu,
}
"""Marker -> probe, which raises Unavailable where the device is not here. `simulator` and `emulator` execute another
device's kernels on the CPU."""


elsewhere: set[str] = set()
"""Devices that other machines of this run have, which ask for them themselves."""


def require(device: str) -> None:
    """Raise Unavailable where `device` is not on this machine."""
    DEVICES[device]()


@cache
def missing(device: str) -> str | None:
    """Return why `device` is not on this machine, for reports; None if it is."""
    try:
        require(device)
    except Unavailable as absence:
        return str(absence)
    return None


CPUINFO = Path("/proc/cpuinfo")


@cache
def processor() -> str:
    """Return the processor's model."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
