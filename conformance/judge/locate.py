"""Error locations: one phrase per axis that narrows them down."""

from __future__ import annotations

import numpy as np


def locate(mask: np.ndarray, axes: str) -> str:
    """Describe the true elements of `mask`, whose axes are named by the letters of `axes`."""
    if mask.all():
        return "every element"
    phrases = []
    for axis, letter in enumerate(axes.lower()):
        hit = np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        first, last, extent, steps = int(hit[0]), int(hit[-1]), mask.shape[axis], np.diff(hit)
        if len(hit) == extent:
            continue
        if len(hit) == 1:
            end = " (last)" if first == extent - 1 else " (first)" if first == 0 else ""
            phrases.append(f"{letter} = {first}{end}")
        elif len(hit) == 2 and (first, last) == (0, extent - 1):
            phrases.append(f"{letter} at both edges")
        elif (steps == 1).all():
            phrases.append(f"{letter} {first}..{last} of 0..{extent - 1}")
        elif (steps == steps[0]).all():
            ordinal = {2: "2nd", 3: "3rd"}.get(int(steps[0]), f"{steps[0]}th")
            phrases.append(f"every {ordinal} {letter} from {first} to {last}")
        else:
            phrases.append(f"{len(hit)} of {extent} {letter}")
    share = np.count_nonzero(mask) / mask.size
    return ", ".join(phrases) or f"spread over every axis ({share:.1%} of the elements)"
