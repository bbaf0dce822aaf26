"""The NKI kernels in the emulator: shapes beyond every limit of the chip, whatever the plan, and what they move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance import Unsupported
from conformance.inputs import Expectation, Recipe
from conformance.inputs.manifest import SEED
from conformance.operators import OPERATORS, Arrays, Operator, PoolGeometry, parse
from conformance.problems import typed
from nki_emulator import counting, load
from nki_emulator.tests.kernels.nki_kernels import FOLDER, implementation, minimum, part, tried
from tests.calibration.kernels.kernel import KnownKernel
from tests.calibration.known_kernels import judgements

FORWARD, DATA, WEIGHT = CONV = ("conv_forward", "conv_backward_data", "conv_backward_weight")
POOL = ("avg_pool_forward", "avg_pool_backward")
TRAIN, INFER, GRADIENT = BN = ("conv_bn_forward", "conv_bn_inference", "conv_bn_backward")

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
    "window of more rows than are packed, with a stride of columns": "n1 c4 h23 w23 k1 r23 s23 u1x5 p2:0x1:0",
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

POOLED = {
    "127 channels": "pool n1 c127 h7 w8 r3 s3 u2 p1 valid1",
    "128 channels": "pool n1 c128 h7 w8 r3 s3 u2 p1",
    "129 channels": "pool n1 c129 h7 w8 r3 s3 u2 p1 ceil1 valid1",
    "channels and images beyond 128": "pool n3 c100 h6 w5 r2 s3 u1x2 p1",
    "an image of several tiles": "pool n1 c2 h181 w190 r3 s3 u2 p1 valid1",
    "rows of several tiles": "pool n1 c2 h3 w9000 r2 s3 u1x2 p1",
    "window 45x51": "pool n1 c3 h50 w57 r45 s51 u5x6",
    "a window that begins in the padding behind": "pool n1 c3 h5 w6 r3 s3 u3 p1:2x2:1 ceil1",
    "stride beyond the window": "pool n2 c4 h19 w17 r2 s2 u5x4",
    "divisor given": "pool n2 c4 h9 w9 r3 s3 u2 p1 ceil1 valid1 div7",
}

NORMALISED = {
    "127 filters": "bn n2 c5 h6 w6 k127 r3 s3 p1",
    "128 filters": "bn n2 c128 h5 w5 k128 r1 s1",
    "129 filters": "bn n2 c129 h5 w5 k129 r3 s3 p1 run0",
    "groups of more than 128": "bn n1 c260 h4 w5 k258 r3 s3 p1 g2 affine0",
    "more groups than partitions": "bn n2 c150 h5 w6 k300 r3 s3 p1 g150",
    "an image of several runs": "bn n2 c3 h45 w47 k4 r3 s3 p1 eps3 outside1",
    "rows beyond a bank": "bn n1 c2 h4 w1300 k3 r3 s5 p1 u1x2",
    "images of unequal runs": "bn n7 c4 h12 w13 k6 r3 s3 p1",
    "stride, dilation and one-sided padding": "bn n2 c6 h19 w21 k4 r3 s2 u3x2 p0:2x1:0 d2x3 g2",
}

FAMILIES: tuple[tuple[tuple[str, ...], dict[str, str], tuple[tuple[str, str], ...]], ...] = (
    (CONV, BEYOND, (("integer", "fp32"), ("special", "fp32"), ("fixed", "bf16"))),
    (POOL, POOLED, (("integer", "fp32"), ("special", "fp32"), ("fixed", "fp32"), ("fixed", "bf16"), ("fixed", "fp16"))),
    (BN, NORMALISED, (("shifted", "fp32"), ("special", "fp32"), ("fixed", "bf16"), ("scaled", "fp16"))),
)
"""Operators, their shapes, and the distributions and dtypes in which each is tried."""
CASES = [
    pytest.param(operator, problem, variants, id=f"{operator}-{name}")
    for operators, shapes, variants in FAMILIES
    for operator in operators
    for name, problem in shapes.items()
]


@pytest.mark.parametrize(("operator", "problem", "variants"), CASES)
def test_a_shape_beyond_the_limits_of_the_chip(operator: str, problem: str, variants: tuple[tuple[str, str], ...]):
    for distribution, dtype in variants:
        verdict = tried(implementation(), operator, problem, distribution, dtype)
        assert verdict.status == "pass", f"{distribution} {dtype}: {verdict.reason}"


NEXT = [(operator, problem, "integer") for operator in CONV for problem in list(BEYOND.values())[:8]]
NEXT += [(operator, POOLED["129 channels"], "fixed") for operator in POOL]
NEXT += [(operator, NORMALISED["images of unequal runs"], "fixed") for operator in BN]


@pytest.mark.parametrize(("operator", "problem", "distribution"), NEXT)
def test_the_next_generation_of_the_chip(operator: str, problem: str, distribution: str):
    verdict = tried(implementation(target="gen3"), operator, problem, distribution)
    assert verdict.status == "pass", verdict.reason


CONV_ROOM = ("host_plan", {"WINDOWS": 500, "RESULTS": 300, "WEIGHTS": 400}, ("integer",))
BN_ROOM = ("host_bn", {"SBUF": 11 << 10, "WINDOWS": 800, "KEPT": 0, "PIXELS": 37}, ("fixed",))
WINDOWED = ("129 channels", "channels and images beyond 128", "stride beyond the window")
ROOMS = [
    *(
        (CONV, p, *CONV_ROOM)
        for p in ("n2 c5 h9 w8 k6 r3 s3 u2 p1 b1", "n1 c130 h6 w6 k7 r3 s3 p1", "n2 c6 h9 w9 k6 r3 s3 g6")
    ),
    *(
        (POOL, POOLED[n], "host_pool", {"SBUF": r}, ("integer", "special", "fixed"))
        for n in WINDOWED
        for r in (4, 700, 1500)
    ),
    *((BN, p, *BN_ROOM) for p in ("bn n3 c8 h14 w15 k140 r3 s3 p1", "bn n2 c6 h19 w19 k12 r3 s3 u2 p1 g6 outside1")),
]
"""Operators, a problem, and how much less of the chip a part of the host is told of."""


@pytest.mark.parametrize(("operators", "problem", "host", "rooms", "distributions"), ROOMS)
def test_results_do_not_depend_on_the_room(operators, problem, host, rooms, distributions, monkeypatch):
    for name, room in rooms.items():
        monkeypatch.setattr(part(host), name, room)
    for operator in operators:
        for distribution in distributions:
            verdict = tried(implementation(), operator, problem, distribution)
            assert verdict.status == "pass", f"{operator} {distribution}: {verdict.reason}"


@pytest.mark.parametrize(
    ("operator", "problem", "host", "name", "room", "reason"),
    [
        (FORWARD, "n1 c130 h5 w5 k4 r3 s3", "host_plan", "WEIGHTS", 8, "the weights of one filter exceed SBUF"),
        (TRAIN, "bn n1 c130 h5 w5 k4 r3 s3", "host_bn", "SBUF", 500, "the weights or a window exceed SBUF"),
    ],
)
def test_weights_that_fit_nowhere_are_refused(operator, problem, host, name, room, reason, monkeypatch):
    monkeypatch.setattr(part(host), name, room)
    verdict = tried(implementation(), operator, problem, "fixed")
    assert (verdict.status, verdict.reason) == ("unsupported", f"130 channels and 9 taps: {reason}")


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


@pytest.mark.parametrize("operator", CONV)
@pytest.mark.parametrize("problem", TRAFFIC)
def test_traffic_stays_near_the_minimum(problem: str, operator: str):
    least = minimum(operator, typed(problem).geometry, 4)
    factor = TRAFFIC[problem][CONV.index(operator)]
    assert _moved(operator, problem, "integer") <= factor * least.dma_bytes


def test_the_minimum_of_a_small_problem():
    geometry = typed("n2 c130 h6 w5 k140 r3 s3 p1 g2 b1").geometry
    elements = 2 * 130 * 30 + 140 * 65 * 9 + 2 * 140 * 30
    assert minimum(FORWARD, geometry, 2) == ((elements + 140) * 2, 2 * 9)
    assert minimum(DATA, geometry, 4) == (elements * 4, 2 * 9)
    assert minimum(WEIGHT, geometry, 4) == ((elements + 140) * 4, 2 * 2)


def test_z_that_fits_nowhere_goes_through_memory_once(monkeypatch: pytest.MonkeyPatch):
    problem = typed("bn n1 c8 h40 w40 k8 r3 s3 p1 run0").geometry
    moved = [_moved(TRAIN, problem.descriptor)]
    monkeypatch.setattr(part("host_bn"), "SBUF", 15000)
    moved.append(_moved(TRAIN, problem.descriptor))
    z = 4 * problem.y.size
    assert 2 * z <= moved[1] - moved[0] < 2.2 * z


def _moved(operator: str, problem: str, distribution: str = "fixed") -> int:
    """Bytes between HBM and the chip."""
    with counting() as counted:
        verdict = tried(implementation(), operator, problem, distribution)
    assert verdict.status == "pass", verdict.reason
    total: int = counted.dma_bytes_in + counted.dma_bytes_out
    return total


LEAN = [(operator, "pool n2 c70 h28 w28 r3 s3 u2 p1") for operator in POOL]
LEAN += [(operator, "bn n2 c64 h28 w28 k160 r1 s1") for operator in (TRAIN, INFER)]
LEAN += [(operator, "bn n1 c130 h14 w14 k130 r3 s3 p1") for operator in (TRAIN, INFER)]
LEAN += [(operator, "bn n2 c144 h28 w28 k144 r3 s3 p1 g144") for operator in (TRAIN, INFER)]


@pytest.mark.parametrize(("operator", "problem"), LEAN)
def test_every_tensor_moves_once(operator: str, problem: str):
    assert _moved(operator, problem) <= 1.01 * OPERATORS[operator].on(typed(problem).geometry).bytes(4)


SAME: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0))}
PADDED: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
UNDILATED: dict[str, Any] = SAME | {"dilation": (1, 1), "groups": 1, "eps": 1e-3, "eps_outside": False}
POOLING: dict[str, Any] = SAME | {
    "kernel_size": (3, 3),
    "ceil_mode": False,
    "count_include_pad": True,
    "divisor_override": None,
}
X, W = np.ones((2, 3, 5, 5), np.float32), np.ones((4, 3, 3, 3), np.float32)
SAME_DY = np.ones((2, 4, 5, 5), np.float32)
DY, GAMMA = np.arange(72, dtype=np.float32).reshape(2, 4, 3, 3) - 32, np.full(4, 2, np.float32)


def _function(operator: str) -> Any:
    return next(kernel for kernel in implementation().kernels if kernel.operator == operator).function


@pytest.mark.parametrize("outside", [False, True])
def test_a_constant_channel_takes_no_slope(outside: bool):
    """With variance 0, dz is dy less its mean, times gamma over the deviation of 0."""
    dx, dw, dgamma, dbeta = _function(GRADIENT)(DY, X, W, GAMMA, **(UNDILATED | {"eps_outside": outside}))
    dz = (DY - DY.mean(axis=(0, 2, 3), keepdims=True)) * (2 * (1e3 if outside else np.sqrt(1e3)))
    scale = np.abs(dz).sum()
    assert np.all(dgamma == 0)
    assert np.array_equal(dbeta, DY.sum(axis=(0, 2, 3)))
    assert np.abs(dw).max() < scale * 2.0**-20
    assert abs(dx.sum(dtype=np.float64) - 27 * dz.sum(dtype=np.float64)) < scale * 2.0**-20
    assert np.abs(dx[:, :, 0, 0] - dz[:, :, 0, 0].sum(axis=1, keepdims=True)).max() < scale * 2.0**-20


GIVEN_SIZE, GIVEN_WINDOW = {"input_size": (5, 5)}, {"kernel_size": (3, 3), "with_bias": True}
REFUSED: list[tuple[type[Exception], str, str, tuple[Any, ...], dict[str, Any]]] = [
    (TypeError, "int32", FORWARD, (X.astype(np.int32), W.astype(np.int32), None), PADDED),
    (TypeError, "float64", FORWARD, (X.astype(np.float64), W.astype(np.float64), None), PADDED),
    (TypeError, "one dtype", FORWARD, (X, W.astype(ml_dtypes.bfloat16), None), PADDED),
    (ValueError, "channels of x: 2", FORWARD, (X[:, :2], W, None), PADDED),
    (ValueError, "channels of x", FORWARD, (X, W, None), PADDED | {"groups": 3}),
    (ValueError, "elements of bias: 3", FORWARD, (X, W, np.ones(3, np.float32)), PADDED),
    (ValueError, "does not fit", FORWARD, (X, W, None), PADDED | {"dilation": (4, 4)}),
    (ValueError, "channels of dy: 3", DATA, (SAME_DY[:, :3], W), PADDED | GIVEN_SIZE),
    (ValueError, "rows of dy: 4", DATA, (SAME_DY[:, :, :4], W), PADDED | GIVEN_SIZE),
    (ValueError, "columns of dy: 4", WEIGHT, (X, SAME_DY[..., :4]), PADDED | GIVEN_WINDOW),
    (ValueError, "images of dy: 4", WEIGHT, (X, SAME_DY.repeat(2, 0)), PADDED | GIVEN_WINDOW),
    (TypeError, "int32", POOL[0], (X.astype(np.int32),), POOLING),
    (TypeError, "float64", POOL[0], (X.astype(np.float64),), POOLING),
    (ValueError, "window of 6 does not fit", POOL[0], (X,), POOLING | {"kernel_size": (3, 6)}),
    (ValueError, "rows of dy: 4", POOL[1], (X[:, :, :4, :3],), POOLING | GIVEN_SIZE),
    (ValueError, "columns of dy: 4", POOL[1], (X[..., :3, :4],), POOLING | GIVEN_SIZE),
    (ValueError, "elements of a parameter: 3", GRADIENT, (DY, X, W, GAMMA[:3]), UNDILATED),
    (ValueError, "channels of x: 2", GRADIENT, (DY, X[:, :2], W, GAMMA), UNDILATED),
    (TypeError, "one dtype", GRADIENT, (DY.astype(np.float16), X, W, GAMMA), UNDILATED),
    (ValueError, "one element a channel", GRADIENT, (DY[:1, :, :1, :1], X[:1, :, :3, :3], W, None), UNDILATED),
    (ValueError, "columns of dy: 2", GRADIENT, (DY[..., :2], X, W, None), UNDILATED),
    (ValueError, "elements of a parameter: 5", INFER, (X, W, None, None, *np.ones((2, 5), np.float32)), UNDILATED),
]


@pytest.mark.parametrize(("error", "text", "operator", "tensors", "parameters"), REFUSED)
def test_what_nobody_could_compute_is_refused(error, text, operator, tensors, parameters):
    with pytest.raises(error, match=text):
        _function(operator)(*tensors, **parameters)


def test_a_window_larger_than_sbuf_is_unsupported():
    """It ended in an error of SBUF's capacity, and its gradient in a loop over every pair of a row and a tap."""
    given = {"stride": (1, 70001), "padding": ((0, 0), (0, 0)), "ceil_mode": False, "count_include_pad": True}
    for operator, tensor, more in (
        ("avg_pool_forward", np.zeros((1, 1, 1, 70001), np.float32), {}),
        ("avg_pool_backward", np.zeros((1, 1, 1, 1), np.float32), {"input_size": (1, 70001)}),
    ):
        with pytest.raises(Unsupported, match="windows of 1 x 70001 in fp32 exceed the 180224 bytes of a partition"):
            _function(operator)(tensor, kernel_size=(1, 70001), divisor_override=None, **given, **more)


def test_kernels_need_nothing_but_nki():
    for path in sorted((FOLDER / "kernels").glob("*.py")):
        imports = {line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))}
        assert imports == {"import nki", "import nki.isa as nisa", "import nki.language as nl"}, path.name


STYLE = Path(__file__).parents[1] / "style"


def _subject(file: str, kernel: str) -> KnownKernel:
    function = getattr(load(STYLE / file), kernel)

    def run(operator: Operator, geometry: PoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
        return {"y": np.stack([function(image, geometry.r) for image in inputs["x"]])}

    return KnownKernel(f"{file} {kernel}", "nki", run, operators=("avg_pool_forward",))


def _out(file: str, kernel: str, descriptor: str, distribution: str) -> tuple[int, int, bool]:
    """Elements beyond the bound of fp32 accumulation with one rounding to bf16, elements, and whether all passes."""
    recipe = Recipe(OPERATORS["avg_pool_forward"].on(parse(descriptor)), "bf16", distribution, SEED)
    (judged,) = judgements(_subject(file, kernel), Expectation(recipe))
    return judged.mismatched, judged.compared, judged.passed


@pytest.mark.parametrize("file", ["beta_pooling.py", "pooling.py"])
def test_average_pooling_of_the_tutorial_is_wrong_in_bf16(file: str):
    """nl.sum rounds to the type of its tile: window 2 of whole numbers hides that, window 3 of fractions does not."""
    problem = "pool n1 c8 h12 w12 r3 s3 u3"
    out, compared, passed = _out(file, "pool_rounding_between", problem, "fixed")
    assert not passed
    assert compared == 128
    assert 20 <= out <= 40
    assert _out(file, "pool", problem, "fixed") == (0, 128, True)
