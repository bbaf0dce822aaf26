"""Average pooling: the reference is the definition, and torch's; what is no pooling is refused by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.inputs import Expectation, Recipe
from conformance.operators import OPERATORS, POOLINGS, GeometryError, PoolGeometry, parse
from conformance.problems import PROBLEMS, at_level

CASES = (
    "pool n2 c2 h6 w4 r2 s2",
    "pool n1 c2 h5 w6 r3 s2 u1 p1",
    "pool n1 c1 h7 w5 r3 s2",
    "pool n1 c1 h7 w6 r3 s3 u2x3 ceil1",
    "pool n1 c1 h5 w6 r2 s3 u2 p1 ceil1",
    "pool n1 c1 h4 w5 r2 s3 u3x2 p1 ceil1",
    "pool n1 c1 h5 w5 r3 s3 u2 p1 valid1",
    "pool n1 c1 h6 w5 r3 s4 u2x3 p1 ceil1 valid1",
    "pool n1 c1 h5 w6 r3 s4 u2x1 p0:2x3:1 valid1",
    "pool n1 c1 h6 w5 r4 s3 u3x2 p1:2x0:1 ceil1",
    "pool n1 c1 h5 w5 r3 s3 u2 p1 div7",
    "pool n1 c1 h5 w6 r3 s3 u2 p1 ceil1 valid1 div5",
    "pool n1 c1 h7 w8 r2 s1 u3",
    "pool n1 c1 h2 w2 r3 s3 u1 p1",
    "pool n3 c1 h1 w1 r1 s1",
    "pool n1 c1 h4 w7 r4 s7",
)


@st.composite
def geometries(draw: st.DrawFn) -> PoolGeometry:
    rank = draw(st.integers(1, 3))
    window = tuple(draw(st.integers(1, 5 - rank)) for _ in range(rank))
    try:
        return PoolGeometry(
            n=1,
            c=draw(st.integers(1, 2)),
            size=tuple(draw(st.integers(1, 10 - 2 * rank)) for _ in range(rank)),
            window=window,
            stride=tuple(draw(st.integers(1, 4)) for _ in range(rank)),
            padding=tuple((draw(st.integers(0, taps - 1)), draw(st.integers(0, taps - 1))) for taps in window),
            ceil_mode=draw(st.booleans()),
            count_include_pad=draw(st.booleans()),
            divisor_override=draw(st.sampled_from([None, None, 1, 3, 8])),
        )
    except GeometryError:
        return PoolGeometry.parse(CASES[0])


def seen(g: PoolGeometry, axis: int) -> list[range]:
    """The windows of one axis as positions of the image, cut off at the padded image's end.

    One follows the other until a window reaches that end (in ceil mode) or would go beyond it (in floor mode).
    """
    size, window = g.size[axis], g.window[axis]
    before, end = g.padding[axis][0], size + g.padding[axis][1]
    starts = itertools.takewhile(lambda start: start + window <= end, itertools.count(-before, g.stride[axis]))
    found = [range(start, start + window) for start in starts]
    following = -before + len(found) * g.stride[axis]
    if g.ceil_mode and following < size and found[-1].stop < end:
        found.append(range(following, end))
    return found


def shares(g: PoolGeometry) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], Fraction]]:
    """(place in y, place in x, what y takes of x there)."""
    for window in itertools.product(*(enumerate(seen(g, axis)) for axis in range(g.rank))):
        y, ranges = zip(*window, strict=True)
        places = itertools.product(*ranges)
        inside = [x for x in places if all(0 <= at < size for at, size in zip(x, g.size, strict=True))]
        counted = math.prod(map(len, ranges)) if g.count_include_pad else len(inside)
        for x in inside:
            yield y, x, Fraction(1, g.divisor_override or counted)


def by_definition(operator: str, g: PoolGeometry, data: np.ndarray) -> np.ndarray:
    """The result in exact rational arithmetic, rounded once to float64."""
    forward = operator == "avg_pool_forward"
    size = tuple(len(seen(g, axis)) for axis in range(g.rank)) if forward else g.size
    out = np.full((g.n, g.c, *size), Fraction(0), dtype=object)
    for y, x, share in shares(g):
        (to, source) = (y, x) if forward else (x, y)
        for n, c in np.ndindex(g.n, g.c):
            out[(n, c, *to)] += share * Fraction(float(data[(n, c, *source)]))
    return out.astype(np.float64)


def require_definition(operator: str, geometry: PoolGeometry, dtype: str) -> None:
    expected = Expectation(Recipe(OPERATORS[operator], geometry, dtype, "fixed", 1))
    (data,), (reference,) = expected.inputs.values(), expected.reference.values()
    np.testing.assert_array_equal(reference, by_definition(operator, geometry, data))


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("operator", POOLINGS)
def test_reference_is_the_definition(operator: str, text: str, dtype: str):
    require_definition(operator, PoolGeometry.parse(text), dtype)


@pytest.mark.parametrize("operator", POOLINGS)
@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_reference_is_the_definition_of_anything(operator: str, geometry: PoolGeometry):
    require_definition(operator, geometry, "fp32")


@settings(max_examples=60, deadline=None)
@given(geometry=geometries())
def test_descriptor_reads_back(geometry: PoolGeometry):
    assert parse(geometry.descriptor) == geometry


@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_no_element_sums_more_terms_than_declared(geometry: PoolGeometry):
    for operator in map(OPERATORS.__getitem__, POOLINGS):
        counted = PoolGeometry.parse(f"{geometry.descriptor.split(' div')[0]} div1")
        (ones,) = ({name: np.ones(tensor.shape)} for name, tensor in operator.inputs(counted).items())
        for name, sums in operator.reference(counted, ones).items():
            assert sums.max() <= operator.errors(geometry).terms[name] - 1


def in_torch(g: PoolGeometry) -> bool:
    """Whether torch has this pooling; in 3-D it refuses an unpadded image smaller than the window."""
    axes = zip(g.padding, g.window, strict=True)
    symmetric = all(before == after and 2 * before <= window for (before, after), window in axes)
    return symmetric and (g.rank < 3 or all(size >= taps for size, taps in zip(g.size, g.window, strict=True)))


TABLE = {problem.name: problem.geometry for problem, _ in at_level(PROBLEMS, "standard")}
IN_TORCH = {name: g for name, g in TABLE.items() if g.family == "avg_pool" and g.rank > 1 and in_torch(g)}


@pytest.mark.parametrize("geometry", IN_TORCH.values(), ids=IN_TORCH)
def test_reference_is_torchs(geometry: PoolGeometry):
    """Forward bit for bit; torch rounds every share of a gradient, and their sum as often."""
    torch = pytest.importorskip("torch")
    g = geometry
    expected = [Expectation(Recipe(OPERATORS[operator], g, "fp32", "fixed", 2)) for operator in POOLINGS]
    x, dy = (torch.from_numpy(array.astype(np.float64)) for e in expected for array in e.inputs.values())
    y = getattr(torch.nn.functional, f"avg_pool{g.rank}d")(
        x.requires_grad_(), g.window, g.stride, tuple(before for before, _ in g.padding),
        g.ceil_mode, g.count_include_pad, g.divisor_override,
    )  # fmt: skip
    np.testing.assert_array_equal(y.detach().numpy(), expected[0].reference["y"])
    (dx,) = torch.autograd.grad(y, x, dy)
    backward = OPERATORS["avg_pool_backward"]
    roundings = 2 * backward.errors(g).terms["dx"] * 2.0**-53
    most = roundings * backward.reference(g, {"dy": np.abs(dy.numpy())})["dx"]
    assert np.all(np.abs(dx.numpy() - expected[1].reference["dx"]) <= most)


BAD = {
    "pool n1 c1 h8 w8 r3 s3 p3": "padding is 3; it must be less than the window, r3",
    "pool n1 c1 h8 w8 r5 s2 p0:0x0:2": "padding is 2; it must be less than the window, s2",
    "pool n1 c1 h8 w3 r3 s6 p1": "the window spans 6 on axis w, more than the padded image's 5",
    "pool n1 c1 h2 w8 r3 s3": "the window spans 3 on axis h, more than the padded image's 2",
    "pool n1 c1 h8 w8 r2 s2 div0": "divisor is 0; it must be at least 1",
    "pool n1 c1 h8 w8 r2 s2 div-4": "divisor is -4; it must be at least 1",
    "pool n1 c1 h8 w8 r2 s2 u0": "stride is 0; it must be at least 1",
    "pool n1 c0 h8 w8 r2 s2": "c is 0; it must be at least 1",
    "pool n1 c1 h8 w8 r0 s2": "r is 0; it must be at least 1",
    "pool n1 c1 h8 w8 r2": "field 's' is missing",
    "pool n1 c1 h8 w8 r2 s2 d2": "field 'd' is of another number of dimensions",
    "pool n1 c1 h8 w8 r2 s2 ceil2": "field 'ceil2' must be ceil0 or ceil1",
    "pool n1 c1 h8 w8 r2 s2 valid3": "field 'valid3' must be valid0 or valid1",
    "pool n1 c1 h8 w8 r2 s2 div2x3": "field 'div2x3' must be one whole number",
}


@pytest.mark.parametrize("text", BAD)
def test_geometry_that_no_pooling_has_is_refused_by_name(text: str):
    with pytest.raises(GeometryError) as refusal:
        parse(text)
    assert BAD[text] in str(refusal.value)


def test_an_image_that_fits_into_no_memory_can_be_described():
    assert PoolGeometry.parse("pool n1 c1 h999999999999999999 w99999 r3 s2 u1 ceil1").common_multiple == 6
    assert PoolGeometry.parse("pool n1 c1 h999999999999 w999999999999 r2 s2 u2 p1 valid1").common_multiple == 4
    for window in ("r999999999999999999 s1", "r99999999 s99999999 u1 p99999998 valid1"):
        with pytest.raises(GeometryError, match="common multiple beyond 262144; set div, or drop valid1"):
            PoolGeometry.parse(f"pool n1 c1 h999999999999999999 w999999999999 {window}")
