"""The part of the geometry that operators with results of 8 bits share: zero points. This is a separate file because a
kernel's process may import geometries but no references: see `conformance.worker.guard`."""

from __future__ import annotations

from conformance.dtypes import WHOLE
from conformance.operators.descriptor import Described, Field
from conformance.operators.spatial import GeometryError

LOWEST, HIGHEST = -128, 127
"""Range of int8."""
_SUFFIX = "_zero_point"


def zero_point(tensor: str) -> Field:
    """Return the field of the zero point of a tensor: `zx` sets `x_zero_point`."""
    return Field(f"z{tensor}", f"zero point of {tensor}", attribute=tensor + _SUFFIX, default=0)


class ZeroPoints(Described):
    """A geometry with zero points, which are 0 in fp8."""

    @property
    def zero_points(self) -> dict[str, int]:
        """Return the zero point of each tensor that has one, by its name."""
        names = (field.attribute for field in self.fields if field.attribute.endswith(_SUFFIX))
        return {name.removesuffix(_SUFFIX): getattr(self, name) for name in names}

    def check_zero_points(self) -> None:
        """Raise GeometryError for a zero point that int8 does not hold."""
        for tensor, value in self.zero_points.items():
            if not LOWEST <= value <= HIGHEST:
                raise GeometryError(f"z{tensor} is {value}; a zero point is from {LOWEST} to {HIGHEST}")

    def exists_in(self, dtype: str) -> bool:
        """Return whether the problem exists in a dtype: only integers may have zero points other than 0."""
        return dtype in WHOLE or not any(self.zero_points.values())
