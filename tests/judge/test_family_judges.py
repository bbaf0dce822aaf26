"""Every family's judge: known-bad kernels are detected, known-good ones pass, errors that elements share are no
bias."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.inputs.manifest import SEED
from conformance.judge import Contract, Exact, judge, outputs_of
from conformance.operators import NORMALISED, OPERATORS, POOLINGS, TRANSPOSED, parse
from tests.calibration.false_alarms import verdicts
from tests.calibration.kernels.kernel import FP8, INT8, CampaignRow, KnownGood
from tests.calibration.known_kernels import KNOWN_GOOD, MUTANTS, judgements
from tests.calibration.mutation import outcomes, rows, score
from tests.kit import expectation

MAXIMA = ("max_pool_forward", "max_pool_backward")
DETECTED = {
    **dict.fromkeys(POOLINGS, (180, 0.95)),
    **dict.fromkeys(MAXIMA, (100, 0.95)),
    **dict.fromkeys(TRANSPOSED, (100, 0.95)),
    **dict.fromkeys(NORMALISED, (90, 0.95)),
    "conv_requantized": (100, 1.0),
    "matmul_requantized": (150, 1.0),
}
"""Operator -> how many known-bad kernels differ at smoke at least, and the share of them that is detected. Convolutions
are in test_known_bad; in batch normalisation, its own mistakes."""


def known_good(name: str) -> KnownGood:
    return next(kernel for kernel in KNOWN_GOOD if kernel.name == name)


@pytest.mark.parametrize("operator", DETECTED)
def test_known_bad_kernels_are_detected_at_smoke(operator: str):
    least, share = DETECTED[operator]
    known = [mutant for mutant in MUTANTS if operator not in NORMALISED or mutant.family == "batchnorm"]
    found = outcomes(known, operator, rows(operator, "smoke"))
    detected, counted = score(found)
    assert counted > least
    assert detected >= share * counted, [o.mutant for o in found if o.differs and not o.detected]


@pytest.mark.parametrize("rank", [1, 3])
def test_known_bad_kernels_of_8_bits_are_detected_in_every_rank(rank: int):
    known = [m for m in MUTANTS if "conv_requantized" in m.operators and m.family == "formats" and rank in m.ranks]
    found = outcomes(known, "conv_requantized", rows("conv_requantized", "standard", rank=rank))
    assert len(found) == len(known) > 100
    assert [o.mutant for o in found if not o.detected] == []


HONEST = (
    CampaignRow("bn n2 c4 h3 w3 k4 r3 s3"),
    CampaignRow("bn n2 c4 h5 w4 k6 r3 s3 p1 g2 eps3 outside1"),
    CampaignRow("pool n2 c3 h7 w7 r7 s7"),
    CampaignRow("pool n1 c3 h5 w6 r1 s1 div7"),
    CampaignRow("pool n2 c3 h10 w9 r4 s3 u3x2 p1:2x0:1 ceil1 valid1"),
    CampaignRow("maxpool n2 c5 h9 w10 r3 s3 u2 p1 ceil1"),
    CampaignRow("maxpool n2 c3 h9 w9 r3 s3 u1 p1:2x0:1 d2x1"),
    CampaignRow("q n2 c6 h8 w7 k5 r3 s2 p1 u2x1 b1 zx-7 zy3", dtypes=INT8),
    CampaignRow("qmm m9 n7 k21 bias1 za-7 zb4 zy3", dtypes=INT8),
    CampaignRow("q n2 c8 w21 k6 s3 p1", dtypes=(*FP8, *INT8)),
    CampaignRow("q n1 c3 d4 h5 w4 k4 t2 r2 s3 b1", dtypes=(*FP8, *INT8)),
)


@pytest.mark.parametrize("row", HONEST, ids=lambda row: row.text)
def test_known_good_kernels_pass(row: CampaignRow):
    geometry, found = parse(row.text), list(verdicts(row, SEED % 97))
    known = [kernel for kernel in KNOWN_GOOD if kernel.family == geometry.family and kernel.when(geometry)]
    assert {verdict.kernel for verdict in found} >= {k.name for k in known if set(k.dtypes) & set(row.dtypes)}
    assert [f"{verdict.kernel} {verdict.where} {verdict.text}" for verdict in found if not verdict.passed] == []


DEPENDENT = {
    "copies of a share in every place of a window": ("pool-fp64", "pool n1 c24 h28 w28 r28 s28", "fp32"),
    "few numbers over one divisor": ("pool-fp64", "pool n2 c32 h30 w30 r5 s3", "bf16"),
    "two rounded reciprocals": ("pool-scaled-by-axis", "pool n2 c512 h7 w7 r7 s7", "fp32"),
    "reciprocals of many counts": ("pool-scaled-by-axis", "pool n2 c4 h20 w20 r7 s7 u1 p3 valid1", "fp32"),
}
"""Honest gradients whose errors are no independent ones."""


@pytest.mark.parametrize(("name", "text", "dtype"), DEPENDENT.values(), ids=DEPENDENT)
def test_errors_that_elements_share_are_no_bias(name: str, text: str, dtype: str):
    (found,) = judgements(known_good(name), expectation("avg_pool_backward", text, dtype, seed=4))
    assert found.passed, found.explain()


@pytest.mark.parametrize("name", ["pool-constant-matrix", "pool-prefix-sums-fp64"])
def test_what_is_exempted_the_special_distribution_would_be_detected_there(name: str):
    """They are right about numbers, and wrong about NaN: a kernel of this kind needs a waiver."""
    kernel = known_good(name)
    expected = expectation("avg_pool_forward", "pool n2 c3 h9 w9 r3 s3 u2 p1", "fp32", "special", SEED)
    assert set(kernel.exempted) == {"special", "nonfinite", "mixed"}
    assert not all(judgement.passed for judgement in judgements(kernel, expected))


@pytest.mark.parametrize("distribution", ["fixed", "wide"])
def test_a_maximum_must_be_equal(distribution: str):
    """Whatever its accumulator, of which it has none; unless it is declared that inputs or subnormals are not kept."""
    expected = expectation("max_pool_forward", "maxpool n1 c2 h5 w6 r3 s2 u1 p1", "fp32", distribution)

    def passes(change: float, contract: Contract) -> bool:
        return Exact(expected).judge({"y": (expected.reference["y"] * change).astype(np.float32)}, contract)[0].passed

    ulp = 1 + 2.0**-23
    assert passes(1, Contract())
    assert not passes(ulp, Contract())
    assert not passes(ulp, Contract(accumulate="bf16"))
    assert passes(ulp, Contract(inputs="tf32"))


@pytest.mark.parametrize(("zeros", "free"), [((-0.0, -0.0), False), ((0.0, 0.0), False), ((-0.0, 0.0), True)])
def test_the_maximum_of_zeros_of_one_sign_has_it(zeros: tuple[float, float], free: bool):
    """IEEE 754-2019, 9.6. A comparison of bits, or of fp32 after an addition, loses the sign."""
    operator, geometry = OPERATORS["max_pool_forward"], parse("maxpool n1 c1 h1 w2 r1 s2")
    x = np.array(zeros, np.float32).reshape(1, 1, 1, 2)
    reference = operator.reference(geometry, {"x": x.astype(np.float64)})
    for sign, right in ((1, True), (-1, free)):
        actual = {"y": (sign * reference["y"]).astype(np.float32)}
        (output,) = outputs_of(operator.on(geometry), "fp32", {"x": x}, actual, reference, lambda: reference)
        assert judge(output, "mixed", Contract()).passed == right
