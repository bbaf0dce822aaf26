"""The machine that a table was made on, and the same number of threads for everybody on it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from conformance.execution.plan import absence_reason
from conformance.implementations.implementation import Implementation


class ThreadsError(RuntimeError):
    """A framework cannot have as many threads as the others; the message says how to settle it."""


def cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_threads() -> str:
    """Give torch and numba, where they are loaded, a thread for each core of the process; say who has how many.

    XLA sizes its pool by the process's cores already. Raises ThreadsError where numba was started with fewer.
    """
    count, shown = cores(), []
    for name in ("torch", "numba"):
        module: Any = sys.modules.get(name)
        if module is not None:
            try:
                module.set_num_threads(count)
            except ValueError as error:
                raise ThreadsError(
                    f"{name} cannot have {count} threads, as the others do ({error}): unset NUMBA_NUM_THREADS, or "
                    f"start with taskset on fewer cores"
                ) from None
            shown.append(f"{name} {module.get_num_threads()}")
    shown += [f"jax {count} (one a core)"] if "jax" in sys.modules else []
    return ", ".join(shown) or f"{count} cores"


def tf32() -> str:
    """Whether torch may use TF32: its flags, as they are now."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return "off"
    on = [
        name
        for name, holder in (("matmul", torch.backends.cuda.matmul), ("cudnn", torch.backends.cudnn))
        if holder.allow_tf32
    ]
    return f"on in torch ({', '.join(on)})" if on else "off"


def versions(implementations: Iterable[Implementation]) -> dict[str, str]:
    """Versions and devices of those that can run here, as their frameworks tell them."""
    found = {"Python": platform.python_version(), "numpy": np.__version__}
    for implementation in implementations:
        if absence_reason(implementation) is None:
            described = implementation.arrays.describe()
            found |= {k: v for k, v in described.items() if k != "device" and v != "not installed"}
            if described.get("device", "cpu") not in ("cpu", "simulator"):
                found[implementation.device] = described["device"]
            if implementation.version not in ("", *found.values()):
                found[implementation.name] = implementation.version
    return found
