"""Average pooling and its gradient as one gather: sums along columns, then along rows, in fp32, rounded once.

    target[TARGET + i * SPACING] = sum over t < TAPS of source[i * STEP + START + t]     along each axis

Forward has one residue, whose positions are STEP, the stride, apart in the source. Backward has one for each row of a
stride: an input row gathers from the outputs whose windows hold it, so that no sum is scattered. A window in SBUF
holds all rows that residues read, from LOW to HIGH, with zeros outside of the image.

Images and channels share the partitions: no pixel meets another channel. Outputs are divided by multiplication with
fp32 reciprocals: one number, or one for each row times one for each column where the divisor varies.
"""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS = 128
STEP, LOW, HIGH, SPACING, SIZE, RESIDUES = 0, 1, 2, 3, 4, 5
"""Places in the tuple of an axis."""
TARGET, START, TAPS = 0, 1, 2
"""Places in the tuple of a residue."""


def pieces(total, size):
    """Return the pieces [(first, count)] that cover range(total)."""
    all_pieces = []
    for first in range(0, total, size):
        all_pieces.append((first, min(size, total - first)))
    return all_pieces


def positions(axis):
    """Count the positions of the longest residue."""
    return (axis[SIZE] + axis[SPACING] - 1) // axis[SPACING]


def span(axis, place, extent):
    """Return a window's rows: the first in the source, their number, and the first and end of those in the image."""
    first = place[0] * axis[STEP] + axis[LOW]
    count = (place[1] - 1) * axis[STEP] + axis[HIGH] - axis[LOW] + 1
    begin = min(max(0, -first), count)
    return first, count, begin, max(begin, min(count, extent - first))


def target_rows(axis, place):
    """Return the first and the number of the target's rows in a tile."""
    first = place[0] * axis[SPACING]
    return first, min((place[0] + place[1]) * axis[SPACING], axis[SIZE]) - first


def load_window(source, channels, places, axes):
    """Load [channels, rows, columns] to SBUF; channels count through all images."""
    height, width = source.shape[2], source.shape[3]
    top, high, row, row_end = span(axes[0], places[0], height)
    left, wide, column, column_end = span(axes[1], places[1], width)
    window = nl.ndarray((channels[1], high, wide), dtype=source.dtype, buffer=nl.sbuf)
    inside = (row_end - row) * (column_end - column)
    if inside < high * wide:
        nisa.memset(dst=window, value=0.0)
    if inside > 0:
        start = channels[0] * height * width + (top + row) * width + left + column
        pattern = [[height * width, channels[1]], [width, row_end - row], [1, column_end - column]]
        nisa.dma_copy(
            dst=window[0 : channels[1], row:row_end, column:column_end], src=source.ap(pattern=pattern, offset=start)
        )
    return window


def load_factors(vectors, spans):
    """Load [(PARTITIONS, count)] in fp32: a part of each vector on every partition, zeros outside of the vector."""
    tiles = []
    for number in range(len(vectors)):
        first, count, begin, end = spans[number]
        tile = nl.ndarray((PARTITIONS, count), dtype=nl.float32, buffer=nl.sbuf)
        if end - begin < count:
            nisa.memset(dst=tile, value=0.0)
        if end > begin:
            part = vectors[number].ap(pattern=[[0, PARTITIONS], [1, end - begin]], offset=first + begin)
            nisa.dma_copy(dst=tile[0:PARTITIONS, begin:end], src=part)
        tiles.append(tile)
    return tiles


def multiplied(dst, data, factors, dim):
    """Set dst = data[channels, rows, columns] times the factor of each row (dim 1) or column (dim 2)."""
    count, high, wide = data.shape
    factor = factors[dim - 1]
    repeated = [[1, high], [0, wide]] if dim == 1 else [[0, high], [1, wide]]
    broadcast = factor.ap(pattern=[[factor.shape[1], count]] + repeated, offset=0)
    nisa.tensor_tensor(dst=dst, data1=data, data2=broadcast, op=nl.multiply)


def add_windows(out, tile, dim, axis, place):
    """Sum along one dimension of [channels, rows, columns], for all residues, with zeros where no window reaches."""
    count, high, wide = tile.shape
    inner = wide if dim == 1 else 1
    for residue in axis[RESIDUES]:
        total = (axis[SIZE] - residue[TARGET] + axis[SPACING] - 1) // axis[SPACING]
        positions = min(place[0] + place[1], total) - place[0]
        if positions > 0:
            end = residue[TARGET] + (positions - 1) * axis[SPACING] + 1
            filled = out.slice(dim, residue[TARGET], end, axis[SPACING])
            if residue[TAPS] == 0:
                nisa.memset(dst=filled, value=0.0)
            else:
                outer = [axis[STEP] * inner, positions]
                kept = [outer, [1, wide]] if dim == 1 else [[wide, high], outer]
                pattern = [[high * wide, count]] + kept + [[inner, residue[TAPS]]]
                windows = tile.ap(pattern=pattern, offset=(residue[START] - axis[LOW]) * inner)
                nisa.tensor_reduce(dst=filled, op=nl.add, data=windows, axis=(3,))


def summed(tile, dim, axis, place, dtype):
    """Return a new tile with the sums along one dimension."""
    shape = [tile.shape[0], tile.shape[1], tile.shape[2]]
    shape[dim] = target_rows(axis, place)[1]
    out = nl.ndarray((shape[0], shape[1], shape[2]), dtype=dtype, buffer=nl.sbuf)
    add_windows(out, tile, dim, axis, place)
    return out


def averages(window, places, axes, factors, scale, dtype):
    """Return the tile of forward: sums, then divided."""
    sums = summed(window, 2, axes[1], places[1], nl.float32)
    if len(factors) > 0:
        multiplied(sums, sums, factors, 2)
    sums = summed(sums, 1, axes[0], places[0], nl.float32)
    out = nl.ndarray(sums.shape, dtype=dtype, buffer=nl.sbuf)
    if len(factors) > 0:
        multiplied(out, sums, factors, 1)
    else:
        nisa.tensor_scalar(dst=out, data=sums, op0=nl.multiply, operand0=scale)
    return out


def shares(window, places, axes, factors, scale, dtype):
    """Return the tile of backward: divided, then summed."""
    divided = nl.ndarray(window.shape, dtype=nl.float32, buffer=nl.sbuf)
    if len(factors) > 0:
        multiplied(divided, window, factors, 2)
        multiplied(divided, divided, factors, 1)
    else:
        nisa.tensor_scalar(dst=divided, data=window, op0=nl.multiply, operand0=scale)
    sums = summed(divided, 2, axes[1], places[1], nl.float32)
    return summed(sums, 1, axes[0], places[0], dtype)


def store(target, out, first, places, axes):
    """Store an output tile to HBM, its channels from `first` on."""
    height, width = target.shape[2], target.shape[3]
    row, high = target_rows(axes[0], places[0])
    column, wide = target_rows(axes[1], places[1])
    pattern = [[height * width, out.shape[0]], [width, high], [1, wide]]
    nisa.dma_copy(dst=target.ap(pattern=pattern, offset=first * height * width + row * width + column), src=out)


def spans_of(source, places, axes, backward):
    """Return the spans of the rows and columns that have divisors: those of the outputs, which backward reads."""
    spans = []
    for dim in range(2):
        if backward:
            spans.append(span(axes[dim], places[dim], source.shape[2 + dim]))
        else:
            first, count = target_rows(axes[dim], places[dim])
            spans.append((first, count, 0, count))
    return spans


@nki.jit
def pool(source, rows, columns, varying, scale, backward, shape, axes, tile):
    """Pool [N, C, H, W] in HBM; a tile is row and column positions of up to 128 channels.

    Where divisors are `varying`, there are fp32 reciprocals of the outputs' rows and columns, else `scale`.
    """
    vectors = [rows, columns] if varying else []
    target = nl.ndarray(shape, dtype=source.dtype, buffer=nl.shared_hbm)
    for down in pieces(positions(axes[0]), tile[0]):
        for across in pieces(positions(axes[1]), tile[1]):
            places = (down, across)
            factors = load_factors(vectors, spans_of(source, places, axes, backward))
            for channels in pieces(shape[0] * shape[1], PARTITIONS):
                window = load_window(source, channels, places, axes)
                if backward:
                    out = shares(window, places, axes, factors, scale, source.dtype)
                else:
                    out = averages(window, places, axes, factors, scale, source.dtype)
                store(target, out, channels[0], places, axes)
    return target
