"""The cases of every operator family: read from its `problems.txt`, a problem a line, in the order of `ranking.txt`."""

from __future__ import annotations

import difflib
import re

from conformance.layouts import LAYOUTS, NAMES
from conformance.operators import FAMILIES, GeometryError
from conformance.problems.ranking import at_level
from conformance.problems.reading import of_section, table_of
from conformance.problems.storage_cases import with_storage
from conformance.problems.table import LEVELS, Problem, Variant, typed

PROBLEMS: tuple[Problem, ...] = with_storage(
    problem for family in FAMILIES for section in table_of(family).values() for problem in section.problems
)
"""All, in the order of the tables; behaviour is checked on the first ones of a family."""
_DESCRIPTORS = {problem.name: problem.geometry.descriptor for problem in PROBLEMS}


def named(text: str) -> Problem:
    """The problem of a name in the tables, or of a descriptor; in every variant either way. Raises GeometryError, with
    the names that hold the text, or are like it."""
    try:
        return typed(_DESCRIPTORS.get(text, text))
    except GeometryError:
        if " " in text or not re.search(r"[.]|[a-z]{3}", text, re.IGNORECASE):  # else it is meant as a name
            raise
    holding = [name for name in _DESCRIPTORS if text.lower() in name.lower()]
    near = holding or difflib.get_close_matches(text, _DESCRIPTORS, 3)
    more = f" or one of {len(near) - 3:,} more" * (len(near) > 3)
    hint = f"; did you mean {' or '.join(near[:3])}{more}?" if near else ""
    words = f" {text}" if holding else ""
    raise GeometryError(f"no problem is called {text}{hint} (all: conformance list problems{words})")


__all__ = ["LAYOUTS", "LEVELS", "NAMES", "PROBLEMS", "Problem", "Variant", "at_level", "named", "of_section", "typed"]
