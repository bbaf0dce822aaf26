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
    """Operators that take the same geometry; all else of a family stands in the folder of its name.

    `distributions` are the ways of drawing inputs that mean anything here; checks of behaviour take the first.
    """

    name: str
    geometry: type[Described]
    operators: tuple[Operator, ...]
    distributions: tuple[str, ...]

    @cached_property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Mistakes that diagnosis knows, in the order in which equally good explanations are named. They are imported
        where they are first asked for, which a right kernel never does."""
        known: tuple[Mistake, ...] = import_module(f"conformance.operators.{self.name}.mistakes").MISTAKES
        return known

    @cached_property
    def further(self) -> tuple[Mistake, ...]:
        """Mistakes that diagnosis knows besides and calibration does not plant: most of them show in the output's
        shape, and some in nothing else."""
        from conformance.operators.mistakes import OF_RESULTS

        own: tuple[Mistake, ...] = getattr(import_module(f"conformance.operators.{self.name}.mistakes"), "FURTHER", ())
        return own + (OF_RESULTS if "fixed" in self.distributions else ())


def _of_folder(name: str, distributions: tuple[str, ...]) -> Family:
    """Return the family whose `operators.py` ends with FAMILY, its geometry and operators."""
    geometry, operators = import_module(f"conformance.operators.{name}.operators").FAMILY
    return Family(name, geometry, operators, distributions)


LINEAR = ("integer", "fixed", "natural", "impulse", "special", "nonfinite", "range", "subnormal", "wide", "mixed")
"""Distributions for sums of inputs or of their products, and for what picks one of its inputs."""
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
"""Every family that there is, by the name of its folder. This is the only place that lists them."""
OPERATORS: dict[str, Operator] = {
    operator.name: operator for family in FAMILIES.values() for operator in family.operators
}
_BY_PREFIX = {family.geometry.PREFIX: family.geometry for family in FAMILIES.values()}


def names_of(family: str) -> tuple[str, ...]:
    """The names of a family's operators."""
    return tuple(operator.name for operator in FAMILIES[family].operators)


CONVOLUTIONS, NORMALISED, POOLINGS = names_of("conv"), names_of("conv_bn"), names_of("avg_pool")
MAXIMA, TRANSPOSED = names_of("max_pool"), names_of("conv_transpose")
"""Names of the operators, by family."""
ORDINARY = tuple(name for name, operator in OPERATORS.items() if "fp32" in operator.dtypes)
"""Names of those with problems whose tensors all have one format; what is requantized has 8 bits alone."""


@cache
def library() -> tuple[Mistake, ...]:
    """Return the known mistakes of all families: calibration plants them, and diagnosis names them."""
    return tuple(dict.fromkeys(mistake for family in FAMILIES.values() for mistake in family.mistakes))


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
