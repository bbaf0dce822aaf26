"""Backward-weight on the Tensor Engine: pixels on partitions, so that the sum over them is the contraction.

    dw[k, c, r, s] = sum over images n and pixels (p, q) of dy[n, k, p, q] * x[n, c, p * u + r * d, q * v + s * e]

dy is the stationary operand [pixels, K], x the moving one [pixels, (r, s, c)], so that one product has all taps of many
channels. A padded x is first copied to HBM with its padding, channels innermost: then no pixel of a tile is a special
case, and descriptors move runs of channels. Transposes are left to access patterns of the DMA, because that of the
Tensor Engine spreads a NaN to all channels on gen2. All images are added up in one PSUM tile.

A strip is (image, images, row, rows, turns, column, columns). Its pixels lie on partitions; the turns of a strip of one
row share one tile of x, and each reads it one stride lower.
"""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS, DIMENSIONS, RUN = 128, 5, 8192
"""Of a tile; of an access pattern; elements of zeros."""


def pieces(total, size):
    """[(first, count)] that cover range(total)."""
    found = []
    for first in range(0, total, size):
        found.append((first, min(size, total - first)))
    return found


def needed(pattern):
    """Without dimensions of one element."""
    found = []
    for step, count in pattern:
        if count > 1:
            found.append([step, count])
    return found


def clear(padded, rows, columns):
    """Zeros in rows and columns (first, end) of all images."""
    n, high, wide, channels = padded.shape
    count, start = rows[1] - rows[0], rows[0] * wide + columns[0]
    for first, run in pieces((columns[1] - columns[0]) * channels if count > 0 else 0, RUN):
        zeros = nl.ndarray((1, run), dtype=padded.dtype, buffer=nl.sbuf)
        nisa.memset(dst=zeros, value=0.0)
        there = [[high * wide * channels, n], [wide * channels, count], [1, run]]
        nisa.dma_copy(
            dst=padded.ap(pattern=there, offset=start * channels + first),
            src=zeros.ap(pattern=[[run, 1], [0, n], [0, count], [1, run]], offset=0),
        )


def with_padding(x, before, size):
    """[N, rows, columns, C] in HBM: the rows and columns of the padded image that windows reach."""
    n, channels, height, width = x.shape
    high, wide = size
    padded = nl.ndarray((n, high, wide, channels), dtype=x.dtype, buffer=nl.private_hbm)
    top, left = min(before[0], high), min(before[1], wide)
    bottom, right = min(top + height, high), min(left + width, wide)
    clear(padded, (0, top), (0, wide))
    clear(padded, (bottom, high), (0, wide))
    clear(padded, (top, bottom), (0, left))
    clear(padded, (top, bottom), (right, wide))
    if bottom > top and right > left:
        inside = x[0:n, 0:channels, 0 : bottom - top, 0 : right - left]
        nisa.dma_copy(dst=padded[0:n, top:bottom, left:right, 0:channels], src=inside.permute((0, 2, 3, 1)))
    return padded


def strips(images, size, tile):
    """All strips of dy; a tile is images, rows, columns, and whether the rows are turns."""
    found = []
    for image, some_images in pieces(images, tile[0]):
        for row, some_rows in pieces(size[0], tile[1]):
            rows, turns = (1, some_rows) if tile[3] else (some_rows, 1)
            for column, some_columns in pieces(size[1], tile[2]):
                found.append((image, some_images, row, rows, turns, column, some_columns))
    return found


def load_gradient(dy, strip, first, count):
    """[pixels, turns, targets] in SBUF."""
    image, images, row, rows, turns, column, columns = strip
    channels, height, width = dy.shape[1], dy.shape[2], dy.shape[3]
    tile = nl.ndarray((images * rows * columns, turns, count), dtype=dy.dtype, buffer=nl.sbuf)
    pattern = [[channels * height * width, images], [width, rows], [1, columns], [rows * width, turns]]
    start = (image * channels + first) * height * width + row * width + column
    pattern = needed(pattern) + [[height * width, count]]
    nisa.dma_copy(dst=tile, src=dy.ap(pattern=pattern, offset=start))
    return tile


def load_gradients(dy, all_strips, targets):
    """One tile for each strip."""
    found = []
    for strip in all_strips:
        found.append(load_gradient(dy, strip, targets[0], targets[1]))
    return found


def load_taps(x, steps, strip, first_channel, block, window):
    """[pixels, rows, taps of a row, channels] in SBUF: what a strip reads for a block of taps and channels.

    `steps` are those of x by image, row, column and channel; `window` is stride, dilation, and the distance of the rows
    that are held where turns share a tile.
    """
    image, images, row, rows, turns, column, columns = strip
    tap_row, tap_rows, tap_column, tap_columns, channel, channels = block
    stride, dilation, every = window
    by_row = every if turns > 1 else dilation[0]
    high = ((turns - 1) * stride[0] + (tap_rows - 1) * dilation[0]) // by_row + 1
    pixels = rows * columns
    tile = nl.ndarray((images * pixels, high, tap_columns, channels), dtype=x.dtype, buffer=nl.sbuf)
    start = image * steps[0] + (row * stride[0] + tap_row * dilation[0]) * steps[1]
    start += (column * stride[1] + tap_column * dilation[1]) * steps[2] + (first_channel + channel) * steps[3]
    each = [[stride[0] * steps[1], rows], [stride[1] * steps[2], columns], [by_row * steps[1], high]]
    each = needed(each + [[dilation[1] * steps[2], tap_columns]]) + [[steps[3], channels]]
    whole = needed([[steps[0], images]]) + each
    if len(whole) <= DIMENSIONS:
        nisa.dma_copy(dst=tile, src=x.ap(pattern=whole, offset=start))
    else:
        for number in range(images):
            part = tile[number * pixels : (number + 1) * pixels, 0:high, 0:tap_columns, 0:channels]
            nisa.dma_copy(dst=part, src=x.ap(pattern=each, offset=start + number * steps[0]))
    return tile


def turned(tile, turn, turns, tap_rows, window):
    """The rows of a tile of x that one turn reads."""
    stride, dilation, every = window
    step = dilation[0] // every if turns > 1 else 1
    first = turn * stride[0] // every
    end = first + (tap_rows - 1) * step + 1
    return tile[0 : tile.shape[0], first:end:step, 0 : tile.shape[2], 0 : tile.shape[3]]


def blocks(kernel, channels, block):
    """Blocks whose sums fill a PSUM bank: (first, count) of tap rows, of tap columns and of channels, in a row."""
    found = []
    for row, rows in pieces(kernel[0], block[0]):
        for column, columns in pieces(kernel[1], block[1]):
            for channel, some in pieces(channels, block[2]):
                found.append((row, rows, column, columns, channel, some))
    return found


def empty_sums(parts, some):
    """A PSUM tile for each part of the targets and each block."""
    found = []
    for part in parts:
        for block in some:
            found.append(nl.ndarray((part[1], block[1], block[3], block[5]), dtype=nl.float32, buffer=nl.psum))
    return found


def empty_bias_sums(parts):
    """A PSUM tile for each part of the targets."""
    found = []
    for part in parts:
        found.append(nl.ndarray((part[1], 1), dtype=nl.float32, buffer=nl.psum))
    return found


def add_strip(sums, gradient, tiles, parts, some, turns, window, started):
    """One strip onto all sums."""
    for turn in range(turns):
        for part in range(len(parts)):
            first, count = parts[part]
            stationary = gradient[0 : gradient.shape[0], turn, first : first + count]
            for number in range(len(some)):
                nisa.nc_matmul(
                    dst=sums[part * len(some) + number],
                    stationary=stationary,
                    moving=turned(tiles[number], turn, turns, some[number][1], window),
                    accumulate=(started or turn > 0),
                )


def store_sums(dw, sums, parts, some, first_target):
    """PSUM tiles, rounded once, to their places in dw."""
    channels, high, wide = dw.shape[1], dw.shape[2], dw.shape[3]
    for part in range(len(parts)):
        first, count = parts[part]
        for number in range(len(some)):
            row, rows, column, columns, channel, size = some[number]
            out = nl.ndarray((count, size, rows, columns), dtype=dw.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out.permute((0, 2, 3, 1)), src=sums[part * len(some) + number])
            pattern = [[channels * high * wide, count], [high * wide, size], [wide, rows], [1, columns]]
            start = ((first_target + first) * channels + channel) * high * wide + row * wide + column
            nisa.dma_copy(dst=dw.ap(pattern=pattern, offset=start), src=out)


def add_bias(sums, gradient, parts, started):
    """dbias as a product with ones."""
    turns = gradient.shape[1]
    ones = nl.ndarray((gradient.shape[0], 1), dtype=gradient.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    for turn in range(turns):
        for part in range(len(parts)):
            first, count = parts[part]
            stationary = gradient[0 : gradient.shape[0], turn, first : first + count]
            nisa.nc_matmul(dst=sums[part], stationary=stationary, moving=ones, accumulate=(started or turn > 0))


def store_bias(dbias, sums, parts, first_target):
    """As `store_sums`."""
    for part in range(len(parts)):
        first, count = parts[part]
        out = nl.ndarray((count, 1), dtype=dbias.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=sums[part])
        nisa.dma_copy(dst=dbias.ap(pattern=[[1, count], [1, 1]], offset=first_target + first), src=out)


def gradient_of(dy, gradients, all_strips, number, target, count):
    """dy of a strip: held, or loaded."""
    if len(gradients) > 0:
        return gradients[number]
    return load_gradient(dy, all_strips[number], target, count)


def sum_blocks(outputs, operands, gradients, all_strips, parts, some, targets, window, steps):
    """Some blocks of dw, and dbias where it is among the outputs, over all strips."""
    x, dy, first_channel = operands
    with_bias = len(outputs) > 1
    sums, bias_sums = empty_sums(parts, some), empty_bias_sums(parts) if with_bias else []
    for number in range(len(all_strips)):
        strip = all_strips[number]
        gradient = gradient_of(dy, gradients, all_strips, number, targets[0], targets[1])
        tiles = []
        for block in some:
            tiles.append(load_taps(x, steps, strip, first_channel, block, window))
        add_strip(sums, gradient, tiles, parts, some, strip[4], window, number > 0)
        if with_bias:
            add_bias(bias_sums, gradient, parts, number > 0)
    store_sums(outputs[0], sums, parts, some, targets[0])
    if with_bias:
        store_bias(outputs[1], bias_sums, parts, targets[0])


@nki.jit
def weight_by_matmul(x, dy, shape, with_bias, before, padded_size, window, groups, tile, block, at_once, held):
    """dw[K, C/groups, R, S] and, if asked for, dbias[K] in HBM.

    `padded_size` is that of the padded image, (0, 0) without padding. A tile is that of `strips`; a block is tap rows,
    tap columns and channels; `at_once` are targets and blocks that are summed together. `held` gradients stay in SBUF.
    """
    outputs = [nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)]
    if with_bias:
        outputs.append(nl.ndarray((shape[0],), dtype=x.dtype, buffer=nl.shared_hbm))
    n, channels, height, width = x.shape
    source, steps = x, (channels * height * width, width, 1, height * width)
    if padded_size[0] > 0:
        source = with_padding(x, before, padded_size)
        steps = (padded_size[0] * padded_size[1] * channels, padded_size[1] * channels, channels, 1)
    all_strips = strips(n, (dy.shape[2], dy.shape[3]), tile)
    all_blocks = blocks((shape[2], shape[3]), shape[1], block)
    for group in range(groups):
        for first, count in pieces(shape[0] // groups, at_once[0]):
            targets, parts = (group * (shape[0] // groups) + first, count), pieces(count, PARTITIONS)
            gradients = load_gradients(dy, all_strips, targets) if held else []
            for begin, some in pieces(len(all_blocks), at_once[1]):
                operands = (source, dy, group * shape[1])
                together, results = all_blocks[begin : begin + some], outputs if begin == 0 else [outputs[0]]
                sum_blocks(results, operands, gradients, all_strips, parts, together, targets, window, steps)
    if with_bias:
        return outputs[0], outputs[1]
    return outputs[0]
