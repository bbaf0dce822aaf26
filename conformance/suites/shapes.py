"""Which problems belong to which suite, so that every case is in exactly one."""

from __future__ import annotations

from conformance.operators import ConvGeometry


def ungrouped(geometry: ConvGeometry) -> bool:
    """Dense convolutions."""
    return geometry.groups == 1


def grouped(geometry: ConvGeometry) -> bool:
    """Grouped convolutions, depthwise included."""
    return geometry.groups > 1
