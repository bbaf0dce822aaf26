"""Toolchains of Neuron that are not there: a small `nki` on NumPy with faults to order, the private convolution of
`neuronxcc`, torch_xla, and the decoys of the package index."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance import Unavailable
from nki_emulator import load

GENERATIONS = {"trn1": "gen2", "trn2": "gen3", "trn3": "gen4"}
DECOYS = {
    "nki": ("nki", "0.0.1"),
    "neuronxcc": ("neuronx-cc", "1.0.post1"),
    "torch_neuronx": ("torch-neuronx", "1.0"),
    "jax_neuronx": ("jax-neuronx", "0.0.0"),
    "libneuronxla": ("libneuronxla", "1.0"),
}
"""Module -> package and version, as the index has them."""
WITHOUT_MODULE = ("neuronxcc", "jax_neuronx")
"""Their decoys install a folder that no import finds, because its name has a hyphen."""


def absence(require: Callable[[], None]) -> str:
    """The reason that `require` of a bridge or a toolchain gives; empty where all is here."""
    try:
        require()
    except Unavailable as reason:
        return str(reason)
    return ""


def module(name: str, **contents: Any) -> ModuleType:
    """A module with these contents."""
    made = ModuleType(name)
    vars(made).update(contents)
    return made


def install(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Put modules where `import` finds them, each as an attribute of its package too."""
    for made in modules:
        monkeypatch.setitem(sys.modules, made.__name__, made)
        package, _, name = made.__name__.rpartition(".")
        for parent in modules:
            if parent.__name__ == package:
                setattr(parent, name, made)


def decoy(folder: Path, name: str) -> None:
    """Install a decoy into a folder of the path: its metadata, and a module that raises, if it has one."""
    package, version = DECOYS[name]
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    if name not in WITHOUT_MODULE:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('raise ImportError("WRONG PACKAGE")\n')


@dataclass
class Toolchain:
    """A fake `nki`: the operations of the canary kernel on NumPy, and the faults that a test orders.

    version    what it says of itself
    chip       the device that a plain call of a kernel runs on
    sticks     a target that it keeps whatever the environment says
    rounds     whether bfloat16 tiles round: `None` is by the environment
    spoil      what becomes of a result
    """

    version: str = "0.6.0+fake"
    chip: str = "trn1"
    sticks: str = ""
    rounds: bool | None = None
    spoil: Callable[[Any], Any] = lambda result: result
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """How each kernel ran: simulated or on the device, for which target, with which rounding."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it what `import nki` finds."""
        nki = module("nki", __version__=self.version, jit=self._jit, simulate=self._simulate)
        versions = SimpleNamespace(gen2="gen2", gen3="gen3", gen4="gen4")
        isa = module("nki.isa", nc_version=versions, get_nc_version=lambda: self.target, **_INSTRUCTIONS)
        sorts = {"float32": np.float32, "bfloat16": "bfloat16", "sbuf": "sbuf", "shared_hbm": "shared_hbm"}
        language = module("nki.language", ndarray=self._ndarray, multiply=np.multiply, **sorts)
        install(monkeypatch, nki, isa, language)

    @property
    def target(self) -> str:
        """The generation that it works for."""
        asked = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", self.chip)
        return self.sticks or GENERATIONS.get(asked, asked)

    def _jit(self, function: Callable[..., Any] | None = None) -> Any:
        return self._jit if function is None else _Kernel(self, function)

    def _simulate(self, kernel: _Kernel) -> Callable[..., Any]:
        return lambda *arguments: self._run("simulated", kernel.function, arguments)

    def _ndarray(self, shape: tuple[int, ...], dtype: Any, buffer: str) -> np.ndarray:
        rounds = os.environ.get("NKI_PRECISE_FP", "1") == "1" if self.rounds is None else self.rounds
        narrow = ml_dtypes.bfloat16 if rounds else np.float32
        return np.full(shape, np.nan, narrow if isinstance(dtype, str) else dtype)

    def _run(self, how: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self.calls.append((how, self.target, os.environ.get("NKI_PRECISE_FP", "")))
        return self.spoil(function(*arguments))


@dataclass
class _Kernel:
    """What `nki.jit` makes of a function: no function itself, as in the real toolchain."""

    toolchain: Toolchain
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.toolchain._run("device", self.function, arguments)


def _copy(dst: np.ndarray, src: np.ndarray) -> None:
    dst[...] = src


def _memset(dst: np.ndarray, value: float) -> None:
    dst[...] = value


def _tensor_scalar(dst: np.ndarray, data: np.ndarray, op0: Callable[..., Any], operand0: float) -> None:
    dst[...] = op0(data.astype(np.float32), np.float32(operand0))


_INSTRUCTIONS = {"dma_copy": _copy, "tensor_copy": _copy, "memset": _memset, "tensor_scalar": _tensor_scalar}


class EmulatedToolchain:
    """A fake `nki` whose simulator is the emulator: what a release returns that follows the documentation."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        """Target, rounding and kernel of every simulation."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it what `import nki` finds. Its operations are never called: the emulator has its own."""
        nki = module("nki", __version__="0.7.0+fake", jit=lambda function: function, simulate=self._simulate)
        rest = [module(f"nki.{name}", __getattr__=lambda name: name) for name in ("isa", "language")]
        install(monkeypatch, nki, *rest)

    def _simulate(self, kernel: Any) -> Callable[..., Any]:
        target, precise = os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"], os.environ["NKI_PRECISE_FP"]
        self.calls.append((target, precise, kernel.__name__))
        path = Path(kernel.__code__.co_filename)
        emulated = load(path, target=target, precise=precise == "1")
        return getattr(emulated, kernel.__name__)  # type: ignore[no-any-return]


PRIVATE = "conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh"


@dataclass
class PrivateConvolution:
    """A fake `neuronxcc` whose private kernel takes what the documented layouts say, and computes by NumPy.

    images NCHW, weights OIHW and results NCHW, where the permutations are lists of 0 to 3 in order
    """

    spoil: Callable[[Any], Any] = lambda result: result
    version: str = "2.21.33363.0+fake"
    calls: list[dict[str, Any]] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch, name: str = PRIVATE) -> None:
        """Make it what `import neuronxcc` finds."""
        language = module("neuronxcc.nki.language", hbm="hbm", ndarray=self._ndarray)
        private = module("neuronxcc.nki._private_kernels.conv", **{name: self._kernel})
        compiler = module("neuronxcc", __version__=self.version)
        nki = module("neuronxcc.nki", jit=lambda function: function)
        install(monkeypatch, compiler, nki, module("neuronxcc.nki._private_kernels"), language, private)

    def _ndarray(self, *, shape: tuple[int, ...], dtype: Any, buffer: str) -> Any:
        assert buffer == "hbm"
        torch = import_module("torch")
        return torch.full(shape, torch.nan, dtype=dtype)

    def _kernel(self, image: Any, weights: Any, result: Any, **settings: Any) -> None:
        self.calls.append(settings)
        given = (tuple(settings["input"]), tuple(settings["filter"]), tuple(settings["output"]))
        assert given == (tuple(image.shape), tuple(weights.shape), tuple(result.shape))
        assert settings["in_perm"] == settings["kern_perm"] == settings["out_perm"] == [0, 1, 2, 3]
        assert image.shape[1] == weights.shape[1] <= 128, "input channels are one tile"
        assert settings["stride"] == (1, 1)
        padded = np.pad(image.numpy(), ((0, 0), (0, 0), *settings["padding"]))
        windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[2:], axis=(2, 3))
        y = np.einsum("ncpqrs,kcrs->nkpq", windows, weights.numpy(), optimize=True)
        result[...] = self.spoil(import_module("torch").from_numpy(np.ascontiguousarray(y)))
