"""Checks of a convolution that is too large to be computed exactly: sampled outputs and a random projection; or exact
results for few nonzero elements, see `conformance.operators.sparse`.

Summing an output over channels with random signs r_k needs one output channel of reference work and covers every
element:

    sum_k r_k y[n,k,p,q] = conv(x, sum_k r_k w_k)

for forward; dx is summed over the input channels, dw over sets of output channels. All three become one matrix product
per image with as many rows as the window has taps, whose results are shifted and added. The products run in
`arithmetic`: float64 where the result must be exact, float32 where its rounding (`noise`, below) may join the bound, at
half the cost of reading the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.operators.base import Arrays
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.sparse import Nonzero, Places, added, elements_of, read, windows_of, within
from conformance.operators.spatial import Index, Sides, cropped, padded, taps

_BLOCK = 1 << 20
"""Elements of an image taken into float64 at a time: 8 MiB."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Expected value of the projected output.

    `signs` is [1, channels], or [groups, sets, K/g] for dw with zeros outside a set; `square` bounds the sum of s2^2
    over the lanes of any projected element; `noise` is the projection's own rounding error per spread of that sum
    (sequential summation in `arithmetic`, see `conformance.judge.limits`).
    """

    output: str
    signs: np.ndarray
    expected: np.ndarray
    square: float
    lanes: int
    arithmetic: np.dtype
    noise: float


def summed(weights: np.ndarray, image: np.ndarray, arithmetic: np.dtype) -> np.ndarray:
    """Compute `weights[T, C] @ image[C, pixels]` by blocks of pixels, `image` in any storage dtype."""
    channels, pixels = image.shape
    weights = weights.astype(arithmetic)
    if image.dtype == arithmetic:
        return weights @ image
    out = np.empty((len(weights), pixels), arithmetic)
    for block in _blocks(pixels, channels):
        np.matmul(weights, image[:, block].astype(arithmetic), out=out[:, block])
    return out


def _noise(arithmetic: np.dtype, *lengths: int) -> float:
    """Return the rms rounding error, per spread, of sums of these lengths."""
    u = np.finfo(arithmetic).eps / 2
    return float(u * math.sqrt(sum(lengths)))


def _blocks(pixels: int, channels: int) -> Iterator[slice]:
    step = max(1, _BLOCK // channels)
    return (slice(start, min(start + step, pixels)) for start in range(0, pixels, step))


def _inner(g: ConvGeometry, tap: Sequence[int]) -> tuple[Index, Index]:
    """Return where a tap reads the unpadded image, and the output positions at which it does not read padding."""
    axes = zip(g.size, g.output_size, tap, g.dilation, g.padding, g.stride, strict=True)
    read, positions = zip(
        *(_overlap(size, count, t * dilation - before, u) for size, count, t, dilation, (before, _), u in axes),
        strict=True,
    )
    return (..., *read), (..., *positions)


def _overlap(size: int, count: int, offset: int, stride: int) -> tuple[slice, slice]:
    """Return, for one axis, the elements of the image that a tap at `offset` reads, and the output positions in
    0..count-1 at which it reads them."""
    first = max(0, -(offset // stride))
    last = min(count, (size - 1 - offset) // stride + 1)
    start = first * stride + offset
    stop = start + max(0, last - first - 1) * stride + 1 if last > first else start
    return slice(start, stop, stride), slice(first, max(first, last))


def _folded(signs: np.ndarray, w: np.ndarray, groups: int, over: int) -> np.ndarray:
    """Sum a filter [K, C/g, R, S] with signs over axis `over` within groups: [taps, channels of the other side]."""
    kg = len(w) // groups
    grouped = w.astype(np.float64).reshape(groups, kg, w.shape[1], -1)
    by_group = signs.reshape(groups, -1)
    path = "gk,gkct->tgc" if over == 0 else "gc,gkct->tgk"
    folded: np.ndarray = np.einsum(path, by_group, grouped)
    return folded.reshape(grouped.shape[3], -1)


def _spectrum(w: np.ndarray) -> np.ndarray:
    """Return the squares of the filter, [K, C/g, taps]."""
    return np.square(w.astype(np.float64)).reshape(*w.shape[:2], -1)


def _square_bound(per_product: np.ndarray, risk: float) -> float:
    """Bound sum_i x_i^2 W_i for independent uniform x_i in [-1, 1] by its mean, sum/3, plus Hoeffding's deviation."""
    return float(per_product.sum() / 3 + math.sqrt(math.log(1 / risk) / 2 * np.square(per_product).sum()))


def forward(g: ConvGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype) -> Projection:
    """Project y: signs [K], expected [N, P, Q]."""
    weights = _folded(signs, inputs["w"], g.groups, 0)
    expected = np.zeros((g.n, *g.output_size))
    for image, out in zip(inputs["x"], expected, strict=True):
        parts = summed(weights, image.reshape(g.c, -1), arithmetic).reshape(-1, *g.size)
        for part, place in zip(parts, taps(g), strict=True):
            out += padded(part, g.padding, np.dtype(np.float64))[place]
    if g.bias:
        expected += signs @ inputs["bias"].astype(np.float64)
    spectrum = _spectrum(inputs["w"])
    by_group = spectrum.reshape(g.groups, -1, *spectrum.shape[1:])
    square = _square_bound(by_group.sum(axis=1), risk) + (g.k if g.bias else 0)
    return Projection("y", signs[None], expected, square, g.k, arithmetic, _noise(arithmetic, g.c, g.k))


def backward_data(g: ConvGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype) -> Projection:
    """Project dx: signs [C], expected [N, H, W]."""
    weights = _folded(signs, inputs["w"], g.groups, 1)
    expected = np.empty((g.n, *g.size))
    for dy, out in zip(inputs["dy"], expected, strict=True):
        parts = summed(weights, dy.reshape(g.k, -1), arithmetic).reshape(-1, *g.output_size)
        image = padded(np.zeros(g.size), g.padding, np.dtype(np.float64))
        for part, place in zip(parts, taps(g), strict=True):
            image[place] += part
        out[...] = cropped(image, g.padding, g.size)
    square = _square_bound(_spectrum(inputs["w"]).sum(axis=1), risk)
    return Projection("dx", signs[None], expected, square, g.c, arithmetic, _noise(arithmetic, g.k, g.c))


LANES = 8
"""Channels of dw summed together: few, because dw has few elements with long sums, so that each shows less."""


def backward_weight(
    g: ConvGeometry, inputs: Arrays, signs: np.ndarray, risk: float, arithmetic: np.dtype
) -> Projection:
    """Project dw: signs [K], expected [G, sets, C/g, R, S]; a set is up to `LANES` output channels of one group.

    Every one of the N*P*Q products x^2 * sum_k dy_k^2 lies in [0, lanes] with mean lanes/9 (Hoeffding again).
    """
    picks, count = _sets(signs.reshape(g.groups, -1)), math.prod(g.window)
    expected = np.zeros((*picks.shape[:2], g.c // g.groups, count))
    placed = np.zeros((picks.shape[1], count, *g.size), arithmetic)
    for image, dy in zip(inputs["x"], inputs["dy"], strict=True):
        pairs = zip(image.reshape(g.groups, g.c // g.groups, -1), dy.reshape(g.groups, picks.shape[2], -1), strict=True)
        for group, (x, gradient) in enumerate(pairs):
            z = summed(picks[group], gradient, arithmetic).reshape(-1, *g.output_size)
            expected[group] += _correlated(g, x, z, placed)
    pixels, lanes = g.y.size // g.k, min(LANES, picks.shape[2])
    square = lanes * (pixels / 9 + math.sqrt(math.log(1 / risk) / 2 * pixels))
    shaped = expected.reshape(*expected.shape[:3], *g.window)
    noise = _noise(arithmetic, _BLOCK // (g.c // g.groups), lanes)
    return Projection("dw", picks, shaped, square, lanes, arithmetic, noise)


def _sets(signs: np.ndarray) -> np.ndarray:
    """Return signs [G, sets, K/g] in which each set keeps the signs of its own channels; the others are 0."""
    lanes = signs.shape[1]
    sets = -(-lanes // LANES)
    member = np.arange(lanes) // LANES == np.arange(sets)[:, None]
    return np.where(member, signs[:, None, :], 0.0)


def _correlated(g: ConvGeometry, image: np.ndarray, z: np.ndarray, placed: np.ndarray) -> np.ndarray:
    """Correlate image[C, H*W] with every z[sets, P, Q], shifted to where each tap reads it: [sets, C, taps].

    `placed[sets, taps, H, W]` is zero where no tap reads. Blocks of pixels are added in float64, so that rounding in
    z's precision does not grow with the image.
    """
    for number, tap in enumerate(np.ndindex(*g.window)):
        place, positions = _inner(g, tap)
        placed[:, number][place] = z[positions]
    flat = placed.reshape(placed.shape[0] * placed.shape[1], -1)
    out = np.zeros((len(image), len(flat)))
    for block in _blocks(image.shape[1], len(image)):
        out += image[:, block].astype(z.dtype, copy=False) @ flat[:, block].T
    return out.reshape(len(image), len(z), -1).transpose(1, 0, 2)


def projected(projection: Projection, output: np.ndarray) -> np.ndarray:
    """Sum an output [N, K, P, Q] (or dx) or dw [K, C/g, R, S] with the projection's signs."""
    signs, shape = projection.signs, projection.expected.shape
    if projection.output == "dw":
        by_group = output.astype(np.float64).reshape(signs.shape[0], signs.shape[2], -1)
        return (signs @ by_group).reshape(shape)
    rows = [summed(signs, image.reshape(signs.shape[1], -1), projection.arithmetic) for image in output]
    return np.concatenate(rows).reshape(shape)


def sums_of_gradient(inputs: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return dbias [K] and its magnitude: the sum of dy and the root of the sum of its squares."""
    by_image = inputs["dy"].reshape(*inputs["dy"].shape[:2], -1)
    wide = by_image if by_image.dtype == np.float64 else by_image.astype(np.float32, copy=False)
    squares = np.array([[np.dot(row, row) for row in image] for image in wide], dtype=np.float64)
    return by_image.sum(axis=(0, 2), dtype=np.float64), np.sqrt(squares.sum(axis=0))


def _gathered(
    image: np.ndarray, n: np.ndarray, channels: np.ndarray, places: Sequence[np.ndarray], size: Sequence[int]
) -> np.ndarray:
    """Return image[n, channels, *places] for each sample, [T, channels, *taps], with zeros outside the image; `places`
    are [T, taps] for each axis."""
    rank = len(size)

    def spread(along: np.ndarray, axis: int) -> np.ndarray:
        return along.reshape(len(along), *(-1 if other == axis else 1 for other in range(rank + 1)))

    clipped = [
        spread(np.clip(p, 0, extent - 1), axis + 1) for axis, (p, extent) in enumerate(zip(places, size, strict=True))
    ]
    values: np.ndarray = image[(spread(n[:, None], 0), spread(channels, 0), *clipped)].astype(np.float64)
    for axis, (p, extent) in enumerate(zip(places, size, strict=True)):
        values = values * spread((p >= 0) & (p < extent), axis + 1)
    return values


def _products(factors: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum, and the root of the sum of squares, of products over all but the first axis."""
    terms = (factors * weights).reshape(len(factors), -1)
    return terms.sum(axis=1), np.sqrt(np.square(terms).sum(axis=1))


def sample_forward(g: ConvGeometry, inputs: Arrays, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, k, *place = index.T
    cg = g.c // g.groups
    channels = (k // (g.k // g.groups) * cg)[:, None] + np.arange(cg)
    axes = zip(place, g.window, g.stride, g.dilation, g.padding, strict=True)
    read = [p[:, None] * u + np.arange(window) * d - before for p, window, u, d, (before, _) in axes]
    values_read = _gathered(inputs["x"], n, channels, read, g.size)
    values, magnitudes = _products(values_read, inputs["w"][k].astype(np.float64))
    if g.bias:
        bias = inputs["bias"].astype(np.float64)[k]
        return values + bias, np.sqrt(np.square(magnitudes) + np.square(bias))
    return values, magnitudes


def _origin(position: np.ndarray, window: int, stride: int, dilation: int, sides: Sides) -> np.ndarray:
    """Return for each tap the output position at which it reads `position`, -1 if there is none: [T, window]."""
    shifted = position[:, None] + sides[0] - np.arange(window) * dilation
    return np.where(shifted % stride == 0, shifted // stride, -1)


def sample_backward_data(g: ConvGeometry, inputs: Arrays, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, c, *place = index.T
    kg, cg = g.k // g.groups, g.c // g.groups
    channels = (c // cg * kg)[:, None] + np.arange(kg)
    axes = zip(place, g.window, g.stride, g.dilation, g.padding, strict=True)
    gradients = _gathered(inputs["dy"], n, channels, [_origin(*axis) for axis in axes], g.output_size)
    return _products(gradients, inputs["w"][channels, (c % cg)[:, None]].astype(np.float64))


def sample_backward_weight(g: ConvGeometry, inputs: Arrays, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, magnitudes = zip(*(_weight(g, inputs, *map(int, place)) for place in index), strict=True)
    return np.array(values), np.array(magnitudes)


def _weight(g: ConvGeometry, inputs: Arrays, k: int, c: int, *tap: int) -> tuple[float, float]:
    """Return one element of dw and its magnitude: products of dy with the elements that the tap reads of the image."""
    channel = k // (g.k // g.groups) * (g.c // g.groups) + c
    place, positions = _inner(g, tap)
    image, dy = inputs["x"][:, channel][place], inputs["dy"][:, k][positions]
    products = np.multiply(image, dy, dtype=np.float64).reshape(-1)
    return float(products.sum()), math.sqrt(float(products @ products))


def sparse_forward(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    """Return the nonzero elements of y."""
    values, (n, c, *place) = read(inputs["x"], places["x"])
    weights, parts = inputs["w"].astype(np.float64), []
    filters, channels = g.k // g.groups, g.c // g.groups
    for tap, window, exists in windows_of(g, place):
        for member in range(filters):
            k = c // channels * filters + member
            products = values * weights[(k, c % channels, *tap)]
            parts.append((np.ravel_multi_index((n, k, *window), g.y.shape, "clip")[exists], products[exists]))
    return added(parts)


def sparse_backward_data(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    """Return the nonzero elements of dx."""
    values, (n, k, *place) = read(inputs["dy"], places["dy"])
    weights, parts = inputs["w"].astype(np.float64), []
    filters, channels = g.k // g.groups, g.c // g.groups
    for tap, element, exists in elements_of(g, place):
        for member in range(channels):
            c = k // filters * channels + member
            products = values * weights[(k, member, *tap)]
            parts.append((np.ravel_multi_index((n, c, *element), g.x.shape, "clip")[exists], products[exists]))
    return added(parts)


def sparse_backward_weight(g: Any, inputs: Arrays, places: Places) -> Nonzero:
    """Return the nonzero elements of dw."""
    values, (n, c, *place) = read(inputs["x"], places["x"])
    parts, filters, channels = [], g.k // g.groups, g.c // g.groups
    for tap, window, exists in windows_of(g, place):
        for member in range(filters):
            k = (c // channels * filters + member)[exists]
            products = values[exists] * inputs["dy"][(n[exists], k, *within(window, exists))].astype(np.float64)
            parts.append((np.ravel_multi_index((k, c[exists] % channels, *tap), g.filter.shape), products))
    return added(parts)
