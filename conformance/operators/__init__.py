"""The mathematics: one folder per operator family, no framework and no pytest.

Names are loaded when they are used: a kernel's process needs geometries, and must not find references.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.operators.avg_pool.geometry import PoolGeometry
    from conformance.operators.base import Arrays, Geometry, Operator, Tensor
    from conformance.operators.conv.geometry import ConvGeometry
    from conformance.operators.conv_bn.geometry import ConvBnGeometry
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
        Family,
        parse,
        takes,
    )

_MODULES = {
    "avg_pool.geometry": ("PoolGeometry",),
    "base": ("Arrays", "Geometry", "Operator", "Tensor"),
    "conv.geometry": ("ConvGeometry",),
    "conv_bn.geometry": ("ConvBnGeometry",),
    "spatial": ("GeometryError",),
    "table": (
        "CONVOLUTIONS",
        "FAMILIES",
        "MAXIMA",
        "NORMALISED",
        "OPERATORS",
        "ORDINARY",
        "POOLINGS",
        "TRANSPOSED",
        "Family",
        "parse",
        "takes",
    ),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

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
    "parse",
    "takes",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value
