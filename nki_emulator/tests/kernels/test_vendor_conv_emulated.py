"""The vendor's convolution in the emulator: by a kernel of its name that is written here, and by the vendor's own
source where the environment variable CONFORMANCE_NEURONX_CONV names its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.devices import Unavailable
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed

FOLDER = Path(__file__).parents[3] / "impls" / "neuronx_conv"
VARIABLE = "CONFORMANCE_NEURONX_CONV"
GIVEN = os.environ.get(VARIABLE)
OPERATORS_OF_IT = ("conv_forward", "conv_backward_data", "conv_backward_weight")
PROBLEMS = ("n2 c3 h5 w6 k4 r3 s3 p1", "n1 c1 h3 w3 k1 r3 s3 p1", "n3 c5 h4 w7 k2 r3 s3 p1", "n1 c4 h1 w5 k3 r3 s3 p1")
NEIGHBOUR = "def padded(extent, pads):\n    return extent + pads[0] + pads[1]\n"
OWN = """import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from neighbour import padded


def conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh(image, weights, result, padding, **settings):
    print("says how it tiles")
    (n, c, h, w), (k, _, r, s), (_, _, p, q) = image.shape, weights.shape, result.shape
    for i in nl.affine_range(n):
        tile = nl.zeros((c, padded(h, padding[0]), padded(w, padding[1])), dtype=image.dtype)
        tile[:, padding[0][0] : padding[0][0] + h, padding[1][0] : padding[1][0] + w] = nl.load(image[i])
        sums = nl.zeros((k, p, q), dtype=nl.float32, buffer=nl.psum)
        for y in nl.affine_range(r):
            for x in nl.affine_range(s):
                taps = nl.load_transpose2d(weights.reshape((k, c, r * s))[:, :, y * s + x])
                channel, row, column = nl.mgrid[0:c, 0:p, 0:q]
                sums += nisa.nc_matmul(taps, tile[channel, row + y, column + x][{limit}])
        nl.store(result[i], value=sums)
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a convolution of the vendor's name, and what it imports from beside it."""
    (tmp_path / "conv.py").write_text(OWN.replace("{limit}", "row < p"))
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def emulated() -> Implementation:
    loaded = registry.load([FOLDER])
    assert loaded.broken == {}
    return loaded.implementations["neuronx-conv@emu"]


def _statuses(implementation: Implementation, problems: tuple[str, ...]) -> dict[tuple[str, str, str], str]:
    implementation.arrays.require()
    return {
        (operator, problem, dtype): verify(
            Trial(implementation, OPERATORS[operator], typed(problem), Variant(dtype, "nchw", "fixed"), seed=5)
        ).status
        for operator in OPERATORS_OF_IT
        for problem in problems
        for dtype in ("fp32", "bf16")
    }


def test_every_direction_is_right(source: Path, emulated: Implementation, capfd: pytest.CaptureFixture[str]):
    assert set(_statuses(emulated, PROBLEMS[:2]).values()) == {"pass"}
    assert "tiles" not in capfd.readouterr().out


def test_wrong_kernel_fails(source: Path, emulated: Implementation):
    (source / "conv.py").write_text(OWN.replace("{limit}", "row < p - 1"))
    statuses = _statuses(emulated, PROBLEMS[:1])
    assert statuses["conv_forward", PROBLEMS[0], "fp32"] == "fail"


def test_unavailable_without_source(emulated: Implementation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(Unavailable, match="git clone https://github"):
        emulated.arrays.require()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(Unavailable, match="does not define conv2d_dw"):
        emulated.arrays.require()


@pytest.mark.skipif(GIVEN is None, reason=f"{VARIABLE} names no folder with the vendor's source")
def test_the_vendors_own_source(emulated: Implementation):
    assert set(_statuses(emulated, PROBLEMS).values()) == {"pass"}
