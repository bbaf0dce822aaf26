"""Convolution in one to three dimensions: forward, backward-data and backward-weight; formulas are for two.

Cross-correlation (no kernel flip), as in ONNX Conv and torch.nn.functional.conv2d:

    y[n,k,p,q] = bias[k] + sum_{c,r,s} x[n, c', p*u + r*d - top, q*v + s*e - left] * w[k,c,r,s]

with c' = c + (group of k) * C/groups. The references are GEMMs over gathered windows. On the fixed-point data of
`conformance.inputs` every float64 partial sum is exact, so block sizes, BLAS and thread counts do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from conformance.operators import double_double, special_values
from conformance.operators.base import (
    CHANNELS_MISMATCH,
    WINDOW_BEYOND_IMAGE,
    Arrays,
    ErrorModel,
    Given,
    Homogeneous,
    Operator,
    ProbeMethods,
    Special,
    invalid_filters,
    invalid_parameters,
)
from conformance.operators.conv import probes as large
from conformance.operators.conv import signatures
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.double_double import Double
from conformance.operators.family import LINEAR, Brought, Family, Storages
from conformance.operators.spatial import (
    BLOCK_ELEMENTS,
    Index,
    cropped,
    is_padded,
    padded,
    per_channel,
    spans,
    taps,
    taps_per_input,
)
from conformance.operators.special_values import NONFINITE


def _blocks(g: ConvGeometry) -> Iterator[tuple[slice, slice]]:
    """Yield images and output rows of as many windows as fit in `BLOCK_ELEMENTS`: rows of one image, or whole images. A
    row is all outputs with the same place on the first axis."""
    p, row = g.output_size[0], max(1, g.groups * (g.filter.size // g.k)) * math.prod(g.output_size[1:])
    rows = max(1, min(p, BLOCK_ELEMENTS // row))
    images = max(1, BLOCK_ELEMENTS // (row * p))
    for image in range(0, g.n, images):
        for start in range(0, p, rows):
            yield slice(image, min(image + images, g.n)), slice(start, min(start + rows, p))


def _gathered(g: ConvGeometry, x: np.ndarray, dtype: Any) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yield images, output rows and their windows of x[N, C, H, W], [G, C/g*R*S, images*rows*Q] in `dtype`."""
    rank, products, before = g.rank, g.filter.size // g.k, slice(0, 0)
    places: Index = (..., *(slice(None, None, step) for step in (*g.stride, *g.dilation)))
    # [images, G, C/g, *output, *window] -> [G, C/g, *window, images, *output]
    order = (1, 2, *range(3 + rank, 3 + 2 * rank), 0, *range(3, 3 + rank))
    for images, rows in _blocks(g):
        if images != before:
            by_group = x[images].reshape(len(x[images]), g.groups, g.c // g.groups, *g.size)
            if is_padded(g.padding):
                by_group = padded(by_group, g.padding, np.dtype(dtype))
            by_group = by_group.astype(dtype, copy=False)
            windows = sliding_window_view(by_group, spans(g), axis=tuple(range(3, 3 + rank)))[places]
            before = images
        part = windows[:, :, :, rows].transpose(order)
        yield images, rows, part.reshape(g.groups, products, math.prod(part.shape[2 + rank :]))


def _by_group(g: ConvGeometry, image: np.ndarray, dtype: Any) -> np.ndarray:
    """Rearrange [N, K, P, Q] as a matrix for each group: [G, K/g, N*P*Q]."""
    return image.astype(dtype).swapaxes(0, 1).reshape(g.groups, g.k // g.groups, -1)


CODES = 1000
"""Exponent of the largest code of an exponent in `normwise`: sums of codes stay within float64."""


class Products(Operator):
    """An operator whose main output is a sum of products of two inputs; it may have a bias, or the bias's gradient."""

    factors = 2

    def magnitude(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return s2 = sqrt(operator applied to squared inputs), by output."""
        squares = {name: np.square(array.astype(dtype)) for name, array in inputs.items()}
        outputs = self.reference(geometry, squares, dtype)
        return {name: np.sqrt(array, out=array) for name, array in outputs.items()}

    def normwise(self, geometry: Any, inputs: Given, dropped: float) -> np.ndarray:
        """Return hypot(A |b|, B |a|, dropped sqrt(KS) A B) of each element of the main output: a are the data of its
        sum, its row, and b the operand of its channel, its column; A and B are the powers of two above their largest
        numbers."""
        main, tensor = next(iter(self.outputs(geometry).items()))
        terms, unbiased = self.errors(geometry).terms[main], replace(geometry, bias=False)
        data, operand = (np.abs(inputs[name].astype(np.float64)) for name in (self.data, self.operand))

        def over_rows(values: np.ndarray) -> np.ndarray:
            return self.reference(unbiased, {self.data: values, self.operand: np.ones(operand.shape)})[main]

        # each exponent is coded by a power of two that is larger than all smaller ones of a row together
        step, exponents = terms.bit_length() + 1, np.frexp(data)[1]
        top = int(exponents.max(initial=0, where=data > 0))
        codes = np.ldexp(1.0, CODES + step * np.clip(exponents - top, -2 * CODES // step, None))
        sums = over_rows(np.where(data > 0, codes, 0.0))
        row_powers = np.where(sums > 0, np.ldexp(1.0, (np.frexp(sums)[1] - 1 - CODES) // step + top), 0.0)

        columns = np.moveaxis(operand, self.free_axis, 0)
        if self.inputs(geometry)[self.operand].is_filter and self.free_axis:  # of each group
            columns = np.moveaxis(operand.reshape(geometry.groups, -1, *operand.shape[1:]), 2, 1)
            columns = columns.reshape(-1, *columns.shape[2:])
        columns = columns.reshape(len(columns), -1)
        largest, norms = columns.max(axis=1, initial=0.0), np.linalg.norm(columns, axis=1)
        powers = np.where(largest > 0, np.ldexp(1.0, np.frexp(largest)[1]), 0.0)
        norms, powers = (
            per_channel(values, geometry.rank) if not tensor.is_filter else values.reshape(-1, 1, *[1] * geometry.rank)
            for values in (norms, powers)
        )
        squares = np.square(row_powers * norms) + np.square(powers) * over_rows(np.square(data))
        scale: np.ndarray = np.sqrt(squares + np.square(dropped * row_powers * powers) * terms)
        return scale

    def exact(self, geometry: Any, inputs: Arrays) -> dict[str, Double]:
        """Add up products of slices and the bias; dbias is summed in double-double arithmetic."""
        main, unbiased = next(iter(self.outputs(geometry))), replace(geometry, bias=False)
        span = self.errors(geometry).span

        def product(data: np.ndarray, operand: np.ndarray) -> np.ndarray:
            return self.reference(unbiased, {self.data: data, self.operand: operand})[main]

        results = {main: double_double.linear(product, [inputs[self.data], inputs[self.operand]], span)}
        if "bias" in inputs:
            bias = per_channel(inputs["bias"].astype(np.float64), geometry.rank) + np.zeros_like(results[main][0])
            results[main] = double_double.added(results[main], (bias, np.zeros_like(bias)))
        if "dbias" in self.outputs(geometry):
            by_channel = inputs["dy"].astype(np.float64).swapaxes(0, 1).reshape(geometry.k, -1)
            results["dbias"] = double_double.summed(by_channel)
        return results


class _Conv(Products, signatures.Convolution):
    """Base of the three directions with their arithmetic."""

    invalid = WINDOW_BEYOND_IMAGE | CHANNELS_MISMATCH | invalid_parameters(signatures.Convolution.keywords)

    def flops(self, geometry: ConvGeometry) -> int:
        """Return 2 * N*K*P*Q * C/g*R*S for every direction; as is usual, taps on padding are counted."""
        return 2 * geometry.y.size * (geometry.filter.size // geometry.k)


class ConvForward(_Conv, signatures.Forward):
    data, operand, free_axis = "x", "w", 0
    invalid = _Conv.invalid | invalid_filters(1)
    homogeneous = Homogeneous(("x", "bias"), ("y",))
    gradients = ("conv_backward_data", "conv_backward_weight")
    cofactor = "dy"
    probes = ProbeMethods(lambda geometry: geometry.k, large.forward, large.sample_forward)
    sparse = (("y", large.sparse_forward),)

    def nonfinite(self, geometry: ConvGeometry) -> Iterator[Special]:
        yield from super().nonfinite(geometry)
        yield from special_values.in_filters(geometry)

    def errors(self, geometry: ConvGeometry) -> ErrorModel:
        """Count C/g*R*S products and the bias."""
        terms = geometry.filter.size // geometry.k + geometry.bias
        return ErrorModel({"y": terms}, span=terms)

    def reference(self, geometry: ConvGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute y = w @ windows(x) + bias, by blocks."""
        y = np.empty(geometry.y.shape, dtype)
        w = (
            inputs["w"]
            .astype(dtype)
            .reshape(geometry.groups, geometry.k // geometry.groups, geometry.filter.size // geometry.k)
        )
        for images, rows, columns in _gathered(geometry, inputs["x"], dtype):
            block = y[images, :, rows].swapaxes(0, 1)
            block[...] = (w @ columns).reshape(block.shape)
        if geometry.bias:
            y += per_channel(inputs["bias"].astype(dtype), geometry.rank)
        return {"y": y}


class ConvBackwardData(_Conv, signatures.BackwardData):
    data, operand, free_axis = "dy", "w", 1
    invalid = _Conv.invalid | invalid_filters(0)
    homogeneous = Homogeneous(("dy",), ("dx",))
    cofactor = "x"
    probes = ProbeMethods(lambda geometry: geometry.c, large.backward_data, large.sample_backward_data)
    sparse = (("dx", large.sparse_backward_data),)

    def nonfinite(self, geometry: ConvGeometry) -> Iterator[Special]:
        """Yield also places in the middle of filters."""
        yield from super().nonfinite(geometry)
        if middle := special_values.centred_tap(geometry):
            values = [("w", middle, value) for value in NONFINITE]
            for name, (c, *tap), value in special_values.apart(geometry.c // geometry.groups, values):
                yield name, (0, c, *tap), value

    def errors(self, geometry: ConvGeometry) -> ErrorModel:
        """Count K/g products for every window position that touches an input element."""
        terms = geometry.k // geometry.groups * taps_per_input(geometry)
        return ErrorModel({"dx": terms}, span=terms)

    def reference(self, geometry: ConvGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute dx by blocks: add the windows' contributions w^T @ dy at the elements that the windows cover."""
        g, dx = geometry, np.empty(geometry.x.shape, dtype)
        w = inputs["w"].astype(dtype).reshape(g.groups, g.k // g.groups, g.filter.size // g.k).transpose(0, 2, 1)
        for images, rows in _blocks(g):
            if not rows.start:
                image = padded(np.zeros(dx[images].shape, dtype), g.padding, np.dtype(dtype))
            dy = inputs["dy"][images, :, rows]
            columns = (w @ _by_group(g, dy, dtype)).reshape(
                g.c, math.prod(g.window), len(dy), dy.shape[2], *g.output_size[1:]
            )
            below = image[:, :, rows.start * g.stride[0] :]  # where the first window of the block begins
            for column, (_, first, *other_axes) in zip(columns.swapaxes(0, 1), taps(g), strict=True):
                last = first.start + (dy.shape[2] - 1) * g.stride[0]
                below[:, :, first.start : last + 1 : g.stride[0], *other_axes] += column.swapaxes(0, 1)
            if rows.stop == g.output_size[0]:
                dx[images] = cropped(image, g.padding, g.size)
        return {"dx": dx}


class ConvBackwardWeight(_Conv, signatures.BackwardWeight):
    data, operand, free_axis = "x", "dy", 1
    homogeneous = Homogeneous(("dy",), ("dw", "dbias"))
    invalid = WINDOW_BEYOND_IMAGE | invalid_parameters(signatures.Convolution.keywords)
    cofactor = "w"
    probes = ProbeMethods(lambda geometry: geometry.k, large.backward_weight, large.sample_backward_weight)
    sparse = (("dw", large.sparse_backward_weight),)
    scattered = ()

    def special(self, geometry: ConvGeometry) -> tuple[Special, ...]:
        return super().special(geometry) + special_values.leak("dy", geometry)

    def nonfinite(self, geometry: ConvGeometry) -> Iterator[Special]:
        yield from super().nonfinite(geometry)
        yield from special_values.in_gradient(geometry)

    def errors(self, geometry: ConvGeometry) -> ErrorModel:
        """Count N*P*Q terms for each output."""
        terms = geometry.y.size // geometry.k
        return ErrorModel(dict.fromkeys(self.outputs(geometry), terms), span=terms)

    def reference(self, geometry: ConvGeometry, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute dw = sum over blocks of dy @ windows(x)^T; dbias = sum of dy."""
        g, k = geometry.groups, geometry.k
        dw = np.zeros((g, k // g, geometry.filter.size // k), dtype)
        for images, rows, columns in _gathered(geometry, inputs["x"], dtype):
            dw += _by_group(geometry, inputs["dy"][images, :, rows], dtype) @ columns.transpose(0, 2, 1)
        outputs = {"dw": dw.reshape(geometry.filter.shape)}
        if geometry.bias:
            outputs["dbias"] = inputs["dy"].sum(axis=(0, *range(2, 2 + geometry.rank)), dtype=dtype)
        return outputs


FAMILY = Family(
    geometry=ConvGeometry,
    operators=(ConvForward(), ConvBackwardData(), ConvBackwardWeight()),
    distributions=(*LINEAR, "large", "small", "codes", "absorbed"),
    place=0,
    storages=Storages(
        everywhere=(
            "edge.plain",
            "edge.stride-by-axis-1x1",
            "edge.depthwise",
            "edge.image-wide",
            "edge.asymmetric-all",
            "edge.window-is-image",
            "edge.image1x1",
        ),
        large=("edge.long-pixels", "resnet50.conv2.expand", "mobilenetv2.dw32", "edge.wide-row"),
        odd=("edge.one-product", "edge.prime-all", "edge.depthwise-image1x1"),
        apart=("edge.depthwise", "edge.groups-uneven"),
        one_channel="edge.channel1",
        mixed=(("resnet50.conv2.expand", "bf16", "fixed"),),
        one_image=("one-image.1x1", "one-image.3x3"),
        once={
            1: ("rank1.plain", "rank1.asymmetric", "rank1.depthwise", "rank1.pointwise-gaps"),
            3: ("rank3.plain", "rank3.asymmetric", "rank3.depthwise", "rank3.pointwise-gaps"),
        },
        grouped={
            "groups.rank1": ("nwgc", "ngcw"),
            "groups.rank2": ("gnhwc", "nhwgc", "ngchw"),
            "groups.rank3": ("gndhwc",),
        },
    ),
    equal_shapes=("n3 c4 h4 w5 k4 r2 s2 u2 p1:0x0:1", "n2 c3 h3 w3 k3 r3 s3 p1", "n2 c4 h6 w7 k4 r3 s3 p1 g2 b1"),
    partial=(
        "n1 c5 h7 w9 k7 r3 s3 p1 b1",
        "n3 c11 h5 w5 k7 r1 s1 b1",
        "n3 c9 h9 w9 k9 r3 s3 u2 p1 g9",
        "n2 c4 h9 w8 k6 r3 s2 u1x2 p0:1x2:0 d2x1 g2 b1",
    ),
    unreached=("n2 c3 h7 w8 k4 r2 s2 u3 b1",),
    # infinities times the zeros of the last channel, where it is not alone: a dense kernel that skips it passed
    at_smoke=(
        Brought(
            lambda geometry: (
                geometry.n > 0 and geometry.groups == 1 and min(geometry.c, geometry.k, *geometry.output_size) > 1
            ),
            lambda variant: variant.distribution == "mixed",
        ),
    ),
    goldens=(
        "conv_forward edge.plain fp32 fixed",
        "conv_forward edge.plain fp64 fixed",
        "conv_forward edge.groups bf16 fixed",
        "conv_forward edge.dilation fp32 special",
        "conv_forward edge.stride-by-axis fp32 impulse",
        "conv_forward edge.depthwise fp16 wide",
        "conv_forward edge.values fp64 natural",
        "conv_forward edge.values-groups fp16 nonfinite",
        "conv_backward_weight edge.values bf16 range",
        "conv_forward edge.values fp32 mixed",
        "conv_backward_data edge.values fp32 large",
        "conv_backward_weight edge.values fp32 small",
        "conv_backward_data edge.asymmetric-all fp32 fixed",
        "conv_backward_data edge.stride2 fp32 special",
        "conv_backward_data edge.depthwise-x2 bf16 wide",
        "conv_backward_data edge.remainder fp32 integer",
        "conv_backward_weight edge.asymmetric-all fp32 fixed",
        "conv_backward_weight edge.dilation fp32 special",
        "conv_backward_weight edge.depthwise fp16 fixed",
        "conv_backward_weight edge.prime bf16 integer",
        "conv_forward fp8.plain fp8_e4m3 codes",
        "conv_forward fp8.groups fp8_e5m2 fixed",
        "conv_backward_data fp8.trained-group fp8_e5m2_e4m3 codes",
        "conv_forward int8.plain int8 large",
        "conv_forward absorbed.grouped fp16 absorbed",
    ),
    timed=("unet.reduced", "unet", "networks.reduced", "networks"),
    grouped_apart=True,
)
