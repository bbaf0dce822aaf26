"""Mistakes planted in the text of the NKI kernels of pooling and batch normalisation: each fails a case or breaks a
rule of the emulator, and without it all cases pass."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from nki_emulator.tests.kernels.nki_kernels import implementation, tried
from nki_emulator.tests.kernels.nki_mutants import Mutant, assert_detected, cases

POOL, SHARES = "avg_pool_forward", "avg_pool_backward"
TRAIN, INFER, GRADIENT = "conv_bn_forward", "conv_bn_inference", "conv_bn_backward"
PADDED = "pool n2 c3 h9 w8 r3 s3 u2 p1"
VALID = f"{PADDED} valid1"
MANY = "pool n1 c129 h5 w5 r2 s2"
OVERLAP = "pool n2 c4 h9 w9 r3 s3 u1 p1"
LARGE = "pool n1 c1 h181 w190 r4 s4 u2 p1"
TUTORIAL = "pool n1 c2 h6 w6 r2 s2"
PLAIN = "bn n2 c5 h7 w7 k6 r3 s3 p1"
FEW = "bn n1 c6 h4 w3 k8 r3 s3 eps3 outside1"
RUNS = "bn n1 c3 h26 w23 k4 r3 s3 p1"
GROUPS = "bn n1 c24 h6 w6 k24 r3 s3 p1 g2"
DEPTHWISE = "bn n2 c6 h9 w8 k12 r3 s3 p1 g6"
TAIL = "bn n2 c5 h5 w5 k129 r1 s1"

RAW = """nisa.bn_aggr(dst=statistics, data=part)
        square = nl.ndarray((part.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
        variance = statistics[0 : part.shape[0], 1:2]
        mean = statistics[0 : part.shape[0], 0:1]
        nisa.tensor_tensor(dst=square, data1=mean, data2=mean, op=nl.multiply)
        nisa.tensor_tensor(dst=variance, data1=variance, data2=square, op=nl.add)
        nisa.tensor_tensor(dst=variance, data1=variance, data2=square, op=nl.subtract)
"""
"""The mean of squares less the square of the mean, as it rounds."""
UNWEIGHTED = """counts = part.ap(pattern=[[part.shape[1], part.shape[0]], [3, part.shape[1] // 3]], offset=0)
        nisa.memset(dst=counts, value=1.0)
        nisa.bn_aggr(dst=statistics, data=part)
"""
TWO_STEPS = """operand0=mean, op1=nl.multiply, operand1=scale)
        nisa.tensor_scalar(dst=out, data=normal, op0=nl.add, operand0=betas[0])"""
TWO_STEPS_SWAPPED = """operand0=mean, op1=nl.add, operand1=betas[0])
        nisa.tensor_scalar(dst=out, data=normal, op0=nl.multiply, operand0=scale)"""


def _mutant(
    file: str, text: str, instead: str, operator: str, problem: str, distribution: str = "fixed", dtype: str = "fp32"
):
    return Mutant(file, text, instead, operator, problem, distribution, dtype)


_pool, _train, _gradient = (partial(_mutant, file) for file in ("avg_pool.py", "conv_bn.py", "conv_bn_gradient.py"))

BF16_SUMS = _pool(
    "summed(window, 2, axes[1], places[1], nl.float32)",
    "summed(window, 2, axes[1], places[1], dtype)",
    POOL,
    "pool n2 c3 h9 w9 r3 s3",
    "fixed",
    "bf16",
)
"""The sum of the public tutorial: in the format of the tensor, rounded before it is divided."""

MUTANTS = {
    "sums in bf16": BF16_SUMS,
    "shares in bf16": _pool(
        "divided = nl.ndarray(window.shape, dtype=nl.float32",
        "divided = nl.ndarray(window.shape, dtype=dtype",
        SHARES,
        OVERLAP,
        "fixed",
        "bf16",
    ),
    "overlaps in bf16": _pool(
        "summed(divided, 2, axes[1], places[1], nl.float32)",
        "summed(divided, 2, axes[1], places[1], dtype)",
        SHARES,
        OVERLAP,
        "fixed",
        "bf16",
    ),
    "last tap missing": _pool("residue[TAPS]]]", "max(1, residue[TAPS] - 1)]]", POOL, PADDED),
    "every residue from the first row": _pool("(residue[START] - axis[LOW]) * inner", "0", SHARES, PADDED[:-3]),
    "stride of one": _pool("each = [axis[STEP] * inner, some]", "each = [inner, some]", POOL, PADDED),
    "not divided": _pool(
        "data=sums, op0=nl.multiply, operand0=scale)", "data=sums, op0=nl.multiply, operand0=1.0)", POOL, PADDED
    ),
    "rows not divided": _pool("multiplied(out, sums, factors, 1)", "nisa.tensor_copy(dst=out, src=sums)", POOL, VALID),
    "divisors of rows for columns": _pool("if dim == 1 else [[0, high], [1, wide]]", "", POOL, f"{VALID} ceil1"),
    "shares of the padding": _pool("end - begin < count:", "end - begin < 0:", SHARES, VALID),
    "tail partitions beyond the channels": _pool("min(size, total - first)", "size", POOL, MANY),
    "tail channels left out": _pool(
        "range(0, total, size)", "range(0, max(1, total - total % size), size)", SHARES, MANY
    ),
    "border not zeroed": _pool("if inside < high * wide:", "if inside < 0:", POOL, PADDED),
    "last row of the image not loaded": _pool("extent - first)", "extent - 1 - first)", POOL, PADDED),
    "gaps not zeroed": _pool(
        "nisa.memset(dst=filled, value=0.0)",
        "nisa.memset(dst=filled, value=1.0)",
        SHARES,
        "pool n2 c3 h9 w8 r2 s2 u3",
    ),
    "residues side by side": _pool("end, axis[SPACING])", "residue[TARGET] + some, 1)", SHARES, PADDED),
    "every tile reads the first rows": _pool(
        "first = place[0] * axis[STEP] + axis[LOW]", "first = axis[LOW]", POOL, LARGE, "integer"
    ),
    "every tile written to the first rows": _pool(
        "first = place[0] * axis[SPACING]", "first = 0", SHARES, LARGE, "integer"
    ),
    "statistics merged without weights": _train("nisa.bn_aggr(dst=statistics, data=part)\n", UNWEIGHTED, TRAIN, RUNS),
    "mean of squares": _train(
        "nisa.bn_aggr(dst=statistics, data=part)\n", RAW, TRAIN, "bn n2 c8 h9 w9 k16 r3 s3", "shifted"
    ),
    "statistics of the first run": _train("first += MOMENTS", "first += 0", TRAIN, RUNS),
    "eps outside": _train(
        "op0=nl.add, operand0=eps, op1=nl.power, operand1=-0.5",
        "op0=nl.power, operand0=-0.5, op1=nl.add, operand1=eps",
        TRAIN,
        "bn n2 c8 h6 w6 k8 r1 s1 eps1",
    ),
    "eps inside": _train(
        "op0=nl.power, operand0=0.5, op1=nl.add, operand1=eps",
        "op0=nl.add, operand0=eps, op1=nl.power, operand1=0.5",
        INFER,
        "bn n2 c6 h6 w7 k8 r1 s1 eps1 outside1",
    ),
    "momentum swapped": _train("scaled(old, 1.0 - momentum)", "scaled(old, momentum)", TRAIN, PLAIN),
    "biased variance in running": _train("old[1], unbiased, block", "old[1], biased, block", TRAIN, PLAIN),
    "unbiased variance in y": _train("unbiased if outside else biased", "unbiased", TRAIN, PLAIN),
    "stale tile": _train("return tiles[number]", "return tiles[0]", TRAIN, "bn n2 c3 h16 w32 k4 r3 s3 p1"),
    "every run reads the first rows": _train(" + (run[1 + dim][0] - place[1 + dim][0]) * step", "", INFER, RUNS),
    "z in bf16": _train(
        "        tile = nl.ndarray(z.shape, dtype=nl.float32",
        "        tile = nl.ndarray(z.shape, dtype=nl.bfloat16",
        TRAIN,
        PLAIN,
        "fixed",
        "bf16",
    ),
    "gamma forgotten": _train("scaled(found, affine[0]) if len(affine) > 0 else found", "found", INFER, PLAIN),
    "beta before gamma": _train(TWO_STEPS, TWO_STEPS_SWAPPED, TRAIN, PLAIN),
    "last tap of z missing": _train(
        "for tap in range(matrix.shape[2])", "for tap in range(max(1, matrix.shape[2] - 1))", INFER, PLAIN
    ),
    "products onto what was there": _train("accumulate=(part + tap > 0)", "accumulate=True", TRAIN, PLAIN),
    "channels of the first group": _train("first = block[GROUP] * per_group", "first = 0", TRAIN, GROUPS),
    "multiplier forgotten": _train(
        "[[per_group * area, block[GROUPS]], [0, targets]]",
        "[[0, targets], [per_group * area, block[GROUPS]]]",
        TRAIN,
        DEPTHWISE,
    ),
    "tail filters left out": _train(
        "range(0, total, size)", "range(0, max(1, total - total % size), size)", TRAIN, TAIL
    ),
    "mean of the gradient forgotten": _gradient(
        "block, total, scale, -1.0 * elements", "block, total, scale, 1e30", GRADIENT, PLAIN
    ),
    "slope upwards": _gradient("root, -1.0 * (", "root, 1.0 * (", GRADIENT, PLAIN),
    "slope of the biased variance": _gradient("elements - 1 if outside else elements", "elements", GRADIENT, FEW),
    "slope through the whole deviation": _gradient(
        "return inverse, root\n", "return inverse, inverse\n", GRADIENT, "bn n1 c6 h4 w3 k8 r3 s3 eps1 outside1"
    ),
    "sums of the first tile": _gradient(
        "for number in range(len(some)):\n        gradient,",
        "for number in range(0, 1):\n        gradient,",
        GRADIENT,
        "bn n1 c2 h50 w50 k2 r1 s1",
    ),
    "gradient of gamma not normalised": _gradient(
        "vectors = [normal, total]", "vectors = [product, total]", GRADIENT, PLAIN
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_fails(name: str, tmp_path: Path):
    assert_detected(MUTANTS[name], tmp_path)


def test_the_tutorials_own_problem_does_not_see_its_sums(tmp_path: Path):
    assert tried(implementation(BF16_SUMS.planted(tmp_path)), POOL, TUTORIAL, "integer", "bf16").status == "pass"


@pytest.mark.parametrize(("operator", "problem", "distribution", "dtype"), cases(MUTANTS.values()))
def test_without_it_the_case_passes(operator: str, problem: str, distribution: str, dtype: str):
    verdict = tried(implementation(), operator, problem, distribution, dtype)
    assert verdict.status == "pass", verdict.reason
