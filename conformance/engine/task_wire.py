"""Tasks as bytes, for the processes of a run that carry out what another one has planned.

Implementations and operators are named, since each process has its own; all else of a task is data. The bytes are only
for processes of one run, which trust each other: they are pickled.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.engine.tasks import Task
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS, Operator


class UnknownKernelError(Exception):
    """A process of the run has no implementation of this name: its file was changed, or is another one."""


def encode(tasks: Sequence[Task]) -> bytes:
    """Return tasks as bytes."""
    content = io.BytesIO()
    _Pickler(content, pickle.HIGHEST_PROTOCOL).dump([*tasks])
    return content.getvalue()


def decode(content: bytes, implementations: Mapping[str, Implementation]) -> list[Task]:
    """Return tasks on these implementations, by their names. Raises UnknownKernelError."""
    unpickler = _Unpickler(io.BytesIO(content))
    unpickler.implementations = implementations
    tasks: list[Task] = unpickler.load()
    return tasks


class _Pickler(pickle.Pickler):
    def persistent_id(self, part: Any) -> tuple[str, str] | None:
        if isinstance(part, Implementation):
            return "implementation", part.name
        return ("operator", part.name) if isinstance(part, Operator) else None


class _Unpickler(pickle.Unpickler):
    implementations: Mapping[str, Implementation]

    def persistent_load(self, identity: Any) -> Implementation | Operator:
        kind, name = identity
        if kind == "operator":
            return OPERATORS[name]
        if name not in self.implementations:
            raise UnknownKernelError(name)
        return self.implementations[name]
