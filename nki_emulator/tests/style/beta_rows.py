"""Normalisations of rows in the first generation of the API; rows beyond the last one are masked out."""

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


def tiles(x):
    """How many tiles of 128 rows, and their rows and columns as index expressions."""
    rows, columns = x.shape
    return -(-rows // 128), nl.arange(128)[:, None], nl.arange(columns)[None, :]


def repeated(vector, columns):
    """A vector [columns] of HBM on every partition."""
    row = nl.load(vector.reshape((1, vector.shape[0]))[nl.arange(1)[:, None], columns])
    return row.broadcast_to((128, vector.shape[0]))


@nki.jit
def softmax(x):
    """Of every row."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    count, row, column = tiles(x)
    for i in nl.affine_range(count):
        inside = i * 128 + row < x.shape[0]
        values = nl.load(x[i * 128 + row, column], mask=inside)
        powers = nl.exp(values - nl.max(values, axis=[1], keepdims=True))
        nl.store(y[i * 128 + row, column], value=powers / nl.sum(powers, axis=[1]), mask=inside)
    return y


@nki.jit
def rms_norm(x, gain):
    """Every row over the root of its mean square, times gain."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    count, row, column = tiles(x)
    scale = repeated(gain, column)
    for i in nl.affine_range(count):
        inside = i * 128 + row < x.shape[0]
        values = nl.load(x[i * 128 + row, column], mask=inside)
        root = nl.rsqrt(nl.sum(nl.square(values), axis=[1]) / x.shape[1])
        nl.store(y[i * 128 + row, column], value=values * root * scale, mask=inside)
    return y


@nki.jit
def layer_norm(x, epsilon, gain, shift):
    """Every row less its mean, over the root of its variance and epsilon, times gain, plus shift."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    count, row, column = tiles(x)
    scale, added = repeated(gain, column), repeated(shift, column)
    parts, part = -(-x.shape[1] // 512), nl.arange(512)[None, :]
    six = nl.arange(6)[None, :]
    for i in nl.affine_range(count):
        inside = i * 128 + row < x.shape[0]
        values = nl.load(x[i * 128 + row, column], mask=inside)
        found = nl.ndarray((128, 6 * parts), dtype=nl.float32)
        for j in nl.affine_range(parts):
            left = j * 512 + part < x.shape[1]
            found[row, j * 6 + six] = nisa.bn_stats(values[row, j * 512 + part], mask=left, dtype=nl.float32)
        both = nisa.bn_aggr(found)
        root = nl.rsqrt(both[row, 1] + epsilon)
        centred = nisa.tensor_scalar(values, op0=nl.subtract, operand0=both[row, 0], op1=nl.multiply, operand1=root)
        nl.store(y[i * 128 + row, column], value=centred * scale + added, mask=inside)
    return y
