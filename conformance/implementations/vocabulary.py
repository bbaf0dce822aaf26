"""The names that a declaration may use.

A kernel's process is sent these names: it must not find the tables, which lead to the references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Names(NamedTuple):
    """Names that a kernel of one operator may use."""

    arguments: tuple[str, ...]
    """By position."""
    keywords: tuple[str, ...]
    """Those that it may ask for."""
    capabilities: tuple[str, ...]
    """Keywords by which it says that it can do more."""
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    """Beside those that it declares itself; the first one is used if it names none."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    operators: Mapping[str, Names]
    differentiable: tuple[str, ...]
    """The operators whose gradients a check verifies."""
    layouts: tuple[str, ...]
    distributions: tuple[str, ...]


_set: list[Vocabulary] = []


def use(names: Vocabulary) -> None:
    """Use these names instead of the tables' own."""
    _set[:] = [names]


def vocabulary() -> Vocabulary:
    """Return the names in use: the tables' own, unless `use` was called."""
    if not _set:
        from conformance.inputs import DISTRIBUTIONS
        from conformance.layouts import GROUPED, IMAGES, MATRICES, NAMES
        from conformance.operators import FAMILIES, OPERATORS

        operators = {
            name: Names(
                operator.arguments,
                operator.keywords,
                operator.capabilities,
                operator.dtypes,
                MATRICES if not FAMILIES[operator.family].rank else (*IMAGES, *GROUPED),
            )
            for name, operator in OPERATORS.items()
        }
        differentiable = tuple(name for name, operator in OPERATORS.items() if operator.gradients)
        _set.append(Vocabulary(operators, differentiable, NAMES, tuple(DISTRIBUTIONS)))
    return _set[0]
