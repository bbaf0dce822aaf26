"""A requantized convolution whose every step can be replaced: its mistakes, and calibration's correct and wrong
kernels, are made of these steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conformance.operators.base import Arrays
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.conv.operators import ConvForward
from conformance.operators.conv_requantized.geometry import RequantizedGeometry
from conformance.operators.requantized_steps import Change, Storing
from conformance.operators.spatial import padded

FORWARD = ConvForward()

Sums = Callable[[ConvGeometry, np.ndarray, np.ndarray], np.ndarray]


def centred(g: RequantizedGeometry, x: np.ndarray) -> np.ndarray:
    """Return x minus its zero point, surrounded by zeros."""
    return around(g, x - g.x_zero_point)


def around(g: RequantizedGeometry, x: np.ndarray, fill: float = 0.0) -> np.ndarray:
    return padded(x, g.padding, np.dtype(np.float64), fill)


def exact_sums(g: ConvGeometry, image: np.ndarray, w: np.ndarray) -> np.ndarray:
    return FORWARD.reference(g, {"x": image, "w": w})["y"]


@dataclass(frozen=True, slots=True)
class Steps(Storing):
    """The steps of the sums, before those that follow.

    image     (geometry, x) -> the padded image
    filters   (w) -> filters as they are multiplied
    sums      (convolution of the padded image, image, filters) -> sums without the bias
    """

    image: Callable[[RequantizedGeometry, np.ndarray], np.ndarray] = centred
    filters: Change = lambda w: w
    sums: Sums = exact_sums

    def added_up(self, g: RequantizedGeometry, wide: Arrays) -> np.ndarray:
        """Return the sums of the inputs, in float64, without the bias."""
        image = self.image(g, wide["x"])
        inner = ConvGeometry(g.n, g.c, image.shape[2:], g.k, g.window, g.stride, (), g.dilation, g.groups)
        return self.sums(inner, image, self.filters(wide["w"]))
