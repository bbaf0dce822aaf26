"""The NKI kernels of pooling and batch normalisation: shapes beyond the limits of the chip, and what they move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.calibration.known_kernels import judgements
from conformance.inputs import Expectation, Recipe
from conformance.inputs.manifest import SEED
from conformance.operators import OPERATORS, Arrays, Operator, PoolGeometry, parse
from conformance.operators.known_kernels.kernel import KnownKernel
from conformance.problems import typed
from nki_emulator import counting, load
from tests.nki_kernels import implementation, part, tried

POOL = ("avg_pool_forward", "avg_pool_backward")
TRAIN, INFER, GRADIENT = "conv_bn_forward", "conv_bn_inference", "conv_bn_backward"
FORWARD = (TRAIN, INFER)
BN = (*FORWARD, GRADIENT)

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
MEANT = {
    "pool": (("integer", "fp32"), ("special", "fp32"), ("fixed", "fp32"), ("fixed", "bf16"), ("fixed", "fp16")),
    "bn": (("shifted", "fp32"), ("special", "fp32"), ("fixed", "bf16"), ("scaled", "fp16")),
}


@pytest.mark.parametrize("operator", POOL)
@pytest.mark.parametrize("name", POOLED)
def test_a_pooling_beyond_the_limits_of_the_chip(name: str, operator: str):
    for distribution, dtype in MEANT["pool"]:
        verdict = tried(implementation(), operator, POOLED[name], distribution, dtype)
        assert verdict.status == "pass", f"{distribution} {dtype}: {verdict.reason}"


@pytest.mark.parametrize("operator", BN)
@pytest.mark.parametrize("name", NORMALISED)
def test_a_normalisation_beyond_the_limits_of_the_chip(name: str, operator: str):
    for distribution, dtype in MEANT["bn"]:
        verdict = tried(implementation(), operator, NORMALISED[name], distribution, dtype)
        assert verdict.status == "pass", f"{distribution} {dtype}: {verdict.reason}"


ANY = [(operator, POOLED["129 channels"]) for operator in POOL]
ANY += [(operator, NORMALISED["images of unequal runs"]) for operator in BN]


@pytest.mark.parametrize(("operator", "problem"), ANY)
def test_the_next_generation_of_the_chip(operator: str, problem: str):
    verdict = tried(implementation(target="gen3"), operator, problem, "fixed")
    assert verdict.status == "pass", verdict.reason


@pytest.mark.parametrize("operator", POOL)
@pytest.mark.parametrize("name", ["129 channels", "channels and images beyond 128", "stride beyond the window"])
@pytest.mark.parametrize("room", [4, 700, 1500])
def test_pooling_does_not_depend_on_the_room(name: str, operator: str, room: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(part("host_pool"), "SBUF", room)
    for distribution in ("integer", "special", "fixed"):
        verdict = tried(implementation(), operator, POOLED[name], distribution)
        assert verdict.status == "pass", verdict.reason


@pytest.mark.parametrize("operator", BN)
@pytest.mark.parametrize("problem", ["bn n3 c8 h14 w15 k140 r3 s3 p1", "bn n2 c6 h19 w19 k12 r3 s3 u2 p1 g6 outside1"])
def test_normalisation_does_not_depend_on_the_room(operator: str, problem: str, monkeypatch: pytest.MonkeyPatch):
    for name, room in (("SBUF", 11 << 10), ("WINDOWS", 800), ("KEPT", 0), ("PIXELS", 37)):
        monkeypatch.setattr(part("host_bn"), name, room)
    verdict = tried(implementation(), operator, problem, "fixed")
    assert verdict.status == "pass", verdict.reason


def test_z_that_fits_nowhere_goes_through_memory_once(monkeypatch: pytest.MonkeyPatch):
    problem = typed("bn n1 c8 h40 w40 k8 r3 s3 p1 run0").geometry
    moved = [_moved(TRAIN, problem.descriptor)]
    monkeypatch.setattr(part("host_bn"), "SBUF", 15000)
    moved.append(_moved(TRAIN, problem.descriptor))
    z = 4 * problem.y.size
    assert 2 * z <= moved[1] - moved[0] < 2.2 * z


def _moved(operator: str, problem: str) -> int:
    """Bytes between HBM and the chip."""
    with counting() as counted:
        verdict = tried(implementation(), operator, problem, "fixed")
    assert verdict.status == "pass", verdict.reason
    total: int = counted.dma_bytes_in + counted.dma_bytes_out
    return total


LEAN = [(operator, "pool n2 c70 h28 w28 r3 s3 u2 p1") for operator in POOL]
LEAN += [(operator, "bn n2 c64 h28 w28 k160 r1 s1") for operator in FORWARD]
LEAN += [(operator, "bn n1 c130 h14 w14 k130 r3 s3 p1") for operator in FORWARD]
LEAN += [(operator, "bn n2 c144 h28 w28 k144 r3 s3 p1 g144") for operator in FORWARD]


@pytest.mark.parametrize(("operator", "problem"), LEAN)
def test_every_tensor_moves_once(operator: str, problem: str):
    assert _moved(operator, problem) <= 1.01 * OPERATORS[operator].bytes(typed(problem).geometry, 4)


SAME: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0))}
UNDILATED: dict[str, Any] = SAME | {"dilation": (1, 1), "groups": 1, "eps": 1e-3, "eps_outside": False}
X, W = np.ones((2, 3, 5, 5), np.float32), np.ones((4, 3, 3, 3), np.float32)
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


POOLING: dict[str, Any] = SAME | {
    "kernel_size": (3, 3),
    "ceil_mode": False,
    "count_include_pad": True,
    "divisor_override": None,
}
REFUSED: dict[str, tuple[type[Exception], str, str, tuple[Any, ...], dict[str, Any]]] = {
    "integers": (TypeError, "int32", POOL[0], (X.astype(np.int32),), POOLING),
    "double precision": (TypeError, "float64", POOL[0], (X.astype(np.float64),), POOLING),
    "window": (ValueError, "window of 6 does not fit", POOL[0], (X,), POOLING | {"kernel_size": (3, 6)}),
    "rows of dy": (ValueError, "rows of dy: 4", POOL[1], (X[:, :, :4, :3],), POOLING | {"input_size": (5, 5)}),
    "columns of dy": (ValueError, "columns of dy: 4", POOL[1], (X[..., :3, :4],), POOLING | {"input_size": (5, 5)}),
    "gamma": (ValueError, "elements of a parameter: 3", GRADIENT, (DY, X, W, GAMMA[:3]), UNDILATED),
    "channels": (ValueError, "channels of x: 2", GRADIENT, (DY, X[:, :2], W, GAMMA), UNDILATED),
    "dtypes of dy": (TypeError, "one dtype", GRADIENT, (DY.astype(np.float16), X, W, GAMMA), UNDILATED),
    "one element": (
        ValueError,
        "one element a channel",
        GRADIENT,
        (DY[:1, :, :1, :1], X[:1, :, :3, :3], W, None),
        UNDILATED,
    ),
    "columns of a gradient": (ValueError, "columns of dy: 2", GRADIENT, (DY[..., :2], X, W, None), UNDILATED),
    "running statistics": (
        ValueError,
        "elements of a parameter: 5",
        INFER,
        (X, W, None, None, np.ones(5, np.float32), np.ones(5, np.float32)),
        UNDILATED,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_could_compute_is_refused(name: str):
    error, text, operator, tensors, parameters = REFUSED[name]
    with pytest.raises(error, match=text):
        _function(operator)(*tensors, **parameters)


def test_weights_that_fit_nowhere_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(part("host_bn"), "SBUF", 500)
    verdict = tried(implementation(), TRAIN, "bn n1 c130 h5 w5 k4 r3 s3", "fixed")
    assert (verdict.status, verdict.reason) == (
        "unsupported",
        "130 channels and 9 taps: the weights or a window exceed SBUF",
    )


STYLE = Path(__file__).parents[1] / "nki_emulator" / "style"


def _subject(file: str, kernel: str) -> KnownKernel:
    function = getattr(load(STYLE / file), kernel)

    def run(operator: Operator, geometry: PoolGeometry, inputs: Arrays, dtype: str) -> Arrays:
        return {"y": np.stack([function(image, geometry.r) for image in inputs["x"]])}

    return KnownKernel(f"{file} {kernel}", "nki", run, operators=("avg_pool_forward",))


def _out(file: str, kernel: str, descriptor: str, distribution: str) -> tuple[int, int, bool]:
    """Elements beyond the bound of fp32 accumulation with one rounding to bf16, elements, and whether all passes."""
    recipe = Recipe(OPERATORS["avg_pool_forward"], parse(descriptor), "bf16", distribution, SEED)
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
