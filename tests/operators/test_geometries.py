"""Parameters that no problem of a family can have are refused, and the message names them."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.operators import ConvBnGeometry, GeometryError, PoolGeometry, parse
from conformance.operators.conv_transpose.geometry import TransposedGeometry
from tests.kit import expectation

REFUSED = {
    "mm m2 n0 k3": "n is 0; it must be at least 1",
    "mm m2 n3": "field 'k' is missing",
    "mm m2 n3 k4 b0": "b is 0; it must be at least 1",
    "mm m2 n3 k4 b2 bias1": "a batch of products has no bias",
    "mm m2 n3 k4 u2": "field 'u2' is not understood",
    "n1 c2 w5 k2 s3 zx3": "field 'zx3' is not understood",
    "bn n1 c2 h3 w3 k2 r3 s3": "one element a channel",
    "bn n2 c2 h3 w3 k2 r3 s3 b1": "not understood",
    "bn n2 c2 h3 w3 k2 r3 s3 eps0": "eps1 to eps9",
    "bn n2 c2 h3 w3 k2 r3 s3 mom101": "mom0 to mom100",
    "n1 c0 h3 w3 k2 r3 s3 g2": "c is 0; it must be at least 1",
    "bn n2 c0 h3 w3 k2 r3 s3": "c is 0; it must be at least 1",
    "q n1 c2 w5 k2 s3 zx256": "zx is 256; a zero point is from -128 to 255",
    "q n1 c2 w5 k2 s3 zy-129": "zy is -129; a zero point is from -128 to 255",
    "convt n1 c2 h3 w3 k2 r3 s3 o1": "output padding is 1, which must be smaller than the stride, 1",
    "convt n1 c2 h3 w3 k2 r3 s3 u2 o0x2": "smaller than the stride, 2, or the dilation, 1",
    "convt n1 c2 h3 w3 k2 r3 s3 p3": "padding leaves nothing of the output on axis h",
    "convt n1 c1 h1 w3 k1 r1 s1 u2 p1x0 o1": "padding leaves nothing of the output on axis h",
    "convt n1 c3 h3 w3 k2 r3 s3 g2": "c is 3, which 2 groups do not divide",
    "convt n1 c2 h3 w3 k3 r3 s3 g2": "k is 3, which 2 groups do not divide",
    "convt n1 c2 h3 w3 k3 r3 s0": "s is 0; it must be at least 1",
    "pool n1 c1 h8 w8 r3 s3 p3": "padding is 3; it must be less than the window, r3",
    "pool n1 c1 h8 w8 r5 s2 p0:0x0:2": "padding is 2; it must be less than the window, s2",
    "pool n1 c1 h8 w3 r3 s6 p1": "the window spans 6 on axis w, more than the padded image's 5",
    "pool n1 c1 h2 w8 r3 s3": "the window spans 3 on axis h, more than the padded image's 2",
    "pool n1 c1 h8 w8 r2 s2 div0": "divisor is 0; it must be at least 1",
    "pool n1 c1 h8 w8 r2 s2 u0": "stride is 0; it must be at least 1",
    "pool n1 c1 h8 w8 r2": "field 's' is missing",
    "pool n1 c1 h8 w8 r2 s2 d2": "field 'd' is of another number of dimensions",
    "pool n1 c1 h8 w8 r2 s2 ceil2": "field 'ceil2' must be ceil0 or ceil1",
    "pool n1 c1 h8 w8 r2 s2 valid3": "field 'valid3' must be valid0 or valid1",
    "pool n1 c1 h8 w8 r2 s2 div2x3": "field 'div2x3' must be one whole number",
    "maxpool n1 c1 h8 w8 r3 s3 p3": "a window holds nothing but padding on axis h",
    "maxpool n1 c1 h8 w8 r5 s2 p0:0x0:2 u1": "a window holds nothing but padding on axis w",
    "maxpool n1 c1 h2 w8 r2 s2 p1:2x0 d3x1 u1": "a window holds nothing but padding on axis h",
    "maxpool n1 c1 h8 w8 r2 s2 div2": "field 'div2' is not understood",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items())
def test_a_problem_without_a_result_is_refused_by_name(text: str, message: str):
    with pytest.raises(GeometryError) as refusal:
        parse(text)
    assert message in str(refusal.value)


def test_a_convolution_of_no_channels_is_its_bias():
    expected = expectation("conv_forward", "n2 c0 h3 w4 k3 r3 s3 p1 b1")
    bias = np.broadcast_to(expected.inputs["bias"][:, None, None], (2, 3, 3, 4))
    np.testing.assert_array_equal(expected.reference["y"], bias)


def test_batch_normalisation_has_no_bias():
    with pytest.raises(GeometryError, match="has no bias"):
        ConvBnGeometry(2, 2, (3, 3), 2, (3, 3), bias=True)


@pytest.mark.parametrize("sizes", [(0,), (-1, 0)])
def test_output_padding_is_one_number_for_each_axis(sizes: tuple[int, ...]):
    with pytest.raises(GeometryError, match="output padding"):
        TransposedGeometry(1, 1, (2, 2), 1, (2, 2), output_padding=sizes)


def test_an_image_that_fits_into_no_memory_can_be_described():
    assert PoolGeometry.parse("pool n1 c1 h999999999999999999 w99999 r3 s2 u1 ceil1").common_multiple == 6
    assert PoolGeometry.parse("pool n1 c1 h999999999999 w999999999999 r2 s2 u2 p1 valid1").common_multiple == 4
    for window in ("r999999999999999999 s1", "r99999999 s99999999 u1 p99999998 valid1"):
        with pytest.raises(GeometryError, match="common multiple beyond 262144; set div, or drop valid1"):
            PoolGeometry.parse(f"pool n1 c1 h999999999999999999 w999999999999 {window}")
