"""Matrix products: sums of 128 terms by the Tensor Engine, added up in one bank of PSUM, rounded once.

    out[b, m, n] = bias[n] + sum over k of first[b, m, k] * second[b, k, n]

A matrix lies anywhere in HBM, with a step from product to product, from row to row and from column to column, so that
a transposed operand is one with two steps exchanged: the DMA reads terms onto the partitions either way. A product
takes as many cycles as the moving operand has columns, whatever its rows: columns of the result are the moving ones.
"""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS, BANK = 128, 512
"""Partitions of a tile, which hold terms or rows of the result; fp32 sums of a PSUM bank, its columns."""
BATCH, ROWS, COLUMNS = 0, 1, 2
"""Places in the tuples of sizes and of steps."""


def pieces(total, size):
    """Return the pieces [(first, count)] that cover range(total)."""
    all_pieces = []
    for first in range(0, total, size):
        all_pieces.append((first, min(size, total - first)))
    return all_pieces


def load(matrix, steps, product, terms, others):
    """Load [terms, others] to SBUF; `steps` are from product to product, term to term and place to place."""
    tile = nl.ndarray((terms[1], others[1]), dtype=matrix.dtype, buffer=nl.sbuf)
    start = product * steps[0] + terms[0] * steps[1] + others[0] * steps[2]
    nisa.dma_copy(dst=tile, src=matrix.ap(pattern=[[steps[1], terms[1]], [steps[2], others[1]]], offset=start))
    return tile


def load_bias(bias, rows, columns):
    """Load a part of the bias onto as many partitions as the tile has rows."""
    tile = nl.ndarray((rows, columns[1]), dtype=bias.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=bias.ap(pattern=[[0, rows], [1, columns[1]]], offset=columns[0]))
    return tile


@nki.jit
def multiply(first, second, bias, has_bias, count, shape, of_first, of_second, of_out):
    """Return first second + bias of `count` terms as a new tensor of `shape`; the steps of each matrix are those from
    product to product, row to row and column to column, and the last three are products, rows and columns of out."""
    out = nl.ndarray(shape, dtype=first.dtype, buffer=nl.shared_hbm)
    sizes, steps = of_out[0], of_out[1]
    for product in range(sizes[BATCH]):
        for rows in pieces(sizes[ROWS], PARTITIONS):
            for columns in pieces(sizes[COLUMNS], BANK):
                stored = nl.ndarray((rows[1], columns[1]), dtype=first.dtype, buffer=nl.sbuf)
                sums = nl.ndarray((rows[1], columns[1]), dtype=nl.float32, buffer=nl.psum)
                for terms in pieces(count, PARTITIONS):
                    stationary = load(first, (of_first[BATCH], of_first[COLUMNS], of_first[ROWS]), product, terms, rows)
                    moving = load(second, of_second, product, terms, columns)
                    nisa.nc_matmul(dst=sums, stationary=stationary, moving=moving, accumulate=terms[0] > 0)
                if has_bias:
                    nisa.tensor_tensor(dst=stored, data1=sums, data2=load_bias(bias, rows[1], columns), op=nl.add)
                else:
                    nisa.tensor_copy(dst=stored, src=sums)
                place = product * steps[BATCH] + rows[0] * steps[ROWS] + columns[0] * steps[COLUMNS]
                pattern = [[steps[ROWS], rows[1]], [steps[COLUMNS], columns[1]]]
                nisa.dma_copy(dst=out.ap(pattern=pattern, offset=place), src=stored)
    return out


@nki.jit
def column_sums(matrix, rows, columns):
    """Return the sums [columns] of a matrix's rows: products with a row of ones."""
    out = nl.ndarray((columns,), dtype=matrix.dtype, buffer=nl.shared_hbm)
    for part in pieces(columns, BANK):
        sums = nl.ndarray((1, part[1]), dtype=nl.float32, buffer=nl.psum)
        for terms in pieces(rows, PARTITIONS):
            ones = nl.ndarray((terms[1], 1), dtype=matrix.dtype, buffer=nl.sbuf)
            nisa.memset(dst=ones, value=1.0)
            moving = load(matrix, (0, columns, 1), 0, terms, part)
            nisa.nc_matmul(dst=sums, stationary=ones, moving=moving, accumulate=terms[0] > 0)
        stored = nl.ndarray((1, part[1]), dtype=matrix.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=stored, src=sums)
        nisa.dma_copy(dst=out.ap(pattern=[[part[1], 1], [1, part[1]]], offset=part[0]), src=stored)
    return out
