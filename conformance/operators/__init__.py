"""The mathematics: one folder per operator family. Neither a framework nor pytest is imported.

Names are imported on first use: the process that runs a kernel needs geometries, but must not find references.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.operators.avg_pool.geometry import PoolGeometry
    from conformance.operators.base import Arrays, Geometry, Operator, Tensor, Workload
    from conformance.operators.conv.geometry import ConvGeometry
    from conformance.operators.conv_bn.geometry import ConvBnGeometry
    from conformance.operators.family import Family
    from conformance.operators.spatial import GeometryError
    from conformance.operators.table import (
        CONVOLUTIONS,
        FAMILIES,
        MAXIMA,
        NORMALISED,
        OPERATORS,
        ORDINARY,
        POOLINGS,
        TRANSPOSED,
        parse,
        takes,
    )

_MODULES = ("base", "spatial", "conv.geometry", "conv_bn.geometry", "avg_pool.geometry", "table")
"""Modules in which a name is looked up; the table is last, because importing it imports the references."""

__all__ = [
    "CONVOLUTIONS",
    "FAMILIES",
    "MAXIMA",
    "NORMALISED",
    "OPERATORS",
    "ORDINARY",
    "POOLINGS",
    "TRANSPOSED",
    "Arrays",
    "ConvBnGeometry",
    "ConvGeometry",
    "Family",
    "Geometry",
    "GeometryError",
    "Operator",
    "PoolGeometry",
    "Tensor",
    "Workload",
    "parse",
    "takes",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            members = vars(import_module(f"{__name__}.{module}"))
            if name in members:
                globals()[name] = members[name]
                return members[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
