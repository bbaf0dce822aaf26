"""Features: named predicates of a case."""

from __future__ import annotations

import pytest

from conformance.operators import parse
from conformance.problems import PROBLEMS, Variant
from conformance.problems import features as known

HOLDS = {
    "n1 c8 h9 w9 k16 r3 s3 u2x1 p1": (
        "stride of H > 1",
        "stride of some axis > 1",
        "stride differs by axis",
        "padding of every axis",
    ),
    "n2 c4 h8 w8 k6 r4 s4 u4": ("stride of W = window", "window of H even", "no padding", "K > C"),
    "n2 c3 h6 w7 k4 r2 s2 p0:1x0": ("padding of H only after", "unequal padding of H", "padding of H >= window - 1"),
    "n2 c3 w11 k4 s3 p2:0": ("padding of W only before", "C odd"),
    "n2 c6 h9 w9 k12 r3 s3 d1x2 g6": (
        "groups = channels",
        "depthwise with a multiplier",
        "dilation of W > 1",
        "groups > 1",
    ),
    "n2 c6 h9 w9 k4 r3 s3 g2": ("groups > 1 of several channels",),
    "n1 c4 h5 w1 k4 r5 s1": ("window of H = image", "one output along H", "image of W = 1"),
    "n1 c1 h9 w9 k1 r1 s1": ("pointwise", "C = 1", "K = 1", "one image"),
    "n1 c4 h8 w9 k2 r2 s2 u2": ("elements left over along W",),
    "pool n1 c4 h8 w8 r3 s3 u2 ceil1": ("ceil adds an output along H", "ceil mode"),
    "n1 c1 d4 h300 w5 k2 t1 r16 s16 p0x0x8": (
        "image of H > 256",
        "window of 256 taps or more",
        "window of W larger than the image",
    ),
    "n1 c3000 h3 w3 k2 r3 s3": ("contraction > 1024", "C > 256"),
    "n1 c2 h300 w300 k1 r1 s1": (known.LARGE, "N*P*Q > 65536", "an image beyond 2^16 elements"),
    "convt n1 c2 h4 w5 k3 r3 s3 u2 p1 o1 b1": ("output padding", "bias"),
    "q n1 c2 h4 w5 k3 r1 s1 zx3": ("zero point of x",),
    "bn n2 c3 h5 w5 k4 r3 s3 eps9": ("epsilon, 10 to minus this",),
}


@pytest.mark.parametrize("descriptor", HOLDS)
def test_features_of_a_problem(descriptor: str):
    assert set(HOLDS[descriptor]) <= known.of_geometry(parse(descriptor))


def test_a_plain_problem_has_none_of_the_others():
    found = known.of_geometry(parse("n2 c8 h9 w9 k8 r3 s3"))
    words = (
        "stride of",
        "dilation",
        "padding of",
        "groups",
        "left over",
        "bias",
        "one output",
        "pointwise",
        known.LARGE,
    )
    assert [feature for feature in found if any(word in feature for word in words)] == []


def test_two_features_of_one_axis_are_one_of_both():
    both = "stride of an axis > 1, window of the same axis > 1"
    assert both in known.of_geometry(parse("n1 c2 h9 w9 k2 r3 s1 u2x1"))
    assert both not in known.of_geometry(parse("n1 c2 h9 w9 k2 r1 s3 u2x1"))


def test_a_variant_has_its_dtype_layout_distribution_and_storage():
    found = known.of_case(parse("n1 c2 h9 w9 k2 r1 s1"), Variant("bf16", "nhwc", "wide", "x:crop"))
    assert {"bf16", "nhwc", "channels last", "wide inputs", "storage crop of x", "pointwise"} <= found


def test_every_feature_tells_convolutions_apart():
    """One that all problems have, or none, says nothing."""
    every = [known.of_geometry(problem.geometry) for problem in PROBLEMS if problem.geometry.family == "conv"]
    counts = {name: sum(name in found for found in every) for name in known.OF_PROBLEM}
    assert {name: count for name, count in counts.items() if not 0 < count < len(every)} == {}
