"""The numba.cuda kernels beyond what small problems make them do: every tile of the table, and every specialisation
compiled for real devices, which needs a toolkit and no device."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest

from conformance.execution.invocation import Invocation
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.bridges.numba_cuda import SIMULATES, numba_cuda_arrays
from conformance.implementations.implementation import Implementation
from conformance.layouts import layouts_of
from conformance.operators import OPERATORS
from conformance.problems import typed
from conformance.resources import IMPLS
from tests.conftest import ROOT, absence
from tests.kit import trial_of

NAMES = ("conv_forward", "conv_backward_data", "conv_backward_weight")
RAGGED = "n1 c5 h6 w7 k6 r3 s2 u1x2 p1 b1"
GROUPED = "n2 c4 h5 w6 k6 r3 s3 u2 p1:0x1 d1x2 g2 b1"
SOLID = "n1 c4 d3 h4 w3 k6 t2 r2 s2 u1x2x1 p1:0x0:1x1 dil2x1x1 g2 b1"
DIRECT, TILED, IGEMM = "numba-cuda-direct@sim", "numba-cuda-tiled@sim", "numba-cuda-igemm@sim"
TILES = 5
EVERY = 101
"""Of the specialisations, how many lie between two that are compiled here: all of them take minutes."""

only_simulated = pytest.mark.skipif(bool(absence(numba_cuda_arrays(simulator=True).require)), reason=SIMULATES)


@cache
def implementations() -> dict[str, Implementation]:
    found = registry.load([IMPLS / "numba_cuda"])
    assert not found.broken
    return found.implementations


def module(name: str, implementation: Implementation) -> ModuleType:
    """A module of the package that an implementation is from."""
    function = implementation.kernels[0].function
    return import_module(f"{sys.modules[function.__module__].__package__}.{name}")


def require_right(implementation: Implementation, operator: str, problem: str, distribution: str = "integer") -> None:
    """Fail where the verdict on one case, with channels first and whatever its size, is not that it passes."""
    kernel = next(kernel for kernel in implementation.kernels if kernel.operator == operator)
    layout, _ = layouts_of(typed(problem).geometry.rank)
    arrays = implementation.arrays
    case = trial_of(kernel.function, problem, operator, layout=layout, distribution=distribution, arrays=arrays)
    verdict = verify(case)
    assert verdict.status == "pass", verdict.reason


@only_simulated
@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("problem", [RAGGED, GROUPED, SOLID])
@pytest.mark.parametrize("number", range(TILES))
def test_every_tile_of_the_table_is_right(monkeypatch, operator, problem, number):
    implementation = implementations()[IGEMM]
    choices = module("plan", implementation).CHOICES
    assert len(choices) == TILES
    monkeypatch.setattr(module("igemm", implementation), "tile_for", lambda products, layout: choices[number].tile)
    require_right(implementation, operator, problem)


ROW = "n2 c6 w9 k6 s3 u2 p1:0 d2 g3 b1"
PLANES = "n1 c3 d4 h3 w4 k6 t2 r3 s2 u1x1x2 p1 g3 b1"
"""Depthwise, of which no kernel knows planes: it goes through a tile."""


@only_simulated
@pytest.mark.parametrize(("kernel", "problem"), [(DIRECT, ROW), (TILED, ROW), (IGEMM, ROW), (IGEMM, PLANES)])
@pytest.mark.parametrize("operator", NAMES)
def test_one_and_three_dimensions_are_right(kernel, problem, operator):
    require_right(implementations()[kernel], operator, problem)


@only_simulated
@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("shape", [(8, 32, 4, 3), (4, 8, 1, 3), (4, 8, 1, 2), (1, 32, 1, 1)])
def test_every_patch_is_right(monkeypatch, operator, shape):
    implementation = implementations()[TILED]
    patch = module("plan", implementation).Patch(*shape)
    monkeypatch.setattr(module("tiled", implementation), "patch_for", lambda columns, taps, rows, fits: patch)
    require_right(implementation, operator, GROUPED)


@only_simulated
@pytest.mark.parametrize("kernel", [DIRECT, TILED, IGEMM])
@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("splits", [2, 3, 7])
def test_sums_in_parts_are_right(monkeypatch, kernel, operator, splits):
    implementation = implementations()[kernel]
    monkeypatch.setattr(module("conv", implementation), "splits_for", lambda products, blocks: splits)
    require_right(implementation, operator, GROUPED, "fixed")


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


@only_simulated
def test_nothing_is_launched_over_an_empty_grid():
    """A device refuses it, which the simulator does not: so this kernel refuses all launches."""
    launch = module("memory", implementations()[DIRECT]).launch
    for blocks in (0, (0, 2), (3, 0)):
        launch(None, blocks, 32)


@only_simulated
@pytest.mark.parametrize("shape", [(3, 4, 3, 3), (2, 4, 2, 3), (2, 4, 3, 2)], ids=["images", "rows", "columns"])
def test_a_gradient_of_another_size_is_refused(shape: tuple[int, ...]):
    """A column too few would be read from the next row."""
    implementation = implementations()[DIRECT]
    geometry = typed("n2 c3 h5 w5 k4 r3 s3").geometry
    kernel = implementation.find("conv_backward_weight", geometry, "fp32", "nchw")
    bridge = implementation.arrays
    invocation = Invocation(kernel, bridge, OPERATORS["conv_backward_weight"].on(geometry), "fp32", "nchw")
    right, wrong = (
        {"x": np.ones((2, 3, 5, 5), np.float32), "dy": np.ones(dy, np.float32)} for dy in ((2, 4, 3, 3), shape)
    )
    invocation.call(invocation.to_device(right))
    with pytest.raises(ValueError, match="images and size of dy"):
        invocation.call(invocation.to_device(wrong))


@pytest.fixture
def ptx() -> ModuleType:
    """The module of their package that compiles them."""
    pytest.importorskip("numba")
    return module("ptx", implementations()[DIRECT])


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")
def test_kernels_compile_without_a_device(ptx):
    command = [sys.executable, "-m", "impls.numba_cuda.ptx", "--every", str(EVERY)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for capability in ptx.CAPABILITIES:
        assert re.search(rf"{re.escape(capability)}: [1-9]\d* kernels, 0 findings", done.stdout)


REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'many' for 'sm_90'
ptxas info    : Function properties for many
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 167 registers, used 1 barriers, 24064 bytes smem
ptxas info    : Compile time = 102.995 ms
"""


def test_what_the_assembler_says_is_read(ptx):
    found = ptx.resources_of(REPORT.format(stack=24, stores=16, loads=20))
    assert found == ptx.Resources(registers=167, shared=24064, stack=24, spills=36)
    less = REPORT.format(stack=0, stores=0, loads=0).replace(", 24064 bytes smem", "")
    assert ptx.resources_of(less) == ptx.Resources(167, 0, 0, 0)
    with pytest.raises(ValueError, match=r"no registers or stack frame.*something else"):
        ptx.resources_of("something else")


def _spilling(values: int) -> str:
    """PTX of a kernel that has so many values at a barrier."""
    names = [f"%f{i}" for i in range(values)]
    reads = [f"ld.global.f32 {name}, [%rd1+{4 * i}];" for i, name in enumerate(names)]
    writes = [f"st.global.f32 [%rd1+{4 * i}], {name};" for i, name in enumerate(names)]
    head = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry many(.param .u64 at)\n{"
    registers = [f".reg .f32 %f<{values}>;", ".reg .b64 %rd<2>;", "ld.param.u64 %rd1, [at];"]
    return "\n".join([head, *registers, *reads, "bar.sync 0;", *writes, "ret;", "}\n"])


def test_a_planted_spill_is_found(ptx):
    source, ptxas = _spilling(96), ptx.assembler()
    if not ptxas:
        pytest.skip("ptxas is not installed (package nvidia-cuda-nvcc)")
    for options, spills in ((), False), (("-maxrregcount=32",), True):
        resources = ptx.assembled(source, "8.0", ptxas, *options)
        assert resources is not None
        one = ptx.CompiledKernel("many", "8.0", resources=resources)
        assert bool(resources.spills) == ("spills" in one.finding) == bool(ptx.findings([one])) == spills


def test_what_the_assembler_refuses_is_its_own_words(ptx, tmp_path):
    old, strict = tmp_path / "old", tmp_path / "strict"
    for path, words in (old, "Unsupported .version 9.5; current version is '9.0'"), (strict, "Unknown symbol 'x'"):
        path.write_text(f'#!/bin/sh\necho "fatal : {words}" >&2\nexit 255\n')
        path.chmod(0o755)
    assert ptx.assembled("", "9.0", str(old)) is None
    with pytest.raises(ValueError, match="strict: fatal : Unknown symbol"):
        ptx.assembled("", "9.0", str(strict))


LOCAL = "ld.shared.f32 %f1, [%rd1];\n\t@%p1 ld.local.f32 %f2, [%rd2];\n\tadd.f64 %fd1, %fd1, %fd2;\n"


def test_a_finding_fails_the_command_unless_it_is_declared(ptx, monkeypatch, capsys):
    local = ptx.CompiledKernel("many", "9.0", local_accesses=len(ptx.LOCAL.findall(LOCAL)))
    broken = ptx.CompiledKernel("many", "9.0", "TypeError: no")
    monkeypatch.setattr(ptx, "find_spec", lambda name: name)
    monkeypatch.setattr(ptx, "run", lambda *_: [[local]])
    assert ptx.main([]) == 1
    assert "9.0: many: keeps an array in local memory (1 accesses)" in capsys.readouterr().out
    monkeypatch.setitem(ptx.DECLARED, ("many", "9.0"), "a reason")
    assert ptx.main([]) == 0
    monkeypatch.setattr(ptx, "run", lambda *_: [[broken]])
    assert ptx.main([]) == 1
    monkeypatch.setattr(ptx, "find_spec", lambda name: None)
    assert ptx.main([]) == 1
    assert "numba-cuda is not installed" in capsys.readouterr().out
