"""The plan of a run of one implementation, made in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance import Implementation
from conformance.execution.plan import Plan
from conformance.execution.selection import Selection
from conformance.implementations.registry import Registry
from conformance.inputs import DISTRIBUTIONS
from conformance.operators import OPERATORS
from conformance.problems import PROBLEMS
from conformance.resources import IMPLS


def standard(one: Implementation, claims: Any = None, **changes: Any) -> Plan:
    """Of all problems at standard in fp32 and nchw, unless `changes` of the selection say otherwise."""

    class Loader:
        def load(self, paths: Any, registry: Registry | None = None) -> Registry:
            found = registry or Registry()
            found.implementations[one.name] = one
            found.paths[one.name] = f"{one.name}.py"
            return found

        def load_installed(self, registry: Registry) -> None: ...

    selection = Selection(
        (), (), "standard", PROBLEMS, tuple(OPERATORS), ("fp32",), ("nchw",), tuple(DISTRIBUTIONS), 0, "auto"
    )
    return Plan(replace(selection, **changes), IMPLS, claims, loader=Loader())
