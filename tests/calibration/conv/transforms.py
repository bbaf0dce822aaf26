"""Algorithms that form other products than the definition: Winograd and FFT, in fp32 but for what is stored between.

`kept` rounds the transformed data and filters, as kernels do that store them in a narrower format.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.judge.limits import winograd_matrices
from conformance.operators import Arrays, ConvGeometry, Operator
from conformance.operators.spatial import Extents, Index, padded, spans, windows
from tests.calibration.kernels.sums import Sum, Total, finished

_SEQUENTIAL = Sum()
Kept = Callable[[np.ndarray], np.ndarray]


def as_computed(transformed: np.ndarray) -> np.ndarray:
    return transformed


def unit_steps(geometry: ConvGeometry) -> bool:
    """Return whether stride and dilation are 1 and padding is less than a window, so that backward-data is a forward
    convolution too."""
    fits = all(max(sides) < taps for sides, taps in zip(geometry.padding, geometry.window, strict=True))
    return fits and max(*geometry.stride, *geometry.dilation) == 1


def three_by_three(geometry: ConvGeometry) -> bool:
    """Return whether Winograd's F(m x m, 3 x 3) computes the problem."""
    return unit_steps(geometry) and geometry.window == (3, 3)


def as_forward(operator: Operator, g: ConvGeometry, inputs: Arrays) -> tuple[np.ndarray, np.ndarray, Extents]:
    """Return padded image [N, C, H', W'], weights [G, K/g, C/g, R, S], size of the result; all in fp32, of any rank.

    Backward-data is a convolution of dy with the flipped filter, channels in and out exchanged.
    """
    w = inputs["w"].astype(np.float32).reshape(g.groups, g.k // g.groups, g.c // g.groups, *g.window)
    if operator.name == "conv_forward":
        return padded(inputs["x"], g.padding, np.dtype(np.float32)), w, g.output_size
    axes = zip(g.window, g.padding, strict=True)
    around = tuple((taps - 1 - before, taps - 1 - after) for taps, (before, after) in axes)
    flipped = np.flip(w, _last(g.rank)).swapaxes(1, 2)
    return padded(inputs["dy"], around, np.dtype(np.float32)), flipped, g.size


def _last(rank: int) -> tuple[int, ...]:
    """Return the spatial axes, counted from the end."""
    return tuple(range(-rank, 0))


def winograd(
    name: str,
    operator: Operator,
    geometry: ConvGeometry,
    inputs: Arrays,
    dtype: str,
    kept: Kept = as_computed,
    total: Total = _SEQUENTIAL,
) -> Arrays:
    """Transform tiles and filters, multiply element by element and sum over channels, transform back."""
    b, g, a = (matrix.astype(np.float32) for matrix in winograd_matrices(name))
    image, w, size = as_forward(operator, geometry, inputs)
    tiles = -(-size[0] // len(a)), -(-size[1] // len(a))
    seen = _both(b, _tiles(image, len(b), len(a), tiles))
    left, right = _by_frequency(kept(_both(g, w)), kept(seen), geometry.groups)
    sums = total(left.astype(np.float64), right.astype(np.float64), 1).astype(np.float32)
    # [t, t, G, M, N, rows, columns] -> [N, G*M, rows, columns, t, t]
    sums = sums.reshape(len(b), len(b), -1, len(image), *tiles)
    y = _both(a, sums.transpose(3, 2, 4, 5, 0, 1))
    whole = y.transpose(0, 1, 2, 4, 3, 5).reshape(*y.shape[:2], tiles[0] * len(a), tiles[1] * len(a))
    return finished({_main(operator): whole[..., : size[0], : size[1]]}, inputs, dtype)


def _main(operator: Operator) -> str:
    return "y" if operator.name == "conv_forward" else "dx"


def _tiles(image: np.ndarray, length: int, step: int, tiles: Extents) -> np.ndarray:
    """Return overlapping tiles [N, C, rows, columns, t, t]; zeros where the last ones reach beyond the image."""
    *_, height, width = image.shape
    beyond = [(0, max(0, (n - 1) * step + length - extent)) for n, extent in zip(tiles, (height, width), strict=True)]
    whole = padded(image, (beyond[0], beyond[1]), image.dtype)
    return windows(whole, (length, length), (step, step), (1, 1), tiles).transpose(0, 1, 4, 5, 2, 3)


def _both(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return matrix @ values @ matrix^T on the last two axes."""
    for _ in range(2):
        values = (values.reshape(-1, values.shape[-1]) @ matrix.T).reshape(*values.shape[:-1], -1).swapaxes(-1, -2)
    return values


def _by_frequency(w: np.ndarray, seen: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Return factors [t*t*G, K/g, C/g] and [t*t*G, C/g, N*rows*columns] of one matrix product per element of a tile."""
    n, c, rows, columns, t, _ = seen.shape
    left = w.transpose(3, 4, 0, 1, 2).reshape(t * t * groups, *w.shape[1:3])
    right = seen.transpose(4, 5, 1, 0, 2, 3).reshape(t * t * groups, c // groups, n * rows * columns)
    return left, right


def fft(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str, kept: Kept = as_computed) -> Arrays:
    """Multiply spectra of the padded image and of the filter, channel by channel, and transform back."""
    image, w, result = as_forward(operator, geometry, inputs)
    rank, axes, size = geometry.rank, _last(geometry.rank), image.shape[2:]
    seen = kept(np.fft.rfftn(image, axes=axes))
    seen = seen.reshape(len(image), geometry.groups, -1, *seen.shape[2:])
    kernel = kept(np.fft.rfftn(w, size, axes).conj())
    # [rows, columns, G, K/g, C/g] @ [rows, columns, G, C/g, N] -> [rows, columns, G, K/g, N]
    places = tuple(range(3, 3 + rank))
    product = kernel.transpose(*places, 0, 1, 2) @ seen.transpose(*places, 1, 2, 0)
    spectrum = product.transpose(rank + 2, rank, rank + 1, *range(rank))
    y = np.fft.irfftn(spectrum.reshape(len(image), -1, *product.shape[:rank]), size, axes)
    corner: Index = (..., *map(slice, result))
    return finished({_main(operator): y[corner]}, inputs, dtype)


def fft_with_steps(operator: Operator, g: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Compute `fft` of forward and of the filter's gradient with any stride and dilation: all results at stride 1 are
    computed, and those that are asked for picked from them."""
    image, axes = padded(inputs["x"], g.padding, np.dtype(np.float32)), _last(g.rank)
    size = image.shape[2:]
    seen = np.fft.rfftn(image.reshape(g.n, g.groups, 1, -1, *size), axes=axes)
    of_taps: Index = (..., *(slice(None, span, d) for span, d in zip(spans(g), g.dilation, strict=True)))
    spread_out = tuple((count - 1) * u + 1 for count, u in zip(g.output_size, g.stride, strict=True))
    of_places: Index = (..., *(slice(None, extent, u) for extent, u in zip(spread_out, g.stride, strict=True)))
    if operator.name == "conv_forward":
        spread = np.zeros((g.k, g.c // g.groups, *spans(g)), np.float32)
        spread[of_taps] = inputs["w"]
        spectrum = np.fft.rfftn(spread, size, axes).conj().reshape(g.groups, g.k // g.groups, -1, *seen.shape[4:])
        y = np.fft.irfftn((spectrum * seen).sum(axis=3), size, axes).reshape(g.n, g.k, *size)
        return finished({"y": y[of_places]}, inputs, dtype)
    spread = np.zeros((g.n, g.k, *spread_out), np.float32)
    spread[of_places] = inputs["dy"]
    spectrum = np.fft.rfftn(spread, size, axes).conj().reshape(g.n, g.groups, -1, 1, *seen.shape[4:])
    dw = np.fft.irfftn((spectrum * seen).sum(axis=0), size, axes).reshape(g.k, -1, *size)
    outputs = {"dw": dw[of_taps]}
    if g.bias:
        outputs["dbias"] = inputs["dy"].astype(np.float32).sum(axis=(0, *axes))
    return finished(outputs, inputs, dtype)
