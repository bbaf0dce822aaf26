"""The names that a declaration may use.

A kernel's process is sent these names: it must not find the tables, which lead to the references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    operators: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]]
    """Name -> arguments by position, keywords that a kernel may ask for, keywords by which it says that it can do more,
    and dtypes."""
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
        from conformance.layouts import NAMES
        from conformance.operators import OPERATORS

        operators = {
            name: (operator.arguments, operator.keywords, operator.capabilities, operator.dtypes)
            for name, operator in OPERATORS.items()
        }
        differentiable = tuple(name for name, operator in OPERATORS.items() if operator.gradients)
        _set.append(Vocabulary(operators, differentiable, NAMES, tuple(DISTRIBUTIONS)))
    return _set[0]
