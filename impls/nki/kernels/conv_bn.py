"""Convolution and batch normalisation in one kernel: z = conv(x, w) stays in fp32 and is never rounded to storage.

Training takes its statistics from the tiles of z as they leave the convolution: bn_stats gives count, mean and squared
distances of each, and bn_aggr weighs tiles of unequal size and adds the distances between their means: no square of a
mean is ever subtracted. Tiles of z stay in SBUF until the statistics are complete, or in HBM where they do not fit.

Channels of z are on partitions. A block is the channels of one instruction: up to 128 of one group on the Tensor
Engine, or all of several groups on the Vector Engine, where no partition sees another one. Windows of a place, some
images, rows and columns, are loaded once for all blocks that are done together; a run is the rows of it that fill a
PSUM bank, one tile of z. A window in SBUF holds every EVERY-th row of the image that any tap reads.
"""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS, BANK, MOMENTS = 128, 512, 6
"""Partitions of a tile; elements of a PSUM bank, as many as bn_stats takes; numbers that it returns."""
STRIDE, BEFORE, DILATION, TAPS, EVERY, OUTPUTS = 0, 1, 2, 3, 4, 5
"""Places in the tuple of an axis."""
ROW, COUNT, GROUP, GROUPS = 0, 1, 2, 3
"""Places in the tuple of a block: its first channel, how many, its first group, how many."""


def pieces(total, size):
    """Return the pieces [(first, count)] that cover range(total)."""
    all_pieces = []
    for first in range(0, total, size):
        all_pieces.append((first, min(size, total - first)))
    return all_pieces


def places(images, axes, tile):
    """Return all places: (first, count) of images, of rows and of columns."""
    all_places = []
    for some_images in pieces(images, tile[0]):
        for some_rows in pieces(axes[0][OUTPUTS], tile[1]):
            for some_columns in pieces(axes[1][OUTPUTS], tile[2]):
                all_places.append((some_images, some_rows, some_columns))
    return all_places


def runs(place):
    """Split a place into places of as many rows as fill a bank."""
    of_place = []
    for first, count in pieces(place[1][1], BANK // (place[0][1] * place[2][1])):
        of_place.append((place[0], (place[1][0] + first, count), place[2]))
    return of_place


def all_runs(all_places):
    """Return the runs of several places."""
    of_places = []
    for place in all_places:
        of_places = of_places + runs(place)
    return of_places


def blocks(channels, groups, tile):
    """Return [[block]], the blocks that are done together. tile[3] groups are in one, or 0 where one group is in
    many."""
    all_blocks, targets = [], channels // groups
    if tile[3] > 0:
        for group, at_once in pieces(groups, tile[3]):
            all_blocks.append([(group * targets, at_once * targets, group, at_once)])
    else:
        for group in range(groups):
            for start, many in pieces(targets, tile[4] * PARTITIONS):
                together = []
                for first, count in pieces(many, PARTITIONS):
                    together.append((group * targets + start + first, count, group, 1))
                all_blocks.append(together)
    return all_blocks


def inputs_of(x, per_group, block, by_channel):
    """Return (first channel of x, pattern, partitions) of each window that a block contracts with."""
    area, windows = x.shape[2] * x.shape[3], []
    first = block[GROUP] * per_group
    if by_channel:
        for part in range(per_group):
            targets = block[COUNT] // block[GROUPS]
            pattern = [[per_group * area, block[GROUPS]], [0, targets]]
            windows.append((first + part, pattern[0 : min(targets, 2)], block[COUNT]))
    else:
        for part, size in pieces(per_group, PARTITIONS):
            windows.append((first + part, [[area, size]], size))
    return windows


def load_weights(w, block, by_channel):
    """Load [source channels, channels, taps] for each window, or one [channels, sources, taps] in fp32."""
    sources, taps, weights = w.shape[1], w.shape[2] * w.shape[3], []
    start = block[ROW] * sources * taps
    if by_channel:
        scalars = nl.ndarray((block[COUNT], sources, taps), dtype=nl.float32, buffer=nl.sbuf)
        pattern = [[sources * taps, block[COUNT]], [taps, sources], [1, taps]]
        nisa.dma_copy(dst=scalars, src=w.ap(pattern=pattern, offset=start))
        weights.append(scalars)
    else:
        for part, size in pieces(sources, PARTITIONS):
            matrix = nl.ndarray((size, block[COUNT], taps), dtype=w.dtype, buffer=nl.sbuf)
            pattern = [[taps, size], [sources * taps, block[COUNT]], [1, taps]]
            nisa.dma_copy(dst=matrix, src=w.ap(pattern=pattern, offset=start + part * taps))
            weights.append(matrix)
    return weights


def span(axis, place, extent):
    """Return a window's rows: the first in the image, their number, and the first and end of those inside of it."""
    first = place[0] * axis[STRIDE] - axis[BEFORE]
    count = ((place[1] - 1) * axis[STRIDE] + (axis[TAPS] - 1) * axis[DILATION]) // axis[EVERY] + 1
    begin = min(max(0, -(first // axis[EVERY])), count)
    end = max(begin, min(count, (extent - 1 - first) // axis[EVERY] + 1))
    return first, count, begin, end


def load_window(x, channels, place, axes):
    """Load [channels, images, rows, columns] to SBUF, with zeros outside of the image."""
    c, height, width = x.shape[1], x.shape[2], x.shape[3]
    top, high, row, row_end = span(axes[0], place[1], height)
    left, wide, column, column_end = span(axes[1], place[2], width)
    first, pattern, count = channels
    first_image, images = place[0]
    window = nl.ndarray((count, images, high, wide), dtype=x.dtype, buffer=nl.sbuf)
    inside = (row_end - row) * (column_end - column)
    if inside < high * wide:
        nisa.memset(dst=window, value=0.0)
    if inside > 0:
        down, right = axes[0][EVERY], axes[1][EVERY]
        start = (first_image * c + first) * height * width + (top + row * down) * width + left + column * right
        image = [[down * width, row_end - row], [right, column_end - column]]
        nisa.dma_copy(
            dst=window[0:count, 0:images, row:row_end, column:column_end],
            src=x.ap(pattern=pattern + [[c * height * width, images]] + image, offset=start),
        )
    return window


def view_of(window, axes, taps, place, run):
    """Return the part of a place's window that a pair of taps reads for a run: [channels, images, rows, columns]."""
    view = window
    for dim in range(2):
        step = axes[dim][STRIDE] // axes[dim][EVERY]
        start = taps[dim] * axes[dim][DILATION] // axes[dim][EVERY] + (run[1 + dim][0] - place[1 + dim][0]) * step
        view = view.slice(2 + dim, start, start + (run[1 + dim][1] - 1) * step + 1, step)
    return view


def contract(windows, matrices, axes, place, run):
    """Compute a tile of z in PSUM, by the Tensor Engine."""
    shape = (matrices[0].shape[1], run[0][1], run[1][1], run[2][1])
    z = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    for part in range(len(matrices)):
        matrix = matrices[part]
        for tap in range(matrix.shape[2]):
            taps = (tap // axes[1][TAPS], tap % axes[1][TAPS])
            stationary = matrix[0 : matrix.shape[0], 0 : matrix.shape[1], tap]
            moving = view_of(windows[part], axes, taps, place, run)
            nisa.nc_matmul(dst=z, stationary=stationary, moving=moving, accumulate=(part + tap > 0))
    return z


def add_products(windows, scalars, axes, place, run):
    """Compute a tile of z in SBUF, by the Vector Engine: every partition has its own weights."""
    count = scalars.shape[0]
    z = nl.ndarray((count, run[0][1], run[1][1], run[2][1]), dtype=nl.float32, buffer=nl.sbuf)
    for part in range(scalars.shape[1]):
        for tap in range(scalars.shape[2]):
            weight = scalars[0:count, part, tap : tap + 1]
            data = view_of(windows[part], axes, (tap // axes[1][TAPS], tap % axes[1][TAPS]), place, run)
            if part + tap == 0:
                nisa.tensor_scalar(dst=z, data=data, op0=nl.multiply, operand0=weight)
            else:
                nisa.scalar_tensor_tensor(dst=z, data=data, op0=nl.multiply, operand0=weight, op1=nl.add, operand1=z)
    return z


def load_operands(x, w, together, by_channel):
    """Return the inputs that windows are made of, and the weights of each block."""
    weights = []
    for block in together:
        weights.append(load_weights(w, block, by_channel))
    return inputs_of(x, w.shape[1], together[0], by_channel), weights


def load_windows(x, inputs, place, axes):
    """Load one window for each part of the channels."""
    windows = []
    for channels in inputs:
        windows.append(load_window(x, channels, place, axes))
    return windows


def convolved(windows, weights, axes, place, run, by_channel):
    """Compute a tile of z, in PSUM or SBUF."""
    if by_channel:
        return add_products(windows, weights[0], axes, place, run)
    return contract(windows, weights, axes, place, run)


def part_of(tensor, block, run):
    """Return the access pattern of a tile of [N, K, P, Q] in HBM."""
    k, height, width = tensor.shape[1], tensor.shape[2], tensor.shape[3]
    start = (run[0][0] * k + block[ROW]) * height * width + run[1][0] * width + run[2][0]
    pattern = [[height * width, block[COUNT]], [k * height * width, run[0][1]], [width, run[1][1]], [1, run[2][1]]]
    return tensor.ap(pattern=pattern, offset=start)


def load_columns(vectors, block):
    """Load [(channels, 1)] in fp32: a block's part of each vector, of which there may be none."""
    columns = []
    for vector in vectors:
        tile = nl.ndarray((block[COUNT], 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=vector.ap(pattern=[[1, block[COUNT]], [1, 1]], offset=block[ROW]))
        columns.append(tile)
    return columns


def store_column(vector, tile, block):
    """Store (channels, 1) to a block's part of a vector."""
    nisa.dma_copy(dst=vector.ap(pattern=[[1, block[COUNT]], [1, 1]], offset=block[ROW]), src=tile)


def keep(tiles, scratch, z, block, run, by_channel):
    """Append a tile of z to a list in SBUF, or store it to scratch."""
    tile = z
    if not by_channel:
        tile = nl.ndarray(z.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=z)
    if len(scratch) > 0:
        nisa.dma_copy(dst=part_of(scratch[0], block, run), src=tile)
    else:
        tiles.append(tile)


def measured(x, w, together, axes, all_places, by_channel, scratch):
    """Return for each block its tiles of z in SBUF, none if scratch takes them, and its (channels, 2) mean and
    variance."""
    inputs, weights = load_operands(x, w, together, by_channel)
    tiles, moments, all_statistics, width = [], [], [], MOMENTS * len(all_runs(all_places))
    for block in together:
        tiles.append([])
        moments.append(nl.ndarray((block[COUNT], width), dtype=nl.float32, buffer=nl.sbuf))
    first = 0
    for place in all_places:
        windows = load_windows(x, inputs, place, axes)
        for run in runs(place):
            for number in range(len(together)):
                z = convolved(windows, weights[number], axes, place, run, by_channel)
                there = moments[number][0 : together[number][COUNT], first : first + MOMENTS]
                nisa.bn_stats(dst=there, data=z)
                keep(tiles[number], scratch, z, together[number], run, by_channel)
            first += MOMENTS
    for part in moments:
        statistics = nl.ndarray((part.shape[0], 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.bn_aggr(dst=statistics, data=part)
        all_statistics.append(statistics)
    return tiles, all_statistics


def tile_of(tiles, scratch, number, block, run):
    """Return a tile of z in SBUF, from where it was kept."""
    if len(scratch) == 0:
        return tiles[number]
    tile = nl.ndarray((block[COUNT], run[0][1], run[1][1], run[2][1]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=part_of(scratch[0], block, run))
    return tile


def scaled(column, factor):
    """Return a new column: a column times a number or another column."""
    product = nl.ndarray(column.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=product, data=column, op0=nl.multiply, operand0=factor)
    return product


def scale_of(variance, affine, eps, outside):
    """Return gamma, if there is one, or 1, / sqrt(variance + eps), or / (sqrt(variance) + eps)."""
    scale = nl.ndarray(variance.shape, dtype=nl.float32, buffer=nl.sbuf)
    if outside:
        nisa.tensor_scalar(dst=scale, data=variance, op0=nl.power, operand0=0.5, op1=nl.add, operand1=eps)
        nisa.reciprocal(dst=scale, data=scale)
    else:
        nisa.tensor_scalar(dst=scale, data=variance, op0=nl.add, operand0=eps, op1=nl.power, operand1=-0.5)
    return scaled(scale, affine[0]) if len(affine) > 0 else scale


def normalise(y, z, block, run, mean, scale, betas):
    """Store (z - mean) * scale + beta to its place in HBM, rounded once."""
    out = nl.ndarray(z.shape, dtype=y.dtype, buffer=nl.sbuf)
    if len(betas) > 0:
        normal = nl.ndarray(z.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=normal, data=z, op0=nl.subtract, operand0=mean, op1=nl.multiply, operand1=scale)
        nisa.tensor_scalar(dst=out, data=normal, op0=nl.add, operand0=betas[0])
    else:
        nisa.tensor_scalar(dst=out, data=z, op0=nl.subtract, operand0=mean, op1=nl.multiply, operand1=scale)
    nisa.dma_copy(dst=part_of(y, block, run), src=out)


def blend(vector, old, new, block, momentum):
    """Store (1 - momentum) * old + momentum * new to a block's part of a vector."""
    kept = scaled(old, 1.0 - momentum)
    nisa.scalar_tensor_tensor(dst=kept, data=new, op0=nl.multiply, operand0=momentum, op1=nl.add, operand1=kept)
    store_column(vector, kept, block)


def empty_vectors(count, size):
    """Allocate fp32 vectors in HBM for results."""
    vectors = []
    for _ in range(count):
        vectors.append(nl.ndarray((size,), dtype=nl.float32, buffer=nl.shared_hbm))
    return vectors


def train_block(tiles, statistics, vectors, running, y, outputs, block, place_runs, scratch, how):
    """Compute a block of y and of the statistics."""
    eps, outside, momentum, elements = how
    mean, biased = statistics[0 : block[COUNT], 0:1], statistics[0 : block[COUNT], 1:2]
    unbiased = scaled(biased, elements / (elements - 1))
    used = unbiased if outside else biased
    affine = load_columns(vectors, block)
    scale = scale_of(used, affine, eps, outside)
    for number in range(len(place_runs)):
        z = tile_of(tiles, scratch, number, block, place_runs[number])
        normalise(y, z, block, place_runs[number], mean, scale, affine[1:2])
    store_column(outputs[0], mean, block)
    store_column(outputs[1], used, block)
    old = load_columns(running, block)
    if len(old) > 0:
        blend(outputs[2], old[0], mean, block, momentum)
        blend(outputs[3], old[1], unbiased, block, momentum)


def train_blocks(x, w, vectors, running, y, outputs, together, axes, all_places, by_channel, scratch, how):
    """Compute several blocks of y and of the statistics."""
    tiles, all_statistics = measured(x, w, together, axes, all_places, by_channel, scratch)
    for number in range(len(together)):
        block, block_tiles = together[number], tiles[number]
        train_block(
            block_tiles, all_statistics[number], vectors, running, y, outputs, block, all_runs(all_places), scratch, how
        )


@nki.jit
def train(x, w, gamma, beta, mean, var, present, shape, axes, groups, tile, resident, how):
    """Compute y[N, K, P, Q], mean[K], var[K] and, where old ones are given, new running statistics, in HBM.

    `present` is whether gamma and beta, and running mean and var, are there. A tile is images, rows and columns of a
    place, groups of a block on the Vector Engine or 0, and blocks together on the Tensor Engine. `how` is eps, outside,
    momentum and the elements of a channel.
    """
    affine, running = [gamma, beta] if present[0] else [], [mean, var] if present[1] else []
    y = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    outputs, all_places = empty_vectors(2 + len(running), shape[1]), places(shape[0], axes, tile)
    scratch = [] if resident else [nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm)]
    for together in blocks(shape[1], groups, tile):
        train_blocks(x, w, affine, running, y, outputs, together, axes, all_places, tile[3] > 0, scratch, how)
    if len(running) > 0:
        return y, outputs[0], outputs[1], outputs[2], outputs[3]
    return y, outputs[0], outputs[1]


def infer_blocks(x, w, affine, running, y, together, axes, all_places, by_channel, eps, outside):
    """Compute several blocks of y."""
    inputs, weights = load_operands(x, w, together, by_channel)
    vectors, statistics, scales = [], [], []
    for block in together:
        vectors.append(load_columns(affine, block))
        statistics.append(load_columns(running, block))
        scales.append(scale_of(statistics[-1][1], vectors[-1], eps, outside))
    for place in all_places:
        windows = load_windows(x, inputs, place, axes)
        for run in runs(place):
            for number in range(len(together)):
                z = convolved(windows, weights[number], axes, place, run, by_channel)
                mean, betas = statistics[number][0], vectors[number][1:2]
                normalise(y, z, together[number], run, mean, scales[number], betas)


@nki.jit
def infer(x, w, gamma, beta, mean, var, with_affine, shape, axes, groups, tile, eps, outside):
    """Compute y[N, K, P, Q] in HBM, normalised by running statistics as z leaves the convolution."""
    affine, running = [gamma, beta] if with_affine else [], [mean, var]
    y, all_places = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm), places(shape[0], axes, tile)
    for together in blocks(shape[1], groups, tile):
        infer_blocks(x, w, affine, running, y, together, axes, all_places, tile[3] > 0, eps, outside)
    return y


@nki.jit
def measure(x, w, shape, axes, groups, tile):
    """Compute z[N, K, P, Q], its mean[K] and its biased variance[K], fp32 in HBM, from which the gradients begin."""
    z = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
    outputs, all_places = empty_vectors(2, shape[1]), places(shape[0], axes, tile)
    for together in blocks(shape[1], groups, tile):
        all_statistics = measured(x, w, together, axes, all_places, tile[3] > 0, [z])[1]
        for number in range(len(together)):
            for at in range(2):
                store_column(
                    outputs[at], all_statistics[number][0 : together[number][COUNT], at : at + 1], together[number]
                )
    return z, outputs[0], outputs[1]
