"""How an operand lies in memory: the kinds of storage, their text, and where each element then is.

A case says it as `x:crop,w:other-format`; operands that are not named are contiguous. The memory around an operand is
NaN, belongs to nobody, and is neither read nor written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.layouts import Arrangement

STRIDES, ALIGNMENT = "strides of {} ignored", "alignment of {} assumed"
KINDS = {
    "other-format": STRIDES,  # channels-last memory under an NCHW shape, and the reverse
    "crop": STRIDES,  # rows and columns of a larger image; of a vector, a slice
    "channels": STRIDES,  # some channels of a tensor with more
    "chunk": STRIDES,  # the second of three chunks along the channels
    "strided": STRIDES,  # every second element along every axis
    "rows": STRIDES,  # every second row
    "far-rows": STRIDES,  # rows more than 2^15 elements apart
    "reversed": STRIDES,  # rows and columns backwards: negative strides
    "transposed": STRIDES,  # rows and columns change places in memory
    "loose-ones": STRIDES,  # any stride along axes of one element, which no element needs
    "expanded": STRIDES,  # stride 0 along the first axis: one image, filter or number for all
    "expanded-channels": STRIDES,  # stride 0 along the channels
    "expanded-columns": STRIDES,  # stride 0 along a row
    "expanded-all": STRIDES,  # one number for all, as the gradient of a sum is
    "expanded-batch": STRIDES,  # stride 0 from product to product: one matrix for all
    "offset-1": ALIGNMENT,  # elements beyond a multiple of 64 bytes
    "offset-2": ALIGNMENT,
    "offset-4": ALIGNMENT,
    "align-16": ALIGNMENT,  # 16 bytes beyond a multiple of 64
    "page-end": "read or write past the end of {}",  # the next byte lies in a page that may not be touched
    "page-start": "read or write before the start of {}",  # the byte before lies in such a page
    "read-only": "write to {}",  # the operand lies in pages that may not be written to
}
"""Kind -> the probable mistake of a kernel that is wrong only on operands of this kind."""
OFFSET = "offset of {} ignored"
ALIGNED = ("other-format", "strided", "rows", "transposed", "expanded")
"""Kinds that begin behind the start of their buffer at a multiple of 64 bytes."""
PAGES = ("page-end", "page-start", "read-only")
REPEATING = {
    "expanded": slice(1),
    "expanded-channels": slice(1, 2),
    "expanded-columns": slice(-1, None),
    "expanded-all": slice(None),
}
"""Kind -> the canonical axes along which all values are the same."""
ROWS = ("rows", "far-rows", "transposed")
"""Kinds that need two spatial axes."""
BATCH = "expanded-batch"
NOT_OF_MATRICES = ("other-format", "expanded-columns")
"""Kinds that are others' of a matrix: `transposed` and `expanded-channels`."""
IMAGES_ONLY = (
    *("other-format", "channels", "chunk", "rows", "far-rows", "reversed", "transposed"),
    *("expanded-channels", "expanded-columns", "expanded-all"),
)
"""Kinds that a vector cannot have."""
FAR = 1 << 15
"""Elements that `far-rows` puts between two rows: more than 16 bits hold, in bytes or with a sign."""
LOOSE = 7919
"""Stride in elements along an axis of one element, which needs none."""
MARGIN = 64
"""Elements before and after an operand; whole cache lines in every dtype, so that alignment stays."""


class StorageError(ValueError):
    """Raised for a text that describes no storage; the message names the part and the choices."""


def parse(text: str) -> dict[str, str]:
    """Return operand -> kind; empty for `contiguous`. Raises StorageError."""
    if text in ("", "contiguous"):
        return {}
    found: dict[str, str] = {}
    for part in text.split(","):
        operand, _, kind = part.partition(":")
        if not operand.isidentifier() or kind not in KINDS:
            kinds = ", ".join(KINDS)
            raise StorageError(f"{part!r}: must be OPERAND:KIND, such as x:crop, or contiguous. Kinds: {kinds}")
        if operand in found:
            raise StorageError(f"{operand} is given twice")
        found[operand] = kind
    return found


def written(storage: Mapping[str, str]) -> str:
    """Return the text that `parse` reads."""
    return ",".join(f"{operand}:{kind}" for operand, kind in storage.items())


def fits(kind: str, dimensions: int) -> bool:
    """Return whether an operand of `dimensions` axes can be stored as this kind."""
    if kind == BATCH or dimensions == 2:
        return dimensions == 2 and kind not in NOT_OF_MATRICES
    return kind not in IMAGES_ONLY or dimensions > (3 if kind in ROWS else 1)


def blamed(operand: str, kind: str, failing: Collection[str]) -> str:
    """Return the probable mistake of a kernel that is wrong where an operand has this kind, one of all `failing` kinds.
    A kernel that assumes an alignment is right on aligned views, and one that ignores strides is right on contiguous
    ones: a kernel that is wrong on both reads from the start of the buffer."""
    shifted = {name for name in failing if KINDS[name] == ALIGNMENT}
    if shifted and not {*failing}.isdisjoint(ALIGNED) and KINDS[kind] in (ALIGNMENT, STRIDES):
        return OFFSET.format(operand)
    return KINDS[kind].format(operand)


def repeats(text: str) -> bool:
    """Return whether a storage repeats values: errors are then not independent, and no statistics of them are
    judged."""
    return any(kind in REPEATING or kind == BATCH for kind in parse(text).values())


def repeats_alone(text: str) -> bool:
    """Return whether a storage repeats whole matrices of a batch, and no value within one."""
    return repeats(text) and not any(kind in REPEATING for kind in parse(text).values())


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an operand lies in a buffer of `size` elements; offset and strides in elements.

    `page` is the side of the buffer on which a page may not be touched, `end` or `start`; or the buffer is `read-only`.
    """

    offset: int
    strides: tuple[int, ...]
    size: int
    page: str = ""


def placement(kind: str, tensor: Arrangement, itemsize: int) -> Placement:
    """Return the placement of an array with this arrangement and kind of storage."""
    axes = tensor.axes
    sizes = dict(zip(axes, tensor.stored, strict=True))
    order, around, steps, margin, page = axes, dict.fromkeys(axes, (0, 0)), dict.fromkeys(axes, 1), MARGIN, ""
    shift, backwards = 0, ""
    plane = "hw" if "h" in axes else "w" if "w" in axes else axes[-2:]  # of an image, a line, a matrix or a vector
    rows, columns = plane[0], plane[-1]
    if kind == "other-format":
        order = _other_format(axes)
    elif kind == "transposed":
        order = axes.translate(str.maketrans(rows + columns, columns + rows))
    elif kind == "crop":
        around |= {rows: (1, 2), columns: (2, 1)} if len(plane) > 1 else {columns: (3, 2)}
    elif kind == "channels":
        around["c"] = (1, 2)
    elif kind == "chunk":
        around["c"] = (sizes["c"], sizes["c"])
    elif kind == "strided":
        steps = dict.fromkeys(axes, 2)
    elif kind == "rows":
        steps[rows] = 2
    elif kind == "far-rows":
        inner = max(plane, key=axes.index)
        around[inner] = (1, FAR // max(1, math.prod(sizes[axis] for axis in axes.partition(inner)[2])) + 1)
    elif kind == "reversed":
        backwards = plane
    elif kind in PAGES:
        margin, page = 0, kind.removeprefix("page-")
    elif kind.startswith(("offset-", "align-")):
        shift, page = int(kind.split("-")[1]), "start"  # a page begins at a multiple of 64 bytes
        shift = shift // itemsize if kind == "align-16" else shift
    repeated = "".join(tensor.canonical[REPEATING[kind]]) if kind in REPEATING else "g" if kind == BATCH else ""
    strides, extent, offset = dict.fromkeys(axes, 0), 1, margin + shift
    for axis in reversed(order):
        before, after = around[axis]
        if axis not in repeated:
            strides[axis] = steps[axis] * extent
            offset += before * extent
            extent *= before + steps[axis] * sizes[axis] + after
    for axis in axes if kind == "loose-ones" else "":
        if sizes[axis] == 1:
            strides[axis] = LOOSE
    for axis in backwards:
        offset += (sizes[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    return Placement(offset, tuple(strides[axis] for axis in axes), extent + shift + 2 * margin, page)


def _other_format(axes: str) -> str:
    """Return the axes with channels last where they are not, and before the axes of space where they are."""
    rest = axes.replace("c", "")
    place = min(rest.index(axis) for axis in "dhw" if axis in rest)
    return f"{rest[:place]}c{rest[place:]}" if axes.endswith("c") else f"{rest}c"


def with_repeats(
    inputs: Mapping[str, np.ndarray], text: str, batch: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Return inputs in canonical order with the values that they have in memory where strides are 0; `batch` is
    the number of products in a batch of each operand, the outer part of the second axis, and of the first one of b."""
    found = dict(inputs)
    for operand, kind in parse(text).items():
        if kind in REPEATING and operand in found:
            array = found[operand]
            repeated = range(array.ndim)[REPEATING[kind]]
            first = array[tuple(slice(1) if axis in repeated else slice(None) for axis in range(array.ndim))]
            found[operand] = np.ascontiguousarray(np.broadcast_to(first, array.shape))
        elif kind == BATCH and operand in found:
            axis = int(operand != "b")
            products = (batch or {}).get(operand, 1)
            (first, *_) = np.split(found[operand], products, axis)
            found[operand] = np.concatenate([first] * products, axis)
    return found


NAN_BYTE = 0xFF
"""Byte of which numbers of every floating-point format are NaN."""


def nan_bytes(size: int) -> np.ndarray:
    """Return bytes that are NaN in every floating-point format."""
    return np.full(size, NAN_BYTE, np.uint8)


def buffer(array: np.ndarray, place: Placement) -> np.ndarray:
    """Return the buffer with the array in it, and NaN around the array."""
    found = nan_bytes(place.size * array.itemsize).view(array.dtype)
    steps = [step * array.itemsize for step in place.strides]
    np.ndarray(array.shape, array.dtype, found, place.offset * array.itemsize, steps)[...] = array
    return found
