"""Index, groups, bias and gradients: the mistakes that diagnosis knows, computed exactly and rounded once.

They are computed exactly so that a mistake which changes nothing on a problem is seen to be equivalent there, in any
order of the sums. The same mistakes are also made on a special path alone: a library has one for 1x1 windows, for
depthwise layers, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from conformance.operators import OPERATORS, ORDINARY, Arrays, Operator
from conformance.operators.mistakes import Mistake
from conformance.operators.table import library, operators_of
from tests.calibration.kernels.kernel import STORED, Mutant, exact, of_operator


def _dtypes_of(mistake: Mistake) -> tuple[str, ...]:
    """Return the dtypes of a mistake's kernels: the usual ones, and those of 8 bits where an operator has no others."""
    only = {dtype for name in operators_of(mistake) if name not in ORDINARY for dtype in OPERATORS[name].dtypes}
    return (*STORED, *sorted(only))


def planted(mistake: Mistake) -> Mutant:
    """Return the kernel that makes this mistake, and is right where the mistake does not exist."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        outputs = mistake.outputs(operator.on(geometry), inputs)
        if outputs is None:
            return exact(operator, geometry, inputs, dtype)
        return of_operator(operator, geometry, outputs, dtype)

    return Mutant(
        mistake.name, mistake.kind, run, operators=operators_of(mistake), when=mistake.when, base=exact,
        dtypes=_dtypes_of(mistake), ranks=mistake.ranks,
    )  # fmt: skip


KNOWN_BAD: tuple[Mutant, ...] = tuple(planted(mistake) for mistake in library())

Paths = Mapping[str, tuple[Callable[[Any], bool], tuple[str, ...]]]
"""Special path of a kernel -> condition under which it is taken, and the mistakes that are made on it alone."""

OF_SEVERAL_AXES = ("one-axis window", "oblong window")
"""Paths that do not exist in one dimension."""


def on_paths(paths: Paths, among: tuple[str, ...], family: str, name: str) -> Iterator[Mutant]:
    """Yield kernels that are right unless a path is taken, so that only a table which combines path and mistake detects
    them.

    `name` is a format of `mistake` and `path`.
    """
    known = {mutant.name: mutant for mutant in KNOWN_BAD if set(mutant.operators) & set(among)}
    for path, (taken, mistakes) in paths.items():
        for mistake in mistakes:
            mutant = known[mistake]
            operators = tuple(operator for operator in mutant.operators if operator in among)
            full = name.format(mistake=mistake, path=path)
            ranks = tuple(rank for rank in mutant.ranks if rank > 1 or path not in OF_SEVERAL_AXES)
            when = both(taken, mutant.when)
            yield replace(mutant, name=full, family=family, operators=operators, when=when, ranks=ranks)


def both(first: Callable[[Any], bool], second: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda geometry: first(geometry) and second(geometry)
