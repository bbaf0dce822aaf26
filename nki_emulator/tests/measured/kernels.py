"""Kernels of which somebody has published a time, written from what is said about them: which tiles, in which order."""

import nki
import nki.isa as nisa
import nki.language as nl

P, BANK = 128, 512


def tile(shape, like, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=like.dtype, buffer=buffer)


def loaded(source):
    """[rows, columns] of HBM in SBUF."""
    found = tile(source.shape, source)
    nisa.dma_copy(dst=found, src=source)
    return found


def turned(data, like):
    """The transpose of up to 128 x 128, by the Tensor Engine, in SBUF."""
    turn = nl.ndarray((data.shape[1], data.shape[0]), dtype=like.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turn, data=data, engine=nisa.engine.tensor)
    found = tile((data.shape[1], data.shape[0]), like)
    nisa.tensor_copy(dst=found, src=turn)
    return found


def blocks(total, size):
    found = []
    for first in range(0, total, size):
        found.append((first, min(size, total - first)))
    return found


def released():
    """In place of tiles: what held them may be overwritten."""
    return []


def products(out, row, column, stationary, moving):
    """out[row : row + 128, column :] = the sum of stationary[k].T @ moving[k], a bank at a time, stored at once."""
    width = moving[0].shape[1]
    result = nl.ndarray((P, width), dtype=out.dtype, buffer=nl.sbuf)
    for first, count in blocks(width, BANK):
        sums = nl.ndarray((P, count), dtype=nl.float32, buffer=nl.psum)
        for k in range(len(moving)):
            part = moving[k][0 : moving[k].shape[0], first : first + count]
            nisa.nc_matmul(dst=sums, stationary=stationary[k], moving=part, accumulate=(k > 0))
        nisa.tensor_copy(dst=result[0:P, first : first + count], src=sums)
    nisa.dma_copy(dst=out[row : row + P, column : column + width], src=result)


@nki.jit
def matmul(lhs, rhs, rows):
    """lhs[M, K] @ rhs[K, N] in columns of 1024: each tile of rhs is loaded once for `rows` blocks of 128 rows."""
    m, k, n = lhs.shape[0], lhs.shape[1], rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs.dtype, buffer=nl.shared_hbm)
    for column in range(0, n, 2 * BANK):
        for top in range(0, m, rows * P):
            turns, sums = [], []
            for row in range(rows):
                strip = []
                for first, count in blocks(k, 1024):
                    piece = loaded(lhs[top + row * P : top + (row + 1) * P, first : first + count])
                    for inner in range(0, count, P):
                        strip.append(turned(piece[0:P, inner : inner + P], lhs))
                turns.append(strip)
                sums.append(nl.ndarray((P, BANK), dtype=nl.float32, buffer=nl.psum))
                sums.append(nl.ndarray((P, BANK), dtype=nl.float32, buffer=nl.psum))
            for step in range(k // P):
                moving = loaded(rhs[step * P : (step + 1) * P, column : column + 2 * BANK])
                for row in range(rows):
                    for half in range(2):
                        nisa.nc_matmul(
                            dst=sums[2 * row + half], stationary=turns[row][step],
                            moving=moving[0:P, half * BANK : (half + 1) * BANK], accumulate=(step > 0),
                        )  # fmt: skip
            for row in range(rows):
                result = tile((P, 2 * BANK), lhs)
                for half in range(2):
                    nisa.tensor_copy(dst=result[0:P, half * BANK : (half + 1) * BANK], src=sums[2 * row + half])
                first = top + row * P
                nisa.dma_copy(dst=out[first : first + P, column : column + 2 * BANK], src=result)
    return out


@nki.jit
def transpose_matmul(lhs, rhs):
    """lhs[K, M].T @ rhs[K, N] in blocks of 1024 x 1024, all of K at once."""
    k, m, n = lhs.shape[0], lhs.shape[1], rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs.dtype, buffer=nl.shared_hbm)
    for top in range(0, m, 1024):
        left, right, stationary = [], released(), released()
        for step in range(0, k, P):
            left.append(loaded(lhs[step : step + P, top : top + 1024]))
        for column, width in blocks(n, 1024):
            right = []
            for step in range(0, k, P):
                right.append(loaded(rhs[step : step + P, column : column + width]))
            for row in range(0, 1024, P):
                stationary = []
                for step in range(k // P):
                    stationary.append(left[step][0:P, row : row + P])
                products(out, top + row, column, stationary, right)
    return out


@nki.jit
def rmsnorm_matmul(x, weights):
    """x / rms(x) @ weights: x[M, K] is loaded twice, weights[K, N] once for 1024 rows."""
    m, k, n = x.shape[0], x.shape[1], weights.shape[1]
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    zero = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    for top in range(0, m, 1024):
        rows = []
        for row in range(top, top + 1024, P):
            first = loaded(x[row : row + P, 0:k])
            squares, total = tile((P, k), x), nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=squares, op=nl.square, data=first, bias=zero)
            nisa.tensor_scalar(dst=squares, data=squares, op0=nl.multiply, operand0=1.0 / k)
            nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)
            nisa.activation(dst=total, op=nl.rsqrt, data=total, bias=zero)
            again, scaled, strip = loaded(x[row : row + P, 0:k]), tile((P, k), x), []
            nisa.tensor_scalar(dst=scaled, data=again, op0=nl.multiply, operand0=total)
            for inner in range(0, k, P):
                strip.append(turned(scaled[0:P, inner : inner + P], x))
            rows.append(strip)
        for column in range(0, n, 1024):
            moving = []
            for step in range(0, k, P):
                moving.append(loaded(weights[step : step + P, column : column + 1024]))
            for row in range(8):
                products(out, top + row * P, column, rows[row], moving)
    return out


@nki.jit
def batched_matmul(lhs, rhs):
    """lhs[B, M, K] @ rhs[B, K, N] with K of at most 128: what is stored is most of the work."""
    b, m, k = lhs.shape
    n, each = rhs.shape[2], m // P
    out = nl.ndarray((b, m, n), dtype=lhs.dtype, buffer=nl.shared_hbm)
    for batch in range(b):
        left = tile((P, each, k), lhs)
        nisa.dma_copy(dst=left, src=lhs[batch].reshape((P, each, k)))
        right = loaded(rhs[batch])
        target = out[batch].reshape((P, each, n))
        for row in range(each):
            turn, result = turned(left[0:P, row, 0:k], lhs), tile((P, n), lhs)
            for first in range(0, n, BANK):
                sums = nl.ndarray((P, BANK), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=sums, stationary=turn, moving=right[0:k, first : first + BANK], accumulate=False)
                nisa.tensor_copy(dst=result[0:P, first : first + BANK], src=sums)
            nisa.dma_copy(dst=target[0:P, row, 0:n], src=result)
    return out


@nki.jit
def silu(x):
    """x / (1 + exp(-x)) for x[M, N] in tiles of 128 x 1024, computed 512 at a time."""
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    zero = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    for row in range(0, m, P):
        for column in range(0, n, 1024):
            given, result = loaded(x[row : row + P, column : column + 1024]), tile((P, 1024), x)
            for first in range(0, 1024, BANK):
                part, work = given[0:P, first : first + BANK], tile((P, BANK), x)
                nisa.activation(dst=work, op=nl.exp, data=part, bias=zero, scale=-1.0)
                nisa.tensor_scalar(dst=work, data=work, op0=nl.add, operand0=1.0)
                inverse = tile((P, BANK), x)
                nisa.reciprocal(dst=inverse, data=work)
                nisa.tensor_tensor(dst=result[0:P, first : first + BANK], data1=part, data2=inverse, op=nl.multiply)
            nisa.dma_copy(dst=out[row : row + P, column : column + 1024], src=result)
    return out


@nki.jit
def add_vectors(a, b, partitions, width):
    """a + b of one dimension, in tiles of partitions x width."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for first in range(0, a.shape[0], partitions * width):
        end = first + partitions * width
        x, y, z = tile((partitions, width), a), tile((partitions, width), a), tile((partitions, width), a)
        nisa.dma_copy(dst=x, src=a[first:end].reshape((partitions, width)))
        nisa.dma_copy(dst=y, src=b[first:end].reshape((partitions, width)))
        nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)
        nisa.dma_copy(dst=out[first:end].reshape((partitions, width)), src=z)
    return out


@nki.jit
def transpose(a):
    """The transpose of a matrix, in tiles of 128 x 128."""
    m, n = a.shape
    out = nl.ndarray((n, m), dtype=a.dtype, buffer=nl.shared_hbm)
    for row in range(0, m, P):
        for column in range(0, n, P):
            result = turned(loaded(a[row : row + P, column : column + P]), a)
            nisa.dma_copy(dst=out[column : column + P, row : row + P], src=result)
    return out


@nki.jit
def conv(x, w, bias, rows):
    """One image x[C, H, W] with w[K, C, R, S] and bias[K], no padding: weights turned on chip, `rows` output rows of
    all input channels loaded at once, two of them in one product."""
    channels, height, width = x.shape
    k, high, wide = w.shape[0], w.shape[2], w.shape[3]
    tall, broad, parts = height - high + 1, width - wide + 1, channels // P
    out = nl.ndarray((k, tall, broad), dtype=x.dtype, buffer=nl.shared_hbm)
    weights, biases = [], []
    for first in range(0, k, P):
        given = tile((P, channels, high * wide), w)
        nisa.dma_copy(dst=given, src=w[first : first + P].reshape((P, channels, high * wide)))
        turns = []
        for part in range(parts):
            for tap in range(high * wide):
                turns.append(turned(given[0:P, part * P : (part + 1) * P, tap], w))
        weights.append(turns)
        found = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=found, src=bias[first : first + P].reshape((P, 1)))
        biases.append(found)
    for top in range(0, tall, rows):
        windows = []
        for part in range(parts):
            windows.append(loaded(x[part * P : (part + 1) * P, top : top + rows + high - 1, 0:width]))
        for block in range(k // P):
            result = tile((P, rows, broad), x)
            for row in range(0, rows, 2):
                sums = nl.ndarray((P, 2, broad), dtype=nl.float32, buffer=nl.psum)
                step = 0
                for part in range(parts):
                    for r in range(high):
                        for s in range(wide):
                            moving = windows[part][0:P, row + r : row + r + 2, s : s + broad]
                            turn = weights[block][part * high * wide + r * wide + s]
                            nisa.nc_matmul(dst=sums, stationary=turn, moving=moving, accumulate=(step > 0))
                            step += 1
                nisa.tensor_scalar(
                    dst=result[0:P, row : row + 2, 0:broad], data=sums, op0=nl.add, operand0=biases[block]
                )
            nisa.dma_copy(dst=out[block * P : (block + 1) * P, top : top + rows, 0:broad], src=result)
    return out
