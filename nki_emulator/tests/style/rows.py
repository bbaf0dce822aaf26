"""Normalisations of rows in the present generation of the API; the last tile has fewer rows."""

import nki
import nki.isa as nisa
import nki.language as nl


def repeated(vector, rows):
    """A vector [columns] of HBM on every partition: one DMA that reads it again for each."""
    found = nl.ndarray((rows, vector.shape[0]), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=found, src=vector.ap([[0, rows], [1, vector.shape[0]]]))
    return found


def constant(rows, value):
    """A column of one number."""
    found = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=found, value=value)
    return found


@nki.jit
def softmax(x):
    """Of every row."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for first in range(0, x.shape[0], 128):
        rows = min(128, x.shape[0] - first)
        values = nl.load(x[first : first + rows, :])
        least = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=least, op=nl.maximum, data=values, axis=1, negate=True)
        powers = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=powers, op=nl.exp, data=values, bias=least, reduce_op=nl.add, reduce_res=total)
        share = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=share, data=total)
        result = nl.ndarray(values.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=powers, op0=nl.multiply, operand0=share)
        nisa.dma_copy(dst=y[first : first + rows, :], src=result)
    return y


@nki.jit
def rms_norm(x, gain):
    """Every row over the root of its mean square, times gain."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for first in range(0, x.shape[0], 128):
        rows = min(128, x.shape[0] - first)
        values = nl.load(x[first : first + rows, :])
        squares = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=squares, data1=values, data2=values, op=nl.multiply)
        total = nl.sum(squares, axis=1)
        root = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=root, op=nl.rsqrt, data=total, scale=1.0 / x.shape[1])
        result = nl.ndarray(values.shape, dtype=x.dtype, buffer=nl.sbuf)
        scale = repeated(gain, rows)
        nisa.scalar_tensor_tensor(
            dst=result, data=values, op0=nl.multiply, operand0=root, op1=nl.multiply, operand1=scale
        )
        nisa.dma_copy(dst=y[first : first + rows, :], src=result)
    return y


@nki.jit
def layer_norm(x, epsilon, gain, shift):
    """Every row less its mean, over the root of its variance and epsilon, times gain, plus shift."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    columns = x.shape[1]
    parts = (columns + 511) // 512
    for first in range(0, x.shape[0], 128):
        rows = min(128, x.shape[0] - first)
        values = nl.load(x[first : first + rows, :])
        found = nl.ndarray((rows, 6 * parts), dtype=nl.float32, buffer=nl.sbuf)
        for j in range(parts):
            nisa.bn_stats(dst=found[:, 6 * j : 6 * j + 6], data=values[:, 512 * j : min(512 * j + 512, columns)])
        both = nl.ndarray((rows, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.bn_aggr(dst=both, data=found)
        root = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=root, op=nl.rsqrt, data=both[:, 1:2], bias=constant(rows, epsilon))
        result = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=result, data=values, op0=nl.subtract, operand0=both[:, 0:1], op1=nl.multiply, operand1=root
        )
        nisa.tensor_tensor(dst=result, data1=result, data2=repeated(gain, rows), op=nl.multiply)
        nisa.tensor_tensor(dst=result, data1=result, data2=repeated(shift, rows), op=nl.add)
        nisa.dma_copy(dst=y[first : first + rows, :], src=result)
    return y
