"""Known-bad kernels of the class partial requests: empty batches, outputs and gradients asked for alone, results that
are added to an array. What is wrong with each is its name; the others are right."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from conformance import Implementation, torch_arrays
from tests import kernels

CALLS: list[Any] = []
"""Whatever a kernel keeps that should keep nothing."""


def vendor(name, operator, function, **declares):
    arrays = {"arrays": declares.pop("arrays")} if "arrays" in declares else {}
    made = Implementation(name, **arrays)
    made.implements(operator, **declares)(function)
    globals()[name.replace("-", "_")] = made
    return made


# Empty batches


def empty_batch(name, operator, on_empty):
    """Right but where there are no images: `on_empty` is given the right results, in a list, and the first input."""
    right = getattr(kernels, operator)

    def kernel(*given, **parameters):
        found = right(*given, **parameters)
        if len(given[0]):
            return found
        several = isinstance(found, tuple)
        changed = on_empty([*found] if several else [found], given[0])
        return tuple(changed) if several else changed[0]

    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        return kernel(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)

    def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups):
        window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return kernel(dy, w, input_size=input_size, **window)

    def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups):
        window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return kernel(x, dy, kernel_size=kernel_size, with_bias=with_bias, **window)

    vendor(name, operator, locals()[operator])


def uninitialised(found, _):
    return [np.empty_like(array) for array in found]


def refuses(found, _):
    raise ZeroDivisionError("integer division or modulo by zero")


WEIGHT, DATA, FORWARD = "conv_backward_weight", "conv_backward_data", "conv_forward"
empty_batch("good-empty-weight", WEIGHT, lambda found, _: found)
empty_batch("bad-empty-dw-uninitialised", WEIGHT, uninitialised)
empty_batch("bad-empty-dbias-uninitialised", WEIGHT, lambda found, _: found[:1] + uninitialised(found[1:], _))
empty_batch("bad-empty-dw-mean-of-nothing", WEIGHT, lambda found, x: [a / np.float32(len(x)) for a in found])
empty_batch("bad-empty-dw-one-image", WEIGHT, lambda found, _: [a + np.float32(1e-3) for a in found])
empty_batch("bad-empty-y-one-image", FORWARD, lambda found, _: [np.zeros((1, *a.shape[1:]), a.dtype) for a in found])
empty_batch("bad-empty-y-no-axes", FORWARD, lambda found, _: [np.zeros(0, a.dtype) for a in found])
empty_batch("bad-empty-y-fp64", FORWARD, lambda found, _: [np.zeros(a.shape) for a in found])
empty_batch("bad-empty-y-raises", FORWARD, refuses)
empty_batch("bad-empty-dx-size-of-dy", DATA, lambda found, dy: [np.zeros(dy.shape, dy.dtype)])


# Outputs asked for alone


def masked(name, choose, dtypes=("fp32",)):
    """`choose` is given dw, dbias or None, the mask, and x and dy, and makes the list of results."""

    def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups, output_mask):
        window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}

        def weight(x, dy):
            return kernels.conv_backward_weight(x, dy, kernel_size=kernel_size, with_bias=False, **window)

        found = choose(weight, x, dy, *output_mask[:1], with_bias and output_mask[1])
        return tuple(found) if len(found) > 1 else found[0]

    vendor(name, WEIGHT, conv_backward_weight, dtypes=dtypes)


def sums(dy):
    return dy.sum(axis=(0, 2, 3), dtype=np.float32)


def stale(weight, x, dy, dw, dbias):
    """Kept where dw is computed."""
    if dw:
        CALLS[:] = [sums(dy)]
    return [weight(x, dy)] * dw + [CALLS[0].copy() if CALLS else sums(dy)] * dbias


def rounded(array):
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


masked("good-mask", lambda weight, x, dy, dw, dbias: [weight(x, dy)] * dw + [sums(dy)] * dbias)
masked("bad-mask-ignored", lambda weight, x, dy, dw, dbias: [weight(x, dy), *[sums(dy)] * (dw + dbias - 1 or not dw)])
masked("bad-mask-swapped", lambda weight, x, dy, dw, dbias: [weight(x, dy)] * dbias + [sums(dy)] * dw)
masked("bad-mask-stale-dbias", stale)
masked(
    "bad-mask-dbias-needs-dw",
    lambda weight, x, dy, dw, dbias: [weight(x, dy)] * dw + [sums(dy) if dw else np.zeros_like(sums(dy))] * dbias,
)
masked(
    "bad-mask-dbias-alone-uninitialised",
    lambda weight, x, dy, dw, dbias: [weight(x, dy)] * dw + [sums(dy) if dw else np.empty_like(sums(dy))] * dbias,
)
masked(
    "bad-mask-dw-alone-of-bf16-sums",
    lambda weight, x, dy, dw, dbias: [weight(x, dy) if dbias else rounded(weight(x, dy))] * dw + [sums(dy)] * dbias,
)
masked(
    "bad-mask-dbias-alone-of-first-image",
    lambda weight, x, dy, dw, dbias: [weight(x, dy)] * dw + [sums(dy if dw else dy[:1])] * dbias,
)


# Gradients asked for alone


def differentiable(name, backward):
    """conv2d whose backward is `backward(x, w, dy, needs, window)`: three gradients, whichever are asked for.

    It keeps x and w in its context, and in CALLS as well.
    """

    class Convolution(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, bias, window):
            ctx.save_for_backward(x, w)
            ctx.window = window
            CALLS[:] = [x.detach()]
            return functional.conv2d(x, w, bias, *window)

        @staticmethod
        def backward(ctx, dy):
            dx, dw, dbias = backward(*ctx.saved_tensors, dy, ctx.needs_input_grad[:3], ctx.window)
            return dx, dw, dbias if ctx.needs_input_grad[2] else None, None

    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        (top, _), (left, _) = padding
        return Convolution.apply(x, w, bias, (stride, (top, left), dilation, groups))

    def symmetric(p):
        return all(before == after for before, after in p.padding)

    made = vendor(name, FORWARD, conv_forward, when=symmetric, arrays=torch_arrays("cpu"))
    made.differentiates(FORWARD)(conv_forward)


def input_gradient(x, w, dy, window):
    return conv2d_input(x.shape, w, dy, *window)


def weight_gradient(x, w, dy, window):
    return conv2d_weight(x, w.shape, dy, *window)


def usual(x, w, dy, needs, window):
    return input_gradient(x, w, dy, window), weight_gradient(x, w, dy, window), dy.sum((0, 2, 3))


def dw_needs_dx(x, w, dy, needs, window):
    dx, dw, dbias = usual(x, w, dy, needs, window)
    return dx, dw if needs[0] else dw * 0.5, dbias


def dbias_needs_dw(x, w, dy, needs, window):
    dx, dw, dbias = usual(x, w, dy, needs, window)
    return dx, dw, dbias if needs[1] else torch.zeros_like(dbias)


def scales_dy_in_place(x, w, dy, needs, window):
    found = usual(x, w, dy, needs, window)
    if dy.is_contiguous():
        dy.mul_(2)
    return found


def dense_dy(x, w, dy, needs, window):
    """Reads dy as if its memory had no gaps."""
    _, k, p, q = dy.shape
    strides, memory = (k * p * q, p * q, q, 1), dy.untyped_storage().nbytes() // dy.element_size()
    whole = memory - dy.storage_offset() >= dy.numel()
    return usual(x, w, dy.as_strided(dy.shape, strides) if whole else dy, needs, window)


def strides_of_channels(x, w, dy, needs, window):
    """Takes channels-last memory for NCHW."""
    if dy.is_contiguous(memory_format=torch.channels_last) and not dy.is_contiguous():
        dy = dy.permute(0, 2, 3, 1).reshape(dy.shape)
    return usual(x, w, dy, needs, window)


def expanded_is_one_element(x, w, dy, needs, window):
    dx, dw, dbias = usual(x, w, dy, needs, window)
    return dx, dw, dbias / dy[0, 0].numel() if dy.stride() == (0, 0, 0, 0) else dbias


def newest_x(x, w, dy, needs, window):
    """Of the forward before, whichever graph it belongs to."""
    return input_gradient(x, w, dy, window), weight_gradient(CALLS[0], w, dy, window), dy.sum((0, 2, 3))


def adds_to_the_last(x, w, dy, needs, window):
    """dw is added to that of the backward before, of the same filters."""
    dx, dw, dbias = usual(x, w, dy, needs, window)
    kept = ADDED.get(w.data_ptr())
    ADDED.clear()
    ADDED[w.data_ptr()] = dw
    return dx, dw if kept is None or kept.shape != dw.shape else dw + kept, dbias


ADDED: dict[int, Any] = {}


def only_together(x, w, dy, needs, window):
    dx, dw, dbias = usual(x, w, dy, needs, window)
    return (dx, dw, dbias) if sum(needs) != 2 else (dx, dw, dbias * 2)


differentiable("good-autograd", usual)
differentiable("bad-autograd-dw-needs-dx", dw_needs_dx)
differentiable("bad-autograd-dbias-needs-dw", dbias_needs_dw)
differentiable("bad-autograd-scales-dy", scales_dy_in_place)
differentiable("bad-autograd-dense-dy", dense_dy)
differentiable("bad-autograd-channels-last-dy", strides_of_channels)
differentiable("bad-autograd-expanded-dy", expanded_is_one_element)
differentiable("bad-autograd-newest-x", newest_x)
differentiable("bad-autograd-adds-to-the-last", adds_to_the_last)
differentiable("bad-autograd-dbias-in-pairs", only_together)


# Results added to an array


def accumulating(name, combine, dtypes=("fp32",)):
    """`combine` makes y of the sum, in fp32, and of what the array holds, in its own format."""

    def conv_forward(x, w, bias, *, stride, padding, dilation, groups, into):
        wide = [None if array is None else array.astype(np.float32) for array in (x, w, bias)]
        y = kernels.conv_forward(*wide, stride=stride, padding=padding, dilation=dilation, groups=groups)
        return combine(y, into).astype(x.dtype)

    vendor(name, FORWARD, conv_forward, dtypes=dtypes)


def in_place(y, into):
    if into is None:
        return y
    into += y
    return into


def without_tail(y, into):
    if into is not None:
        flat = y.reshape(-1)
        end = flat.size // 4 * 4
        flat[:end] += into.reshape(-1)[:end]
    return y


def first_call_only(y, into):
    if into is None or len(CALLS) > 2:
        return y
    CALLS.append(into)
    return y + into


KEPT: list[Any] = []


def also_the_last(y, into):
    if into is not None:
        KEPT.append(into.copy())
        return y + into
    return y + KEPT[-1] if KEPT and KEPT[-1].shape == y.shape else y


def by_address(y, into):
    """Takes an array that it has seen for one that it has filled."""
    if into is None:
        return y
    seen = CALLS and CALLS[0].shape == into.shape
    CALLS[:] = [into.copy()]
    return y if seen else y + into


accumulating("good-into", lambda y, into: y if into is None else y + into.astype(np.float32), ("fp32", "bf16"))
accumulating("good-into-in-place", in_place)
accumulating("bad-into-overwrites", lambda y, into: y)
accumulating("bad-into-adds-twice", lambda y, into: y if into is None else y + 2 * into)
accumulating("bad-into-subtracts", lambda y, into: y if into is None else into - y)
accumulating("bad-into-rounds-first", lambda y, into: y if into is None else y.astype(into.dtype) + into, ("bf16",))
accumulating("bad-into-without-tail", without_tail)
accumulating("bad-into-first-call-only", first_call_only)
accumulating("bad-into-also-the-last", also_the_last)
accumulating("bad-into-by-shape", by_address)
accumulating("bad-into-bias-twice", lambda y, into: y if into is None else y + into + (y - y.min()) * 1e-4)
