"""The table of all operator families, found by their folders, and of the mistakes that they list."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from conformance.operators.base import Geometry, Operator
from conformance.operators.family import Family

if TYPE_CHECKING:
    from conformance.operators.mistakes import Mistake

_FOUND: dict[str, Family] = {
    file.name: import_module(f"conformance.operators.{file.name}.operators").FAMILY
    for file in iter_modules([str(Path(__file__).parent)])
    if file.ispkg
}
FAMILIES = dict(sorted(_FOUND.items(), key=lambda family: family[1].place))
"""All families, by the name of their folder: `FAMILY` at the end of its `operators.py`."""
OPERATORS: dict[str, Operator] = {
    operator.name: operator for family in FAMILIES.values() for operator in family.operators
}
_BY_PREFIX = {family.geometry.PREFIX: family.geometry for family in FAMILIES.values()}


def names_of(family: str) -> tuple[str, ...]:
    """Return the names of a family's operators."""
    return tuple(operator.name for operator in FAMILIES[family].operators)


CONVOLUTIONS, NORMALISED, POOLINGS = names_of("conv"), names_of("conv_bn"), names_of("avg_pool")
MAXIMA, TRANSPOSED = names_of("max_pool"), names_of("conv_transpose")
"""Names of the operators, by family."""
ORDINARY = tuple(name for name, operator in OPERATORS.items() if "fp32" in operator.dtypes)
"""Names of the operators that exist in fp32: all but the requantized operators, which have 8-bit dtypes only."""


@cache
def library() -> tuple[Mistake, ...]:
    """Return the known mistakes of all families: calibration plants them, and diagnosis names them."""
    return tuple(dict.fromkeys(mistake for family in FAMILIES.values() for mistake in family.mistakes))


def takes(operator: str, geometry: Geometry) -> bool:
    """Tell whether an operator takes a geometry: it is of the same family, and has images or may have none."""
    definition = OPERATORS[operator]
    return definition.family == geometry.family and (geometry.n > 0 or definition.takes_empty_batch)


def parse(text: str) -> Any:
    """Return the geometry of a descriptor. Its first word is the family's prefix; without a prefix it is a convolution.
    Raises GeometryError."""
    words = text.split(maxsplit=1)
    return _BY_PREFIX.get(words[0] if words else "", _BY_PREFIX[""]).parse(text)


def operators_of(mistake: Mistake) -> tuple[str, ...]:
    """Return the operators that a mistake exists for: of the families that list it, all operators, or the operators
    that it names."""
    listed = [
        operator.name for family in FAMILIES.values() if mistake in family.mistakes for operator in family.operators
    ]
    return tuple(name for name in listed if not mistake.operators or name in mistake.operators)
