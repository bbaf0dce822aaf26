"""x.T @ y in the first generation of the API, with the loads of both operands hoisted out of the inner loop."""

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
def matmul(x, y):
    """[M, N] of x[K, M] and y[K, N], which are tiled by 128, 128 and 512; the last tiles may be cut by masks."""
    (depth, rows), columns = x.shape, y.shape[1]
    z = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    steps = -(-depth // 128)
    a, b, c = nl.mgrid[0:128, 0:128], nl.mgrid[0:128, 0:512], nl.mgrid[0:128, 0:512]
    for m in nl.affine_range(-(-rows // 128)):
        left = nl.zeros((steps, nl.par_dim(128), 128), dtype=x.dtype, buffer=nl.sbuf)
        for k in nl.affine_range(steps):
            inside = (k * 128 + a.p < depth) & (m * 128 + a.x < rows)
            left[k, a.p, a.x] = nl.load(x[k * 128 + a.p, m * 128 + a.x], mask=inside)
        for n in nl.affine_range(-(-columns // 512)):
            total = nl.zeros((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(steps):
                right = nl.zeros((128, 512), dtype=y.dtype, buffer=nl.sbuf)
                inside = (k * 128 + b.p < depth) & (n * 512 + b.x < columns)
                right[b.p, b.x] = nl.load(y[k * 128 + b.p, n * 512 + b.x], mask=inside)
                total += nisa.nc_matmul(left[k, a.p, a.x], right)
            inside = (m * 128 + c.p < rows) & (n * 512 + c.x < columns)
            nl.store(z[m * 128 + c.p, n * 512 + c.x], value=nl.copy(total, dtype=x.dtype), mask=inside)
    return z
