"""Kernels that are torch modules already: `ModelNew` beside a reference `Model`, with `get_inputs` and
`get_init_inputs`, or any class of `torch.nn.Module`. Such a file becomes an `Implementation` when it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conformance.implementations.implementation import Implementation
from conformance.implementations.modules import source

KEEPS = "a module that was called with other weights before differs from a fresh one"
"""Reason for the failure of a module that packs its weights once."""
KEEPS_OPERANDS = "a module that was called with other operands before differs from a fresh one"
"""The same of a module that multiplies its two inputs."""
UNKNOWN_SHAPE = "its own shape is not known: "
"""Beginning of the reason why a module's own problem is not verified."""


class ModuleFile:
    """A file that may define torch modules, read before its import, so that changes of torch by the import are seen."""

    def __init__(self, path: Path) -> None:
        tree = source.parsed(path)
        if tree is not None and source.makes_implementation(tree):
            tree = None
        self._path, self._may = path, tree is not None
        prepares = tree is not None and source.imports_torch(tree) and find_spec("torch") is not None
        self._adapter = self._prepared() if prepares else None
        self.tree = source.with_reference(tree) if tree is not None else None
        """Syntax tree that is run instead of the file, where the file calls two things `Model`."""

    def implementations(self, defined: Mapping[str, Any]) -> list[Any]:
        """Return the objects that a file defines, implementations among them, or else one implementation for each class
        of modules."""
        values = [*defined.values()]
        classes = [value for value in values if is_module(value) and value.__module__ == defined["__name__"]]
        modules = self._may and (classes or is_module(defined.get("ModelNew")))
        if not modules or any(isinstance(value, Implementation) for value in values):
            return values
        adapter = self._adapter or self._prepared()  # a file may have its base classes from elsewhere, not from torch
        implementations: list[Any] = adapter.implementations(defined)
        return implementations

    def _prepared(self) -> Any:
        """Return the adapter of the file."""
        text = self._path.read_text("utf-8", "replace")
        cuda = import_module("torch").cuda.is_available()
        interpreted = "triton" in text and not cuda
        if interpreted:
            os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
        adapter = import_module("conformance.implementations.modules.adapter")
        device = "cuda" if cuda and ("cuda" in text or "triton" in text) else "cpu"
        return adapter.Adapter(
            self._path.stem, device, interpreted=interpreted, compiles="torch.compile" in text,
            needs_cuda="__global__" in text and not cuda,
        )  # fmt: skip


def adapted(cls: Any) -> Any:
    """Return the implementation of a class, with the reference of the file that defines it; a class of torch is its own
    reference."""
    adapter = import_module("conformance.implementations.modules.adapter")
    home = vars(import_module(cls.__module__))
    namespace = home if "Model" in home else {**home, "Model": cls} if cls.__module__.startswith("torch.nn.") else home
    return adapter.Adapter(cls.__name__, "cpu").implementation(cls, cls.__name__, namespace)


def is_module(value: object) -> bool:
    """Return whether an object is a class of modules, without importing torch."""
    return isinstance(value, type) and any(
        (base.__module__, base.__qualname__) == ("torch.nn.modules.module", "Module") for base in value.__mro__
    )
