"""The numba.cuda kernels beyond what small problems make them do: every tile of the table, and every specialisation
compiled for real devices, which needs a toolkit and no device."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from conformance.harness.arrays.numba_cuda import VARIABLE
from conformance.selftest.cuda_kernels import implementations, module, only_simulated, tried

OPERATORS = ("conv_forward", "conv_backward_data", "conv_backward_weight")
RAGGED = "n1 c5 h6 w7 k6 r3 s2 u1x2 p1 b1"
GROUPED = "n2 c4 h5 w6 k6 r3 s3 u2 p1:0x1 d1x2 g2 b1"
DIRECT, TILED, IGEMM = "numba-cuda-direct@sim", "numba-cuda-tiled@sim", "numba-cuda-igemm@sim"
TILES = 5
ROOT = Path(__file__).parents[2]
CAPABILITIES = {"7.5": 9, "8.0": 9, "9.0": 3, "10.0": 9}
"""Compute capability -> every how many of the specialisations."""


@only_simulated
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("problem", [RAGGED, GROUPED])
@pytest.mark.parametrize("number", range(TILES))
def test_every_tile_of_the_table_is_right(monkeypatch, operator, problem, number):
    implementation = implementations()[IGEMM]
    choices = module("plan", implementation).CHOICES
    assert len(choices) == TILES
    monkeypatch.setattr(module("igemm", implementation), "tile_for", lambda products, layout: choices[number].tile)
    verdict = tried(implementation, operator, problem)
    assert verdict.status == "pass", verdict.reason


@only_simulated
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("shape", [(8, 32, 4, 3), (4, 8, 1, 3), (4, 8, 1, 2), (1, 32, 1, 1)])
def test_every_patch_is_right(monkeypatch, operator, shape):
    implementation = implementations()[TILED]
    patch = module("plan", implementation).Patch(*shape)
    monkeypatch.setattr(module("tiled", implementation), "patch_for", lambda columns, taps, fits: patch)
    verdict = tried(implementation, operator, GROUPED)
    assert verdict.status == "pass", verdict.reason


@only_simulated
@pytest.mark.parametrize("kernel", [DIRECT, TILED, IGEMM])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("splits", [2, 3, 7])
def test_sums_in_parts_are_right(monkeypatch, kernel, operator, splits):
    implementation = implementations()[kernel]
    monkeypatch.setattr(module("conv", implementation), "splits_for", lambda products, blocks: splits)
    verdict = tried(implementation, operator, GROUPED, "fixed")
    assert verdict.status == "pass", verdict.reason


@only_simulated
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_half_survives_and_every_rounding_is_to_nearest_even(dtype):
    storage = module("storage", implementations()[DIRECT])
    stored = next(f for f in storage.FORMATS.values() if f.name == dtype)
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits if dtype == "bf16" else bits.view(np.float16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else halves.astype(np.float32)
    with np.errstate(all="ignore"):
        widened = np.array([stored.widen(half) for half in halves], np.float32)
        np.testing.assert_array_equal(widened, exact)
        middles = (exact[:0x7B00:97] + exact[1:0x7B01:97]) / 2
        narrowed = np.array([stored.narrow(value) for value in middles], stored.memory).view(np.uint16)
    assert not (narrowed & 1).any()


@only_simulated
def test_what_a_thread_raises_names_the_block_and_the_thread():
    implementation = implementations()[DIRECT]
    memory = module("memory", implementation)
    out, short = (memory.empty((size,), np.dtype(np.float32)) for size in (60, 75))
    with pytest.raises(IndexError, match=r"block \[0, 0, 0\], thread \[15, 0, 0\].*out of bounds"):
        module("reduce", implementation).add_partials(out, short, 2)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")
def test_kernels_compile_without_a_device(capability: str):
    command = [sys.executable, "-m", "conformance.selftest.cuda_compile", capability, str(CAPABILITIES[capability])]
    environment = os.environ | {VARIABLE: "0"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
