"""Batch invariance: the bits of an image's results depend neither on how many other images there are, nor on its place
among them, nor on their values.

A kernel that chooses a tile, an algorithm or an order of summation by the size of the batch is right and does not have
this property: the answer to a request then depends on the requests beside it (Thinking Machines, "Defeating
Nondeterminism in LLM Inference", 2025).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from conformance.checks.sample import Sample, Subject
from conformance.execution.status import BehaviourError
from conformance.failure import Failure
from conformance.implementations.implementation import Unsupported
from conformance.operators import Arrays, GeometryError
from conformance.results.schema import BatchDifference, BatchInvariance, Facts

IMAGES = (5, 4, 3, 2)
"""Sizes of a batch, of which the first that the implementation takes is tried: a block of four images has a tail."""
IN_A_SIMULATOR = IMAGES[2:]
"""Sizes where a call takes seconds."""
DEPENDS = "declared as batch-invariant, and the bits of an image depend on its batch"
FARTHEST = 10**18 - 1
"""Largest distance that a record holds: two numbers of fp64 can be further apart."""

Images = tuple[str, Sequence[int], Arrays]
"""How some images of a batch were computed again, their places in the batch, and their results in this order."""


def images_do_not_depend_on_the_batch(subject: Subject) -> Facts:
    """Compare the results of a batch, bit by bit, with those of the batch in reverse order, of images beside others and
    of each image alone, on numbers whose sums are rounded. Raises BehaviourError where they differ although the
    implementation declares that they do not."""
    batch = _batch(subject)
    results = batch.call(batch.inputs())
    batch.require_right(results, f"a batch of {batch.invocation.workload.geometry.n} images")
    expected = batch.invocation.outputs(results)
    differences = _worst(expected, _computed_again(subject, batch))
    declared = subject.trial.implementation.batch_invariant
    if declared and differences:
        lines = [f"{DEPENDS}:", *map(str, differences)]
        again = batch.invocation.outputs(batch.call(batch.inputs()))
        if any(again[name].tobytes() != expected[name].tobytes() for name in expected):
            lines.append("calls on the same inputs differ in bits, too")
        raise BehaviourError("\n".join(lines), Failure(kind="behaviour", message=DEPENDS))
    return Facts(batch_invariance=BatchInvariance(declared=declared, differences=differences))


def _batch(subject: Subject) -> Sample:
    """Return several images whose sums are rounded: on few bits every order of a sum gives the same. Raises Unsupported
    where no kernel takes several images."""
    sizes = IN_A_SIMULATOR if subject.bridge.stands_for else IMAGES
    for size in sizes:
        try:
            return _of_size(subject, size).sample(distribution="natural")
        except Unsupported:
            continue
    raise Unsupported(f"takes no batch of {' or '.join(map(str, sizes))} images")


def _of_size(subject: Subject, images: int) -> Subject:
    """Return the subject on a batch of another size. Raises Unsupported where no kernel takes it."""
    problem = subject.trial.problem
    try:
        geometry = replace(problem.geometry, n=images)
    except GeometryError as undefined:  # the geometries of a family with statistics need more than one element
        raise Unsupported(str(undefined)) from None
    return subject.on(replace(subject.trial, problem=replace(problem, geometry=geometry)))


def _computed_again(subject: Subject, batch: Sample) -> Iterator[Images]:
    """Yield the batch in reverse order, every second image beside images of zeros, and each image alone, where an
    implementation takes a single one."""
    inputs, tensors = batch.expected.inputs, batch.invocation.workload.inputs
    images = range(batch.invocation.workload.geometry.n)

    def call(sample: Sample, places: Sequence[int], zeros: Sequence[int] = ()) -> Arrays:
        chosen = {name: array[[*places]] for name, array in inputs.items() if tensors[name].counts_images}
        for array in chosen.values():
            array[[*zeros]] = 0
        return sample.invocation.outputs(sample.call(sample.invocation.to_device(inputs | chosen)))

    yield "in reverse order", images[::-1], call(batch, images[::-1])
    beside = call(batch, images, zeros=images[1::2])
    yield "beside images of zeros", images[::2], {name: array[::2] for name, array in beside.items()}
    try:
        single = _of_size(subject, 1).sample(distribution="natural")
        for image in images:
            yield "alone", [image], call(single, [image])
    except Unsupported:
        return


def _worst(expected: Arrays, computed: Iterable[Images]) -> tuple[BatchDifference, ...]:
    """Return the largest difference of each output for each way in which images were computed again."""
    worst: dict[tuple[str, str], BatchDifference] = {}
    for how, places, outputs in computed:
        for name, array in outputs.items():
            for image, result in zip(places, array, strict=True):
                apart = ulps_apart(result, expected[name][image])
                difference = BatchDifference(
                    output=name,
                    how=how,
                    image=image,
                    images=len(expected[name]),
                    results=apart.size,
                    differing=int(np.count_nonzero(apart)),
                    ulps=min(int(apart.max(initial=0)), FARTHEST),
                )
                if difference.ulps > (worst[how, name].ulps if (how, name) in worst else 0):
                    worst[how, name] = difference
    return tuple(worst.values())


def ulps_apart(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return how many numbers of the format lie between each two elements, one of them counted, as unsigned integers:
    the zeros of both signs and the NaNs of all payloads are numbers of their own, so that 0 means equal bits."""
    if first.dtype.kind == "i":
        wide = first.astype(np.int64), second.astype(np.int64)
        apart: np.ndarray = np.abs(wide[0] - wide[1]).astype(np.uint64)
        return apart
    places = []
    for array in (first, second):
        bits = np.ascontiguousarray(array).view(f"u{array.itemsize}").astype(np.uint64)
        sign = np.uint64(1 << (8 * array.itemsize - 1))
        # the bits of positive numbers ascend with them, those of negative numbers descend
        places.append(np.where(bits < sign, bits + sign, sign - np.uint64(1) - (bits - sign)))
    return np.maximum(*places) - np.minimum(*places)
