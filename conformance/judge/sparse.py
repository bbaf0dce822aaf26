"""Judge an output that is zero almost everywhere and too large to be held twice."""

from __future__ import annotations

import numpy as np

from conformance.judge.judgement import Check, Judgement, Worst

BLOCK = 1 << 24
"""Elements that are looked at at once."""


def judge_sparse(name: str, axes: str, actual: np.ndarray, places: np.ndarray, values: np.ndarray) -> Judgement:
    """Every element must equal the exact result: `values`, rounded once, at the ascending flat `places`, else zero."""
    flat = actual.reshape(-1)
    wrong: list[int] = []
    mismatched = 0
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        found = start + np.flatnonzero(block.view(f"u{block.itemsize}") << 1)  # -0.0 is zero, NaN is not
        first, last = np.searchsorted(places, (start, start + len(block)))
        together = np.union1d(found, places[first:last])
        expected = np.zeros(len(together))
        expected[np.searchsorted(together, places[first:last])] = values[first:last]
        differs = together[flat[together] != expected.astype(actual.dtype)]
        mismatched += len(differs)
        wrong += differs[:1].tolist()
    worst, where = None, ""
    if wrong:
        index = tuple(int(axis) for axis in np.unravel_index(wrong[0], actual.shape))
        at = np.searchsorted(places, wrong[0])
        exact = float(values[at]) if at < len(places) and places[at] == wrong[0] else 0.0
        worst = Worst(index, float(flat[wrong[0]]), exact, 0.0)
        where = f"first at element {wrong[0]:,} of {flat.size:,}, axes {axes}"
    checks = (Check("mismatched elements", mismatched, 0),)
    return Judgement(name, flat.size, mismatched, "must equal the exact result", checks, worst, where)
