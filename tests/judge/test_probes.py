"""Probes against the exact reference where both can be had, and what slips through neither."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from conformance.dtypes import FP32
from conformance.inputs import Expectation
from conformance.judge.expected import RISK, Exact, Expected, Probed, Sparse, expect
from conformance.operators import CONVOLUTIONS, ConvGeometry
from conformance.operators.conv.probes import projected
from conformance.problems import PROBLEMS, Problem
from tests.calibration.known_kernels import judged_by_probes
from tests.kit import expectation

CONV = [problem for problem in PROBLEMS if problem.level == "standard" and problem.geometry.family == "conv"]
# thin problems are never judged by probes, and a few lanes are no random projection
STANDARD = [problem for problem in CONV if not problem.name.startswith(("sizes.", "empty."))]
LAYER = ConvGeometry.parse("n2 c24 h20 w18 k32 r3 s3 p1")
GROUPED = ConvGeometry.parse("n2 c24 h15 w13 k48 r3 s3 u2 p1 g3")


def honest(known: Expectation) -> np.ndarray:
    """The main output computed in float32."""
    outputs = known.recipe.workload.reference(known.inputs, np.float32)
    return next(iter(outputs.values()))


@pytest.mark.parametrize(
    ("problem", "operator"),
    [(problem, CONVOLUTIONS[place % 3]) for place, problem in enumerate(STANDARD)],
    ids=lambda value: getattr(value, "name", value),
)
def test_probes_know_what_the_reference_knows(operator: str, problem: Problem):
    known = expectation(operator, problem.geometry)
    reference = next(iter(known.reference.values()))
    probes = Probed(known)
    values, magnitudes = probes.samples
    index = tuple(probes.index.T)
    np.testing.assert_array_equal(values, reference[index])
    # the other magnitude is the root of a float32 sum of squares, off by at most its number of terms times u, and by u
    # for the root itself: of two terms, 2.014 u were seen
    rounding = (max(known.recipe.terms, 2) + 1) * FP32.unit_roundoff * magnitudes
    assert (np.abs(next(iter(known.magnitude.values()))[index] - magnitudes) <= rounding).all()
    signs = np.where(np.arange(problem.geometry.c * problem.geometry.k) % 3 == 0, 1.0, -1.0)
    channels = problem.geometry.c if operator == "conv_backward_data" else problem.geometry.k
    assert known.recipe.workload.operator.probes is not None
    exact = known.recipe.workload.operator.probes.project(
        problem.geometry, known.inputs, signs[:channels], RISK, np.dtype(np.float64)
    )
    np.testing.assert_array_equal(exact.expected, projected(exact, reference))


@pytest.mark.parametrize("distribution", ["integer", "fixed"])
@pytest.mark.parametrize("operator", CONVOLUTIONS)
@pytest.mark.parametrize("geometry", [LAYER, GROUPED], ids=["dense", "grouped"])
def test_honest_kernel_passes(operator: str, geometry: ConvGeometry, distribution: str):
    for seed in range(8):
        known = expectation(operator, geometry, distribution=distribution, seed=seed)
        judgement = judged_by_probes(known, honest(known))
        assert judgement.passed, judgement.explain()


def one_element(output: np.ndarray, change: Callable[[float], float]) -> np.ndarray:
    """Change the element nearest to the output's rms: not one that is large or small by chance."""
    wrong = output.copy().reshape(-1)
    place = int(np.argmin(np.abs(np.abs(wrong) - np.sqrt(np.mean(np.square(wrong))))))
    wrong[place] = change(wrong[place])
    return wrong.reshape(output.shape)


def zeroed_last(axis: int) -> Callable[[np.ndarray], np.ndarray]:
    """Leave the last slice of an axis unwritten."""

    def defect(output: np.ndarray) -> np.ndarray:
        wrong = output.copy()
        wrong[(slice(None),) * axis + (-1,)] = 0
        return wrong

    return defect


DEFECTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one element off by 0.4%": lambda y: one_element(y, lambda value: value * 1.004),
    "one element NaN": lambda y: one_element(y, lambda value: np.nan),
    "one element of the wrong sign": lambda y: one_element(y, lambda value: -value),
    "last channel zero": zeroed_last(1),
    "last row zero": zeroed_last(2),
    "last column zero": zeroed_last(3),
    "rows reversed": lambda y: y[:, :, ::-1],
    "two channels exchanged": lambda y: y[:, [1, 0, *range(2, y.shape[1])]],
    "everything zero": np.zeros_like,
}


@pytest.mark.parametrize("distribution", ["integer", "fixed"])
@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_defects_are_seen(operator: str, defect: str, distribution: str):
    known = expectation(operator, LAYER, distribution=distribution)
    judgement = judged_by_probes(known, np.ascontiguousarray(DEFECTS[defect](honest(known))))
    assert not judgement.passed
    assert "projection error" in judgement.explain()


def test_every_sampled_place_is_another():
    probes = Probed(expectation("conv_backward_weight", ConvGeometry.parse("n1 c2 h5 w5 k2 r2 s2")))
    assert len({tuple(place) for place in probes.index}) == len(probes.index)


LARGE = "n8 c128 h56 w56 k128 r3 s3 p1"


@pytest.mark.parametrize(
    ("text", "dtype", "distribution", "method", "kind"),
    [
        (LARGE, "fp32", "fixed", "auto", Probed),
        (LARGE, "fp32", "fixed", "exact", Exact),
        (LARGE, "fp32", "special", "probes", Exact),  # whose data the bounds are not derived for
        ("n1 c2 h5 w5 k2 r2 s2", "fp32", "integer", "auto", Exact),
        ("n1 c2 h5 w5 k2 r2 s2", "fp32", "integer", "probes", Probed),
        ("n0 c2 h5 w5 k2 r2 s2", "fp32", "integer", "probes", Exact),
        (LARGE, "int8", "integer", "auto", Exact),
        (LARGE, "fp32", "sparse", "probes", Sparse),
    ],
)
def test_how_a_case_is_judged_is_chosen_before_anything_is_drawn(
    text: str, dtype: str, distribution: str, method: str, kind: type[Expected], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("conformance.inputs.expectation.DISTRIBUTIONS", {})
    expected = expect(expectation("conv_forward", text, dtype, distribution).recipe, method)
    assert type(expected) is kind
    assert expected.method == ("probes" if kind is Probed else "exact")
    assert expected.bytes_needed > 0
