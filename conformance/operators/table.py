"""The table of all operator families, and of the mistakes that they list."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from conformance.operators.base import Geometry, Operator
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.descriptor import Described

if TYPE_CHECKING:
    from conformance.operators.mistakes import Mistake


@dataclass(frozen=True, eq=False)
class Family:
    """Operators that take the same geometry; everything else about a family is in the folder of its name.

    `distributions` are the ways of drawing inputs that make sense for the family; checks of behaviour use the first.
    """

    name: str
    geometry: type[Described]
    operators: tuple[Operator, ...]
    distributions: tuple[str, ...]

    @cached_property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Mistakes that diagnosis knows, in the order in which it names equally good explanations. They are imported on
        first use; runs of correct kernels never use them."""
        known: tuple[Mistake, ...] = import_module(f"conformance.operators.{self.name}.mistakes").MISTAKES
        return known

    @cached_property
    def further(self) -> tuple[Mistake, ...]:
        """Further mistakes that diagnosis knows but calibration does not plant: most of them show in the output's
        shape, some only there."""
        from conformance.operators.mistakes import OF_RESULTS

        own: tuple[Mistake, ...] = getattr(import_module(f"conformance.operators.{self.name}.mistakes"), "FURTHER", ())
        return own + (OF_RESULTS if "fixed" in self.distributions else ())


def _of_folder(name: str, distributions: tuple[str, ...]) -> Family:
    """Return the family whose `operators.py` ends with FAMILY, its geometry and operators."""
    geometry, operators = import_module(f"conformance.operators.{name}.operators").FAMILY
    return Family(name, geometry, operators, distributions)


LINEAR = ("integer", "fixed", "natural", "impulse", "special", "nonfinite", "range", "subnormal", "wide", "mixed")
"""Distributions for operators that sum inputs or products of inputs, or that select one of their inputs."""
FAMILIES: dict[str, Family] = {
    name: _of_folder(name, distributions)
    for name, distributions in {
        "conv": (*LINEAR, "large", "small", "codes"),
        "conv_bn": ("fixed", "natural", "scaled", "shifted", "special", "nonfinite", "range"),
        "avg_pool": (*LINEAR, "large"),
        "max_pool": (*LINEAR, "close"),
        "conv_transpose": (*LINEAR, "large", "small"),
        "conv_requantized": ("scales", "ties", "cancelled", "natural", "special"),
    }.items()
}
"""All families, by the name of their folder. This is the only place that lists them."""
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
"""Names of the operators that exist in fp32: all but the requantized ones, which have 8-bit dtypes only."""


@cache
def library() -> tuple[Mistake, ...]:
    """Return the known mistakes of all families: calibration plants them, and diagnosis names them."""
    return tuple(dict.fromkeys(mistake for family in FAMILIES.values() for mistake in family.mistakes))


def takes(operator: str, geometry: Geometry) -> bool:
    """Tell whether an operator takes a geometry: it is of the same family, and has images or may have none."""
    one = OPERATORS[operator]
    return one.family == geometry.family and (geometry.n > 0 or one.takes_empty_batch)


def parse(text: str) -> Any:
    """Return the geometry of a descriptor. Its first word is the family's prefix; without a prefix it is a convolution.
    Raises GeometryError."""
    words = text.split(maxsplit=1)
    return _BY_PREFIX.get(words[0] if words else "", ConvGeometry).parse(text)


def operators_of(mistake: Mistake) -> tuple[str, ...]:
    """Return the operators that a mistake exists for: in the families that list it, all, or those that it names."""
    listed = [
        operator.name for family in FAMILIES.values() if mistake in family.mistakes for operator in family.operators
    ]
    return tuple(name for name in listed if not mistake.operators or name in mistake.operators)
