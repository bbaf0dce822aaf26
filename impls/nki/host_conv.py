"""Convolution: checks arguments, plans tiles, calls kernels. PSUM and the Vector Engine accumulate in fp32."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from .host_axes import Padding, Pair, Window, windows
from .host_packed import backward, forward, packed_plan
from .host_plan import Operand, gather_plan, weight_plan
from .host_turns import turn_plan

DTYPES = ("float32", "float16", "bfloat16")
SHORT_ROW = 512
"""Bytes of a row below which the DMA moves it far below its peak."""


def tensors(*arrays: Any) -> list[np.ndarray]:
    """Return dense arrays of one dtype. Raises TypeError for an unknown or different one."""
    dense = [np.ascontiguousarray(array) for array in arrays]
    for array in dense:
        if array.dtype.name not in DTYPES:
            raise TypeError(f"{array.dtype.name}: must be one of {', '.join(DTYPES)}")
        if array.dtype != dense[0].dtype:
            raise TypeError(f"tensors are {dense[0].dtype} and {array.dtype}; they must have one dtype")
    return dense


def matching(what: str, number: int, expected: int) -> None:
    """Raise ValueError if the numbers differ."""
    if number != expected:
        raise ValueError(f"{what}: {number} where {expected} are expected")


class Convolution:
    """x[N, C, H, W], w[K, C/groups, R, S], y[N, K, P, Q]; parameters as everywhere in the suite."""

    def __init__(self, load: Callable[[str], ModuleType]):
        self.load = load

    def conv_forward(
        self, x: Any, w: Any, bias: Any, *, stride: Pair, padding: Padding, dilation: Pair, groups: int
    ) -> np.ndarray:
        """Return y = x cross-correlated with w, plus bias[K]."""
        images, weights, *vectors = tensors(x, w) if bias is None else tensors(x, w, bias)
        k, per_group, *kernel = weights.shape
        matching("channels of x", images.shape[1], per_group * groups)
        matching("filters beyond whole groups", k % groups, 0)
        for vector in vectors:
            matching("elements of bias", vector.size, k)
        axes = windows(images.shape[2:], kernel, stride, padding, dilation)
        taps = kernel[0] * kernel[1]
        operand = Operand(per_group, k // groups, groups, taps, images.itemsize)
        steps = k // groups * per_group * taps, per_group * taps, taps, taps
        lattices = axes[0].forward(dense=_short(images)), axes[1].forward(dense=True)
        packed = forward(axes[0]), forward(axes[1]), False
        return self._gather(images, weights, vectors, (len(images), k), lattices, operand, steps, kernel[1], packed)

    def conv_backward_data(
        self, dy: Any, w: Any, *, input_size: Pair, stride: Pair, padding: Padding, dilation: Pair, groups: int
    ) -> np.ndarray:
        """Return dx: every input pixel gathers from the outputs whose window covers it."""
        outputs, weights = tensors(dy, w)
        k, per_group, *kernel = weights.shape
        matching("channels of dy", outputs.shape[1], k)
        matching("filters beyond whole groups", k % groups, 0)
        axes = windows(input_size, kernel, stride, padding, dilation)
        _matching_sizes(outputs, axes)
        taps = kernel[0] * kernel[1]
        operand = Operand(k // groups, per_group, groups, taps, outputs.itemsize)
        steps = k // groups * per_group * taps, taps, per_group * taps, taps
        lattices, shape = (axes[0].backward, axes[1].backward), (len(outputs), per_group * groups)
        packed = (backward(axes[0]), backward(axes[1]), True) if stride == (1, 1) else None
        return self._gather(outputs, weights, [], shape, lattices, operand, steps, kernel[1], packed)

    def _gather(self, source, weights, vectors, shape, axes, operand, steps, width, packed):
        """Compute one gather, by the engine that its plan names; for an empty batch return zeros."""
        if not len(source):
            return np.zeros((*shape, axes[0].size, axes[1].size), source.dtype)
        if packed and (plan := packed_plan(packed[:2], operand, len(source), flipped=packed[2])):
            bias, shape = vectors[0] if vectors else None, (*shape, axes[0].size, axes[1].size)
            kernel, how = self.load("conv_packed").gather_packed, (_plain(plan.axes), steps[1:3], plan.tile)
            return kernel(source, weights, bias, bool(vectors), shape, *how, packed[2], plan.swapped)
        plan = gather_plan(len(source), axes, operand, source[0, 0].size, filters=steps[1] > steps[2])
        kernels = self.load("conv_windows")
        bias, shape = vectors[0] if vectors else None, (*shape, axes[0].size, axes[1].size)
        how = source, weights, bias, bool(vectors), shape, _plain(axes), steps, width, operand.groups, plan.tile
        if plan.by_channel:
            return kernels.gather_by_channel(*how, plan.resident)
        return kernels.gather_by_matmul(*how, plan.resident, plan.turning, plan.joined)

    def conv_backward_weight(
        self, x: Any, dy: Any, *, kernel_size: Pair, with_bias: bool, stride: Pair, padding: Padding, dilation: Pair,
        groups: int,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return dw, or (dw, dbias): sums over all images and output pixels."""
        images, outputs = tensors(x, dy)
        k, c, taps = outputs.shape[1], images.shape[1], kernel_size[0] * kernel_size[1]
        matching("images of dy", len(outputs), len(images))
        matching("channels beyond whole groups", c % groups + k % groups, 0)
        axes = windows(images.shape[2:], kernel_size, stride, padding, dilation)
        _matching_sizes(outputs, axes)
        if not len(images):
            dw, dbias = np.zeros((k, c // groups, *kernel_size), images.dtype), np.zeros(k, images.dtype)
            return (dw, dbias) if with_bias else dw
        operand = Operand(c // groups, k // groups, groups, taps, images.itemsize)
        kernel = self._weight_by_channel if operand.by_channel else self._weight_by_matmul
        return kernel(images, outputs, axes, operand, (k, c // groups, *kernel_size), with_bias)

    def _weight_by_channel(self, x, dy, axes, operand, shape, with_bias):
        lattices = axes[0].forward(dense=_short(x)), axes[1].forward(dense=True)
        plan = gather_plan(len(x), lattices, operand, x[0, 0].size)
        plain = axes[0].plain, axes[1].plain
        kernel = self.load("conv_windows").weight_by_channel
        arguments = _plain(lattices), _plain(plain), shape[3], operand.groups, plan.tile, plan.resident
        return kernel(x, dy, shape, with_bias, *arguments)

    def _weight_by_matmul(self, x, dy, axes, operand, shape, with_bias):
        stride, dilation = (tuple(getattr(axis, name) for axis in axes) for name in ("stride", "dilation"))
        plan = weight_plan(len(x), dy.shape[2:], shape[2:], operand, stride, dilation, with_bias)
        before = axes[0].before, axes[1].before
        padded = any(axis.before or axis.reached > axis.size for axis in axes)
        size = (axes[0].reached, axes[1].reached) if padded else (0, 0)
        patterns = size, (stride, dilation, plan.pitch), plan.strip, plan.block, plan.at_once, plan.resident
        pixels = x[0, 0].nbytes, dy[0, 0].nbytes
        turn = turn_plan(len(x), dy.shape[2:], shape[2:], operand, stride, dilation, with_bias, pixels)
        kernels, window = self.load("conv_weight"), (stride, dilation, turn.pitch if turn else 1)
        how = x, dy, shape, with_bias, before, window, operand.groups
        if turn is None:
            return kernels.weight_by_patterns(*how, patterns)
        return kernels.weight_by_transposes(*how, turn.tile, turn.at_once, turn.resident, turn.joined, patterns)


def _short(images: np.ndarray) -> bool:
    """Return whether a run of several rows justifies loading rows that a stride skips: the DMA moves one row slowly."""
    return images.shape[3] * images.itemsize < SHORT_ROW


def _matching_sizes(dy: np.ndarray, axes: tuple[Window, Window]) -> None:
    matching("rows of dy", dy.shape[2], axes[0].outputs)
    matching("columns of dy", dy.shape[3], axes[1].outputs)


def _plain(value: Any) -> Any:
    """Return named tuples as tuples: kernels take ints and tuples."""
    return tuple(_plain(item) for item in value) if isinstance(value, tuple) else value
