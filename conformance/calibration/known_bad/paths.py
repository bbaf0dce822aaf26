"""Convolutions with a mistake on a special path: a library has one for 1x1 windows, for depthwise layers, ..."""

from __future__ import annotations

from conformance.calibration.known_bad.base import Mutant
from conformance.calibration.known_bad.structure import Paths, on_paths
from conformance.operators import CONVOLUTIONS
from conformance.operators.spatial import is_padded

_PARAMETERS = (
    "stride ignored",
    "strides swapped",
    "dilation ignored",
    "dilations swapped",
    "padding ignored",
    "padding swapped between H and W",
    "padding mirrored (before and after exchanged)",
)
_OTHERS = ("bias (dbias) missing", "image n uses image n-1")
_KERNEL = ("filter flipped in H and W", "filter transposed (R and S swapped)")
_GROUPS = ("group off by one", "input channels interleaved over groups")
_ALL = (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)
_NO_DILATION = tuple(name for name in _PARAMETERS if "dilation" not in name)

_PATHS: Paths = {
    "pointwise": (lambda g: max(g.window) == 1, (*_NO_DILATION, *_OTHERS, *_GROUPS)),
    # a kernel may be declared for these alone, and then no grouped problem looks at it
    "ungrouped pointwise": (lambda g: max(g.window) == g.groups == 1, (*_NO_DILATION, *_OTHERS)),
    "one-axis window": (lambda g: min(g.window) == 1 < max(g.window), _ALL),
    "even window": (lambda g: any(taps % 2 == 0 for taps in g.window), _ALL),
    "large window": (lambda g: max(g.window) >= 5, _ALL),
    "depthwise": (lambda g: 1 < g.groups == g.c, (*_PARAMETERS, *_OTHERS, *_KERNEL, "group off by one")),
    "grouped": (lambda g: 1 < g.groups < g.c, _ALL),
    "strided": (lambda g: max(g.stride) > 1, _ALL),
    "dilated": (lambda g: max(g.dilation) > 1, _ALL),
    "strided and dilated": (lambda g: max(g.stride) > 1 and max(g.dilation) > 1, _ALL),
    "unpadded": (lambda g: not is_padded(g.padding), (*_PARAMETERS[:4], *_OTHERS, *_KERNEL, *_GROUPS)),
    "single image": (lambda g: g.n == 1, (*_PARAMETERS, _OTHERS[0], *_KERNEL, *_GROUPS)),
    "wide channels": (lambda g: g.c >= 64 or g.k >= 64, _ALL),
    "odd channels": (lambda g: g.c // g.groups % 4 > 0, _ALL),
}

PATHS: tuple[Mutant, ...] = tuple(on_paths(_PATHS, CONVOLUTIONS, "paths", "{mistake}, on the {path} path"))
