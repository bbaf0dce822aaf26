"""The likely cause of a wrong output: the known mistake that explains it, if one clearly does."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.diagnosis.arrangements import misreadings
from conformance.layouts import Arrangement, arranged, filter_letters, layouts_of, letters
from conformance.operators import FAMILIES, Arrays, Operator, Tensor, Workload
from conformance.operators.mistakes import ROUNDING, Mistake, misread
from conformance.operators.spatial import fitted

EXPLAINED = 0.05
"""Largest share of the error that a named mistake may leave unexplained."""
APART = 3.0
"""Factor by which the residual of the next explanation must be larger; closer ones are named together."""
EQUAL = 0.002
"""Residuals below this are rounding: they do not distinguish explanations."""
NEGLIGIBLE, LEAST = 2e-3, 2e-6
"""Errors, in units of the reference's norm, up to which an output counts as right, in formats of up to 16 bits and in
wider ones. The first covers the rounding of inputs to bf16. Hardly any mistake of the library stays below: one term
left out of a thousand makes 0.03. The second is smaller, to find a biased variance of a thousand elements, or an
epsilon that is added twice, too."""
ALIKE, DIFFERENT = 0.95, 0.9
"""Least share of 16-bit results with the bits of a mistake; limit of the share with the bits of the exact results."""
AFFORDABLE, LARGEST_WINDOW = 1 << 24, 1 << 12
"""Largest number of multiply-adds of a problem, and of elements of its window, for which the whole library is tried."""
SHOWN = 3
NAN_LOST = "a number where the result must be NaN"
NEVER_WRITTEN = "some results are never written, and hold what lay in memory"
READ_UNWRITTEN = "some results are computed from memory that was never written, as beyond the end of an input"


OF_DY = Mistake("size of the gradient taken from dy alone", "size", misread())
"""The only name that is needed if this mistake explains a gradient: no element of the gradient is wrong."""
LEFT_ZERO, BITS_LOST, NOT_ZERO, BIAS_AGAIN, DBIAS_AGAIN = FROM_RESULTS = tuple(
    Mistake(name, "results", misread())
    for name in (
        "some results left zero, as if never written",
        "small terms are lost beside a large one: the sum is kept in fewer bits than declared",
        "what must be zero is not",
        "bias added more than once",
        "dbias added more than once",
    )
)
"""Mistakes that are read from the results themselves, whichever elements are wrong: blocks that a grid does not reach,
short accumulators, elements of a gradient that no window reaches, slices of a sum that each add a bias."""
GENERAL = frozenset(mistake.name for mistake in FROM_RESULTS)
"""Names that are given only if there is no other: many mistakes look like these on some problems."""
CUT = Mistake("results cut to their format instead of rounded", "results", misread())
UNEXPLAINED = 1.0
"""Residual of a diagnosis that rests on the shape of an output alone."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The mistakes that explain an output equally well, in the library's order, and the residual that they leave."""

    names: tuple[str, ...]
    residual: float
    how: str = ""
    """Evidence for the mistakes, if it is not the values of all outputs."""

    def __str__(self) -> str:
        mistakes = plainest(specific(self.names))
        more = len(mistakes) - SHOWN
        names = ", or ".join(mistakes[:SHOWN]) + (f", or {more} more" if more > 0 else "")
        if self.how:
            return f"likely cause: {names} ({self.how})"
        if self.residual == UNEXPLAINED:
            return f"likely cause: {names} (by the shape; the values are not explained)"
        return f"likely cause: {names} (explains {100 * (1 - self.residual):.3g}%)"


def specific(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are not general; all names if there are only general ones."""
    return tuple(name for name in names if name not in GENERAL) or (*names,)


def changes(name: str, how: str) -> set[str]:
    """Return the parameters that a mistake ignores or swaps, such as padding and dilation; empty for other mistakes."""
    name = name.removesuffix(" between H and W")
    return {*re.split(", | and ", name.removesuffix(how))} if name.endswith(how) else set()


def plainest(names: Sequence[str]) -> tuple[str, ...]:
    """Drop the names of mistakes that ignore, or swap, more parameters than another one does: padding and dilation if
    the problem has no dilation."""
    changed = [(how, what) for how in (" ignored", " swapped") for name in names if (what := changes(name, how))]
    return tuple(name for name in names if not any(less < changes(name, how) for how, less in changed))


def affordable(workload: Workload) -> bool:
    """Return whether the library is tried on a problem: not if it is large, or its batch is empty."""
    sizes = workload.flops / 2, workload.bytes(1)
    return sizes[0] > 0 and max(sizes) <= AFFORDABLE and math.prod(workload.geometry.window) <= LARGEST_WINDOW


def diagnose(
    workload: Workload,
    inputs: Arrays,
    outputs: Arrays,
    reference: Arrays | None = None,
    layout: str = "",
    distribution: str = "",
) -> Diagnosis | None:
    """Return the known mistake that explains wrong outputs (canonical order, storage dtype); None if none clearly does.

    Elements that are not finite in one of the arrays are ignored. `reference` saves computing the exact outputs once
    more; `layout` is the kernel's, which the kernel may have taken for another one; `distribution` is that of the
    inputs.
    """
    if not affordable(workload):
        return None
    with np.errstate(all="ignore"):
        reference = reference or workload.reference(inputs)
        if diagnosis := _rounded(workload, inputs, outputs, reference):
            return diagnosis
        if _equal(outputs, reference):
            lost = Diagnosis((NAN_LOST,), 0.0, "by the elements that must be NaN")
            return lost if _loses_nan(outputs, reference) else _of_nan(workload, inputs, outputs, reference)
        rank = workload.geometry.rank
        further = misreadings(layout or layouts_of(rank)[0], rank)
        from_results = _read_from_results(outputs, reference, inputs, distribution)
        computed = itertools.chain(_computed(workload, inputs, further), from_results)
        return _best(workload.operator, outputs, reference, computed, further)


def diagnose_shapes(workload: Workload, inputs: Arrays, returned: Arrays, layout: str = "") -> Diagnosis | None:
    """Return the known mistake that explains outputs of other shapes or dtypes than requested; None if none does.

    `returned` holds arrays as the kernel returned them, in a layout (canonical order). A diagnosis with residual
    `UNEXPLAINED` names mistakes that make outputs of these shapes.
    """
    if not workload.flops or not all(np.can_cast(array.dtype, np.float64) for array in returned.values()):
        return None
    operator, geometry, tensors = workload.operator, workload.geometry, workload.outputs
    layout = layout or layouts_of(geometry.rank)[0]
    further = misreadings(layout, geometry.rank)
    places = {name: arranged(tensor, layout, geometry) for name, tensor in tensors.items()}
    canonical = _canonical(returned, places)
    resized = [
        (mistake, taken)
        for mistake in (OF_DY, *_mistakes(operator))
        for taken in mistake.taken_for(workload)
        if _shapes(taken.outputs) == _shapes(canonical) != _shapes(tensors)
    ]
    if workload.flops > 2 * AFFORDABLE:
        names = [mistake.name for mistake, _ in resized]
    else:
        with np.errstate(all="ignore"):
            reference = workload.reference(inputs)
            for name, outputs in _arranged(places, returned):
                if _equal(outputs, reference):
                    return Diagnosis((name,), 0.0)
                computed = _computed(workload, inputs, further)
                if diagnosis := _best(operator, outputs, reference, computed, further):
                    return diagnosis
            values = [
                (mistake, mistaken)
                for mistake, taken in resized
                if (mistaken := mistake.outputs_as(workload, taken, inputs)) is not None
            ]
            sized = [(mistake, outputs) for mistake, outputs in values if mistake is OF_DY]
            for candidates in filter(None, (sized, values)):
                if diagnosis := _best(operator, canonical, reference, candidates):
                    return diagnosis
            for name, outputs in _transposed(tensors, places, returned, layout):
                if _equal(outputs, reference):
                    return Diagnosis((name,), 0.0)
        names = []  # none of these mistakes explains the values
    names += [name for name, _ in _transposed(tensors, places, returned, layout)]
    names += [
        f"{name} in the shape of {other}"
        for name, array in canonical.items()
        for other, operand in inputs.items()
        if array.shape == operand.shape != tensors[name].shape
    ]
    return Diagnosis(tuple(dict.fromkeys(names)), UNEXPLAINED) if names else None


Arrangements = Iterator[tuple[str, Arrays]]
"""Ways in which elements of outputs may be arranged, and the outputs in canonical order if they are."""


def _arranged(places: Mapping[str, Arrangement], returned: Arrays) -> Arrangements:
    due = {name: place.stored for name, place in places.items()}
    wrong = [name for name, array in returned.items() if array.shape != due[name]]
    what = " and ".join(wrong)
    if not wrong:
        yield "right values in another dtype", _canonical(returned, places)
    elif all(returned[name].size == math.prod(due[name]) for name in wrong):
        reshaped = {name: returned[name].reshape(due[name]) for name in wrong}
        yield f"{what}: right values in another shape", _canonical(returned | reshaped, places)


def _transposed(
    tensors: Mapping[str, Tensor], places: Mapping[str, Arrangement], returned: Arrays, layout: str
) -> Arrangements:
    shapes = {name: place.stored for name, place in places.items()}
    wrong = [name for name, array in returned.items() if array.shape != shapes[name]]
    ranks = {len(shapes[name]) for name in wrong}
    if len(ranks) != 1 or ranks == {1} or any(returned[name].ndim not in ranks for name in wrong):
        return
    (dimensions,) = ranks
    due = (filter_letters(layout) if tensors[wrong[0]].is_filter else letters(layout)).upper()
    for axes in itertools.permutations(range(dimensions)):
        moved = {name: returned[name].transpose(axes) for name in wrong}
        if _shapes(moved) == {name: shapes[name] for name in wrong}:
            order = "".join(due[axes.index(axis)] for axis in range(dimensions))
            yield f"{' and '.join(wrong)} laid out as {order} instead of {due}", _canonical(returned | moved, places)


def _canonical(arrays: Arrays, places: Mapping[str, Arrangement]) -> Arrays:
    """Return arrays in canonical order; those of other shapes have their axes in that order, if they have as many."""
    canonical = dict(arrays)
    for name, array in arrays.items():
        place = places[name]
        if array.shape == place.stored:
            canonical[name] = place.from_memory(array)
        elif array.ndim == len(place.back) == len(place.shape):
            canonical[name] = array.transpose(place.back)
    return canonical


def _mistakes(operator: Operator) -> tuple[Mistake, ...]:
    family = FAMILIES[operator.family]
    return family.mistakes + family.further


def _shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _computed(workload: Workload, inputs: Arrays, further: Iterable[Mistake] = ()) -> Iterator[tuple[Mistake, Arrays]]:
    """Yield every mistake that exists on this problem, except roundings, with the outputs that it makes."""
    for mistake in (*_mistakes(workload.operator), *further):
        if mistake.kind == ROUNDING:
            continue
        for compute in (mistake.outputs, mistake.read_beyond):
            outputs = compute(workload, inputs)
            if outputs is not None:
                yield mistake, outputs


def _rounded(workload: Workload, inputs: Arrays, actual: Arrays, reference: Arrays) -> Diagnosis | None:
    """Return the mistakes that round once too often, or cut, if nearly all 16-bit results have the bits of one and many
    lack those of the exact results, rounded once: a sum in another order changes few."""

    short = {name: array for name, array in actual.items() if array.dtype.itemsize == 2}

    def alike(values: Arrays) -> float:
        same = sum(int(np.sum(array == values[name].astype(array.dtype))) for name, array in short.items())
        return same / sum(array.size for array in short.values())

    names = []
    for mistake in (*_mistakes(workload.operator), CUT) if short else ():
        mistaken = mistake.outputs(workload, inputs) if mistake.kind == ROUNDING else None
        if mistake is CUT:
            mistaken = {name: _cut(array, actual[name].dtype) for name, array in reference.items()}
        if mistaken is not None and alike(mistaken) >= ALIKE and alike(reference) < DIFFERENT:
            names.append(mistake.name)
    return Diagnosis(tuple(names), 0.0, "by the bits of nearly all results") if names else None


def _cut(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cut values to a format: drop the bits that it does not hold."""
    nearest = values.astype(dtype)
    return np.where(np.abs(nearest.astype(np.float64)) > np.abs(values), np.nextafter(nearest, dtype.type(0)), nearest)


def _read_from_results(
    actual: Arrays, reference: Arrays, inputs: Arrays, distribution: str
) -> Iterator[tuple[Mistake, Arrays]]:
    """Yield each mistake that is read from the results, with the outputs that are wrong in that way alone."""
    if distribution == "absorbed":  # a sum that loses all its small terms is zero
        yield BITS_LOST, {name: _with_terms_lost(actual[name], array) for name, array in reference.items()}
    elif any(array.any() for array in actual.values()):
        yield LEFT_ZERO, {name: np.where(actual[name] == 0, 0.0, array) for name, array in reference.items()}
    yield NOT_ZERO, {name: np.where(array == 0, actual[name], array) for name, array in reference.items()}
    if (dbias := reference.get("dbias")) is not None:
        times = np.rint(_median(actual["dbias"].astype(np.float64) / dbias))
        if times >= 2:
            yield DBIAS_AGAIN, reference | {"dbias": dbias * times}
    bias, y = inputs.get("bias"), reference.get("y")
    if bias is not None and y is not None:
        added = bias.astype(np.float64).reshape(-1, *[1] * (y.ndim - 2))
        times = np.rint(_median((actual["y"].astype(np.float64) - y) / added))
        if times >= 1:
            yield BIAS_AGAIN, reference | {"y": y + times * added}


def _with_terms_lost(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the results that differ from exact ones by no more than all small terms of their sum; exact ones for the
    others. In inputs of `conformance.inputs.absorbed`, the large terms of a sum are each other's negatives."""
    results = actual.astype(np.float64)
    return np.where(np.abs(results - exact) <= np.abs(exact), results, exact)


def _median(values: np.ndarray) -> float:
    """Return the median of the finite elements; NaN without any, for which NumPy prints a warning on the terminal."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else math.nan


def _best(
    operator: Operator,
    actual: Arrays,
    reference: Arrays,
    computed: Iterable[tuple[Mistake, Arrays]],
    further: Iterable[Mistake] = (),
) -> Diagnosis | None:
    """Return the mistakes of least residual ||actual - mistaken|| / ||actual - reference||, if that is small.

    An element that an array does not have counts as zero there.
    """
    units = {name: _norm(array) or 1.0 for name, array in reference.items()}

    def comparable(arrays: Arrays) -> Arrays:
        """Return arrays in units of the reference's norm: errors in dbeta and in a far smaller dx count alike."""
        frames = {name: tuple(map(max, array.shape, reference[name].shape)) for name, array in actual.items()}
        return {name: fitted(array, frames[name]).astype(np.float64) / units[name] for name, array in arrays.items()}

    results, exact = comparable(actual), comparable(reference)
    wrong = {name: array for name, array in exact.items() if not _equal(results, {name: array})}
    of_all, of_wrong = dict[str, float](), dict[str, float]()
    comparisons = [(of_all, exact)] if len(wrong) == len(exact) else [(of_all, exact), (of_wrong, wrong)]
    for mistake, outputs in computed:
        mistaken = comparable({name: outputs[name].astype(array.dtype) for name, array in actual.items()})
        for residuals, right in comparisons:
            residuals[mistake.name] = min(_residual(results, mistaken, right), residuals.get(mistake.name, math.inf))
    # a kernel that forgets the last image in dw may be right in dbias, which another loop computes
    how = ""
    residuals, best = of_all, min(of_all.values(), default=math.inf)
    if not best <= EXPLAINED and len(wrong) < len(exact):
        residuals, best, how = of_wrong, min(of_wrong.values(), default=math.inf), f"in {', '.join(wrong)} alone"
    if not best <= EXPLAINED:
        return None
    order = dict.fromkeys(mistake.name for mistake in (OF_DY, *_mistakes(operator), *further, *FROM_RESULTS))
    names = [name for name in order if residuals.get(name, math.inf) <= max(EQUAL, best * APART)]
    return Diagnosis(tuple(names), best, how)


def _norm(array: np.ndarray) -> float:
    """Return the norm of the finite elements."""
    return float(np.linalg.norm(array[np.isfinite(array)]))


def _equal(actual: Arrays, exact: Arrays) -> bool:
    """Return whether no finite error exceeds those of arithmetic."""
    return not any(
        _norm(actual[name].astype(np.float64) - array)
        > (LEAST if actual[name].dtype.itemsize > 2 else NEGLIGIBLE) * (_norm(array) or 1.0)
        for name, array in exact.items()
    )


def _loses_nan(actual: Arrays, exact: Arrays) -> bool:
    """Return whether the only wrong elements are numbers, or infinities, where the result must be NaN."""
    differ = {name: ~((actual[name] == array) | np.isfinite(array)) for name, array in exact.items()}
    lost = {name: np.isnan(array) & ~np.isnan(actual[name]) for name, array in exact.items()}
    kept = {name: np.isnan(array) & np.isnan(actual[name]) for name, array in exact.items()}
    return any(map(np.any, lost.values())) and all((differ[name] == (lost[name] | kept[name])).all() for name in exact)


def _of_nan(workload: Workload, inputs: Arrays, actual: Arrays, exact: Arrays) -> Diagnosis | None:
    """Return the mistakes whose results are NaN just where these are, if some are where a number is due: of a kernel
    that multiplies what is not of a sum with zeros, as it may while all numbers are finite."""

    def places(arrays: Arrays) -> dict[str, Any]:
        return {name: np.isnan(arrays[name]).tolist() for name in actual}

    if not any((np.isnan(actual[name]) & ~np.isnan(exact[name])).any() for name in actual):
        return None
    due, computed = places(actual), _computed(workload, inputs)
    names = dict.fromkeys(mistake.name for mistake, outputs in computed if places(outputs) == due)
    return Diagnosis(tuple(names), 0.0, "by the elements that are NaN") if names else None


def _residual(actual: Arrays, mistaken: Arrays, exact: Arrays) -> float:
    """Return the share of the error that a mistake leaves; infinite if fewer than half of the elements can be compared,
    or the results equal the reference."""
    finite = {name: np.isfinite(actual[name] - mistaken[name] - exact[name]) for name in exact}
    remaining, count = _distance(actual, mistaken, finite)
    whole, _ = _distance(actual, exact, finite)
    size = sum(array.size for array in exact.values())
    return remaining / whole if whole > 0 and 2 * count >= size else math.inf


def _distance(first: Arrays, second: Arrays, mask: Mapping[str, np.ndarray]) -> tuple[float, int]:
    """Return the norm of the difference over the elements of the mask, and the number of these elements."""
    total, count = 0.0, 0
    for name, places in mask.items():
        kept = np.where(places, first[name] - second[name], 0.0)
        total += float(np.vdot(kept, kept))
        count += int(np.count_nonzero(places))
    return math.sqrt(total), count
