"""CuPy on an NVIDIA GPU: im2col by sliding_window_view, products by cuBLAS, pooling by reductions over such windows.

A convolution is a product (tensordot) per group, in the tensors' dtype with CUBLAS_COMPUTE_32F. Where more is added to
products, they are of fp32 or fp64, and results rounded once. CuPy has no batch normalisation, and no layouts but nchw.
"""

import cupy as cp

from conformance import Contract, Implementation, Unavailable
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.windows import windows


class CupyArrays(ArrayBridge):
    name = "cupy"
    from_host = staticmethod(cp.array)
    to_host = staticmethod(cp.ndarray.get)  # TypeError for what is not an array of CuPy
    overlap = staticmethod(cp.may_share_memory)

    def require(self):
        try:
            cp.cuda.runtime.getDeviceCount()
        except cp.cuda.runtime.CUDARuntimeError as problem:
            raise Unavailable(f"CuPy {cp.__version__} has no device: {problem}") from None

    def synchronize(self, result):
        cp.cuda.runtime.deviceSynchronize()

    def view(self, array, offset, shape, strides):
        return cp.lib.stride_tricks.as_strided(array[offset:], shape, [array.itemsize * step for step in strides])

    def overwrite(self, array, host):
        array[...] = self.from_host(host)
        return True

    def describe(self):
        return {"cupy": cp.__version__, "device": cp.cuda.runtime.getDeviceProperties(0)["name"].decode()}


impl = Implementation("cupy-cuda", "cuda", CupyArrays(), version=cp.__version__, unsafe=("fork",))
impl.variant("accelerators=none", environment={"CUPY_ACCELERATORS": ""})  # reductions without CUB


def wide(a):
    return a.astype(cp.promote_types(a.dtype, cp.float32))


def slide(x, geometry, fill=0, beyond=0):
    """Return images padded with `fill`, and `beyond` where windows overhang; and windows [..., P, Q, R, S]."""
    kernel, (uh, uw), padding, (dh, dw), _ = geometry
    axes = windows(x.shape[-2:], *geometry)
    spans = (kernel[0] - 1) * dh + 1, (kernel[1] - 1) * dw + 1
    for pads, value in (padding, fill), ([(0, max(0, (a.outputs - 1) * a.stride - a.room)) for a in axes], beyond):
        x = cp.pad(x, [(0, 0)] * (x.ndim - 2) + list(pads), constant_values=value)
    return x, cp.lib.stride_tricks.sliding_window_view(x, spans, (-2, -1))[..., ::uh, ::uw, ::dh, ::dw]


def spread(shape, dtype, geometry, piece):
    """Return images of zeros after piece(r, s) was added to element (r, s) of all windows."""
    plane, taps = slide(wide(cp.zeros(shape, dtype)), geometry)
    for r, s in cp.ndindex(*geometry[0]):
        taps[..., r, s] += piece(r, s)
    return plane[..., geometry[2][0][0] :, geometry[2][1][0] :][..., : shape[-2], : shape[-1]].astype(dtype)


def products(a, b, groups, split, axes, join):
    """Multiply each group of a and b, which lie along the axes `split`; return the results side by side."""
    pairs = zip(cp.split(a, groups, split[0]), cp.split(b, groups, split[1]), strict=True)
    return cp.concatenate([cp.tensordot(*pair, axes) for pair in pairs], join)


def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    a, b = (x, w) if bias is None else (wide(x), wide(w))
    taps = slide(a, (w.shape[2:], stride, padding, dilation, False))[1]
    y = products(taps, b, groups, (1, 0), ((1, 4, 5), (1, 2, 3)), 3).transpose(0, 3, 1, 2)
    return cp.ascontiguousarray(y if bias is None else y + wide(bias)[:, None, None], x.dtype)


def conv_backward_data(dy, w, *, stride, padding, dilation, groups, input_size):
    parts = products(wide(dy), wide(w), groups, (1, 0), (1, 0), 3).transpose(0, 3, 1, 2, 4, 5)
    geometry = w.shape[2:], stride, padding, dilation, False
    return spread((*parts.shape[:2], *input_size), dy.dtype, geometry, lambda r, s: parts[..., r, s])


def conv_backward_weight(x, dy, *, stride, padding, dilation, groups, kernel_size, with_bias):
    dw = products(dy, slide(x, (kernel_size, stride, padding, dilation, False))[1], groups, (1, 1), [(0, 2, 3)] * 2, 0)
    return (dw, wide(dy).sum((0, 2, 3)).astype(dy.dtype)) if with_bias else dw


def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    geometry = kernel_size, stride, padding, (1, 1), ceil_mode
    count = divisor_override or slide(cp.ones(x.shape[2:]), geometry, count_include_pad)[1].sum((-2, -1))
    return (slide(wide(x), geometry)[1].sum((-2, -1)) / count).astype(x.dtype)


def avg_pool_backward(dy, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, input_size):
    geometry = kernel_size, stride, padding, (1, 1), ceil_mode
    share = wide(dy) / (divisor_override or slide(cp.ones(input_size), geometry, count_include_pad)[1].sum((-2, -1)))
    return spread((*dy.shape[:2], *input_size), dy.dtype, geometry, lambda r, s: share)


def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode):
    geometry = kernel_size, stride, padding, dilation, ceil_mode
    return slide(wide(x), geometry, -cp.inf, -cp.inf)[1].max((-2, -1)).astype(x.dtype)


def max_pool_backward(dy, x, *, kernel_size, stride, padding, dilation, ceil_mode):
    geometry = kernel_size, stride, padding, dilation, ceil_mode
    taps, inside = slide(wide(x), geometry, -cp.inf, -cp.inf)[1], slide(cp.ones(x.shape[2:], bool), geometry)[1]
    found = ((taps == taps.max((-2, -1), keepdims=True)) | (taps != taps)) & inside
    first, da = found.reshape(*dy.shape, kernel_size[0] * kernel_size[1]).argmax(-1), wide(dy)
    return spread(x.shape, x.dtype, geometry, lambda r, s: cp.where(first == r * kernel_size[1] + s, da, 0))


# CuPy compiles its kernels with -ftz=true (cupy/cuda/compiler.py); tensor cores cut bits off sums of 16-bit products
for one in (conv_forward, conv_backward_data, avg_pool_forward, avg_pool_backward, max_pool_forward, max_pool_backward):
    impl.implements(one.__name__, dtypes=("fp64", "fp16"))(one)
    impl.implements(one.__name__, dtypes=("fp32", "bf16"), contract=Contract(subnormals="flushed"))(one)
for dtypes, contract in ((("fp32", "fp64"), Contract()), (("fp16", "bf16"), Contract(rounding="zero"))):
    impl.implements("conv_backward_weight", dtypes=dtypes, contract=contract)(conv_backward_weight)
