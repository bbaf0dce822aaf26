"""The part of the geometry that operators with an activation share: its word, and whether a residual is added. This is
a separate file because a kernel's process may import geometries but no references: see `conformance.worker.guard`."""

from __future__ import annotations

from conformance.operators.descriptor import FLAG, Field, one_of
from conformance.operators.spatial import GeometryError

ACTIVATIONS = ("none", "relu", "relu6", "gelu", "gelu_tanh", "silu")
"""Activations by the words in which a kernel gets them."""
SMOOTH = ("gelu", "gelu_tanh", "silu")
"""Activations that are computed by elementary functions, and rounded; the others select or clip a sum."""
ACTIVATION = Field("act", "activation", one_of(ACTIVATIONS), "activation", "none")
RESIDUAL = Field("res", "residual (0 or 1)", FLAG, "residual", False)


def require_activation(word: str) -> None:
    """Raise GeometryError for an activation that the suite does not have."""
    if word not in ACTIVATIONS:
        raise GeometryError(f"the activation is {word!r}; it must be one of {', '.join(ACTIVATIONS)}")
