"""Batch invariance: kernels whose bits depend on the size of the batch, on the place in it, or on the neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import Implementation
from conformance.checks import CHECKS, check_behaviour
from conformance.checks.batch import DEPENDS, images_do_not_depend_on_the_batch, ulps_apart
from conformance.execution.status import Verdict
from conformance.implementations import registry
from conformance.implementations.implementation import ImplementationError
from conformance.problems import typed
from conformance.reporting.batches import table
from conformance.reporting.tally import Tally
from conformance.resources import IMPLS
from conformance.results import build
from conformance.results.reading import decode
from conformance.results.schema import BatchDifference, BatchInvariance
from conformance.results.writing import encode
from tests import kernels, kit

LONG = "n2 c24 h6 w5 k4 r3 s3 p1"
"""Sums of 216 products: two orders of them differ in most results."""
Order = Callable[[np.ndarray], list[bool]]
"""Takes the images of a call, and returns for each whether its products are added from the last channel on."""


def backwards(x: np.ndarray, w: np.ndarray, bias: Any, **window: Any) -> np.ndarray:
    """Add the products of the last channels first."""
    y: np.ndarray = kernels.conv_forward(x[:, ::-1], w[:, ::-1], bias, **window)
    return y


def ordered(is_backwards: Order) -> Callable[..., np.ndarray]:
    """Return a right kernel that computes image by image, in one of two orders of the sums."""

    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        orders = [backwards if back else kernels.conv_forward for back in is_backwards(x)]
        images = [order(x[n : n + 1], w, bias, **window) for n, order in enumerate(orders)]
        return np.concatenate(images)

    return conv_forward


EACH_ALONE = ordered(lambda x: [False] * len(x))


def brightest_first(x: np.ndarray) -> list[bool]:
    return [bool(abs(x[0]).sum() > abs(x[-1]).sum())] * len(x)


DEPENDING: dict[str, tuple[Order, set[str]]] = {
    "size": (lambda x: [len(x) > 3] * len(x), {"alone"}),
    "tail": (lambda x: [n >= len(x) // 4 * 4 for n in range(len(x))], {"alone", "in reverse order"}),
    "place": (lambda x: [len(x) > 1 and n == 1 for n in range(len(x))], {"alone", "in reverse order"}),
    "brightest first": (brightest_first, {"in reverse order"}),
    "darkest first": (lambda x: brightest_first(x[::-1]), {"alone", "in reverse order"}),
    "a neighbour of zeros": (lambda x: [bool((abs(x).sum((1, 2, 3)) == 0).any())] * len(x), {"beside images of zeros"}),
}
"""Cause of another order of a sum -> the order, and the ways in which an image then has other bits."""


def implementation(kernel: Callable[..., Any], *, batch_invariant: bool = False, **declares: Any) -> Implementation:
    acme = Implementation("acme", batch_invariant=batch_invariant)
    acme.implements("conv_forward", dtypes=("fp32", "bf16"), **declares)(kernel)
    return acme


def checked(acme: Implementation, problem: str = LONG, dtype: str = "fp32", operator: str = "conv_forward") -> Verdict:
    trial = kit.trial_of(acme, typed(problem), distribution="behaviour", dtype=dtype, operator=operator)
    return check_behaviour(trial, images_do_not_depend_on_the_batch)


def invariance_of(verdict: Verdict) -> BatchInvariance:
    invariance = verdict.facts.batch_invariance
    assert isinstance(invariance, BatchInvariance)
    return invariance


@pytest.mark.parametrize("declared", [False, True])
def test_images_that_are_computed_by_themselves_pass(declared: bool):
    verdict = checked(implementation(EACH_ALONE, batch_invariant=declared))
    assert verdict.status == "pass", verdict.reason
    assert invariance_of(verdict) == BatchInvariance(declared=declared)


@pytest.mark.parametrize(("order", "ways"), DEPENDING.values(), ids=DEPENDING)
def test_bits_that_depend_on_the_batch_are_a_fact_where_nothing_is_declared(order: Order, ways: set[str]):
    verdict = checked(implementation(ordered(order)))
    assert verdict.status == "pass", verdict.reason
    assert {difference.how for difference in invariance_of(verdict).differences} == ways
    assert all(0 < d.differing <= d.results == 4 * 6 * 5 and d.ulps for d in invariance_of(verdict).differences)


@pytest.mark.parametrize(("order", "ways"), DEPENDING.values(), ids=DEPENDING)
def test_bits_that_depend_on_the_batch_fail_where_invariance_is_declared(order: Order, ways: set[str]):
    verdict = checked(implementation(ordered(order), batch_invariant=True))
    first, *rest = verdict.reason.splitlines()
    assert (verdict.status, first, len(rest)) == ("fail", f"{DEPENDS}:", len(ways))
    assert verdict.failure is not None
    assert verdict.failure.message == DEPENDS


def test_the_message_names_image_batch_results_and_distance():
    tail = implementation(ordered(DEPENDING["tail"][0]), batch_invariant=True)
    (line,) = [line for line in checked(tail).reason.splitlines() if "alone" in line]
    # alone, image 4 is a tail as well: the others are no longer in a block of four
    assert line.startswith("image ")
    assert " of a batch of 5 has other bits alone: " in line
    assert " of 120 results of y differ, by up to " in line
    assert line.endswith(" ulps")
    assert "image 4 " not in line


def test_bits_that_change_by_chance_are_said_to():
    dice = np.random.default_rng(0)
    verdict = checked(implementation(ordered(lambda x: [*(dice.random(len(x)) < 0.5)]), batch_invariant=True))
    assert verdict.status == "fail"
    assert verdict.reason.endswith("\ncalls on the same inputs differ in bits, too")
    fixed = checked(implementation(ordered(DEPENDING["size"][0]), batch_invariant=True))
    assert "calls on the same inputs" not in fixed.reason


def test_other_kernels_of_the_implementation_take_part():
    """Two kernels, each invariant: one is for single images, in another order."""
    acme = Implementation("acme", batch_invariant=True)
    acme.implements("conv_forward", when=lambda p: p.n == 1)(ordered(lambda x: [True]))
    acme.implements("conv_forward", when=lambda p: p.n > 1)(EACH_ALONE)
    assert checked(acme).status == "fail"


def test_kernels_of_few_images_are_compared_in_the_batches_that_they_take():
    sizes = set[int]()

    def noted(x: np.ndarray) -> list[bool]:
        sizes.add(len(x))
        return [False] * len(x)

    assert checked(implementation(ordered(noted), when=lambda p: p.n in (2, 3))).status == "pass"
    assert sizes == {3}
    verdict = checked(implementation(EACH_ALONE, when=lambda p: p.n == 1), LONG.replace("n2", "n1"))
    assert (verdict.status, verdict.reason) == ("unsupported", "takes no batch of 5 or 4 or 3 or 2 images")


def test_wrong_results_of_the_larger_batch_are_a_failure():
    def wrong_beyond_four(x, w, bias, *, stride, padding, dilation, groups):
        y = kernels.conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
        y[4:] *= 2
        return y

    verdict = checked(implementation(wrong_beyond_four))
    assert (verdict.status, verdict.reason.partition("\n")[0]) == ("fail", "wrong result (a batch of 5 images)")


def test_geometries_without_a_single_image_are_compared_otherwise():
    """A variance of one element is undefined: a family refuses the geometry, and the check was an error."""
    numpy = registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"]
    verdict = checked(numpy, "bn n4 c3 h1 w1 k2 r1 s1", operator="conv_bn_inference")
    assert verdict.status == "pass", verdict.reason


def test_operators_with_sums_over_images_are_left_out():
    assert CHECKS["images_do_not_depend_on_the_batch"].operators == (
        "conv_forward", "conv_backward_data", "conv_bn_inference", "avg_pool_forward", "avg_pool_backward",
        "max_pool_forward", "max_pool_backward", "conv_transpose_forward", "conv_transpose_backward_data",
        "conv_activation", "conv_requantized", "matmul", "matmul_backward_a", "gemm", "matmul_activation",
        "matmul_requantized", "matmul_int4",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        (1.0, np.nextafter(np.float32(1), np.float32(2)), 1),
        (-1.0, np.nextafter(np.float32(-1), np.float32(2)), 1),
        (0.0, -0.0, 1),
        (np.float32(1e-45), np.float32(-1e-45), 3),
        (1.0, 2.0, 1 << 23),
    ],
)
def test_distances_count_numbers_of_the_format(first: float, second: float, apart: int):
    pair = np.array([first, first], np.float32), np.array([second, first], np.float32)
    assert ulps_apart(*pair).tolist() == ulps_apart(*pair[::-1]).tolist() == [apart, 0]


def test_distances_of_every_format():
    assert ulps_apart(np.array([-2], np.int8), np.array([1], np.int8)).tolist() == [3]
    far = ulps_apart(np.array([-np.inf]), np.array([np.inf]))
    assert far.tolist() == [2 * 0x7FF0000000000000 + 1]


@pytest.mark.parametrize("promise", ["batch_invariant", "deterministic"])
def test_a_promise_is_true_or_false(promise: str):
    with pytest.raises(ImplementationError, match=f"{promise}='no': must be True or False"):
        Implementation("acme", **{promise: "no"})  # type: ignore[arg-type]


def test_facts_are_read_back_and_have_a_table():
    tally = Tally()
    differing = checked(implementation(ordered(DEPENDING["size"][0])))
    promised = checked(implementation(EACH_ALONE, batch_invariant=True), dtype="bf16")
    for name, dtype, verdict in (
        ("acme", "fp32", differing),
        ("acme", "bf16", differing),
        ("keeper", "bf16", promised),
    ):
        acme = implementation(EACH_ALONE)
        acme.name, acme.source = name, "a" * 64
        trial = kit.trial_of(acme, typed(LONG), distribution="behaviour", dtype=dtype)
        record = build.behaviour_record(trial, verdict, "images_do_not_depend_on_the_batch")
        assert decode(encode(record)) == record
        tally.add(record)
    ulps = max(difference.ulps for difference in invariance_of(differing).differences)
    shown = table(tally.batches)
    assert shown is not None
    assert shown.rows == (
        ("acme", "conv_forward", "no", "", f"fp32 ({ulps:,}), bf16 ({ulps:,})"),
        ("keeper", "conv_forward", "yes", "bf16", ""),
    )
    assert table(Tally().batches) is None


def test_a_difference_is_one_sentence():
    difference = BatchDifference(output="y", how="alone", image=2, images=5, results=1512, differing=37, ulps=1)
    words = "image 2 of a batch of 5 has other bits alone: 37 of 1,512 results of y differ, by up to 1 ulp"
    assert str(difference) == words
