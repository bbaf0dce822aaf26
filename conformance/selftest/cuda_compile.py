"""Compile the numba.cuda kernels to PTX, without a device: `python -m conformance.selftest.cuda_compile 9.0 [every]`.

Up to 9.0 accumulators must stay in registers: an array in local memory means a loop over it that was not unrolled. The
compiler for 10.0 and later keeps those of igemm there whatever is done here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from conformance.selftest.cuda_kernels import implementations, module


def main(capability: tuple[int, int], every: int) -> int:
    """Prints what failed, and how many; the exit status."""
    from numba import cuda
    from numba.cuda import dispatcher

    # numba asks the device that is here what to compile functions for that kernels call, and there may be none
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    package = implementations()["numba-cuda-direct"]
    chosen = list(module("specialisations", package).every())[::every]
    failed = list(_failures(cuda, chosen, capability))
    print(*failed, f"{len(chosen)} compiled for {capability}, {len(failed)} failed", sep="\n")
    return bool(failed)


def _failures(cuda: Any, chosen: list[Any], capability: tuple[int, int]) -> Iterator[str]:
    for one in chosen:
        try:
            ptx, _ = cuda.compile_ptx(one.function, one.signature, cc=capability)
        except Exception as problem:
            yield f"{one.name}: {type(problem).__name__}: {problem}"
        else:
            if ".local " in ptx and capability < (10, 0):
                yield f"{one.name}: keeps an array in local memory"


if __name__ == "__main__":
    major, minor = map(int, sys.argv[1].split("."))
    sys.exit(main((major, minor), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
