"""Small problems on which arithmetic is read: usual shapes first, then those of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from conformance.operators import GeometryError, Operator, parse, takes
from conformance.problems import PROBLEMS

FEWEST, MOST = 32, 128
"""Number of terms of a sum whose order is read."""
LARGEST = 1 << 24
"""Most floating-point operations of a problem of the tables."""

IMAGES = ("n1 c64 h4 w4 k16 r1 s1", "n1 c8 h8 w8 k16 r3 s3", "n1 c8 h8 w8 k16 r3 s3 p1", "n1 c4 h12 w12 k4 r7 s7 g4",
          "n1 c64 w8 k16 s1", "n1 c64 d4 h4 w4 k8 t1 r1 s1")  # fmt: skip
GRADIENTS = ("n1 c16 h4 w4 k64 r1 s1", "n1 c16 h8 w8 k8 r3 s3", "n1 c16 h8 w8 k8 r3 s3 p1", "n1 c32 w8 k64 s1",
             "n1 c8 d4 h4 w4 k64 t1 r1 s1")  # fmt: skip
FILTERS = ("n1 c4 h8 w8 k4 r1 s1", "n1 c8 h10 w10 k8 r3 s3", "n1 c8 w64 k8 s1", "n1 c8 d4 h4 w4 k8 t1 r1 s1")
PRODUCTS = ("mm m4 n16 k64", "mm m64 n64 k64", "mm b2 m4 n16 k64")
TERMS: dict[str, tuple[str, ...]] = {
    "conv_forward": IMAGES,
    "conv_backward_data": GRADIENTS,
    "conv_backward_weight": FILTERS,
    "conv_transpose_forward": tuple(f"convt {text}" for text in IMAGES),
    "conv_transpose_backward_data": tuple(f"convt {text}" for text in GRADIENTS),
    "conv_transpose_backward_weight": tuple(f"convt {text}" for text in FILTERS),
    "conv_requantized": tuple(f"q {text}" for text in IMAGES),
    "avg_pool_forward": ("pool n1 c2 h8 w8 r8 s8", "pool n1 c2 h16 w16 r8 s8", "pool n1 c2 h8 w16 r4 s8",
                         "pool n1 c2 w64 s64", "pool n1 c2 d4 h4 w4 t4 r4 s4"),
    "matmul": PRODUCTS,
    "matmul_scaled": ("scaled m4 n16 k64", "scaled m64 n64 k64 sm1 sn1", "scaled m4 n64 k64 sm1 sn1 sk64"),
    "matmul_requantized": tuple(f"q{text}" for text in PRODUCTS),
    "matmul_grouped": ("grouped g2 m8 n16 k64", "grouped g2 m64 n64 k64"),
    "matmul_grouped_backward_b": ("grouped g3 m64 n8 k8 empty1",),
    "avg_pool_backward": ("pool n1 c2 h15 w15 r8 s8 u1", "pool n1 c2 w127 s64 u1"),
}  # fmt: skip
"""Operator -> problems whose sums have 32 to 128 terms; those of no window first."""
LONG: dict[str, tuple[str, ...]] = {
    "conv_forward": ("n1 c1024 h2 w2 k4 r1 s1", "n1 c1024 h8 w8 k32 r1 s1", "n1 c512 h8 w8 k32 r1 s1"),
    "conv_backward_data": ("n1 c4 h2 w2 k1024 r1 s1", "n1 c32 h8 w8 k1024 r1 s1"),
    "conv_backward_weight": ("n1 c2 h32 w32 k2 r1 s1", "n16 c8 h8 w8 k8 r1 s1"),
    "matmul": ("mm m4 n4 k1024", "mm m64 n32 k1024"),
    "matmul_scaled": ("scaled m4 n4 k1024", "scaled m64 n32 k1024 sm1 sn1"),
    "matmul_grouped": ("grouped g2 m8 n4 k1024",),
}
WINDOW = 4
WINDOWS = ("n1 c2 h18 w18 k2 r3 s3", "n1 c2 h18 w18 k2 r3 s3 p1", "n1 c16 h18 w18 k16 r3 s3",
           "n1 c16 h18 w18 k16 r3 s3 p1")  # fmt: skip

AVERAGED = (f"pool n1 c2 h{3 * WINDOW} w{3 * WINDOW} r{WINDOW} s{WINDOW}",)
"""Three windows in each direction, so that the one in the middle has an image on all sides."""


def candidates(operator: Operator, purpose: str) -> Iterator[Any]:
    """Yield the geometries of problems for a purpose: `terms`, `long`, `window` or `bias`."""
    listed = {"terms": TERMS, "bias": TERMS, "long": LONG}.get(purpose, {}).get(operator.name, ())
    if purpose == "window":
        transposed = tuple(f"convt {text}" for text in WINDOWS)
        listed = {"conv": WINDOWS, "conv_transpose": transposed, "avg_pool": AVERAGED}.get(operator.family, ())
    bias = "bias1" if "matmul" in operator.family else "b1"
    for text in listed:
        with suppress(GeometryError):  # a batch of matrix products has no bias
            yield parse(f"{text} {bias}" if purpose == "bias" else text)
    if purpose != "terms":
        return
    for problem in sorted(
        PROBLEMS, key=lambda problem: operator.flops(problem.geometry) if _suits(operator, problem.geometry) else 0
    ):
        if _suits(operator, problem.geometry):
            yield problem.geometry


def _suits(operator: Operator, geometry: Any) -> bool:
    if not takes(operator.name, geometry) or geometry.n < 1 or operator.flops(geometry) > LARGEST:
        return False
    if any(getattr(geometry, "zero_points", {}).values()):
        return False
    return FEWEST <= next(iter(operator.errors(geometry).terms.values())) <= MOST
