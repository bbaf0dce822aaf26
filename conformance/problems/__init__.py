"""The cases of every operator family, read from its `problems.txt` (one problem per line), ordered by `ranking.txt`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain

from conformance.layouts import LAYOUTS, NAMES
from conformance.operators import FAMILIES, GeometryError
from conformance.problems.ranking import at_level
from conformance.problems.reading import of_section, table_of
from conformance.problems.storage_cases import with_storage
from conformance.problems.table import LEVELS, Problem, Variant, typed


class Tables:
    """Every problem of the tables, in their order: behaviour is checked on the first problems of a family. A family's
    table is read on first use: reading all tables takes longer than verifying a small kernel's first case."""

    @staticmethod
    @cache
    def of(family: str) -> tuple[Problem, ...]:
        """Return the problems of a family."""
        return with_storage(family, (p for section in table_of(family).values() for p in section.problems))

    def __iter__(self) -> Iterator[Problem]:
        return chain.from_iterable(map(self.of, FAMILIES))


PROBLEMS = Tables()


def of_family(problems: Iterable[Problem], family: str) -> Sequence[Problem]:
    """Return the problems of a family, without reading the tables of other families."""
    if isinstance(problems, Tables):
        return problems.of(family)
    return [problem for problem in problems if problem.geometry.family == family]


@cache
def descriptors() -> dict[str, str]:
    """Return the descriptor of every problem of the tables, by its name."""
    return {problem.name: problem.geometry.descriptor for problem in PROBLEMS}


def named(text: str) -> Problem:
    """Return a problem by its name in the tables or by its descriptor; in every variant either way. Raises
    GeometryError, with the names that contain the text or are similar to it."""
    try:
        return typed(descriptors().get(text, text))
    except GeometryError:
        if " " in text or not re.search(r"[.]|[a-z]{3}", text, re.IGNORECASE):  # otherwise the text is meant as a name
            raise
    holding = [name for name in descriptors() if text.lower() in name.lower()]
    near = holding or difflib.get_close_matches(text, descriptors(), 3)
    more = f" or one of {len(near) - 3:,} more" * (len(near) > 3)
    hint = f"; did you mean {' or '.join(near[:3])}{more}?" if near else ""
    words = f" {text}" if holding else ""
    raise GeometryError(f"no problem is called {text}{hint} (all: conformance list problems{words})")


__all__ = [
    "LAYOUTS",
    "LEVELS",
    "NAMES",
    "PROBLEMS",
    "Problem",
    "Variant",
    "at_level",
    "descriptors",
    "named",
    "of_family",
    "of_section",
    "typed",
]
