"""The modules that kernels import exist only while a file loads or a kernel of the first generation runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from nki_emulator import EmulationError
from nki_emulator.tests.sources import BETA_HEADER, HEADER, indented, loaded

BODY = """y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
nl.store(y, value=nl.load(a))
return y"""
ROOTS = ("nki", "neuronxcc")
SOURCES = {
    "nki": f"{HEADER}def kernel(a):\n{indented(BODY)}",
    "neuronxcc": f"{BETA_HEADER}@nki.jit\ndef kernel(a):\n{indented(BODY)}",
}
NAMES = {
    "nki": ("nki", "nki.language", "nki.isa", "nki.simulator"),
    "neuronxcc": ("neuronxcc", "neuronxcc.nki", "neuronxcc.nki.language", "neuronxcc.starfish"),
}
BROKEN = ("1 / 0\n", "import nki.nothing\nimport neuronxcc.nothing\n", "def f(:\n", "raise KeyboardInterrupt\n")
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def _present() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ROOTS}


@pytest.fixture(params=ROOTS)
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A generation, by the name of its package, in a process that has neither."""
    for name in _present():
        monkeypatch.delitem(sys.modules, name)
    yield request.param
    for name in _present():
        del sys.modules[name]


@pytest.fixture
def toolchain(root: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The vendor's packages, or decoys of them: both, as far as they are imported, tied to each other."""
    found = {name: ModuleType(name) for names in NAMES.values() for name in names}
    for name, module in found.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(found[parent], child, module)
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_nothing_stays(root: str, tmp_path):
    kernel = loaded(tmp_path, SOURCES[root]).kernel
    assert _present() == {}
    np.testing.assert_array_equal(kernel(VALUES), VALUES)
    assert _present() == {}


@pytest.mark.parametrize("broken", BROKEN[:-1], ids=["exception", "import", "syntax"])
def test_nothing_stays_after_an_error(root: str, tmp_path, broken: str):
    with pytest.raises(EmulationError):
        loaded(tmp_path, SOURCES[root] + broken)
    assert _present() == {}


def test_nothing_stays_after_an_interrupt(root: str, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        loaded(tmp_path, SOURCES[root] + BROKEN[-1])
    assert _present() == {}


def test_nothing_stays_after_a_refused_kernel(root: str, tmp_path):
    kernel = loaded(tmp_path, SOURCES[root]).kernel
    with pytest.raises(EmulationError):
        kernel(np.zeros((129, 2), np.float32))
    assert _present() == {}


def test_toolchain_is_put_back(root: str, toolchain: dict[str, ModuleType], tmp_path):
    contents = {name: dict(vars(module)) for name, module in toolchain.items()}
    module = loaded(tmp_path, SOURCES[root])
    assert module.nl is not toolchain["nki.language"]
    assert module.nl is not toolchain["neuronxcc.nki.language"]
    np.testing.assert_array_equal(module.kernel(VALUES), VALUES)
    assert _present() == toolchain
    assert all(sys.modules[name] is module for name, module in toolchain.items())
    assert {name: dict(vars(module)) for name, module in toolchain.items()} == contents


def test_toolchain_is_hidden_while_a_file_loads(root: str, toolchain: dict[str, ModuleType], tmp_path):
    """A module that only the real package has must not mix with the emulator's."""
    hidden = NAMES[root][-1]
    with pytest.raises(EmulationError, match="ModuleNotFoundError"):
        loaded(tmp_path, f"{SOURCES[root]}import {hidden}\n")
    assert _present() == toolchain


def test_the_other_generation_is_left_alone(root: str, toolchain: dict[str, ModuleType], tmp_path):
    """A file sees the emulator's package of its own generation, and the process's of the other one."""
    other = next(name for name in ROOTS if name != root)
    module = loaded(tmp_path, f"{SOURCES[root]}import sys\nother = sys.modules.get('{other}')\n")
    assert module.other is toolchain[other]
