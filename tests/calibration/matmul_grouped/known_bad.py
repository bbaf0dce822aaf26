"""Known-bad grouped products: less precision than declared, counters that are too short, and what is never written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.operators import Arrays, Operator
from conformance.operators.matmul_grouped.geometry import GroupedGeometry
from conformance.operators.matmul_grouped.mistakes import groups_of_rows
from conformance.operators.table import names_of
from tests.calibration.conv.known_bad import EMULATED
from tests.calibration.kernels.arithmetic import EXACT
from tests.calibration.kernels.kernel import STORED, Mutant, Run, exact

PRODUCTS = names_of("matmul_grouped")
Rows = Callable[[GroupedGeometry], np.ndarray]
"""Geometry -> the rows that a kernel treats wrongly."""


def _with_rows(value: float, wrong: Rows) -> Run:
    """Return a kernel that takes a number for every element of some rows, of y and da or of what db is summed over."""

    def run(operator: Operator, g: GroupedGeometry, inputs: Arrays, dtype: str) -> Arrays:
        rows = wrong(g)
        if operator.returns == ("db",):
            dy = inputs["dy"].copy()
            dy[rows] = value
            return exact(operator, g, inputs | {"dy": dy}, dtype)
        outputs = exact(operator, g, inputs, dtype)
        for array in outputs.values():
            array[rows] = value
        return outputs

    return run


def _beyond_groups(count: int) -> Rows:
    return lambda g: groups_of_rows(g) >= count


def _beyond_rows(count: int) -> Rows:
    """Return the rows of each group behind the first `count`."""
    return lambda g: np.concatenate([np.zeros(0, bool), *(np.arange(size) >= count for size in g.sizes)])


def _empty_unwritten(operator: Operator, g: GroupedGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Leave the db of a group without rows as the memory was."""
    outputs = exact(operator, g, inputs, dtype)
    outputs["db"].reshape(g.groups, -1)[np.array(g.sizes) == 0] = np.nan
    return outputs


def _last_loop_always_run(operator: Operator, g: GroupedGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Run the last, masked step of the sum for a group without rows, too: it adds the row before the group."""
    outputs, (name,) = exact(operator, g, inputs, dtype), operator.returns
    db = outputs[name].reshape(g.groups, -1, outputs[name].shape[1])
    starts = np.cumsum(g.sizes) - g.sizes
    for group, (size, start) in enumerate(zip(g.sizes, starts.tolist(), strict=True)):
        if not size and start:
            dy, a = (inputs[tensor][start - 1].astype(np.float64) for tensor in ("dy", "a"))
            db[group] = np.outer(dy, a).astype(db.dtype)
    return outputs


_ROWS: dict[str, Rows] = {
    **{f"groups beyond {count} left out": _beyond_groups(count) for count in (8, 16, 32, 64)},
    **{f"rows of a group beyond {count} left out": _beyond_rows(count) for count in (32, 64, 128)},
    "rows beyond 256 left out": lambda g: np.arange(g.n) >= 1 << 8,
}
_OF_EMPTY: dict[str, Run] = {
    "db of a group without rows not written": _empty_unwritten,
    "last step of the sum run for a group without rows": _last_loop_always_run,
}

KNOWN_BAD: tuple[Mutant, ...] = (
    *(
        Mutant(f"grouped, {name}", "precision", run, operators=PRODUCTS, dtypes=dtypes, base=EXACT)
        for name, run, dtypes in EMULATED
    ),
    *(
        Mutant(name, "subtle", _with_rows(0.0, rows), operators=PRODUCTS, dtypes=STORED, base=exact)
        for name, rows in _ROWS.items()
    ),
    *(
        Mutant(name, "subtle", run, operators=PRODUCTS[2:], dtypes=STORED, base=exact)
        for name, run in _OF_EMPTY.items()
    ),
)
