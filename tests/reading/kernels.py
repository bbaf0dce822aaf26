"""Convolutions in NumPy whose arithmetic is known: sums of products, by the way in which they are added."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Dot = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Takes factors [M, L] and [L, N] in float64, and returns sums [M, N]."""


def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Exact products [L, M, N]."""
    with np.errstate(invalid="ignore"):
        exact: np.ndarray = a.T[:, :, None] * b[:, None, :]
    return exact


def kept(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Values rounded to a format."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded: np.ndarray = values.astype(dtype).astype(np.float64)
    return rounded


def sequential(dtype: Any = np.float32, reverse: bool = False) -> Dot:
    """Products are rounded and added one after another."""

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = np.zeros((len(a), b.shape[1]))
        for product in products(a, b)[:: -1 if reverse else 1]:
            with np.errstate(invalid="ignore"):
                total = kept(total + kept(product, dtype), dtype)
        return total

    return dot


def pairwise(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    terms = kept(products(a, b), np.float32)
    while len(terms) > 1:
        terms = np.concatenate([terms, np.zeros_like(terms[: len(terms) % 2])])
        terms = kept(terms[::2] + terms[1::2], np.float32)
    return terms[0]


def lanes(number: int) -> Dot:
    """Every `number`-th product is added to the same partial sum, as vector registers do; then these in pairs."""

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        parts = np.stack([sequential()(a[:, lane::number], b[lane::number]) for lane in range(number)])
        while len(parts) > 1:
            parts = kept(parts[::2] + parts[1::2], np.float32)
        return parts[0]

    return dot


def split_k(number: int, stored: Any, wide: Any = np.float32) -> Dot:
    """Stretches of adjacent products, whose sums are stored before they are added."""

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = np.zeros((len(a), b.shape[1]))
        for part in np.array_split(np.arange(len(b)), number):
            total = kept(total + kept(sequential(wide)(a[:, part], b[part]), stored), np.float32)
        return total

    return dot


def cut(values: np.ndarray, bits: int, rounding: Callable[[Any], np.ndarray] = np.trunc) -> np.ndarray:
    """Values cut to so many bits after the leading one."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(rounding(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)


def unit(group: int, fraction: int, result: int = 23, promote: int = 0, rounding: Any = np.trunc) -> Dot:
    """A matrix unit: the accumulator and a group of products are aligned to the largest exponent, cut to some fraction
    bits, added exactly and cut to the accumulator's format (MMA-Sim, arXiv 2511.10909). `promote`: the number of
    products after which the accumulator is added to one of fp32."""

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        terms, total, main = products(a, b), np.zeros((len(a), b.shape[1])), np.zeros((len(a), b.shape[1]))
        for start in range(0, len(terms), group):
            parts = np.concatenate([total[None], terms[start : start + group]])
            largest = np.where(parts == 0, -2000, np.frexp(parts)[1] - 1).max(0)
            step = np.ldexp(1.0, np.where(largest == -2000, 0, largest) - fraction)
            total = cut(rounding(parts / step).sum(0) * step, result, rounding)
            if promote and (start + group) % promote == 0:
                main, total = kept(main + total, np.float32), np.zeros_like(total)
        return kept(main + total, np.float32)

    return dot


def split_inputs(parts: int, dtype: Any, used: list[tuple[int, int]]) -> Dot:
    """Inputs are split into parts; a sum of the products of each used pair of parts, the smallest first."""

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        def of(values: np.ndarray) -> list[np.ndarray]:
            pieces = []
            for _ in range(parts):
                pieces.append(kept(values, dtype))
                values = values - pieces[-1]
            return pieces

        first_parts, second_parts, total = of(a), of(b), np.zeros((len(a), b.shape[1]))
        for first, second in used:
            total = kept(total + sequential()(first_parts[first], second_parts[second]), np.float32)
        return total

    return dot


BF16 = ml_dtypes.bfloat16
X3 = [(0, 1), (1, 0), (0, 0)]
X6 = [(1, 1), (0, 2), (2, 0), *X3]
X9 = [(2, 2), (1, 2), (2, 1), *X6]


def rounded_inputs(rounding: Callable[[np.ndarray], np.ndarray], dot: Dot) -> Dot:
    return lambda a, b: dot(rounding(a), rounding(b))


def tf32(values: np.ndarray) -> np.ndarray:
    """To 11 bits, to nearest."""
    return cut(values, 10, np.rint)


def tf32_cut(values: np.ndarray) -> np.ndarray:
    return cut(values, 10)


def flushed(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < 2.0**-126, 0, values)


def convolution(dot: Dot, *, flush: bool = False, bias_after: bool = False) -> Callable[..., np.ndarray]:
    """A forward convolution as a kernel of the suite has it."""

    def conv_forward(x: np.ndarray, w: np.ndarray, bias: Any, *, stride: Any, padding: Any) -> np.ndarray:
        dtype = x.dtype if x.itemsize > 1 else np.dtype(np.float32)
        image = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *padding))
        windows = np.lib.stride_tricks.sliding_window_view(image, w.shape[2:], axis=(2, 3))
        windows = windows[:, :, :: stride[0], :: stride[1]]
        n, _, p, q = windows.shape[:4]
        a, b = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * p * q, -1), w.astype(np.float64).reshape(len(w), -1).T
        y = flushed(dot(flushed(a), flushed(b))) if flush else dot(a, b)
        y = y.reshape(n, p, q, -1).transpose(0, 3, 1, 2)
        if bias is None:
            return y.astype(dtype)
        wide = bias.astype(np.float64)[:, None, None]
        return (y.astype(dtype) + wide.astype(dtype)).astype(dtype) if bias_after else (y + wide).astype(dtype)

    return conv_forward


def stored(bits: int, rounding: Callable[[Any], np.ndarray], dot: Dot) -> Dot:
    """Sums rounded to so many bits after the leading one."""
    return lambda a, b: cut(dot(a, b), bits, rounding)


def differences(table: bool) -> Callable[..., np.ndarray]:
    """Averages from sums that run along each axis in turn, or from a summed-area table, in fp32."""

    def before(image: np.ndarray, axis: int) -> np.ndarray:
        edge = [(axis == place, 0) for place in range(image.ndim)]
        with np.errstate(invalid="ignore"):
            sums: np.ndarray = np.cumsum(np.pad(image, edge), axis, np.float32)
        return sums

    def between(sums: np.ndarray, axis: int, size: int, step: int) -> np.ndarray:
        first = np.arange(0, sums.shape[axis] - size, step)
        return sums.take(first + size, axis) - sums.take(first, axis)

    def avg_pool_forward(x: np.ndarray, *, kernel_size: Any, stride: Any) -> np.ndarray:
        y = x.astype(np.float32)
        if table:
            y = before(before(y, 2), 3)
            for axis in (2, 3):
                y = between(y, axis, kernel_size[axis - 2], stride[axis - 2])
        else:
            for axis in (2, 3):
                y = between(before(y, axis), axis, kernel_size[axis - 2], stride[axis - 2])
        return (y / np.float32(np.prod(kernel_size))).astype(x.dtype)

    return avg_pool_forward


def toom_cook(m: int, points: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """B^T, G and A^T of F(m, 3) with these interpolation points and infinity (Lavin and Gray 2016)."""
    size = m + 2
    at = np.array(points)
    rows = np.vander(at, size, increasing=True)
    a = np.zeros((m, size))
    a[:, :-1], a[-1, -1] = np.vander(at, m, increasing=True).T, 1
    g = np.zeros((size, 3))
    g[:-1], g[-1] = np.vander(at, 3, increasing=True), (0, 0, 1)
    scale = np.array([np.prod([x - y for y in points if y != x]) for x in points])
    g[:-1] /= scale[:, None]
    b = np.zeros((size, size))
    for index in range(size - 1):
        rest = [x for place, x in enumerate(points) if place != index]
        b[index, :-1] = np.polynomial.polynomial.polyfromroots(rest)
    b[-1] = np.polynomial.polynomial.polyfromroots(points)
    assert rows.shape == (size - 1, size)
    return b, g, a


POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 1.0, -1.0, 2.0, -2.0), 6: (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)}


def winograd(m: int) -> Callable[..., np.ndarray]:
    """F(m x m, 3 x 3) in fp32."""
    b, g, a = (matrix.astype(np.float32) for matrix in toom_cook(m, POINTS[m]))

    def conv_forward(x: np.ndarray, w: np.ndarray, bias: Any, *, padding: Any) -> np.ndarray:
        (top, bottom), (before, after) = padding
        p, q = x.shape[2] + top + bottom - 2, x.shape[3] + before + after - 2
        x = np.pad(x.astype(np.float32), ((0, 0), (0, 0), (top, bottom + -p % m), (before, after + -q % m)))
        tiles = np.lib.stride_tricks.sliding_window_view(x, (m + 2, m + 2), axis=(2, 3))[:, :, ::m, ::m]
        with np.errstate(all="ignore"):
            transformed = np.einsum("kcij,nchwij->nkhwij", g @ w.astype(np.float32) @ g.T, b @ tiles @ b.T)
            y = a @ transformed @ a.T
        n, k, rows, columns = y.shape[:4]
        y = y.transpose(0, 1, 2, 4, 3, 5).reshape(n, k, m * rows, m * columns)[:, :, :p, :q]
        return (y if bias is None else y + bias[:, None, None].astype(np.float32)).astype(w.dtype)

    return conv_forward


def fft(x: np.ndarray, w: np.ndarray, bias: Any, *, padding: Any) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), *padding))
    size, (r, s) = x.shape[2:], w.shape[2:]
    transformed = np.einsum("kchw,nchw->nkhw", np.fft.rfft2(w, size).conj(), np.fft.rfft2(x))
    y = np.fft.irfft2(transformed, size).astype(np.float32)[:, :, : size[0] - r + 1, : size[1] - s + 1]
    return y if bias is None else y + bias[:, None, None]


def sliced(x: np.ndarray, w: np.ndarray, bias: Any, *, padding: Any) -> np.ndarray:
    """Four slices of 7 bits, which share the exponent of the largest number of a window and of a filter."""

    def of(rows: np.ndarray) -> np.ndarray:
        spacing = np.ldexp(1.0, np.frexp(np.abs(rows).max(axis=1, keepdims=True))[1] - 28)
        return np.trunc(rows / spacing) * spacing

    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *padding))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
    n, p, q = windows.shape[:3]
    with np.errstate(invalid="ignore"):
        y = of(windows.reshape(n * p * q, -1)) @ of(w.astype(np.float64).reshape(len(w), -1)).T
    y = y.reshape(n, p, q, -1).transpose(0, 3, 1, 2).astype(np.float32)
    return y if bias is None else y + bias[:, None, None]


def requantized(ties: str = "even", saturates: bool = True) -> Callable[..., np.ndarray]:
    """A convolution with a result of 8 bits."""

    def conv_requantized(
        x: np.ndarray, w: np.ndarray, bias: Any, scale: Any, *, padding: Any, stride: Any,
        x_zero_point: int, y_zero_point: int,
    ) -> np.ndarray:  # fmt: skip
        whole = x.dtype == np.int8
        zero = x_zero_point if whole else 0
        plain = convolution(sequential(np.float64 if whole else np.float32))
        sums = plain(x.astype(np.float64) - zero, w.astype(np.float64), bias, stride=stride, padding=padding)
        y = sums * scale.astype(np.float64)[:, None, None]
        if whole:
            up = np.floor(np.abs(y) + 0.5) * np.sign(y)
            rules = {"even": np.rint(y), "away": up, "up": np.floor(y + 0.5)}
            rounded = rules[ties] if ties in rules else twice_rounded(sums, scale.astype(np.float64)[:, None, None])
            return np.clip(rounded + y_zero_point, -128, 127).astype(np.int8)
        largest = float(ml_dtypes.finfo(x.dtype).max)
        with np.errstate(all="ignore"):
            return (np.clip(y, -largest, largest) if saturates else y).astype(np.float32).astype(x.dtype)

    return conv_requantized


def twice_rounded(sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Sums times a scale up to 1, as gemmlowp rounds them: to the bits of the shift, ties up, then to an integer."""
    significand, exponent = np.frexp(scale)
    y = np.ldexp(np.floor(sums * significand + 0.5), exponent)
    rounded: np.ndarray = np.floor(np.abs(y) + 0.5) * np.sign(y)
    return rounded


def restless(dot: Dot) -> Dot:
    """A sum whose order changes from call to call."""
    calls = itertools.count()

    def changing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        order = np.random.default_rng(next(calls)).permutation(len(b))
        return dot(a[:, order], b[order])

    return changing
