"""What a run is asked to do, as data."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.problems import Problem, Variant, at_level

BEHAVIOUR = "behaviour"
"""What records and `--distribution` call the behaviour checks, which choose their inputs themselves."""


class SelectionError(ValueError):
    """A selection that cannot be meant; the message names the option, the value and the choices."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Implementations (names and files) and the cases that are asked for."""

    implementations: tuple[str, ...]
    paths: tuple[Path, ...]
    level: str
    problems: tuple[Problem, ...]
    operators: tuple[str, ...]
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    distributions: tuple[str, ...]
    seed: int
    method: str
    required: tuple[str, ...] = ()
    """Devices whose absence is a failure."""

    def rows(self) -> Iterator[tuple[Problem, tuple[Variant, ...]]]:
        """Problems with the variants that are asked for."""
        for problem, variants in at_level(self.problems, self.level):
            kept = tuple(
                v
                for v in variants
                if v.dtype in self.dtypes and v.layout in self.layouts and v.distribution in self.distributions
            )
            if kept:
                yield problem, kept


def require_known(option: str, values: Sequence[str], choices: Iterable[str]) -> None:
    """Raises SelectionError for the first value that is none of the choices, with the nearest one."""
    names = sorted(choices)
    for value in values:
        if value not in names:
            near = difflib.get_close_matches(value, names, 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise SelectionError(f"{option} {value}: unknown{hint} Choices: {', '.join(names)}")
