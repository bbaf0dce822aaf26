"""Small kernels with known results, none of them zero, which show whether a toolchain computes.

The vendor's first toolchain, in a later release, still imports and returns zeros with exit code 0.
"""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def tripled(x):
    """Compute 3 * x in fp32, where x[P, F] passes through a bfloat16 tile."""
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    wide = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=wide, src=x)
    narrow = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=narrow, src=wide)
    result = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=narrow, op0=nl.multiply, operand0=3.0)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def generation(x):
    """Return the NeuronCore that the kernel was compiled for: 2, 3 or 4 in a tensor of x's shape, 1 for an unknown
    one."""
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    result = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    number = 1.0
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        number = 2.0
    if nisa.get_nc_version() == nisa.nc_version.gen3:
        number = 3.0
    if nisa.get_nc_version() == nisa.nc_version.gen4:
        number = 4.0
    nisa.memset(dst=result, value=number)
    nisa.dma_copy(dst=out, src=result)
    return out
