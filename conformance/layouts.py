"""The order in which axes lie in memory, by name: `nchw`, `ndhwc`, `gnhwc`. A layout is data.

A name has a letter for every axis of an image: n, c, and those of space. Weights lie in the same order, k for n and
the window's axes for the image's.

Where groups are an axis, g, c counts the channels of one. Such layouts are Composable Kernel's, and in its names
(K counted within a group, Y and X the window's axes):

    image   GNHWC  weights GKYXC  output GNHWK      gnwc, gnhwc, gndhwc
    image   NHWGC  weights GKYXC  output NHWGK      nwgc, nhwgc, ndhwgc
    image   NGCHW  weights GKCYX  output NGKHW      ngcw, ngchw, ngcdhw

as `GroupConvLayout1D`, `2D` and `3D` pair them (experimental/builder, types.hpp; its fourth, NGCHW with GKYXC, is not
here). To MIOpen tensors have no groups axis. It calls these kernels with its NHWC memory as NHWGC, the stride of G
being C, and its KYXC as GKYXC (`CKArgs` in solver/conv/conv_hip_implicit_gemm_grouped_wrw_xdlops.cpp): the same
bytes. So are NCHW and NGCHW. No plain layout has those of GNHWC.

Others may be declared, a name and its letters: `declare`.

A matrix product y = a b has no axes of space. Its layouts are named as in BLAS, a letter for each operand: `n` where it
lies as it is multiplied, a [M, K] and b [K, N], `t` where it lies transposed; y is always [M, N]. All are row-major. In
a batch of products, all three have the batch before the other axes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

MATRICES = ("nn", "nt", "tn", "tt")
"""Layouts of the operands of a matrix product."""
A, B, Y = "MK", "NK", "MN"
"""Canonical axes of the operands and of the result of a matrix product."""
IMAGES = ("nchw", "nhwc", "ncw", "nwc", "ncdhw", "ndhwc")
"""Channels first and channels last, in two dimensions, in one and in three."""
LAYOUTS = (*IMAGES, *MATRICES)
GROUPED = ("gnhwc", "nhwgc", "ngchw", "gnwc", "nwgc", "ngcw", "gndhwc", "ndhwgc", "ngcdhw")
"""Layouts with groups as an axis. An implementation is run in one only if it declares it."""
NAMES = (*LAYOUTS, *GROUPED)
SPACE = {"w": "s", "hw": "rs", "dhw": "trs"}
"""Axes of an image -> axes of a window, by rank."""
_OF_WEIGHTS = str.maketrans("ndhw", "ktrs")
_OF_IMAGES = str.maketrans("ktrs", "ndhw")
_declared: dict[str, tuple[str, str]] = {}
"""Name -> its letters, and the implementation that declares it."""


class LayoutError(ValueError):
    """Raised for a declaration of a layout that cannot be meant; the message says what to do."""


def letters(layout: str) -> str:
    """Return the axes of an image as they lie in memory: the layout's name, or the letters of a declared layout."""
    if layout in MATRICES:
        return matrix_letters(layout, A, 1)
    return _declared[layout][0] if layout in _declared else layout


def declare(name: str, text: str, owner: str) -> None:
    """Let a name stand for an order of axes: `chwn`, or `ghwcn` with groups, which may be written k. Raises
    LayoutError. An owner may declare a name again, with other letters too: a corrected file is read anew."""
    found = read(name, text)
    if name in NAMES:
        if found != name:
            raise LayoutError(f"{name!r} is taken: the suite's layout {name} is another one; choose another name")
        return
    known, whose = _declared.get(name, (found, owner))
    if known != found and whose != owner:
        raise LayoutError(f"{name!r} is taken: {whose} declares it as {known}; choose another name for {text}")
    _declared[name] = found, whose
    arrangement.cache_clear()


def read(name: str, text: str) -> str:
    """Return the letters of a declaration, g for the groups. Raises LayoutError."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
        raise LayoutError(f"{name!r}: a name is 1 to 40 small letters, digits and _, beginning with a letter")
    form = "give each axis once: n, c, those of space (w, hw or dhw) and, if groups are one, g, such as chwn or gnhwc"
    if not isinstance(text, str):
        raise LayoutError(f"{name!r}: {text!r} are no letters; {form}")
    if unknown := "".join(dict.fromkeys(axis for axis in text if axis not in "ncdhwgk")):
        raise LayoutError(f"{name!r}: {text!r} has the unknown {', '.join(unknown)}; {form}")
    found = text.replace("k", "g")
    if twice := "".join(dict.fromkeys(axis for axis in found if found.count(axis) > 1)):
        raise LayoutError(f"{name!r}: {text!r} has {', '.join(twice)} twice; {form}")
    space = next((axes for axes in reversed(SPACE) if axes[0] in found), "w")
    if missing := "".join(axis for axis in f"nc{space}" if axis not in found):
        raise LayoutError(f"{name!r}: {text!r} lacks {', '.join(missing)}; {form}")
    return found


def has_groups(layout: str) -> bool:
    """Return whether a layout has groups as an axis of their own."""
    return "g" in letters(layout)


def is_known(layout: str) -> bool:
    """Return whether a layout is one of the suite's, or one that somebody has declared."""
    return layout in NAMES or layout in _declared


def is_optional(layout: str) -> bool:
    """Return whether an implementation is run in a layout only if it declares it."""
    return layout not in LAYOUTS


def rank_of(layout: str) -> int:
    """Return the number of a layout's spatial axes."""
    return len(letters(layout)) - 2 - has_groups(layout)


@cache
def layouts_of(rank: int) -> tuple[str, ...]:
    """Return the layouts with channels first and with channels last in `rank` spatial axes."""
    return tuple(layout for layout in LAYOUTS if rank_of(layout) == rank)


@cache
def grouped_of(rank: int) -> tuple[str, ...]:
    """Return the layouts with groups as an axis in `rank` spatial axes."""
    return tuple(layout for layout in GROUPED if rank_of(layout) == rank)


@cache
def in_rank(layout: str, rank: int) -> str:
    """Return the layout of the same kind with another number of spatial axes; a declared layout is returned as it
    is."""
    for kinds in (layouts_of, grouped_of):
        if layout in kinds(rank_of(layout)):
            return kinds(rank)[kinds(rank_of(layout)).index(layout)]
    return layout


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How one tensor lies in memory: its canonical extents, with channels split into groups where these are an axis,
    and the places of these axes in the order of memory."""

    shape: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    axes: str
    """Letters of the axes in the order of memory; axes of weights have the letters of an image's axes."""
    canonical: tuple[str, ...]
    """Letters of each canonical axis: `gc` where channels are split."""

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in memory."""
        return tuple(self.split[axis] for axis in self.order)

    @property
    def back(self) -> tuple[int, ...]:
        """The inverse of `order`."""
        return tuple(map(self.order.index, range(len(self.order))))

    def to_memory(self, array: np.ndarray) -> np.ndarray:
        """Return a canonical array with its axes as they lie in memory; a view where it can be one."""
        return array.reshape(self.split).transpose(self.order)

    def from_memory(self, array: np.ndarray) -> np.ndarray:
        """Return the canonical array of an array with its axes as they lie in memory."""
        return array.transpose(self.back).reshape(self.shape)


def matrix_letters(layout: str, axes: str, groups: int) -> str:
    """Return the axes of a tensor of a matrix product as they lie in memory, with the letters of an image."""
    is_transposed = (axes == A and layout[0] == "t") or (axes == B and layout[1] == "n")
    return "g" * (groups > 1) + ("cn" if is_transposed else "nc")


def filter_letters(layout: str) -> str:
    """Return the axes of weights as they lie in memory: k, c, those of the window and, if groups are an axis, g."""
    if layout in MATRICES:
        return matrix_letters(layout, B, 1).translate(_OF_WEIGHTS)
    found = letters(layout)
    if layout in GROUPED:  # whose weights begin with the groups wherever these are in the image
        found = "gn" + found.replace("g", "").replace("n", "")
    return found.translate(_OF_WEIGHTS)


@cache
def arrangement(shape: tuple[int, ...], layout: str, groups: int = 1, canonical: str = "NC") -> Arrangement:
    """Return the arrangement of a tensor with this shape and these canonical axes: an image, weights [K, C of a group,
    ...], or a vector, which stays. Raises LayoutError where groups do not divide the channels."""
    if len(shape) == 1:
        return Arrangement(shape, shape, (0,), "k", ("k",))
    is_filter = canonical.startswith(("KC", "CK")) or canonical == B
    if layout in MATRICES:
        axes = matrix_letters(layout, canonical, groups)
    else:
        axes = filter_letters(layout).translate(_OF_IMAGES) if is_filter else letters(layout)
    return of_letters(shape, axes, groups, is_filter)


def of_letters(shape: tuple[int, ...], axes: str, groups: int, is_filter: bool) -> Arrangement:
    """Return the arrangement of an image or weights by the letters of an image in the order of memory. Raises
    LayoutError."""
    space = tuple(axis for axis in "dhw" if axis in axes)
    if "g" not in axes:
        canonical: tuple[str, ...] = ("n", "c", *space)
        split = shape
    else:
        place = 0 if is_filter else 1
        if shape[place] % groups:
            raise LayoutError(f"{shape[place]} channels are not {groups} groups")
        canonical = ("gn", "c", *space) if is_filter else ("n", "gc", *space)
        split = (*shape[:place], groups, shape[place] // groups, *shape[place + 1 :])
    return Arrangement(shape, split, tuple(map("".join(canonical).index, axes)), axes, canonical)


def arranged(tensor: Any, layout: str, geometry: Any) -> Arrangement:
    """Return the arrangement of a tensor of an operator on a problem."""
    return arrangement(tuple(tensor.shape), layout, groups_of(tensor, geometry), tensor.axes)


def groups_of(tensor: Any, geometry: Any) -> int:
    """Return the number of groups that the channels of a tensor are divided into."""
    return 1 if tensor.shared else getattr(geometry, "groups", 1)


def own(declared: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Return the layouts that a kernel declares and that are not the suite's, with their letters. Raises
    LayoutError."""
    if not isinstance(declared, Mapping):
        return {}
    return {name: read(name, text) for name, text in declared.items() if name not in NAMES}
