"""The table of all operator families, and of the mistakes that they list."""

from __future__ import annotations

from typing import Any

from conformance.operators.avg_pool import family as avg_pool
from conformance.operators.base import Geometry, Operator
from conformance.operators.conv import family as conv
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.conv_bn import family as conv_bn
from conformance.operators.conv_requantized import family as conv_requantized
from conformance.operators.conv_transpose import family as conv_transpose
from conformance.operators.family import Family
from conformance.operators.max_pool import family as max_pool
from conformance.operators.mistakes import Mistake

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(conv.FAMILY, conv_bn.FAMILY, avg_pool.FAMILY, max_pool.FAMILY, conv_transpose.FAMILY),
        conv_requantized.FAMILY,
    )
}
"""Every family that there is. This is the only place that lists them."""
OPERATORS: dict[str, Operator] = {
    operator.name: operator for family in FAMILIES.values() for operator in family.operators
}
_BY_PREFIX = {family.geometry.PREFIX: family.geometry for family in FAMILIES.values()}

CONVOLUTIONS = tuple(operator.name for operator in conv.FAMILY.operators)
NORMALISED = tuple(operator.name for operator in conv_bn.FAMILY.operators)
POOLINGS = tuple(operator.name for operator in avg_pool.FAMILY.operators)
TRANSPOSED = tuple(operator.name for operator in conv_transpose.FAMILY.operators)
"""Names of the operators, by family."""
ORDINARY = tuple(name for name, operator in OPERATORS.items() if "fp32" in operator.dtypes)
"""Names of those with problems whose tensors all have one format; what is requantized has 8 bits alone."""
LIBRARY: tuple[Mistake, ...] = tuple(dict.fromkeys(m for family in FAMILIES.values() for m in family.mistakes))
"""The known mistakes of all families: calibration plants them, and diagnosis names them."""


def takes(operator: str, geometry: Geometry) -> bool:
    """Whether an operator is defined on a geometry: they are of one family, and there are images or need be none."""
    one = OPERATORS[operator]
    return one.family == geometry.family and (geometry.n > 0 or one.takes_empty_batch)


def parse(text: str) -> Any:
    """The geometry of a descriptor; its first word tells the family, and none is that of convolution. Raises
    GeometryError."""
    words = text.split(maxsplit=1)
    return _BY_PREFIX.get(words[0] if words else "", ConvGeometry).parse(text)


def operators_of(mistake: Mistake) -> tuple[str, ...]:
    """The operators that a mistake exists for: of those families that list it, all or the ones that it names."""
    listed = [
        operator.name for family in FAMILIES.values() if mistake in family.mistakes for operator in family.operators
    ]
    return tuple(name for name in listed if not mistake.operators or name in mistake.operators)
