"""Transposes in the first generation of the API."""

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
def transpose_free(x, rows, columns):
    """Every row of x, a matrix (rows, columns) written flat, transposed by one copy between two index orders."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source = nl.load(x)
    target = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    p = nl.arange(x.shape[0])[:, None, None]
    i = nl.arange(rows)[None, :, None]
    j = nl.arange(columns)[None, None, :]
    target[p, j * rows + i] = nl.copy(source[p, i * columns + j])
    nl.store(y, value=target)
    return y


@nki.jit
def transpose(x):
    """x.T by the Tensor Engine, 128 x 128 at a time."""
    rows, columns = x.shape
    y = nl.ndarray((columns, rows), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(rows // 128):
        for j in nl.affine_range(columns // 128):
            block = nl.load(x[nl.ds(i * 128, 128), nl.ds(j * 128, 128)])
            nl.store(y[nl.ds(j * 128, 128), nl.ds(i * 128, 128)], value=nisa.nc_transpose(block))
    return y
