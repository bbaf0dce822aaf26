"""The health of a device: a kernel that is known to be right must still give the known answer on it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from conformance.execution.process import Limits
from conformance.execution.selection import SelectionError
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial, absence_reason
from conformance.execution.verify import verify
from conformance.execution.workers import Workers
from conformance.implementations.registry import Registry
from conformance.problems.case import Case
from conformance.resources import IMPLS

RIGHT = {"cpu": "numpy_direct", "cuda": "torch_native", "tpu": "jax_native"}
"""Device -> file of the suite's kernels that are known to be right on it; on Neuron devices `nki`. Others have none."""
OPERATOR, PROBLEM = "conv_forward", "n2 c8 h9 w7 k8 r3 s3 p1 b1"
"""Case of the known answer: 9,000 products, exact in every format."""


class SickDeviceError(Exception):
    """A kernel that is known to be right is wrong on a device; the message says how."""


class Health:
    """Known answers of a device. `sentinel` is a kernel that is right on it, a file or a name; by default one of the
    suite's own, where it has one for the device."""

    def __init__(self, device: str, sentinel: str, limits: Limits | None) -> None:
        self._workers = Workers(limits or Limits())
        self._trial = self._of(device, sentinel)

    def require(self) -> None:
        """Compute the known answer. Raises SickDeviceError; does nothing if there is no kernel for the device."""
        if self._trial is None:
            return
        verdict: Verdict = verify(self._trial)
        if verdict.status in ("fail", "error"):
            kernel = self._trial.implementation.name
            raise SickDeviceError(f"the known answer of {kernel} is wrong: {verdict.reason.splitlines()[0]}")

    def _of(self, device: str, sentinel: str) -> Trial | None:
        path = Path(sentinel) if sentinel else IMPLS / RIGHT.get(device, "nki")
        path = path if path.exists() else path.with_suffix(".py")
        catalogue = self._workers.load([path])
        for implementation in catalogue.implementations.values():
            if implementation.device == device and not absence_reason(implementation):
                case = Case(OPERATOR, PROBLEM, "fp32", "nchw", "integer")
                return Trial.of(implementation, case, "where")
        if sentinel:
            raise SickDeviceError(f"--sentinel {sentinel} cannot be used there: {_why(catalogue)}")
        return None


def require_sentinel(sentinel: str, devices: Collection[str]) -> None:
    """Raise SelectionError for a file that is no kernel of the known answer on each of these devices, whether or not
    they are here: a device of which nothing is known would pass as sound."""
    path = Path(sentinel)
    if not path.exists():
        raise SelectionError(f"--sentinel {sentinel}: no such file")
    with Workers(Limits()) as workers:
        catalogue = workers.load([path])
        kernels = {
            implementation.device
            for implementation in catalogue.implementations.values()
            if any(kernel.operator == OPERATOR for kernel in implementation.kernels)
        }
    if not kernels:
        raise SelectionError(f"--sentinel {sentinel}: {_why(catalogue)}")
    if lacking := sorted({*devices} - kernels):
        raise SelectionError(
            f"--sentinel {sentinel}: has no kernel of {OPERATOR} for {', '.join(lacking)}, but for "
            f"{', '.join(sorted(kernels))}"
        )


def _why(catalogue: Registry) -> str:
    """Return why files have no kernel of the known answer."""
    reasons = [broken.reason for broken in catalogue.broken.values()] + [*catalogue.unavailable.values()]
    absences = map(absence_reason, catalogue.implementations.values())
    return "; ".join(filter(None, (*reasons, *absences))) or f"has no kernel of {OPERATOR} for the device"
