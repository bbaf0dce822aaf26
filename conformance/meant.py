"""What somebody meant who gave a value that is none of the choices."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ELSEWHERE = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "single": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
"""Names of NumPy, PyTorch and C -> the suite's."""
MOST = 3
"""Largest number of choices that are offered."""


def near(value: object, choices: Iterable[str]) -> list[str]:
    """Return the choices that a value may have been meant as, the nearest first."""
    name = value if isinstance(value, str) else getattr(value, "__name__", str(value)).rpartition(".")[2]
    names = sorted(choices)
    if (usual := ELSEWHERE.get(name.lower())) in names:
        return [usual]
    for same in (lambda choice: choice.lower() == name.lower(), lambda choice: sorted(choice) == sorted(name)):
        # two letters in another order first: difflib likes nhcw better for ncw
        if alike := [choice for choice in names if same(choice)]:
            return alike[:MOST]
    return difflib.get_close_matches(name.lower(), names, 1)


def hint(value: object, choices: Iterable[str]) -> str:
    """Return "; did you mean X?", or nothing where no choice is near."""
    offered = near(value, choices)
    return f"; did you mean {' or '.join(offered)}?" if offered else ""
