"""Kernels that are torch modules already: `ModelNew` beside a reference `Model`, with `get_inputs` and
`get_init_inputs`, or any class of `torch.nn.Module`. Such a file becomes an `Implementation` when it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

KEEPS = "a module that was called with other weights before differs from a fresh one"
"""Why a module fails that packs its weights once."""
UNKNOWN_SHAPE = "its own shape is not known: "
"""How the reason begins why a module's own problem is not verified."""
Adapt = Callable[[Mapping[str, Any]], list[Any]]
"""From what a file defines to implementations; none where it defines no module."""


def preparing(path: Path) -> Adapt | None:
    """What to adapt a file with once it has been imported; None for a file that is an implementation, or where there is
    no torch. Called before the import, so that what the file changes in torch then is seen as well."""
    try:
        text = path.read_text("utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError):
        return None
    if "torch" not in text or not any(word in text for word in ("Module)", "ModelNew")) or "Implementation(" in text:
        return None
    if find_spec("torch") is None:
        return None
    cuda = import_module("torch").cuda.is_available()
    interpreted = "triton" in text and not cuda
    if interpreted:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
    adapter = import_module("conformance.implementations.modules.adapter")
    device = "cuda" if cuda and ("cuda" in text or "triton" in text) else "cpu"
    one = adapter.Adapter(path.stem, device, interpreted=interpreted, compiles="torch.compile" in text)
    found: Adapt = one.implementations
    return found


def adapted(cls: Any) -> Any:
    """The implementation of a class, with the reference of the file that defines it; one of torch's is its own."""
    adapter = import_module("conformance.implementations.modules.adapter")
    home = vars(import_module(cls.__module__))
    told = home if "Model" in home else {**home, "Model": cls} if cls.__module__.startswith("torch.nn.") else home
    return adapter.Adapter(cls.__name__, "cpu").implementation(cls, cls.__name__, told)


def is_module(value: object) -> bool:
    """Whether something is a class of modules; asked without importing torch."""
    return isinstance(value, type) and any(
        (base.__module__, base.__qualname__) == ("torch.nn.modules.module", "Module") for base in value.__mro__
    )
