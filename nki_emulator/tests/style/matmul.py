"""x.T @ y in the present generation of the API, with the loads of the stationary operand hoisted."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def matmul(x, y):
    """[M, N] of x[K, M] and y[K, N], which are tiled by 128, 128 and 512; the last tiles may be smaller."""
    depth, rows = x.shape
    columns = y.shape[1]
    z = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    for m in range(0, rows, 128):
        height = min(128, rows - m)
        left = []
        for k in range(0, depth, 128):
            left.append(nl.load(x[k : min(k + 128, depth), m : m + height]))
        for n in range(0, columns, 512):
            width = min(512, columns - n)
            total = nl.ndarray((height, width), dtype=nl.float32, buffer=nl.psum)
            for k in range(0, depth, 128):
                right = nl.load(y[k : min(k + 128, depth), n : n + width])
                nisa.nc_matmul(dst=total, stationary=left[k // 128], moving=right, accumulate=(k > 0))
            result = nl.ndarray((height, width), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=total)
            nisa.dma_copy(dst=z[m : m + height, n : n + width], src=result)
    return z
