"""Mistakes planted in the text of the numba.cuda kernels: each makes a case fail, and without it all of them pass."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.impls.cuda_kernels import FOLDER, implementations, only_simulated, tried

pytestmark = only_simulated

FORWARD, DATA, WEIGHT = "conv_forward", "conv_backward_data", "conv_backward_weight"
PLAIN = "n1 c3 h6 w7 k5 r3 s3 p1 b1"
TALL = "n1 c2 h6 w9 k5 r5 s5 p2"
STRIDED = "n2 c4 h7 w7 k6 r3 s3 u2 p1 g2"
DEEP = "n1 c16 h3 w3 k4 r3 s3 p1 b1"
MANY = "n3 c2 h7 w7 k3 r3 s3 p1 b1"
SOLID = "n1 c2 d5 h3 w4 k5 t3 r2 s2 u2x1x1 p1 b1"


@dataclass(frozen=True)
class Mutant:
    """A text that a file has once, what replaces it, and a case that must fail."""

    file: str
    text: str
    instead: str
    kernel: str
    operator: str
    problem: str
    distribution: str = "integer"
    dtype: str = "fp32"


DIRECT, TILED, IGEMM = "numba-cuda-direct@sim", "numba-cuda-tiled@sim", "numba-cuda-igemm@sim"
BARRIER = "cuda.syncthreads()"

MUTANTS = {
    "halo one row short": Mutant("tiled.py",
        "range(thread, high * wide, threads)", "range(thread, (high - 1) * wide, threads)",
        TILED, FORWARD, TALL),
    "halo on the wrong side": Mutant("tiled.py",
        "line0 = lines[0] + i0 * lines[2] + low_line", "line0 = lines[0] + i0 * lines[2]",
        TILED, DATA, TALL),
    "halo without the dilation": Mutant("tiled.py", "(self.patch.taps - 1) * taps[2])", "(self.patch.taps - 1) * -1)",
        TILED, DATA, "n1 c2 h8 w9 k4 r3 s3 p2 d2"),
    "patch used before it is there": Mutant("tiled.py", f"{BARRIER}\n                weight =", "weight =",
        TILED, FORWARD, PLAIN),
    "patch replaced while it is used": Mutant("tiled.py",
        f"                {BARRIER}\n\n        to =", "\n        to =",
        TILED, FORWARD, PLAIN),
    "gradient replaced while it is used": Mutant("tiled.py",
        f"                {BARRIER}\n            to =", "            to =",
        TILED, WEIGHT, MANY),
    "tail of a tile not masked": Mutant("tiled.py", "min(COLUMNS, columns)", "COLUMNS",
        TILED, WEIGHT, "n1 c2 h4 w9 k3 r3 s3", "special"),
    "tail tile written": Mutant("tiled.py", "if p < ends[0] and q < ends[1]:", "if True:", TILED, FORWARD, PLAIN),
    "tail columns written": Mutant("blocks.py", "at if start + column < columns[0][0] else NOWHERE", "at",
        IGEMM, FORWARD, PLAIN),
    "tail of the depth not masked": Mutant("blocks.py", "if number < end:", "if True:",
        IGEMM, FORWARD, "n2 c3 h5 w5 k5 r3 s3"),
    "steps without a barrier": Mutant("igemm.py", f"                {BARRIER}\n        bias_step", "        bias_step",
        IGEMM, FORWARD, PLAIN),
    "depth used before it is known": Mutant("igemm.py",
        f"            {BARRIER}\n            for step", "            for step",
        IGEMM, FORWARD, PLAIN),
    "depth looked up once": Mutant("igemm.py", "thread, begin + known * DEPTH + thread", "thread, begin + thread",
        IGEMM, FORWARD, DEEP),
    "depth read by its number": Mutant("igemm.py", "first, now, last = (step - known)", "first, now, last = (step % 2)",
        IGEMM, FORWARD, DEEP),
    "double buffer swapped too early": Mutant("igemm.py", "step & 1, step + 1 & 1", "step & 1, step & 1",
        IGEMM, FORWARD, PLAIN),
    "one buffer for both": Mutant("igemm.py", "step & 1, step + 1 & 1", "0, 0", IGEMM, FORWARD, PLAIN),
    "columns written far apart": Mutant("blocks.py", "nth(j, lane, WIDE, LANES)", "lane + j * LANES",
        IGEMM, FORWARD, PLAIN),
    "rows written far apart": Mutant("blocks.py",
        "row_start + nth(i, line, TALL, LINES)", "row_start + line + i * LINES",
        IGEMM, FORWARD, PLAIN),
    "last step left out": Mutant("igemm.py", "(end - begin + DEPTH - 1) // DEPTH", "(end - begin) // DEPTH",
        IGEMM, FORWARD, PLAIN),
    "partial sum dropped": Mutant("reduce.py", "for part in range(count):", "for part in range(1, count):",
        IGEMM, WEIGHT, MANY),
    "bias in every part": Mutant("igemm.py", "bias_step if split == 0 else NO_BIAS", "bias_step", IGEMM, FORWARD, DEEP),
    "parts overlap": Mutant("igemm.py", "begin, end = split * share", "begin, end = 0", IGEMM, WEIGHT, MANY),
    "slice of the bias gradient dropped": Mutant("reduce.py",
        "range(part, counts[0], slices)", "range(part + slices, counts[0], slices)",
        DIRECT, WEIGHT, MANY),
    "last row read beyond the image": Mutant("address.py", "row < height and", "row <= height and",
        DIRECT, FORWARD, PLAIN),
    "groups share weights": Mutant("direct.py", "group * a_group + row * a_row", "row * a_row",
        DIRECT, FORWARD, STRIDED),
    "residue reads the wrong way": Mutant("product.py",
        "-(every * window.dilation // stride)", "every * window.dilation // stride",
        DIRECT, DATA, STRIDED),
    "residue takes every tap": Mutant("product.py", "window.stride // gcd(window.stride, window.dilation)", "1",
        DIRECT, DATA, STRIDED),
    "padding after for before": Mutant("product.py",
        "0, 1, -window.before, window.stride", "0, 1, -window.after, window.stride",
        DIRECT, FORWARD, "n1 c2 h6 w6 k3 r3 s3 p2:0x0"),
    "plane read beyond the image": Mutant("blocks.py", "plane < image[0]", "plane <= image[0]",
        IGEMM, FORWARD, "n1 c2 d4 h3 w4 k5 t3 r2 s2 p1 b1"),
    "columns counted by the rows": Mutant("address.py",
        "digits(number // counts[4], counts)", "digits(number // counts[3], counts)",
        IGEMM, FORWARD, SOLID),
    "stride of the columns for every axis": Mutant("product.py",
        "_along(i, rank, one.step)", "_along(i, rank, lattices[-1].step)",
        IGEMM, WEIGHT, SOLID),
    "planes without those of the bias gradient": Mutant("memory.py",
        "return self.size // max(1, channels)", "return images * space[-2] * space[-1]",
        IGEMM, WEIGHT, SOLID),
    "bf16 cut off": Mutant("storage.py", "(bits + 0x7FFF + (bits >> 16 & 1)) >> 16", "bits >> 16",
        DIRECT, FORWARD, MANY, "fixed", "bf16"),
    "pool divided by the whole window": Mutant("pool.py",
        "return _end(start + window, high) - _first(start, low)", "return window",
        DIRECT, "avg_pool_forward", "pool n1 c2 h6 w7 r3 s3 u2 p1 valid1", "fixed"),
    "pool gradient of one window too few": Mutant("pool.py",
        "(pixel + before) // stride + 1, count", "(pixel + before) // stride, count",
        DIRECT, "avg_pool_backward", "pool n1 c2 h6 w7 r3 s3 u2 p1"),
    "deviation about zero": Mutant("conv_bn.py", "return (first - center) * (first - center)", "return first * first",
        IGEMM, "conv_bn_forward", "bn n2 c3 h5 w5 k4 r3 s3", "fixed"),
    "mean of the gradient forgotten": Mutant("conv_bn.py",
        "shift = -factor * total / moments.count", "shift = 0 * total",
        IGEMM, "conv_bn_backward", "bn n2 c3 h5 w5 k4 r3 s3", "fixed"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_fails(name: str, tmp_path: Path):
    mutant, copy = MUTANTS[name], tmp_path / "numba_cuda"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / mutant.file).read_text()
    assert text.count(mutant.text) == 1
    (copy / mutant.file).write_text(text.replace(mutant.text, mutant.instead))
    verdict = tried(
        implementations(copy)[mutant.kernel], mutant.operator, mutant.problem, mutant.distribution, mutant.dtype
    )
    assert verdict.status in ("fail", "error"), verdict.reason


CASES = sorted({(m.kernel, m.operator, m.problem, m.distribution, m.dtype) for m in MUTANTS.values()})


@pytest.mark.parametrize(("kernel", "operator", "problem", "distribution", "dtype"), CASES)
def test_without_it_the_case_passes(kernel: str, operator: str, problem: str, distribution: str, dtype: str):
    verdict = tried(implementations()[kernel], operator, problem, distribution, dtype)
    assert verdict.status == "pass", verdict.reason
