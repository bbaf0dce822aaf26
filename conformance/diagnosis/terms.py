"""Find the terms of a sum that a kernel leaves out, counts again or takes from elsewhere, by calls in which each
element of the output is one term.

One operand is zero except for elements of which no two meet in a sum, and these are one. The output then consists of
elements of the other operand, which holds odd numbers, all different. A wrong result says by its number which element
was taken, and an even number says that there were several. Mistakes that depend on the values, as with ties, or on
earlier calls do not show here.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.dtypes import FILTERS, STORAGE, WHOLE, ends
from conformance.judge.judgement import AxisIndices
from conformance.operators import Arrays, Geometry, Workload

Compute = Callable[[Arrays], Arrays]
"""Calls the kernel on inputs, in canonical order. It may raise anything."""

PER_AXIS = 24
"""Number of indices of an axis that are tried, the first and the last among them."""
LINES = 3
"""Number of lines along an axis on which indices are tried, see `TermPlan.lines`."""
CODES = {"fp64": 1 << 24, "fp32": 1 << 22, "fp16": 1 << 10, "bf16": 1 << 7}
"""Format -> number of elements whose odd numbers, and twice these, it holds."""
FEWEST_CODES = 4
"""Least number of codes, in 8 bits between the zero points and the largest number; fewer tell little."""
MAX_WORK = 1 << 28
"""Limit of the floating-point operations of all calls."""
MOST_TIMES = 8
"""Largest count of a repeated term that can be told from another number."""
NEAR = 0.02
"""Relative difference of two quotients that counts as rounding."""
MAIN = 0.5
"""Least share of the wrong elements that must be wrong in the way that is reported."""
ELEMENTS, GRADIENTS = "elements of windows", "gradients"
"""Names of the single terms of operators that choose: elements, or those that gradients go to."""
UNWRITTEN = "results without a term are NaN, as if never written"


@dataclass(frozen=True, slots=True)
class _Wrong:
    """Elements of an output that are wrong in one way, in one call.

    place  indices of the term along the axes that are summed over
    at     indices in the output [elements, axes]
    by     distance to the element taken instead, in the coded operand, or to where a term was added [elements, axes]
    """

    output: str
    way: str
    place: tuple[int, ...]
    at: np.ndarray
    by: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class TermPlan:
    """How the calls select single terms.

    selected  the operand that is zero except in few places
    coded     the operand whose elements are told apart; in pooling the selected one, whose elements are not told apart
    axes      letters of the axes of the selected operand that are summed over -> their extents within a group
    terms     name of the single terms
    """

    selected: str
    coded: str
    axes: dict[str, int]
    terms: str = "terms"

    def lines(self, axis: int) -> list[tuple[int, ...]]:
        """Return places whose index along an axis is varied: first, in the middle or last along the other axes."""
        last = [extent - 1 if place != axis else 0 for place, extent in enumerate(self.axes.values())]
        middle = [(index + 1) // 2 for index in last]
        return [*dict.fromkeys((tuple(0 for _ in last), tuple(middle), tuple(last)))]


class _Probes:
    """Calls with single terms, and the wrong elements that they showed."""

    def __init__(self, workload: Workload, dtype: str, plan: TermPlan, compute: Compute) -> None:
        self.workload, self.dtype, self.plan = workload, dtype, plan
        self.compute = compute
        self.ties = False
        """True if the calls make all elements of windows equal."""
        self.wrong: dict[tuple[int, ...], list[_Wrong]] = {}
        self.able: dict[str, np.ndarray] = {}
        """Output -> which of its elements had a term, or any other value, in some call."""
        self.indices: list[set[int]] = [set() for _ in plan.axes]
        """Indices along each axis that were tried."""

    def along(self, axis: int) -> None:
        """Try some indices of an axis, and search between a right and a wrong one for where they change."""
        extent = [*self.plan.axes.values()][axis]
        for line in self.plan.lines(axis):
            spread = np.linspace(0, extent - 1, min(extent, PER_AXIS)).round().astype(int).tolist()
            wrong_at = {index: self._is_wrong(line, axis, index) for index in spread}
            for low, high in itertools.pairwise([*wrong_at]):
                while high - low > 1 and wrong_at[low] != wrong_at[high]:
                    middle = (low + high) // 2
                    wrong_at[middle] = self._is_wrong(line, axis, middle)
                    low, high = (low, middle) if wrong_at[middle] == wrong_at[high] else (middle, high)

    def _is_wrong(self, line: tuple[int, ...], axis: int, index: int) -> bool:
        self.indices[axis].add(index)
        place = (*line[:axis], index, *line[axis + 1 :])
        if place not in self.wrong:
            self.wrong[place] = [*self._errors_at(place)]
        return bool(self.wrong[place])

    def _errors_at(self, place: tuple[int, ...]) -> Iterator[_Wrong]:
        workload, plan = self.workload, self.plan
        inputs = with_one_term(workload, self.dtype, plan, place)
        if self.ties:
            inputs["x"][...] = 0
        outputs = self.compute(inputs)
        for name, right in workload.reference(inputs).items():
            if name == "dbias" and plan.selected != "dy":
                continue  # a sum of the coded operand
            exact, actual = (_without_zero(workload.geometry, array) for array in (right, outputs[name]))
            self.able[name] = self.able.get(name, np.False_) | (exact != 0) | (actual != 0)
            tells_apart = plan.coded != plan.selected and name != "dbias"
            yield from _compared(name, place, exact, actual, inputs[plan.coded].shape if tells_apart else None)

    def is_state(self) -> bool:
        """Return whether the first call gives another result when it is repeated, so that the kernel keeps a state."""
        place = next(iter(self.wrong))
        again = [(error.way, error.at.tolist()) for error in self._errors_at(place)]
        return again != [(error.way, error.at.tolist()) for error in self.wrong[place]]


def read(workload: Workload, dtype: str, compute: Compute) -> str:
    """Return which terms a kernel treats wrongly, and how, in words that follow the name of an output. Empty if nothing
    is wrong, if the errors follow no rule, or if results change from call to call. Raises what `compute` does."""
    tensors, plan, codes = workload.inputs, planned(workload), _codes(workload.geometry, dtype)
    if plan is None or codes < FEWEST_CODES or (dtype in CODES and codes < tensors[plan.coded].size):
        return ""
    calls = LINES * len(plan.axes) * PER_AXIS
    if calls * max(workload.flops, workload.bytes(1)) > MAX_WORK:
        return ""
    probes = _Probes(workload, dtype, plan, compute)
    for axis in range(len(plan.axes)):
        probes.along(axis)
    if probes.is_state():
        return ""
    if any(probes.wrong.values()):
        return _in_words(probes)
    for name in ("bias", "scale"):
        if name in tensors and (text := _of_channels(workload, dtype, compute, name)):
            return text
    if plan.terms == ELEMENTS:
        return _of_no_maximum(probes)
    if plan.terms == GRADIENTS:
        return _of_ties(probes)
    return ""


def _of_no_maximum(probes: _Probes) -> str:
    """Return the value that the kernel gives as the maximum of minus infinities, in words; empty if it is right."""
    inputs = zeros(probes.workload, probes.dtype)
    inputs["x"] += inputs["x"].dtype.type(-np.inf)
    (exact, *_), (actual, *_) = (
        [*arrays.values()] for arrays in (probes.workload.reference(inputs), probes.compute(inputs))
    )
    wrong = actual != exact
    if not wrong.any():
        return ""
    values = {*actual[wrong].tolist()}
    said = f"of minus infinities is {values.pop():g}" if len(values) == 1 else "of minus infinities is none"
    letters = next(iter(probes.workload.outputs.values())).axes
    return f"the maximum {said}{_places(letters, np.ones_like(wrong), np.argwhere(wrong))}"


def _of_ties(probes: _Probes) -> str:
    """Return where the gradients of equal elements are added wrongly, in words; empty if nowhere."""
    probes.ties = True
    probes.wrong.clear()
    for axis in range(len(probes.plan.axes)):
        probes.along(axis)
    text = _in_words(probes) if any(probes.wrong.values()) else ""
    return f"of equal maxima, {text}" if text else ""


def planned(workload: Workload) -> TermPlan | None:
    """Return how terms are selected; None if the operator's results are not plain sums, or choices, of its inputs."""
    geometry, errors, tensors = workload.geometry, workload.errors, workload.inputs
    operands = [name for name in tensors if name in ("x", "w", "dy", "a", "b")]
    if errors.propagate is not None or not operands or not all(t.size for t in tensors.values()):
        return None
    (output, *_) = workload.outputs.values()
    terms = ELEMENTS if errors.selects else "terms"
    if not hasattr(geometry, "filter"):
        selected = coded = "dy" if "dy" in operands else "x"
        letters = tensors[selected].axes[2:]
        if len(operands) == 2:
            terms = GRADIENTS
    else:
        filters = [name for name in operands if name in ("w", "b")]
        selected = filters[0] if filters else "x" if geometry.windows_on_output else "dy"
        (coded,) = (name for name in operands if name != selected)
        letters = "".join(letter for letter in tensors[selected].axes if letter not in output.axes)
    extents = dict(zip(tensors[selected].axes, tensors[selected].shape, strict=True))
    if tensors[selected].is_filter and (first := tensors[selected].axes[0]) in letters:
        extents[first] //= geometry.groups
    return TermPlan(selected, coded, {letter: extents[letter] for letter in letters}, terms)


def with_one_term(workload: Workload, dtype: str, plan: TermPlan, place: tuple[int, ...]) -> Arrays:
    """Return inputs that have only the terms of one place."""
    tensors, inputs = workload.inputs, zeros(workload, dtype)
    if plan.coded != plan.selected:
        odd = 2 * (np.arange(tensors[plan.coded].size) % _codes(workload.geometry, dtype)) + 1
        inputs[plan.coded] += odd.reshape(tensors[plan.coded].shape).astype(inputs[plan.coded].dtype)
    elif "x" in inputs and plan.selected == "dy":  # its maxima decide where gradients go
        order = np.random.default_rng(0).permutation(inputs["x"].size)
        inputs["x"][...] = order.reshape(inputs["x"].shape)
    chosen, indices = tensors[plan.selected], dict(zip(plan.axes, place, strict=True))
    at: list[Any] = [indices.get(letter, slice(None)) for letter in chosen.axes]
    if chosen.is_filter and (first := chosen.axes[0]) in indices:  # in every group
        at[0] = slice(indices[first], None, plan.axes[first])
    inputs[plan.selected][tuple(at)] += inputs[plan.selected].dtype.type(1)
    if plan.coded == plan.selected:  # each plane has its own number, so that a term that lands in another one is found
        planes = 2 * np.arange(chosen.shape[0] * chosen.shape[1]) + 1
        inputs[plan.selected] *= planes.reshape(*chosen.shape[:2], *[1] * (len(chosen.shape) - 2)).astype(
            inputs[plan.selected].dtype
        )
    return inputs


def zeros(workload: Workload, dtype: str) -> Arrays:
    """Return inputs of which every product is zero, with scales that are one."""
    inputs = {name: np.zeros(t.shape, STORAGE[t.stored_as(dtype)]) for name, t in workload.inputs.items()}
    for name in (name for name in inputs if name.startswith("scale")):
        inputs[name] += 1
    for name, point in zero_points(workload.geometry).items():
        if name in inputs:
            inputs[name] += inputs[name].dtype.type(point)
    return inputs


def zero_points(geometry: Geometry) -> dict[str, int]:
    """Return the zero points by tensor; none where the problem has no scales."""
    points: dict[str, int] = getattr(geometry, "zero_points", {})
    return points


def _codes(geometry: Geometry, dtype: str) -> int:
    """Return how many elements can be told apart."""
    if dtype not in WHOLE:
        return CODES.get(dtype, 0)
    points = zero_points(geometry)
    above = ends(dtype)[1] - max(points.values(), default=0)
    if dtype in FILTERS:  # which of the operands has the codes is not known here
        above = min(above, ends(FILTERS[dtype])[1] - max(0, points.get("b", 0)))
    return above // 2


def _without_zero(geometry: Geometry, array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) - zero_points(geometry).get("y", 0)


def _compared(
    name: str, place: tuple[int, ...], exact: np.ndarray, actual: np.ndarray, coded: tuple[int, ...] | None
) -> Iterator[_Wrong]:
    """Yield the errors of an output in one call. `coded` is the shape of the operand whose elements are told apart,
    None in pooling."""
    differ = ~(np.abs(actual - exact) <= (0 if coded else NEAR) * np.abs(exact))
    if not differ.any():
        return
    with np.errstate(all="ignore"):
        times = actual / exact
    unwritten = np.isnan(actual) & (exact == 0)
    lost, extra = differ & (exact != 0) & (actual == 0), differ & (exact == 0) & ~unwritten
    ways = {UNWRITTEN: unwritten, "left out": lost}
    for count in range(2, MOST_TIMES + 1, 2 if coded else 1):  # an odd multiple may be the number of another element
        ways["counted twice" if count == 2 else f"counted {count} times"] = (
            differ & (exact != 0) & (np.abs(times - count) <= (0 if coded else NEAR))
        )
    if coded:
        is_one = differ & (exact != 0) & (actual % 2 == 1) & (actual > 0) & (actual < 2 * np.prod(coded))
        codes = [((array[is_one] - 1) / 2).astype(int) for array in (actual, exact)]
        taken, due = (np.stack(np.unravel_index(code, coded), axis=1) for code in codes)
        if is_one.any():
            yield _Wrong(name, "taken", place, np.argwhere(is_one), taken - due)
        ways["other"] = differ & (exact != 0) & ~is_one
    else:
        ways["scaled"] = differ & (exact != 0)
    rest = differ.copy()
    if lost.any() and (moved := _moved(exact, actual, lost, extra)) is not None:
        yield _Wrong(name, "added", place, np.argwhere(lost), moved)
        rest &= ~(lost | extra)
    ways["added where there are none"] = extra
    for way, where in ways.items():
        if (here := where & rest).any():
            rest &= ~where
            yield _Wrong(name, way, place, np.argwhere(here))


def _moved(exact: np.ndarray, actual: np.ndarray, lost: np.ndarray, extra: np.ndarray) -> np.ndarray | None:
    """Return how far from their places terms were added [elements, axes]; None if they were not added elsewhere."""
    due, moved = exact[lost], actual[extra]
    if len(due) != len(moved) or len({*due}) != len(due) or {*due} != {*moved}:
        return None
    return np.argwhere(extra)[np.argsort(moved)][np.argsort(np.argsort(due))] - np.argwhere(lost)


def _in_words(probes: _Probes) -> str:
    """Return the way in which most elements are wrong, the terms concerned and the places, in words."""
    workload, plan = probes.workload, probes.plan
    wrong = [error for several in probes.wrong.values() for error in several]
    counts = Counter[tuple[str, str]]()
    for error in wrong:
        counts[error.output, error.way] += len(error.at)
    (output, way), most = counts.most_common(1)[0]
    if way == "other" or most < MAIN * sum(n for (name, _), n in counts.items() if name == output):
        return ""
    main = [error for error in wrong if (error.output, error.way) == (output, way)]
    parts = []
    for axis, (letter, extent) in enumerate(plan.axes.items()):
        lines = {*plan.lines(axis)}
        on_lines = [error for error in main if (*error.place[:axis], 0, *error.place[axis + 1 :]) in lines]
        wrong_indices = {error.place[axis] for error in on_lines}
        tried = sorted(probes.indices[axis])
        if wrong_indices and (indices := AxisIndices.of(letter.lower(), extent, tried, wrong_indices)):
            parts.append(str(indices))
    what = plan.terms + (f" with {' and '.join(parts)}" if parts else "")
    letters = workload.outputs[output].axes
    where = _places(letters, probes.able[output], np.concatenate([error.at for error in main]))
    distances = [error.by for error in main if error.by is not None]
    if way == "taken":
        coded = workload.inputs[plan.coded]
        if _codes(workload.geometry, probes.dtype) < coded.size:
            return f"{what} take other elements of {plan.coded}{where}"
        return f"{what} take {plan.coded} {_distance(coded.axes, np.concatenate(distances))}{where}"
    if way == UNWRITTEN:
        return f"{UNWRITTEN}{where}"
    if way == "added":
        return f"{what} are added at {_distance(letters, np.concatenate(distances))}"
    return f"{what} {'divided by another number' if way == 'scaled' else way}{where}"


def _places(letters: str, able: np.ndarray, at: np.ndarray) -> str:
    """Return the indices of the wrong elements of an output in words, among those of the elements that can be wrong."""
    places = []
    for axis, letter in enumerate(letters):
        rest = tuple(other for other in range(able.ndim) if other != axis)
        possible = np.flatnonzero(able.any(axis=rest)).tolist()
        if indices := AxisIndices.of(letter.lower(), able.shape[axis], possible, {*at[:, axis].tolist()}):
            places.append(str(indices))
    return f" at {', '.join(places)}" if places else ""


def _distance(axes: str, by: np.ndarray) -> str:
    """Return the distance along each axis in words; only the names of the axes if elements have several distances."""
    moved = [axis for axis in range(len(axes)) if by[:, axis].any()]
    far = [(axes[axis].lower(), {*by[:, axis].tolist()}) for axis in moved]
    if all(len(steps) == 1 for _, steps in far):
        return ", ".join(f"{letter} {'+' if (d := steps.pop()) > 0 else '-'} {abs(d)}" for letter, steps in far)
    return f"of another {' and '.join(letter for letter, _ in far)}"


def _of_channels(workload: Workload, dtype: str, compute: Compute, of: str) -> str:
    """Return in words what happens to a bias that is added to zeros, or to a scale of ones; empty if it is right."""
    geometry, operator, inputs = workload.geometry, workload.operator, zeros(workload, dtype)
    size = inputs[of].size
    if size > _codes(geometry, dtype):
        return ""
    if of == "scale":
        inputs[operator.data] += 1
        inputs[operator.operand][:, :1, *(extent // 2 for extent in geometry.window)] += 1
    inputs[of][...] = 2 * np.arange(size) + 1
    ((name, right), *_) = workload.reference(inputs).items()
    exact, actual = (_without_zero(geometry, array) for array in (right, compute(inputs)[name]))
    wrong = [*_compared(name, (), exact, actual, (size,))]
    if not wrong:
        return ""
    error = max(wrong, key=lambda error: len(error.at))
    if error.way == "taken" and error.by is not None:
        k = int(error.at[0, 1])
        letter, what = ("k", "channel") if geometry.rank else ("n", "column")
        return f"{of} of another {what}: {letter} = {k} has that of {letter} = {k + int(error.by[0, 0])}"
    places = _places(workload.outputs[name].axes, (exact != 0) | (actual != 0), error.at)
    return "" if error.way == "other" else f"{of} {error.way}{places}"
