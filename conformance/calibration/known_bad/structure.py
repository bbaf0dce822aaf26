"""Index, groups, bias and gradients: the mistakes that diagnosis knows, computed exactly and rounded once.

Exactly, so that a mistake which changes nothing on a problem is seen to be equivalent there, in any order of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from conformance.calibration.known_bad.base import Mutant, exact, of_operator
from conformance.diagnosis.mistakes import LIBRARY, Mistake, operators_of
from conformance.operators import Arrays, Operator


def planted(mistake: Mistake) -> Mutant:
    """The kernel that makes this mistake, and is right where the mistake does not exist."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        outputs = mistake.outputs(operator, geometry, inputs)
        if outputs is None:
            return exact(operator, geometry, inputs, dtype)
        return of_operator(operator, geometry, outputs, dtype)

    return Mutant(mistake.name, mistake.kind, run, operators=operators_of(mistake), when=mistake.when, base=exact)


STRUCTURE: tuple[Mutant, ...] = tuple(planted(mistake) for mistake in LIBRARY)

Paths = Mapping[str, tuple[Callable[[Any], bool], tuple[str, ...]]]
"""Special path of a kernel -> when it is taken, and the mistakes that are made on it alone."""


def on_paths(paths: Paths, among: tuple[str, ...], family: str, name: str) -> Iterator[Mutant]:
    """Kernels that are right wherever a path is not taken, so that only a table which combines the two detects them.

    `name` is a format of `mistake` and `path`.
    """
    known = {mutant.name: mutant for mutant in STRUCTURE}
    for path, (taken, mistakes) in paths.items():
        for mistake in mistakes:
            mutant = known[mistake]
            operators = tuple(operator for operator in mutant.operators if operator in among)
            full = name.format(mistake=mistake, path=path)
            yield replace(mutant, name=full, family=family, operators=operators, when=_both(taken, mutant.when))


def _both(first: Callable[[Any], bool], second: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda geometry: first(geometry) and second(geometry)
