"""Class 4 again: outputs and gradients that are asked for alone, and results that are added to an array.

What is wrong with each is its name; whatever else it is asked for is right.
"""

import numpy as np
import torch
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from conformance import Implementation, torch_arrays
from tests import kernels

found = []


def offer(name, operator, function, arrays=None, **declared):
    made = Implementation(name, **{"arrays": arrays} if arrays else {})
    made.implements(operator, **declared)(function)
    found.append(made)
    return made


# Outputs asked for alone


def masked(name, choose):
    """`choose` makes the results of dw, dbias, which of them are asked for, and dy."""

    def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups, output_mask):
        window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        dw, dbias = kernels.conv_backward_weight(x, dy, kernel_size=kernel_size, with_bias=True, **window)
        results = choose(dw, dbias, (output_mask[0], with_bias and output_mask[1]), dy)
        return tuple(results) if len(results) > 1 else results[0]

    offer(name, "conv_backward_weight", conv_backward_weight)


def picked(dw, dbias, asked):
    return [result for result, wanted in zip((dw, dbias), asked, strict=True) if wanted]


def alone(dw=lambda dw, dy: dw, dbias=lambda dbias, dy: dbias):
    """What becomes of a result where the other one is not asked for."""
    return lambda w, b, asked, dy: picked(w if asked[1] else dw(w, dy), b if asked[0] else dbias(b, dy), asked)


def uninitialised(a):
    """Not where a sum of this size lay before, which may have been the right one."""
    return np.empty(2 * a.size, a.dtype)[a.size :]


def stale(dw, dbias, asked, dy, kept=[]):
    """dbias is kept where dw is computed."""
    if asked[0]:
        kept[:] = [dbias]
    return picked(dw, kept[0].copy() if kept else dbias, asked)


masked("good-mask", alone())
masked("requests-mask-ignored", lambda dw, dbias, asked, dy: [dw, dbias][: 1 + asked[1]])
masked("requests-mask-swapped", lambda dw, dbias, asked, dy: picked(dw, dbias, asked[::-1]))
masked("requests-mask-stale-dbias", stale)
masked("requests-mask-dbias-needs-dw", alone(dbias=lambda dbias, dy: np.zeros_like(dbias)))
masked("requests-mask-dbias-alone-uninitialised", alone(dbias=lambda dbias, dy: uninitialised(dbias)))
masked("requests-mask-dw-alone-of-bf16-sums", alone(dw=lambda dw, dy: (dw.view(np.int32) & -65536).view(np.float32)))
masked("requests-mask-dbias-alone-of-first-image", alone(dbias=lambda dbias, dy: dy[:1].sum((0, 2, 3))))


# Gradients asked for alone


def differentiable(name, backward):
    """conv2d with a `backward` of: a context that keeps x, w and the window, dy, which gradients are asked for, and all
    three gradients as they should be."""
    state = {}

    class Convolution(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, bias, window):
            ctx.save_for_backward(x, w)
            ctx.window = window
            state["newest x"] = x.detach()
            return functional.conv2d(x, w, bias, *window)

        @staticmethod
        def backward(ctx, dy):
            dx, dw, dbias = backward(gradients, *ctx.saved_tensors, dy, ctx.needs_input_grad[:3], ctx.window, state)
            return dx, dw, dbias if ctx.needs_input_grad[2] else None, None

    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        (top, _), (left, _) = padding
        return Convolution.apply(x, w, bias, (stride, (top, left), dilation, groups))

    def symmetric(p):
        return all(before == after for before, after in p.padding)

    made = offer(name, "conv_forward", conv_forward, torch_arrays("cpu"), when=symmetric)
    made.differentiates("conv_forward")(conv_forward)


def gradients(x, w, dy, window):
    return conv2d_input(x.shape, w, dy, *window), conv2d_weight(x, w.shape, dy, *window), dy.sum((0, 2, 3))


def scales_dy_in_place(right, x, w, dy, needs, window, state):
    found = right(x, w, dy, window)
    if dy.is_contiguous():
        dy.mul_(2)
    return found


def dense_dy(right, x, w, dy, needs, window, state):
    """Reads dy as if its memory had no gaps."""
    _, k, p, q = dy.shape
    whole = dy.untyped_storage().nbytes() // dy.element_size() - dy.storage_offset() >= dy.numel()
    return right(x, w, dy.as_strided(dy.shape, (k * p * q, p * q, q, 1)) if whole else dy, window)


def strides_of_channels(right, x, w, dy, needs, window, state):
    """Takes channels-last memory for NCHW."""
    if dy.is_contiguous(memory_format=torch.channels_last) and not dy.is_contiguous():
        dy = dy.permute(0, 2, 3, 1).reshape(dy.shape)
    return right(x, w, dy, window)


def newest_x(right, x, w, dy, needs, window, state):
    """Of the forward before, whichever graph it belongs to."""
    dx, _, dbias = right(x, w, dy, window)
    return dx, right(state["newest x"], w, dy, window)[1], dbias


def adds_to_the_last(right, x, w, dy, needs, window, state):
    """dw is added to that of the backward before, of the same filters."""
    dx, dw, dbias = right(x, w, dy, window)
    kept, state["dw"] = state.get("dw", (None, dw)), (w.data_ptr(), dw)
    return dx, dw + kept[1] if kept[0] == w.data_ptr() and kept[1].shape == dw.shape else dw, dbias


def scaled(dw=lambda needs, dy: 1, dbias=lambda needs, dy: 1):
    """Gradients of the filters and of the bias that are too large by factors."""

    def backward(right, x, w, dy, needs, window, state):
        dx, *others = right(x, w, dy, window)
        return dx, others[0] * dw(needs, dy), others[1] * dbias(needs, dy)

    return backward


differentiable("good-autograd", scaled())
differentiable("requests-autograd-dw-needs-dx", scaled(dw=lambda needs, dy: 1 if needs[0] else 0.5))
differentiable("requests-autograd-dbias-needs-dw", scaled(dbias=lambda needs, dy: int(needs[1])))
differentiable("requests-autograd-scales-dy", scales_dy_in_place)
differentiable("requests-autograd-dense-dy", dense_dy)
differentiable("requests-autograd-channels-last-dy", strides_of_channels)
differentiable(
    "requests-autograd-expanded-dy", scaled(dbias=lambda needs, dy: 1 if any(dy.stride()) else 1 / dy[0, 0].numel())
)
differentiable("requests-autograd-newest-x", newest_x)
differentiable("requests-autograd-adds-to-the-last", adds_to_the_last)
differentiable("requests-autograd-dbias-in-pairs", scaled(dbias=lambda needs, dy: 2 if sum(needs) == 2 else 1))


# Results added to an array


def accumulating(name, combine, dtypes=("fp32",)):
    """`combine` makes y of the sum, in fp32, of what the array holds, in its own format, and of what is kept."""
    kept = []

    def conv_forward(x, w, bias, *, stride, padding, dilation, groups, into):
        wide = [None if array is None else array.astype(np.float32) for array in (x, w, bias)]
        y = kernels.conv_forward(*wide, stride=stride, padding=padding, dilation=dilation, groups=groups)
        return (y if into is None and combine is not also_the_last else combine(y, into, kept)).astype(x.dtype)

    offer(name, "conv_forward", conv_forward, dtypes=dtypes)


def in_place(y, into, kept):
    into += y
    return into


def without_tail(y, into, kept):
    end = y.size // 4 * 4
    y.reshape(-1)[:end] += into.reshape(-1)[:end]
    return y


def first_calls_only(y, into, kept):
    kept.append(into)
    return y + into if len(kept) < 4 else y


def also_the_last(y, into, kept):
    if into is not None:
        kept[:] = [into.copy()]
        return y + into
    return y + kept[0] if kept and kept[0].shape == y.shape else y


def by_shape(y, into, kept):
    """Takes an array that it has seen for one that it has filled."""
    seen = kept and kept[0].shape == into.shape
    kept[:] = [into.copy()]
    return y if seen else y + into


accumulating("good-into", lambda y, into, kept: y + into.astype(np.float32), ("fp32", "bf16"))
accumulating("good-into-in-place", in_place)
accumulating("requests-into-overwrites", lambda y, into, kept: y)
accumulating("requests-into-adds-twice", lambda y, into, kept: y + 2 * into)
accumulating("requests-into-subtracts", lambda y, into, kept: into - y)
accumulating("requests-into-rounds-first", lambda y, into, kept: y.astype(into.dtype) + into, ("bf16",))
accumulating("requests-into-without-tail", without_tail)
accumulating("requests-into-first-calls-only", first_calls_only)
accumulating("requests-into-also-the-last", also_the_last)
accumulating("requests-into-by-shape", by_shape)
accumulating("requests-into-bias-twice", lambda y, into, kept: y + into + (y - y.min()) * 1e-4)
globals().update({one.name: one for one in found})
