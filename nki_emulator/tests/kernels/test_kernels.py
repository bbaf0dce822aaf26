"""The NKI kernels in the emulator: shapes beyond every limit of the chip, whatever the plan, and what they move."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance import Unsupported
from conformance.problems import typed
from nki_emulator import counting
from nki_emulator.tests.kernels.nki_kernels import FOLDER, implementation, minimum, part, tried

FORWARD, DATA, WEIGHT = "conv_forward", "conv_backward_data", "conv_backward_weight"
DIRECTIONS = (FORWARD, DATA, WEIGHT)

BEYOND = {
    "channels 130, filters 140": "n1 c130 h6 w7 k140 r3 s3 p1 b1",
    "channels and filters 127": "n1 c127 h5 w5 k127 r3 s3 p1",
    "channels and filters 128": "n1 c128 h5 w5 k128 r3 s3 p1 b1",
    "channels and filters 129": "n1 c129 h5 w5 k129 r3 s3 p1",
    "filters of five tiles": "n1 c3 h6 w6 k520 r3 s3 p1 b1",
    "groups of more than 128": "n1 c260 h4 w5 k258 r3 s3 p1 g2 b1",
    "more groups than partitions": "n2 c150 h5 w6 k300 r3 s3 p1 g150 b1",
    "a multiplier that does not divide 128": "n1 c50 h6 w6 k150 r3 s3 p1 g50",
    "width 600": "n1 c3 h4 w600 k5 r3 s3 p1 b1",
    "width 600, stride 2": "n1 c3 h4 w600 k5 r3 s3 u2 p1",
    "width 600, depthwise": "n1 c4 h30 w600 k4 r3 s3 p1 g4 b1",
    "window 7x7": "n2 c5 h13 w12 k6 r7 s7 u2 p3 b1",
    "window of more taps than a bank": "n1 c2 h30 w30 k3 r28 s20 b1",
    "window wider than a bank": "n1 c1 h2 w530 k2 r1 s520",
    "output of width 1": "n3 c5 h20 w3 k6 r3 s3 p1x0 b1",
    "output of height 1": "n3 c5 h3 w20 k6 r3 s3 p0x1",
    "output of one pixel": "n5 c6 h3 w3 k7 r3 s3 b1",
    "dilation beyond the image": "n2 c3 h4 w5 k4 r3 s3 p9 d9 b1",
    "window too wide to be held": "n1 c2 h3 w4 k3 r3 s3 p120 d120 b1",
    "gradient too large to be held": "n1 c2 h110 w128 k512 r1 s1 b1",
    "padding before and after": "n1 c3 h6 w7 k4 r3 s3 p2:0x0:1",
    "padding after alone": "n1 c3 h6 w7 k4 r3 s3 p0:2x0:1",
    "padding beyond the image": "n2 c3 h2 w3 k4 r2 s2 p5 b1",
    "one window on padding alone": "n1 c3 h1 w1 k4 r1 s1 u3 p1",
    "stride beyond the window": "n2 c4 h19 w17 k5 r2 s2 u5x4",
    "stride and dilation coprime": "n2 c4 h19 w21 k4 r3 s3 u3x2 p2 d2x3 g2",
    "rows that take turns": "n2 c7 h17 w60 k5 r3 s3 p1 b1",
    "rows that take turns, dilated": "n1 c5 h19 w130 k5 r3 s2 u2x1 p2 d3x2",
    "many images in a tile": "n40 c5 h2 w3 k6 r2 s2 p1 b1",
    "one channel and one filter": "n2 c1 h8 w8 k1 r3 s3",
    "more filters than are held": "n2 c2 h1 w1 k70001 r1 s1 b1",
    "more images than are taken one by one": "n700 c1 h1 w2 k2 r3 s3 p1",
}
MEANT = (("integer", "fp32"), ("special", "fp32"), ("fixed", "bf16"))


@pytest.mark.parametrize("operator", DIRECTIONS)
@pytest.mark.parametrize("name", BEYOND)
def test_a_shape_beyond_the_limits_of_the_chip(name: str, operator: str):
    for distribution, dtype in MEANT:
        verdict = tried(implementation(), operator, BEYOND[name], distribution, dtype)
        assert verdict.status == "pass", f"{distribution} {dtype}: {verdict.reason}"


@pytest.mark.parametrize("operator", DIRECTIONS)
@pytest.mark.parametrize("name", list(BEYOND)[:8])
def test_the_next_generation_of_the_chip(name: str, operator: str):
    verdict = tried(implementation(target="gen3"), operator, BEYOND[name])
    assert verdict.status == "pass", verdict.reason


@pytest.mark.parametrize("operator", DIRECTIONS)
@pytest.mark.parametrize(
    "problem", ["n2 c5 h9 w8 k6 r3 s3 u2 p1 b1", "n1 c130 h6 w6 k7 r3 s3 p1", "n2 c6 h9 w9 k6 r3 s3 g6"]
)
def test_results_do_not_depend_on_the_room(operator: str, problem: str, monkeypatch: pytest.MonkeyPatch):
    plan = part("host_plan")
    for name, room in (("WINDOWS", 500), ("RESULTS", 300), ("WEIGHTS", 400)):
        monkeypatch.setattr(plan, name, room)
    assert tried(implementation(), operator, problem).status == "pass"


def test_filters_that_fit_nowhere_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(part("host_plan"), "WEIGHTS", 8)
    verdict = tried(implementation(), FORWARD, "n1 c130 h5 w5 k4 r3 s3")
    assert (verdict.status, verdict.reason) == (
        "unsupported",
        "130 channels and 9 taps: the weights of one filter exceed SBUF",
    )


TRAFFIC = {
    "n1 c64 h48 w48 k64 r3 s3 p1 b1": (1.02, 1.02, 1.2),
    "n1 c3 h64 w64 k64 r7 s7 u2 p3": (1.02, 1.02, 1.7),
    "n1 c16 h32 w512 k16 r3 s3 p1": (1.15, 1.15, 1.2),
    "n1 c128 h24 w24 k128 r3 s3 p1 b1": (1.02, 1.02, 1.2),
    "n1 c1024 h4 w4 k1024 r3 s3 p1 b1": (1.02, 1.02, 1.1),
    "n1 c144 h28 w28 k144 r3 s3 p1 g144": (1.02, 1.02, 1.02),
    "n2 c256 h14 w14 k512 r1 s1 u2": (1.02, 1.02, 1.02),
}
"""Bytes between HBM and the chip against the least there can be, by direction."""


@pytest.mark.parametrize("operator", DIRECTIONS)
@pytest.mark.parametrize("problem", TRAFFIC)
def test_traffic_stays_near_the_minimum(problem: str, operator: str):
    least = minimum(operator, typed(problem).geometry, 4)
    with counting() as counted:
        assert tried(implementation(), operator, problem).status == "pass"
    factor = TRAFFIC[problem][DIRECTIONS.index(operator)]
    assert counted.dma_bytes_in + counted.dma_bytes_out <= factor * least.dma_bytes


def test_the_minimum_of_a_small_problem():
    geometry = typed("n2 c130 h6 w5 k140 r3 s3 p1 g2 b1").geometry
    elements = 2 * 130 * 30 + 140 * 65 * 9 + 2 * 140 * 30
    assert minimum(FORWARD, geometry, 2) == ((elements + 140) * 2, 2 * 9)
    assert minimum(DATA, geometry, 4) == (elements * 4, 2 * 9)
    assert minimum(WEIGHT, geometry, 4) == ((elements + 140) * 4, 2 * 2)


GEOMETRY: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
X, W = np.ones((1, 3, 5, 5), np.float32), np.ones((4, 3, 3, 3), np.float32)
DY = np.ones((1, 4, 5, 5), np.float32)
REFUSED: dict[str, tuple[type[Exception], str, str, tuple[Any, ...], dict[str, Any]]] = {
    "integers": (TypeError, "int32", FORWARD, (X.astype(np.int32), W.astype(np.int32), None), {}),
    "double precision": (TypeError, "float64", FORWARD, (X.astype(np.float64), W.astype(np.float64), None), {}),
    "two dtypes": (TypeError, "one dtype", FORWARD, (X, W.astype(ml_dtypes.bfloat16), None), {}),
    "channels": (ValueError, "channels of x: 2", FORWARD, (X[:, :2], W, None), {}),
    "groups": (ValueError, "channels of x", FORWARD, (X, W, None), {"groups": 3}),
    "bias": (ValueError, "elements of bias: 3", FORWARD, (X, W, np.ones(3, np.float32)), {}),
    "window": (ValueError, "does not fit", FORWARD, (X, W, None), {"dilation": (4, 4)}),
    "filters of dy": (ValueError, "channels of dy: 3", DATA, (DY[:, :3], W), {"input_size": (5, 5)}),
    "rows of dy": (ValueError, "rows of dy: 4", DATA, (DY[:, :, :4], W), {"input_size": (5, 5)}),
    "columns of dy": (
        ValueError,
        "columns of dy: 4",
        WEIGHT,
        (X, DY[..., :4]),
        {"kernel_size": (3, 3), "with_bias": True},
    ),
    "images of dy": (
        ValueError,
        "images of dy: 2",
        WEIGHT,
        (X, DY.repeat(2, 0)),
        {"kernel_size": (3, 3), "with_bias": True},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_could_compute_is_refused(name: str):
    error, text, operator, tensors, changed = REFUSED[name]
    computed = next(kernel for kernel in implementation().kernels if kernel.operator == operator)
    with pytest.raises(error, match=text):
        computed.function(*tensors, **(GEOMETRY | changed))


def test_a_window_larger_than_sbuf_is_unsupported():
    """It ended in an error of SBUF's capacity, and its gradient in a loop over every pair of a row and a tap."""
    given = {"stride": (1, 70001), "padding": ((0, 0), (0, 0)), "ceil_mode": False, "count_include_pad": True}
    for operator, tensor, more in (
        ("avg_pool_forward", np.zeros((1, 1, 1, 70001), np.float32), {}),
        ("avg_pool_backward", np.zeros((1, 1, 1, 1), np.float32), {"input_size": (1, 70001)}),
    ):
        computed = next(kernel for kernel in implementation().kernels if kernel.operator == operator)
        with pytest.raises(Unsupported, match="windows of 1 x 70001 in fp32 exceed the 180224 bytes of a partition"):
            computed.function(tensor, kernel_size=(1, 70001), divisor_override=None, **given, **more)


def test_kernels_need_nothing_but_nki():
    for path in sorted((FOLDER / "kernels").glob("*.py")):
        imports = {line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))}
        assert imports == {"import nki", "import nki.isa as nisa", "import nki.language as nl"}, path.name
