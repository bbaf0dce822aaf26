"""The part of the geometry that operators with results of 8 bits share: zero points. This is a separate file because a
kernel's process may import geometries but no references: see `conformance.worker.guard`."""

from __future__ import annotations

from typing import ClassVar

from conformance.dtypes import FILTERS, WHOLE, ends
from conformance.operators.descriptor import Described, Field
from conformance.operators.spatial import GeometryError

LOWEST, HIGHEST = ends("int8")
_SUFFIX = "_zero_point"


def zero_point(tensor: str) -> Field:
    """Return the field of the zero point of a tensor: `zx` sets `x_zero_point`."""
    return Field(f"z{tensor}", f"zero point of {tensor}", attribute=tensor + _SUFFIX, default=0)


class ZeroPoints(Described):
    """A geometry with zero points, which are 0 in fp8. `weights` names the operand that has signed zero points in every
    dtype."""

    weights: ClassVar[str] = ""

    @property
    def zero_points(self) -> dict[str, int]:
        """Return the zero point of each tensor that has one, by its name."""
        names = (field.attribute for field in self.fields if field.attribute.endswith(_SUFFIX))
        return {name.removesuffix(_SUFFIX): getattr(self, name) for name in names}

    def check_zero_points(self) -> None:
        """Raise GeometryError for a zero point that no format of its tensor holds."""
        for tensor, value in self.zero_points.items():
            formats = [self.ends_of(tensor, dtype) for dtype in ("int8", *FILTERS)]
            least, most = min(low for low, _ in formats), max(high for _, high in formats)
            if not least <= value <= most:
                raise GeometryError(f"z{tensor} is {value}; a zero point is from {least} to {most}")

    def ends_of(self, tensor: str, dtype: str) -> tuple[int, int]:
        """Return the smallest and the largest number of a tensor in a problem of whole numbers."""
        return ends(FILTERS.get(dtype, dtype) if tensor == self.weights else dtype)

    def exists_in(self, dtype: str) -> bool:
        """Return whether the problem exists in a dtype: zero points are numbers of their tensors, and 0 in fp8."""
        if dtype not in WHOLE:
            return not any(self.zero_points.values())
        ranges = ((value, self.ends_of(tensor, dtype)) for tensor, value in self.zero_points.items())
        return all(low <= value <= high for value, (low, high) in ranges)
