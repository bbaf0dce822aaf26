"""The vendor's kernel on tensors of torch-neuronx. Importing this module imports the toolchain of SDK 2.26."""

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
from neuronxcc.nki._private_kernels.conv import conv2d_dw_fb01_io01_01bf_rep_nhwc_Pcinh as private_kernel

AS_GIVEN = [0, 1, 2, 3]
"""Order of axes: images NCHW, weights OIHW. A list, because the kernel takes a tuple for another permutation."""


@nki.jit
def convolved(image, weights, shape):
    """Return image[N,C,H,W] * weights[K,C,R,S] -> [N,K,P,Q] = shape, with stride 1 and padding 1 on all sides."""
    result = nl.ndarray(shape=shape, dtype=image.dtype, buffer=nl.hbm)
    settings = {
        "input": image.shape,
        "filter": weights.shape,
        "output": shape,
        "in_perm": AS_GIVEN,
        "kern_perm": AS_GIVEN,
        "out_perm": AS_GIVEN,
        "stride": (1, 1),
        "padding": ((1, 1), (1, 1)),
    }
    private_kernel(image, weights, result, **settings)
    return result
