"""Transposes in the present generation of the API."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def transpose_free(x, rows, columns):
    """Every row of x, a matrix (rows, columns) written flat, transposed by one copy of a permuted view."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source = nl.load(x).reshape((x.shape[0], rows, columns))
    target = nl.ndarray((x.shape[0], columns, rows), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=target, src=source.permute((0, 2, 1)))
    nisa.dma_copy(dst=y, src=target)
    return y


@nki.jit
def transpose(x):
    """x.T by the Tensor Engine, 128 x 128 at a time."""
    rows, columns = x.shape
    y = nl.ndarray((columns, rows), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(0, rows, 128):
        for j in range(0, columns, 128):
            turned = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=nl.load(x[i : i + 128, j : j + 128]))
            block = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=block, src=turned)
            nisa.dma_copy(dst=y[j : j + 128, i : i + 128], src=block)
    return y
