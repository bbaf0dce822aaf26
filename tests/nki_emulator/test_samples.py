"""Kernels that others wrote, unmodified, in the emulator: those found below the folder CONFORMANCE_NKI_SAMPLES.

A checkout of a public repository of NKI samples, or of the documentation of the SDK, of any release from 2.21 on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nki_emulator import EmulationError, load
from tests.nki_emulator.calls import Call
from tests.nki_emulator.samples import SAMPLES

VARIABLE = "CONFORMANCE_NKI_SAMPLES"
FOLDER = os.environ.get(VARIABLE)
OTHER_GENERATION = "tensor_copy() got an unexpected keyword argument 'dtype'"
"""What nki 0.1 and 0.2 had, whose instructions still returned tiles."""

pytestmark = pytest.mark.skipif(
    FOLDER is None, reason=f"the environment variable {VARIABLE} names no folder of samples"
)


def _copies(call: Call) -> list[Path]:
    return sorted(Path(FOLDER or "").rglob(call.file)) if FOLDER else []


FOUND = [(call, path) for call in SAMPLES for path in _copies(call)] if FOLDER else []


def _loaded(call: Call, path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The file, or a file that imports it as a module of its package."""
    if not call.package:
        return load(path, target=call.target)
    monkeypatch.syspath_prepend(path.parents[call.package.count(".")])
    stub = folder / "stub.py"
    stub.write_text(f"import nki\nfrom {call.package} import {call.kernel}\n")
    try:
        return load(stub, target=call.target)
    finally:
        root = call.package.partition(".")[0]
        for name in [name for name in sys.modules if name.partition(".")[0] == root]:
            del sys.modules[name]


def _named(value: Call | Path) -> str:
    return value.kernel if isinstance(value, Call) else str(value.relative_to(FOLDER or ""))


@pytest.mark.parametrize(("call", "path"), FOUND, ids=_named)
def test_sample(call: Call, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in call.frameworks:
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    if call.refused:
        _expect_refusal(call, path, tmp_path, monkeypatch)
        return
    try:
        assert call.run(_loaded(call, path, tmp_path, monkeypatch)) == []
    except EmulationError as problem:
        if OTHER_GENERATION not in problem.message:
            raise
        pytest.skip(f"written for nki 0.1 or 0.2: {problem}")


def _expect_refusal(call: Call, path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EmulationError) as caught:
        call.run(_loaded(call, path, folder, monkeypatch))
    assert caught.value.rule in call.refused
    assert caught.value.line > 0


def test_folder_holds_samples():
    assert FOUND, f"no file of the table lies below {FOLDER}"
