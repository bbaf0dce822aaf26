"""Convolution and batch norm: plans axes and tiles, calls kernels. z is fp32 from the convolution to the result."""

from __future__ import annotations

from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from conformance import Unsupported

from .host_axes import Padding, Pair, Window, windows
from .host_conv import Convolution, matching, tensors
from .host_plan import Operand

PARTITIONS, BANK, PIXELS, MOMENTS = 128, 512, 2048, 24
"""Partitions; elements of a PSUM bank; pixels whose windows are loaded at once, or which need no PSUM;
bytes that bn_stats returns."""
SBUF, WINDOWS, KEPT = 160 << 10, 40 << 10, 88 << 10
"""Bytes of SBUF a partition, of which gen2 has 192 KiB: all that is planned for one step of the convolution; of that
the windows of a place, which are held twice while the next ones are loaded; z and dy for their gradient."""

Axes = tuple[Window, Window]


class _Plan(NamedTuple):
    """Images, rows and columns of a place, groups of a block on the Vector Engine or 0, and blocks together on the
    Tensor Engine; and whether z stays in SBUF."""

    tile: tuple[int, int, int, int, int]
    resident: bool


def _every(axes: Axes) -> Pair:
    """Return the distance of the rows and columns that a window holds; columns are loaded in runs, needed or not."""
    rows = axes[0]
    return gcd(rows.stride, rows.dilation) if rows.kernel > 1 else rows.stride, 1


def _lattice(axis: Window, pitch: int) -> tuple[int, ...]:
    """Return an axis as the kernel takes it."""
    return axis.stride, axis.before, axis.dilation, axis.kernel, pitch, axis.outputs


def _place(images: int, axes: Axes, bytes_each: int) -> tuple[int, int, int]:
    """Return as many images as fill a PSUM bank, or rows of one, whose windows fit."""
    rows, columns = axes[0].outputs, min(axes[1].outputs, BANK)
    some_images = max(1, min(images, BANK // (rows * columns)))
    place = [some_images, rows if some_images > 1 else min(rows, PIXELS // columns), columns]
    while prod(place) > 1 and _held(place, axes) * bytes_each > WINDOWS:
        place[next(i for i, count in enumerate(place) if count > 1)] -= 1
    return place[0], place[1], place[2]


def _held(tile: list[int], axes: Axes) -> int:
    """Count the elements of a window."""
    spans = zip(tile[1:], axes, _every(axes), strict=True)
    return tile[0] * prod(
        ((count - 1) * axis.stride + (axis.kernel - 1) * axis.dilation) // pitch + 1 for count, axis, pitch in spans
    )


def _plan(x: np.ndarray, w: np.ndarray, axes: Axes, groups: int) -> _Plan:
    """Return a plan. Raises Unsupported where the weights or one window do not fit."""
    k, sources, *kernel = w.shape
    operand = Operand(sources, k // groups, groups, prod(kernel), x.itemsize)
    if operand.by_channel:
        parts, at_once, weights = sources, PARTITIONS // operand.targets, sources * operand.taps * 4
    else:
        filters = min(operand.targets, PARTITIONS)
        parts, at_once, weights = operand.parts, 0, operand.parts * operand.taps * filters * x.itemsize
    place = _place(len(x), axes, parts * x.itemsize)
    window = _held(list(place), axes) * parts * x.itemsize
    weights, room = weights + MOMENTS * _runs(len(x), axes, place), SBUF - 2 * window
    if weights > room or window > WINDOWS:
        raise Unsupported(f"{sources} channels and {operand.taps} taps: the weights or a window exceed SBUF")
    z = len(x) * axes[0].outputs * axes[1].outputs * 4
    resident = weights + z <= room
    return _Plan((*place, at_once, room // (weights + resident * z)), resident)


def _runs(images: int, axes: Axes, place: tuple[int, int, int]) -> int:
    """Count the tiles of z."""
    rows = BANK // (place[0] * place[2])
    of_rows = sum(-(-min(place[1], axes[0].outputs - first) // rows) for first in range(0, axes[0].outputs, place[1]))
    return -(-images // place[0]) * of_rows * -(-axes[1].outputs // place[2])


def _vectors(size: int, *vectors: Any) -> list[np.ndarray | None]:
    """Return the vectors in fp32, None for those that are not given."""
    for vector in vectors:
        if vector is not None:
            matching("elements of a parameter", vector.size, size)
    return [None if vector is None else np.ascontiguousarray(vector, np.float32) for vector in vectors]


class Normalised(Convolution):
    """x[N, C, H, W], w[K, C/groups, R, S], y[N, K, P, Q], parameters [K]; keywords as everywhere in the suite."""

    def conv_bn_forward(
        self, x: Any, w: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, *, stride: Pair,
        padding: Padding, dilation: Pair, groups: int, eps: float, eps_outside: bool, momentum: float,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        """Return y, mean, var and, where old ones are given, new running statistics."""
        vectors = _vectors(len(w), gamma, beta, running_mean, running_var)
        (images, weights), shape, lattices, plan = _prepared(x, w, stride, padding, dilation, groups)
        how = eps, eps_outside, momentum, _varied(shape)
        present, kernel = (gamma is not None, running_mean is not None), self.load("conv_bn").train
        return kernel(images, weights, *vectors, present, shape, lattices, groups, plan.tile, plan.resident, how)

    def conv_bn_inference(
        self, x: Any, w: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, *, stride: Pair,
        padding: Padding, dilation: Pair, groups: int, eps: float, eps_outside: bool,
    ) -> np.ndarray:  # fmt: skip
        """Return y by the running statistics."""
        vectors = _vectors(len(w), gamma, beta, running_mean, running_var)
        (images, weights), shape, lattices, plan = _prepared(x, w, stride, padding, dilation, groups)
        if not len(images):
            return np.zeros(shape, images.dtype)
        how = shape, lattices, groups, plan.tile, eps, eps_outside
        return self.load("conv_bn").infer(images, weights, *vectors, gamma is not None, *how)

    def conv_bn_backward(
        self, dy: Any, x: Any, w: Any, gamma: Any, *, stride: Pair, padding: Padding, dilation: Pair, groups: int,
        eps: float, eps_outside: bool,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        """Return dx, dw and, with gamma, dgamma, dbeta. z is computed again; gradients are those of the convolution at
        dz, in fp32 until they are rounded to storage."""
        (images, weights), shape, lattices, plan = _prepared(x, w, stride, padding, dilation, groups)
        outputs = tensors(dy, images)[0]
        for name, extent, expected in zip(("images", "channels", "rows", "columns"), outputs.shape, shape, strict=True):
            matching(f"{name} of dy", extent, expected)
        how, (scale,) = (eps, eps_outside, _varied(shape)), _vectors(len(weights), gamma)
        measured = self.load("conv_bn").measure(images, weights, shape, lattices, groups, plan.tile)
        area = outputs.shape[2] * outputs.shape[3]
        tile = max(1, PIXELS // area), min(area, PIXELS)
        resident = len(outputs) * area * (4 + outputs.itemsize) <= KEPT
        gradient = self.load("conv_bn_gradient").gradient
        gradients = gradient(outputs, *measured, scale, scale is not None, tile, resident, how)
        dz, *parameters = [gradients] if scale is None else gradients
        # the Tensor Engine multiplies fp32 with fp32 only
        x32, w32, size = images.astype(np.float32), weights.astype(np.float32), weights.shape[2:]
        geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        dx = self.conv_backward_data(dz, w32, input_size=images.shape[2:], **geometry)
        dw = self.conv_backward_weight(x32, dz, kernel_size=size, with_bias=False, **geometry)
        return (dx.astype(images.dtype), dw.astype(weights.dtype), *parameters)


def _varied(shape: tuple[int, ...]) -> int:
    """Count the elements of a channel. Raises ValueError where their variance is undefined."""
    elements = shape[0] * shape[2] * shape[3]
    if elements < 2:
        raise ValueError(f"z has shape {shape}, one element a channel: its variance is undefined")
    return elements


def _prepared(
    x: Any, w: Any, stride: Pair, padding: Padding, dilation: Pair, groups: int
) -> tuple[list[np.ndarray], tuple[int, ...], tuple[tuple[int, ...], ...], _Plan]:
    """Return tensors, the shape of y, the axes as the kernel takes them, and a plan."""
    images, weights = tensors(x, w)
    k, sources, *kernel = weights.shape
    matching("channels of x", images.shape[1], sources * groups)
    matching("filters beyond whole groups", k % groups, 0)
    axes = windows(images.shape[2:], kernel, stride, padding, dilation)
    pitches, shape = _every(axes), (len(images), k, axes[0].outputs, axes[1].outputs)
    lattices = _lattice(axes[0], pitches[0]), _lattice(axes[1], pitches[1])
    return [images, weights], shape, lattices, _plan(images, weights, axes, groups)
