"""Goldens must be able to tell: no data may be so constant, so empty or so symmetric that a flip or a shift passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from conformance.inputs import Expectation, Recipe
from conformance.inputs.golden import SEED
from conformance.operators import CONVOLUTIONS, OPERATORS, Arrays, ConvGeometry, Operator
from conformance.problems import PROBLEMS

FIXED = {
    problem.name: problem.geometry
    for problem in PROBLEMS
    if problem.level == "standard"
    and problem.geometry.family == "conv"
    and problem.geometry.n  # without images there is nothing to tell
    and any((v.dtype, v.distribution) == ("fp32", "fixed") for v in problem.variants)
}
TOLD = 0.5
"""Share of the elements that must differ, of those that a mistake concerns: where no product goes there is nothing to
tell, and a tap in the centre stays there in a flip."""


def blind_spots(operator: Operator, geometry: ConvGeometry, inputs: Arrays) -> Iterator[str]:
    """Yield what these inputs cannot show, one line each."""
    right = operator.reference(geometry, inputs)
    every = {name: np.full_like(array, name != "bias") for name, array in inputs.items()}
    reached = reached_by(operator, geometry, every)
    for name, array in inputs.items():
        if np.mean(array == 0) >= 0.5:
            yield f"zeros in {name}"
    for name, array in right.items():
        if np.mean(array[reached[name]] == 0) >= 0.5:
            yield f"zeros in {name}"
    name = next(iter(right))
    moved = reached_by(operator, geometry, every | {"w": beside_the_centre(every["w"])}) if "w" in every else reached
    for mistake, outcome in mistaken(operator, geometry, inputs, right[name]):
        if np.mean((outcome != right[name])[(moved if mistake == "flip" else reached)[name]]) < TOLD:
            yield mistake


def reached_by(operator: Operator, geometry: ConvGeometry, inputs: Arrays) -> dict[str, np.ndarray]:
    """Where some product of what is not zero goes."""
    return {name: s2 > 0 for name, s2 in operator.magnitude(geometry, inputs, np.float32).items()}


def beside_the_centre(w: np.ndarray) -> np.ndarray:
    """The filters without a tap that a flip leaves in its place."""
    window = np.arange(np.prod(w.shape[2:], dtype=int)).reshape(w.shape[2:])
    moved: np.ndarray = w * (window != np.flip(window))
    return moved


def mistaken(
    operator: Operator, geometry: ConvGeometry, inputs: Arrays, right: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """The main output under each mistake that makes a difference for the geometry."""
    name, data = next(iter(operator.outputs(geometry))), inputs[operator.data]
    if taps_beside_the_centre(geometry):
        if "w" in inputs:
            yield "flip", operator.reference(geometry, inputs | {"w": flipped(inputs["w"])})[name]
        else:
            yield "flip", flipped(right)
    for axis in range(2, data.ndim):
        if data.shape[axis] > 1:
            yield (
                f"shift along {axis}",
                operator.reference(geometry, inputs | {operator.data: np.roll(data, 1, axis)})[name],
            )


def flipped(w: np.ndarray) -> np.ndarray:
    return np.flip(w, tuple(range(2, w.ndim)))


def taps_beside_the_centre(geometry: ConvGeometry) -> bool:
    """Return whether the image is touched by any tap that a flip puts elsewhere."""
    sizes = zip(geometry.size, geometry.window, range(geometry.rank), strict=True)
    return any(2 * tap != window - 1 for size, window, axis in sizes for tap in touching(geometry, size, window, axis))


def touching(geometry: ConvGeometry, size: int, window: int, axis: int) -> Iterator[int]:
    """Taps of one axis that meet the image, and not only its padding, at some position."""
    for tap in range(window):
        first = tap * geometry.dilation[axis] - geometry.padding[axis][0]
        places = range(first, first + geometry.output_size[axis] * geometry.stride[axis], geometry.stride[axis])
        if any(0 <= place < size for place in places):
            yield tap


def drawn(operator: Operator, geometry: ConvGeometry) -> Arrays:
    return Expectation(Recipe(operator.on(geometry), "fp32", "fixed", SEED)).inputs


@pytest.mark.parametrize("geometry", FIXED.values(), ids=FIXED)
def test_goldens_tell_a_flip_and_a_shift(geometry: ConvGeometry):
    for operator in map(OPERATORS.__getitem__, CONVOLUTIONS):
        assert list(blind_spots(operator, geometry, drawn(operator, geometry))) == []


DEGENERATE: dict[str, tuple[Callable[[np.ndarray], np.ndarray], set[str]]] = {
    "constant": (np.ones_like, {"flip", "shift along 2", "shift along 3"}),
    "sparse": (lambda array: array * (np.arange(array.size).reshape(array.shape) % 97 == 0), {"zeros"}),
    "zero": (np.zeros_like, {"zeros", "flip", "shift along 2", "shift along 3"}),
    "symmetric": (lambda array: array + array[..., ::-1, ::-1], {"flip"}),
    "rows alike": (lambda array: array[..., :1, :] + 0 * array, {"shift along 2"}),
}
"""Kind of data -> what it cannot show."""


@pytest.mark.parametrize("operator", [OPERATORS[name] for name in CONVOLUTIONS], ids=CONVOLUTIONS)
@pytest.mark.parametrize(("spoil", "blind"), DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_data_is_found_out(operator: Operator, spoil: Callable[[np.ndarray], np.ndarray], blind: set[str]):
    geometry = ConvGeometry.parse("n2 c4 h16 w14 k4 r3 s3 p1")
    inputs = {name: spoil(array) for name, array in drawn(operator, geometry).items()}
    found = {spot.split(" in ")[0] for spot in blind_spots(operator, geometry, inputs)}
    assert blind <= found


def test_flip_is_asked_for_only_where_it_matters():
    beside = {name: taps_beside_the_centre(geometry) for name, geometry in FIXED.items()}
    assert not beside["edge.image1x1-padded"]
    assert not beside["resnet50.conv2.reduce"]
    assert beside["edge.plain"]
    assert sum(beside.values()) > len(beside) / 2
