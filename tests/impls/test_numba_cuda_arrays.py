"""The bridge to numba.cuda, in the simulator: which of its two kinds a process has, arrays there and back, views,
arrays of other frameworks, and errors that a context does not survive."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from conformance import numba_cuda_arrays
from conformance.implementations.bridges import numba_cuda as bridge_module
from conformance.implementations.devices import missing
from tests.conftest import ROOT, absence

BRIDGE = numba_cuda_arrays(simulator=True)

pytestmark = pytest.mark.skipif(bool(absence(BRIDGE.require)), reason=bridge_module.SIMULATES)


def reasons(value: str | None, before: str = "") -> list[str]:
    """Why each kind is unavailable in a new process, with the variable set to a value."""
    environment = {name: text for name, text in os.environ.items() if name != bridge_module.VARIABLE}
    environment |= {} if value is None else {bridge_module.VARIABLE: value}
    script = (
        f"{before}\nfrom conformance import numba_cuda_arrays as arrays\nfrom tests.conftest import ROOT, absence\n"
    )
    script += "print(*[absence(arrays(simulator=kind).require) for kind in (False, True)], sep='\\n')"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:2]


@pytest.mark.parametrize("before", ["", "import numba"])
@pytest.mark.skipif(not missing("cuda"), reason="a device is here")
def test_without_a_device_it_simulates_whoever_imported_numba_before(before):
    assert reasons(None, before) == [bridge_module.SIMULATES, ""]


def test_the_variable_decides_or_who_imported_numba_cuda_before():
    assert reasons("1") == [bridge_module.SIMULATES, ""]
    assert reasons("0") == ["", bridge_module.DRIVES]
    assert reasons("0", "import numba.cuda")[1] == bridge_module.DRIVES


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.uint8, np.int32])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (7,), (1, 1)])
def test_there_and_back_is_a_copy_of_the_same_bits(dtype, shape):
    host = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array = BRIDGE.from_host(host)
    kept = host.tobytes()
    host[...] = 0
    back = BRIDGE.to_host(array)
    assert type(back) is np.ndarray
    assert (back.dtype, back.shape, back.tobytes()) == (np.dtype(dtype), shape, kept)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_views_share_memory_and_overwriting_shows(dtype):
    memory = BRIDGE.from_host(np.arange(24).astype(dtype))
    view = BRIDGE.view(memory, 3, (2, 3), (8, 2))
    assert BRIDGE.to_host(view).astype(int).tolist() == [[3, 5, 7], [11, 13, 15]]
    assert BRIDGE.overwrite(memory, np.arange(24, 48).astype(dtype))
    assert BRIDGE.to_host(view).astype(int).tolist() == [[27, 29, 31], [35, 37, 39]]


def test_overlap_is_by_memory():
    memory = BRIDGE.from_host(np.zeros(24, np.float32))
    first, second = BRIDGE.view(memory, 0, (8,), (1,)), BRIDGE.view(memory, 8, (8,), (1,))
    assert BRIDGE.overlap(memory, first)
    assert not BRIDGE.overlap(first, second)
    assert not BRIDGE.overlap(memory, BRIDGE.from_host(np.zeros(24, np.float32)))


@pytest.mark.parametrize("foreign", [np.zeros(3), [1.0], None])
def test_foreign_results_are_refused(foreign):
    with pytest.raises(TypeError, match=r"returned .*; expected an array of numba\.cuda"):
        BRIDGE.to_host(foreign)


def test_records_say_that_it_was_simulated():
    assert BRIDGE.describe()["device"] == "simulator"
    assert BRIDGE.stopwatch(lambda: None) is None


def test_kernels_take_arrays_of_other_frameworks_without_a_copy():
    host = np.arange(12, dtype=np.float32)
    described = {"shape": (3, 2), "strides": (16, 8), "typestr": "<f4", "data": (host.ctypes.data, False), "version": 3}
    foreign = SimpleNamespace(__cuda_array_interface__=described, keeps=host)
    array = bridge_module.attach(bridge_module.interface(foreign), foreign)
    assert BRIDGE.to_host(array).tolist() == [[0, 2], [4, 6], [8, 10]]
    host[0] = 99
    assert BRIDGE.to_host(array)[0, 0] == 99


def test_contiguous_interfaces_may_leave_out_their_strides():
    described = {"shape": (3, 4, 2), "strides": None, "typestr": "<f8", "data": (0, False), "version": 3}
    found = bridge_module.interface(SimpleNamespace(__cuda_array_interface__=described))
    assert found["strides"] == (64, 16, 8)


ON_A_DEVICE = """
from numba.cuda.cudadrv.devicearray import DeviceNDArray
from conformance.implementations.bridges.numba_cuda import interface
for strides in (0, 2), (10, 0), (0, 0), (10, 2):
    assert interface(DeviceNDArray((4, 5), strides, "float16", gpu_data=object()))["strides"] == strides, strides
"""


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")
def test_a_broadcast_array_of_a_device_has_its_strides():
    subprocess.run([sys.executable, "-c", ON_A_DEVICE], env=os.environ | {bridge_module.VARIABLE: "0"}, check=True)


class DriverError(Exception):
    """An error like numba.cuda's, with the driver's number."""

    def __init__(self, code: int) -> None:
        super().__init__(f"[{code}] the driver's words")
        self.code = code


def failing(code: int) -> None:
    raise DriverError(code)


@pytest.fixture
def own_context(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lost: list[str] = []
    monkeypatch.setattr(bridge_module, "_lost", lost)
    return lost


def test_a_sticky_error_is_explained_and_the_context_left_alone(own_context):
    with pytest.raises(bridge_module.ContextLostError, match=r"\[700\] the driver's words.*broke the CUDA context"):
        bridge_module._guarded(failing, 700)
    with pytest.raises(bridge_module.ContextLostError, match="in a new process"):
        BRIDGE.from_host(np.zeros(3))
    assert "the CUDA context is lost since [700]" in absence(BRIDGE.require)


def test_running_out_of_memory_is_not_the_end(own_context):
    with pytest.raises(DriverError):
        bridge_module._guarded(failing, 2)
    assert BRIDGE.to_host(BRIDGE.from_host(np.ones(3))).tolist() == [1, 1, 1]
