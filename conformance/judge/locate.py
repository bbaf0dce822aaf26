"""Where errors sit: one phrase per axis that narrows them down."""

from __future__ import annotations

import numpy as np


def locate(mask: np.ndarray, axes: str) -> str:
    """Describe the true elements of `mask`, whose axes are named by the letters of `axes`."""
    if mask.all():
        return "every element"
    phrases = []
    for axis, letter in enumerate(axes):
        others = tuple(a for a in range(mask.ndim) if a != axis)
        phrase = _axis_phrase(np.flatnonzero(mask.any(axis=others)), mask.shape[axis], letter.lower())
        if phrase:
            phrases.append(phrase)
    share = np.count_nonzero(mask) / mask.size
    return ", ".join(phrases) if phrases else f"spread over every axis ({share:.1%} of the elements)"


def _axis_phrase(hit: np.ndarray, extent: int, letter: str) -> str:
    """Empty when errors occur at every index of the axis."""
    if len(hit) == extent:
        return ""
    first, last = int(hit[0]), int(hit[-1])
    if len(hit) == 1:
        return f"{letter} = {first}{' (last)' if first == extent - 1 else ' (first)' if first == 0 else ''}"
    if len(hit) == 2 and (first, last) == (0, extent - 1):
        return f"{letter} at both edges"
    steps = np.diff(hit)
    if (steps == 1).all():
        return f"{letter} {first}..{last} of 0..{extent - 1}"
    if (steps == steps[0]).all():
        return f"every {_ordinal(int(steps[0]))} {letter} from {first} to {last}"
    return f"{len(hit)} of {extent} {letter}"


def _ordinal(number: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")
