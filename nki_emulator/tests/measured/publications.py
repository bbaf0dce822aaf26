"""Times of kernels on devices that others have published, and how to issue the same work here.

The kernels here are written from what is said of those, with the same tiles and loops. They are not those: a compiler
reorders, merges and reloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nki_emulator import Modelled, load, modelling
from nki_emulator.tests.calls import Array
from nki_emulator.tests.sources import DTYPES

TARGETS = {"trn1": "gen2", "trn2": "gen3"}


@dataclass(frozen=True)
class Source:
    """Where a time was published."""

    name: str
    text: str


NKIBENCH = Source(
    "NKIBench",
    "repository zhang677/AccelOpt, experiments/full_complete_local/profile_results.csv (`latency` of the baseline, on "
    "trn1.32xlarge) and results/11110904_best_plan_id.csv (best); kernels in NKIBench/kernels.",
)
WRITEUP = Source(
    "CS149 write-up",
    "repository xaviergonzalez/asst4-trainium2, writeup.md: times printed by the assignment's harness on trn2.",
)
HARNESS = Source(
    "CS149 harness",
    "Stanford CS149, asst4-trainium2, part2/test_harness.py: the time of the reference kernel that earns 90% of the "
    "points.",
)
ISSUE = Source(
    "issue",
    "given to this project as public measurements on trn2; the page was not found, nor which shapes, dtypes and how "
    "many cores. NKIBench's shapes are assumed.",
)


@dataclass(frozen=True)
class Published:
    """A time in microseconds, and a call of a kernel here.

    long_runs   whether it is limited by a DMA in runs of at least 2 KiB, of which the model claims 10%
    """

    what: str
    device: str
    us: float
    source: Source
    kernel: str
    arguments: tuple[Any, ...]
    long_runs: bool = False

    def modelled(self) -> Modelled:
        """The modelled time of the kernel here, at full size; no arithmetic."""
        return _modelled(self.kernel, self.device, self.arguments)


@cache
def _modelled(kernel: str, device: str, arguments: tuple[Any, ...]) -> Modelled:
    given = [np.zeros(a.shape, DTYPES[a.dtype][0]) if isinstance(a, Array) else a for a in arguments]
    with modelling(arithmetic=False) as found:
        getattr(_module(TARGETS[device]), kernel)(*given)
    return found


@cache
def _module(target: str) -> ModuleType:
    return load(Path(__file__).with_name("kernels.py"), target=target)


VECTOR, LONGER, PAGE = Array((25600,)), Array((256000,)), Array((1024, 1024))
MATMUL = (Array((4096, 5120)), Array((5120, 12288)))
TRANSPOSED = (Array((2048, 4096)), Array((2048, 10944)))
NORMALISED = (Array((4096, 1024)), Array((1024, 2048)))
BATCHED = (Array((16, 4096, 64)), Array((16, 64, 4096)))
CONV32 = (Array((256, 224, 224)), Array((256, 256, 3, 3)), Array((256,)), 6)
CONV16 = (Array((256, 224, 224), "fp16"), Array((256, 256, 3, 3), "fp16"), Array((256,)), 6)

PUBLISHED = (
    Published("matmul 4096x5120x12288 fp32", "trn1", 35199.7, NKIBENCH, "matmul", (*MATMUL, 1), long_runs=True),
    Published("batched matmul 16x4096x64x4096 fp32", "trn1", 4610.9, NKIBENCH, "batched_matmul", BATCHED),
    Published("the same, best", "trn1", 4333.2, NKIBENCH, "batched_matmul", BATCHED, long_runs=True),
    Published("transpose + matmul 4096x2048x10944 fp32", "trn1", 9610.3, NKIBENCH, "transpose_matmul", TRANSPOSED),
    Published("rmsnorm + matmul 4096x1024x2048 fp32", "trn1", 1055.8, NKIBENCH, "rmsnorm_matmul", NORMALISED),
    Published("the same, best", "trn1", 999.7, NKIBENCH, "rmsnorm_matmul", NORMALISED),
    Published("silu 4096x7168 fp32", "trn1", 1333.2, NKIBENCH, "silu", (Array((4096, 7168)),)),
    Published("conv 256 to 256, 3x3 at 224, fp16", "trn2", 824.0, WRITEUP, "conv", CONV16),
    Published("conv 256 to 256, 3x3 at 224, fp32", "trn2", 3832.0, WRITEUP, "conv", CONV32),
    Published("conv 256 to 256, 3x3 at 224, fp16", "trn2", 1365.0, HARNESS, "conv", CONV16),
    Published("conv 256 to 256, 3x3 at 224, fp32", "trn2", 4964.0, HARNESS, "conv", CONV32),
    Published("transpose 1024x1024 fp32, runs of 512 B", "trn2", 86.0, WRITEUP, "transpose", (PAGE,)),
    Published("add 256,000, tiles 128x2000", "trn2", 28.0, WRITEUP, "add_vectors", (LONGER, LONGER, 128, 2000)),
    Published("add 256,000, tiles 128x1000", "trn2", 26.0, WRITEUP, "add_vectors", (LONGER, LONGER, 128, 1000)),
    Published("add 25,600, tiles 128x200", "trn2", 15.0, WRITEUP, "add_vectors", (VECTOR, VECTOR, 128, 200)),
    Published("add 25,600, tiles 128x2, runs of 8 B", "trn2", 186.0, WRITEUP, "add_vectors", (VECTOR, VECTOR, 128, 2)),
    Published("add 25,600, tiles 128x1, runs of 4 B", "trn2", 378.0, WRITEUP, "add_vectors", (VECTOR, VECTOR, 128, 1)),
    Published("add 25,600, tiles 1x1", "trn2", 37318.0, WRITEUP, "add_vectors", (VECTOR, VECTOR, 1, 1)),
    Published("rmsnorm + matmul", "trn2", 471.6, ISSUE, "rmsnorm_matmul", NORMALISED),
    Published("transpose + matmul", "trn2", 4727.0, ISSUE, "transpose_matmul", TRANSPOSED),
    Published("matmul fp32", "trn2", 13350.0, ISSUE, "matmul", (*MATMUL, 4)),
)
