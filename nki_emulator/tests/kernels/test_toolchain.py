"""The tiers of the NKI implementation on toolchains that are not there: which one is found, that it computes what it
says for the target it says, and that none stands in for another."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conformance.implementations import registry
from conformance.implementations.bridges.neuron import require_module
from conformance.implementations.bridges.neuron_stacks import NKI, VENDOR
from conformance.implementations.implementation import Implementation
from conformance.problems import typed
from nki_emulator.tests.kernels.neuron_fakes import DECOYS, Toolchain, absence, decoy

FOLDER = Path(__file__).parents[3] / "impls" / "nki"
WIRING = ("__init__.py", "canary.py", "tiers.py", "toolchain.py")
HOST = """
class Host:
    def __init__(self, load):
        self.load = load

    def conv_forward(self, x, w, bias, *, stride, padding, dilation, groups):
        return self.load("twice").doubled(x)

    def conv_bn_inference(self, x, w, gamma, beta, running_mean, running_var):
        return x

    def avg_pool_forward(self, x):
        return x


OPERATORS = ("conv_forward", "conv_bn_inference", "avg_pool_forward")
OF_MATRICES, LAYOUTS = (), ()
"""
KERNELS = """
import nki
import nki.isa as nisa
import nki.language as nl

FACTOR = 2.0


def factor():
    return FACTOR


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    nisa.tensor_scalar(dst=out, data=x, op0=nl.multiply, operand0=factor())
    return out


@nki.jit()
def with_options(x):
    return doubled.function(x)
"""
SIMULATED = {
    "nki@sim": ("gen2", "1"),
    "nki@sim-gen3": ("gen3", "1"),
}
TARGET, PRECISE = "NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_PRECISE_FP"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process that nobody has set up for Neuron, on a machine that could simulate."""
    monkeypatch.delenv(TARGET, raising=False)
    monkeypatch.delenv(PRECISE, raising=False)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the implementation with a host and kernels of two lines, and the emulator left out."""
    made = tmp_path / "nki"
    (made / "kernels").mkdir(parents=True)
    for name in WIRING:
        shutil.copy(FOLDER / name, made / name)
    (made / "host.py").write_text(HOST)
    (made / "kernels" / "twice.py").write_text(KERNELS)
    return made


@pytest.fixture
def found(folder: Path) -> dict[str, Implementation]:
    """What the copy defines."""
    loaded = registry.load([folder])
    assert (loaded.broken, loaded.unavailable) == ({}, {})
    return loaded.implementations


def tier(implementation: Implementation) -> Any:
    """What runs its kernels."""
    bridge: Any = implementation.arrays
    return bridge.tier


def part(found: dict[str, Implementation], name: str) -> ModuleType:
    """A module of the copy."""
    return import_module(f"{type(tier(found['nki'])).__module__.rpartition('.')[0]}.{name}")


@pytest.mark.parametrize("name", DECOYS)
def test_decoys_are_recognised_by_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    if not absence(partial(require_module, name, DECOYS[name][0], NKI)):
        pytest.skip(f"the real {name} is here")
    package, version = DECOYS[name]
    decoy(tmp_path, name)
    monkeypatch.syspath_prepend(tmp_path)
    reason = absence(partial(require_module, name, package, VENDOR))
    assert f"although {package} {version} is installed: PyPI has a decoy of that name" in reason
    assert reason.endswith(VENDOR.way("trn1"))


def test_what_is_not_installed_at_all_is_no_decoy():
    reason = absence(partial(require_module, "nki_that_is_nowhere", "nki-that-is-nowhere", NKI))
    assert "ModuleNotFoundError" in reason
    assert "decoy" not in reason


def test_a_toolchain_that_breaks_while_it_is_imported_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "nki_broken.py").write_text("import ctypes\nctypes.CDLL('libnrt.so.that.is.not')\n")
    monkeypatch.syspath_prepend(tmp_path)
    reason = absence(partial(require_module, "nki_broken", "nki", NKI))
    assert "nki_broken cannot be imported (OSError: libnrt.so.that.is.not" in reason


def test_loading_imports_no_toolchain(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    bombs = tmp_path / "bombs"
    for name in (*DECOYS, "torch_xla"):
        (bombs / name).mkdir(parents=True)
        (bombs / name / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(bombs)
    impls = FOLDER.parent
    paths = [folder, impls / "neuronx_conv", impls / "neuron_torch.py", impls / "neuron_jax.py"]
    loaded = registry.load(paths)
    assert (loaded.broken, loaded.unavailable) == ({}, {})
    assert {"nki", "nki@emu", "neuronx-conv", "torch-neuronx", "jax-neuronx"} <= loaded.implementations.keys()
    assert not sys.modules.keys() & {*DECOYS, "torch_xla"}


@pytest.mark.parametrize(
    ("version", "words"),
    {
        "0.6.0+abc": "",
        "0.6": "",
        "0.10.1": "",
        "1.0": "",
        "0.5.9": "nki 0.5.9 is too old, 0.6 is needed",
        "0.3.0": "nki 0.3.0 is too old",
        "unknown": "nki unknown is too old",
    }.items(),
)
def test_version(found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch, version: str, words: str):
    Toolchain(version=version).install(monkeypatch)
    reason = absence(partial(part(found, "toolchain").require, NKI))
    assert reason.startswith(words)
    assert reason.endswith(NKI.way("trn1") if words else "")
    assert bool(reason) == bool(words)


def test_version_without_a_simulator(found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch):
    Toolchain().install(monkeypatch)
    del sys.modules["nki"].simulate
    assert absence(partial(part(found, "toolchain").require, NKI)) == "nki 0.6.0+fake has no nki.simulate"


@pytest.mark.parametrize("name", SIMULATED)
def test_simulator_computes_for_its_own_target(
    found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch, name: str
):
    toolchain = Toolchain()
    toolchain.install(monkeypatch)
    bridge = found[name].arrays
    target, precise = SIMULATED[name]
    assert absence(bridge.require) == ""
    assert set(toolchain.calls) == {("simulated", target, precise)}
    described = bridge.describe()
    expected = {"tier": "simulator", "nki": "0.6.0+fake", "target": target, PRECISE: precise}
    assert described.items() >= expected.items()
    assert TARGET not in os.environ
    assert PRECISE not in os.environ


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "zeros": ({"spoil": np.zeros_like}, "the canary kernel returned zeros: this toolchain does not compute"),
    "wrong": ({"spoil": lambda result: result * np.float32(1.5)}, "the canary kernel returned wrong values"),
    "nothing": ({"spoil": lambda result: None}, "returned NoneType, not an array"),
    "shape": ({"spoil": lambda result: result[:1]}, "returned ndarray, not an array of shape (2, 4)"),
    "keeps bfloat16 wide": ({"rounds": False}, "bfloat16 tiles do not round (see NKI_PRECISE_FP)"),
    "keeps a target": ({"sticks": "gen4"}, f"works for gen4: start the process with {TARGET}=gen2"),
    "unknown target": ({"sticks": "gen9"}, "works for an unknown NeuronCore"),
    "raises": ({"spoil": lambda result: 1 / 0}, "the canary kernel failed (ZeroDivisionError: division by zero)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_toolchain_with_a_fault_is_unavailable(
    found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch, fault: str
):
    faults, words = FAULTS[fault]
    Toolchain(**faults).install(monkeypatch)
    assert words in absence(found["nki@sim"].arrays.require)
    assert words in absence(found["nki"].arrays.require)


@pytest.mark.parametrize(("name", "value"), [("machine", "arm64"), ("system", "Darwin")])
def test_a_machine_that_has_no_wheel_says_so(
    found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    monkeypatch.setattr(f"platform.{name}", lambda: value)
    Toolchain().install(monkeypatch)
    assert absence(found["nki@sim"].arrays.require) == "the nki package is for Linux on x86_64 only"


@pytest.mark.parametrize("name", ["nki@sim", "nki"])
def test_a_toolchain_that_refuses_the_canary_is_unavailable(
    found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch, name: str
):
    Toolchain().install(monkeypatch)
    del sys.modules["nki"].jit
    reason = absence(found[name].arrays.require)
    assert reason.startswith("the canary kernel cannot be loaded (AttributeError")


def test_device_runs_kernels_by_calling_them(found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch):
    toolchain = Toolchain(chip="trn1")
    toolchain.install(monkeypatch)
    nki = found["nki"]
    assert absence(nki.arrays.require) == ""
    assert set(toolchain.calls) == {("device", "gen2", "")}
    assert nki.arrays.describe().items() >= {"tier": "device", "device": "trn1", "target": "gen2"}.items()


def test_device_of_another_generation_than_the_toolchain_works_for(
    found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch
):
    Toolchain(chip="trn2").install(monkeypatch)
    assert "works for gen3" in absence(found["nki"].arrays.require)


@pytest.mark.parametrize(
    ("value", "words"), [("trn2", f"{TARGET}=trn2, but the device is trn1"), ("trn1", ""), ("gen2", "")]
)
def test_device_and_variable_agree(
    found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch, value: str, words: str
):
    monkeypatch.setenv(TARGET, value)
    Toolchain(chip="trn1").install(monkeypatch)
    assert absence(found["nki"].arrays.require) == words


def test_device_is_the_trainium_that_is_here(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "conformance.implementations.bridges.neuron.missing", lambda kind: "" if kind == "trn2" else "not here"
    )
    nki = registry.load([folder]).implementations["nki"]
    assert (nki.device, tier(nki).target) == ("trn2", "gen3")


def test_only_simulated_tiers_stand_for_a_device(found: dict[str, Implementation]):
    stands_for = {name: tier(implementation).stands_for for name, implementation in found.items()}
    gen2, gen3 = ("trn1",), ("trn2",)
    simulators = {name: {"gen2": gen2, "gen3": gen3}[target] for name, (target, _) in SIMULATED.items()}
    assert stands_for == {"nki": (), "nki@emu": gen2, "nki@emu-gen3": gen3, **simulators}
    devices = {name: implementation.device for name, implementation in found.items()}
    assert set(devices.items()) >= {("nki", "trn1"), ("nki@sim", "simulator"), ("nki@emu", "emulator")}


def test_variables_are_restored_after_an_error(found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[str, str]] = []

    def spoil(result: Any) -> Any:
        seen.append((os.environ[TARGET], os.environ[PRECISE]))
        raise MemoryError

    monkeypatch.setenv(PRECISE, "before")
    Toolchain(spoil=spoil).install(monkeypatch)
    with pytest.raises(MemoryError):
        tier(found["nki@sim-gen3"]).load("twice").doubled(np.array([[1]], np.float32))
    assert seen == [("gen3", "1")]
    assert (os.environ.get(TARGET), os.environ[PRECISE]) == (None, "before")


def test_only_kernels_are_launched(found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch):
    toolchain = Toolchain()
    toolchain.install(monkeypatch)
    module = tier(found["nki@sim"]).load("twice")
    x = np.array([[1.5, 2]], np.float32)
    assert (module.factor(), module.FACTOR, toolchain.calls) == (2.0, 2.0, [])
    assert module.with_options(x).tolist() == [[3, 4]]
    assert toolchain.calls == [("simulated", "gen2", "1")]


def test_kernels_are_found_by_their_decorator(found: dict[str, Implementation], folder: Path):
    assert part(found, "toolchain").kernels(folder / "kernels" / "twice.py") == ["doubled", "with_options"]


def test_what_is_too_large_for_the_cpu_is_declared_by_the_device_alone(found: dict[str, Implementation]):
    small, large = (typed(text).geometry for text in ("n1 c4 h5 w5 k4 r3 s3", "n8 c64 h200 w200 k64 r3 s3"))
    for name, able in {"nki": (True, True), "nki@emu": (True, False)}.items():
        taken = [found[name].supports("conv_forward", p, "fp32", "nchw") for p in (small, large)]
        assert tuple(taken) == able
