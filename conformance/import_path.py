"""Where the judge imports from once kernels run in processes of their own: from what is installed, which they cannot
write to (`conformance.worker.isolation`), and not from a folder that they can leave a file in.

A kernel that leaves `psutil.py` in the folder of a run, to which `python -m` gives the first place, would be imported
where the judge asks for psutil first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from conformance.resources import PACKAGE

OF_KERNELS: list[str] = []
"""What `sys.path` was for the files of kernels; empty where it still is."""


def trust(of_kernels: Sequence[str] = ()) -> None:
    """Import what is installed alone from now on, of a checkout the suite last. A process that another one has started
    so is told what `sys.path` was."""
    OF_KERNELS[:] = of_kernels or sys.path
    sys.path[:] = [*filter(holds_packages, sys.path), str(PACKAGE.parent)]


def for_kernels() -> list[str]:
    """Return `sys.path` of kernels' processes."""
    return OF_KERNELS or sys.path


def holds_packages(place: str) -> bool:
    """Whether a place of `sys.path` is the standard library's, or pip installs there."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib takes its time, at the start of every process
    if place.startswith(library) or place.endswith(".zip"):
        return bool(place)
    try:
        return bool(place) and any(name.endswith(".dist-info") for name in os.listdir(place))  # noqa: PTH208
    except OSError:
        return False
