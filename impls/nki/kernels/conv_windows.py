"""Convolution by windows of a source in SBUF: forward and backward-data as one gather; backward-weight of many groups.

    target[n, t, h, w] = sum over channels c and taps (r, s) of weights[t, c, r, s] * source[n, c, ...]

Position i of a residue is target row `TARGET + i * SPACING`. Its tap j is weight row `TAP + j * TAP_STEP` and reads
source row `i * STEP + START + j * REACH`. A window in SBUF holds, from LOW to HIGH, every EVERY-th row that any tap of
any residue reads, so that it is loaded once for all of them. Forward has one residue, backward-data one for each row of
a stride.

`gather_by_matmul` contracts over source channels on the Tensor Engine, one group at a time: a NaN of one group would
spread through the zeros between groups. `gather_by_channel` and `weight_by_channel` have the target channels of many
groups on partitions and use the Vector Engine, where no partition sees another one.
"""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS, BANK = 128, 512
"""Of a tile; fp32 sums of a PSUM bank."""
STEP, EVERY, LOW, HIGH, SPACING, SIZE, RESIDUES = 0, 1, 2, 3, 4, 5, 6
"""Of an axis."""
TARGET, START, REACH, TAP, TAP_STEP, TAPS = 0, 1, 2, 3, 4, 5
"""Of a residue."""


def pieces(total, size):
    """[(first, count)] that cover range(total)."""
    found = []
    for first in range(0, total, size):
        found.append((first, min(size, total - first)))
    return found


def places(images, axes, tile):
    """All tiles: (first, count) of images, of row and of column positions."""
    found = []
    rows = (axes[0][SIZE] + axes[0][SPACING] - 1) // axes[0][SPACING]
    columns = (axes[1][SIZE] + axes[1][SPACING] - 1) // axes[1][SPACING]
    for some_images in pieces(images, tile[0]):
        for some_rows in pieces(rows, tile[1]):
            for some_columns in pieces(columns, tile[2]):
                found.append((some_images, some_rows, some_columns))
    return found


def span(axis, place, extent):
    """Of a window's rows: the first in the source, how many, and the first and end of those in the image."""
    first = place[0] * axis[STEP] + axis[LOW]
    count = ((place[1] - 1) * axis[STEP] + axis[HIGH] - axis[LOW]) // axis[EVERY] + 1
    begin = min(max(0, -(first // axis[EVERY])), count)
    end = max(begin, min(count, (extent - 1 - first) // axis[EVERY] + 1))
    return first, count, begin, end


def load_window(source, place, axes, channels):
    """[channels, images, rows, columns] in SBUF, zeros outside of the image; channels are (first, pattern, count)."""
    c, height, width = source.shape[1], source.shape[2], source.shape[3]
    top, high, row, row_end = span(axes[0], place[1], height)
    left, wide, column, column_end = span(axes[1], place[2], width)
    first_image, images = place[0]
    first, pattern, count = channels
    window = nl.ndarray((count, images, high, wide), dtype=source.dtype, buffer=nl.sbuf)
    inside = (row_end - row) * (column_end - column)
    if inside < high * wide:
        nisa.memset(dst=window, value=0.0)
    if inside > 0:
        row_step, column_step = axes[0][EVERY], axes[1][EVERY]
        start = (first_image * c + first) * height * width
        start += (top + row * row_step) * width + left + column * column_step
        image = [[row_step * width, row_end - row], [column_step, column_end - column]]
        nisa.dma_copy(
            dst=window[0:count, 0:images, row:row_end, column:column_end],
            src=source.ap(pattern=pattern + [[c * height * width, images]] + image, offset=start),
        )
    return window


def load_windows(source, place, axes, parts):
    """One window for each part of the channels."""
    found = []
    for part in parts:
        found.append(load_window(source, place, axes, part))
    return found


def part_of(tile, rows, columns):
    """All channels and images of a tile; of its rows and columns (first, count, step)."""
    row, high, row_step = rows
    column, wide, column_step = columns
    row_end, column_end = row + (high - 1) * row_step + 1, column + (wide - 1) * column_step + 1
    return tile[0 : tile.shape[0], 0 : tile.shape[1], row:row_end:row_step, column:column_end:column_step]


def reads(axis, residue, tap, skip, count):
    """The rows of a window that a tap reads for positions from `skip` on: first, count, step."""
    first = (residue[START] + tap * residue[REACH] + skip * axis[STEP] - axis[LOW]) // axis[EVERY]
    return first, count, axis[STEP] // axis[EVERY]


def seen(window, axes, residue, taps, place, skip):
    """The part of a window that a pair of taps reads; the window begins `skip` row positions before the place."""
    rows = reads(axes[0], residue[0], taps[0], skip, place[1][1])
    return part_of(window, rows, reads(axes[1], residue[1], taps[1], 0, place[2][1]))


def only_tap(axis, residue, tap):
    """The axis of a window that holds one tap."""
    row = residue[START] + tap * residue[REACH]
    return axis[STEP], axis[STEP], row, row, axis[SPACING], axis[SIZE], axis[RESIDUES]


def load_seen(source, place, axes, part, residue, taps):
    """What a pair of taps reads, loaded for it alone."""
    alone = (only_tap(axes[0], residue[0], taps[0]), only_tap(axes[1], residue[1], taps[1]))
    return seen(load_window(source, place, alone, part), alone, residue, taps, place, 0)


def residue_pairs(axes):
    """Residues of rows with those of columns."""
    found = []
    for row in axes[0][RESIDUES]:
        for column in axes[1][RESIDUES]:
            found.append((row, column))
    return found


def tap_pairs(residue):
    """Taps of rows with those of columns."""
    found = []
    for row in range(residue[0][TAPS]):
        for column in range(residue[1][TAPS]):
            found.append((row, column))
    return found


def has(axis, residue, place):
    """A place without the positions that a residue does not have; none may be left."""
    total = (axis[SIZE] - residue[TARGET] + axis[SPACING] - 1) // axis[SPACING]
    return place[0], min(place[0] + place[1], total) - place[0]


def runs(images, rows, columns, whole):
    """[(skip, count)] of row positions: the whole tile, or as many at once as a PSUM bank holds."""
    if min(rows, columns) < 1:
        return []
    return [(0, rows)] if whole else pieces(rows, BANK // (images * columns))


def weight_of(residue, taps, width):
    """The weight of a pair of taps, in a filter that is `width` wide."""
    row = residue[0][TAP] + taps[0] * residue[0][TAP_STEP]
    return row * width + residue[1][TAP] + taps[1] * residue[1][TAP_STEP]


def target_rows(axis, place):
    """First and number of the target's rows in a tile."""
    first = place[0] * axis[SPACING]
    return first, min((place[0] + place[1]) * axis[SPACING], axis[SIZE]) - first


def store(target, out, first, place, axes):
    """An output tile to HBM, its channels from `first` on."""
    c, height, width = target.shape[1], target.shape[2], target.shape[3]
    row, high = target_rows(axes[0], place[1])
    column, wide = target_rows(axes[1], place[2])
    start = (place[0][0] * c + first) * height * width + row * width + column
    pattern = [[height * width, out.shape[0]], [c * height * width, place[0][1]], [width, high], [1, wide]]
    nisa.dma_copy(dst=target.ap(pattern=pattern, offset=start), src=out)


def load_columns(vectors, first, count):
    """[(count, 1)] in fp32 for each of the vectors, of which there may be none."""
    found = []
    for vector in vectors:
        tile = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=vector.ap(pattern=[[1, count], [1, 1]], offset=first))
        found.append(tile)
    return found


def finish(out, sums, biases):
    """fp32 sums and their bias, rounded once."""
    if len(biases) > 0:
        nisa.tensor_scalar(dst=out, data=sums, op0=nl.add, operand0=biases[0])
    else:
        nisa.tensor_copy(dst=out, src=sums)


def load_matrix(weights, steps, start, sources, targets):
    """[source channels, target channels, taps] in SBUF; steps by group, target, source, and the number of taps."""
    matrix = nl.ndarray((sources, targets, steps[3]), dtype=weights.dtype, buffer=nl.sbuf)
    pattern = [[steps[2], sources], [steps[1], targets], [1, steps[3]]]
    nisa.dma_copy(dst=matrix, src=weights.ap(pattern=pattern, offset=start))
    return matrix


def moving_of(tensors, place, skip, axes, residue, taps, part):
    """What a pair of taps reads of one part of the channels: from a held window, or loaded for it alone."""
    source, windows, channels = tensors
    if len(windows) > 0:
        return seen(windows[part], axes, residue, taps, place, skip)
    return load_seen(source, place, axes, channels[part], residue, taps)


def contract(tensors, matrices, first, count, place, skip, axes, residue, width):
    """PSUM sums of a residue's positions, over all channels and taps; targets from `first` on in the matrices."""
    shape = (count, place[0][1], place[1][1], place[2][1])
    sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    step = 0
    for part in range(len(matrices)):
        matrix = matrices[part]
        for taps in tap_pairs(residue):
            stationary = matrix[0 : matrix.shape[0], first : first + count, weight_of(residue, taps, width)]
            moving = moving_of(tensors, place, skip, axes, residue, taps, part)
            nisa.nc_matmul(dst=sums, stationary=stationary, moving=moving, accumulate=(step > 0))
            step += 1
    return sums


def add_products(tensors, scalars, place, axes, residue, width):
    """SBUF sums of a residue's positions, where every partition has its own weights [partitions, channels, taps]."""
    shape = (scalars.shape[0], place[0][1], place[1][1], place[2][1])
    sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    step = 0
    for part in range(scalars.shape[1]):
        for taps in tap_pairs(residue):
            tap = weight_of(residue, taps, width)
            weight = scalars[0 : scalars.shape[0], part, tap : tap + 1]
            data = moving_of(tensors, place, 0, axes, residue, taps, part)
            if step == 0:
                nisa.tensor_scalar(dst=sums, data=data, op0=nl.multiply, operand0=weight)
            else:
                nisa.scalar_tensor_tensor(
                    dst=sums, data=data, op0=nl.multiply, operand0=weight, op1=nl.add, operand1=sums
                )
            step += 1
    return sums


def gather(target, first, count, tensors, weights, by_channel, biases, place, axes, width):
    """One output tile: the residues of its rows and columns, interleaved, and zeros where no tap reaches.

    `weights` are matrices with the place of `first` in them, or scalars.
    """
    high, wide = target_rows(axes[0], place[1])[1], target_rows(axes[1], place[2])[1]
    out = nl.ndarray((count, place[0][1], high, wide), dtype=target.dtype, buffer=nl.sbuf)
    for residue in residue_pairs(axes):
        rows, columns = has(axes[0], residue[0], place[1]), has(axes[1], residue[1], place[2])
        for skip, some_rows in runs(place[0][1], rows[1], columns[1], by_channel):
            some = (place[0], (rows[0] + skip, some_rows), columns)
            filled_rows = (residue[0][TARGET] + skip * axes[0][SPACING], some_rows, axes[0][SPACING])
            filled = part_of(out, filled_rows, (residue[1][TARGET], columns[1], axes[1][SPACING]))
            if residue[0][TAPS] * residue[1][TAPS] == 0:
                nisa.memset(dst=filled, value=0.0)
            elif by_channel:
                finish(filled, add_products(tensors, weights, some, axes, residue, width), biases)
            else:
                sums = contract(tensors, weights[0], weights[1], count, some, skip, axes, residue, width)
                finish(filled, sums, biases)
    store(target, out, first, place, axes)


def vectors_of(bias, with_bias):
    """A list of one vector, or none."""
    found = []
    if with_bias:
        found.append(bias)
    return found


@nki.jit
def gather_by_matmul(source, weights, bias, with_bias, shape, axes, steps, width, groups, tile, held):
    """[N, targets, H, W] in HBM; a tile is images, row and column positions, and targets whose weights stay in SBUF.

    `steps` are between groups, targets and sources of the weights, and the number of taps of a filter, which is `width`
    wide. `held` windows stay in SBUF for all targets and taps.
    """
    target = nl.ndarray(shape, dtype=source.dtype, buffer=nl.shared_hbm)
    sources, targets = source.shape[1] // groups, shape[1] // groups
    area = source.shape[2] * source.shape[3]
    for group in range(groups):
        for first, count in pieces(targets, tile[3]):
            row, start = group * targets + first, group * steps[0] + first * steps[1]
            channels, matrices = [], []
            for part, size in pieces(sources, PARTITIONS):
                channels.append((group * sources + part, [[area, size]], size))
                matrices.append(load_matrix(weights, steps, start + part * steps[2], size, count))
            for place in places(shape[0], axes, tile):
                windows = load_windows(source, place, axes, channels) if held else []
                tensors = (source, windows, channels)
                for at, some in pieces(count, PARTITIONS):
                    biases = load_columns(vectors_of(bias, with_bias), row + at, some)
                    gather(target, row + at, some, tensors, (matrices, at), False, biases, place, axes, width)
    return target


def load_scalars(weights, steps, some, targets, sources):
    """fp32 [targets of some groups, their source channels, taps] in SBUF."""
    scalars = nl.ndarray((some[1] * targets, sources, steps[3]), dtype=nl.float32, buffer=nl.sbuf)
    pattern = [[steps[0], some[1]], [steps[1], targets], [steps[2], sources], [1, steps[3]]]
    nisa.dma_copy(dst=scalars, src=weights.ap(pattern=pattern, offset=some[0] * steps[0]))
    return scalars


def spread(source, some, targets, sources):
    """For each source channel of a group: that of some groups, on the partitions of their targets."""
    area, found = source.shape[2] * source.shape[3], []
    for part in range(sources):
        pattern = [[sources * area, some[1]]]
        if targets > 1:
            pattern.append([0, targets])
        found.append((some[0] * sources + part, pattern, some[1] * targets))
    return found


@nki.jit
def gather_by_channel(source, weights, bias, with_bias, shape, axes, steps, width, groups, tile, held):
    """The same, where a tile has all targets of `tile[3]` groups."""
    target = nl.ndarray(shape, dtype=source.dtype, buffer=nl.shared_hbm)
    sources, targets = source.shape[1] // groups, shape[1] // groups
    for some in pieces(groups, tile[3]):
        channels, row, count = spread(source, some, targets, sources), some[0] * targets, some[1] * targets
        scalars = load_scalars(weights, steps, some, targets, sources)
        biases = load_columns(vectors_of(bias, with_bias), row, count)
        for place in places(shape[0], axes, tile):
            windows = load_windows(source, place, axes, channels) if held else []
            tensors = (source, windows, channels)
            gather(target, row, count, tensors, scalars, True, biases, place, axes, width)
    return target


def add_onto(total, part, first):
    """Partial sums onto a total, or as its start."""
    if first:
        nisa.tensor_copy(dst=total, src=part)
    else:
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)


def window_sums(tensors, gradient, place, axes, width):
    """fp32 [targets, channels, taps]: products of a tile of dy with what each tap reads of x, summed over the tile."""
    residue = (axes[0][RESIDUES][0], axes[1][RESIDUES][0])
    count, channels, taps = gradient.shape[0], len(tensors[2]), residue[0][TAPS] * residue[1][TAPS]
    sums = nl.ndarray((count, channels, taps), dtype=nl.float32, buffer=nl.sbuf)
    for part in range(channels):
        for pair in tap_pairs(residue):
            products = nl.ndarray(gradient.shape, dtype=nl.float32, buffer=nl.sbuf)
            data = moving_of(tensors, place, 0, axes, residue, pair, part)
            nisa.tensor_tensor(dst=products, data1=data, data2=gradient, op=nl.multiply)
            tap = weight_of(residue, pair, width)
            nisa.tensor_reduce(dst=sums[0:count, part, tap : tap + 1], op=nl.add, data=products, axis=(1, 2, 3))
    return sums


def whole_sums(gradient):
    """fp32 [targets, 1, 1]: a tile of dy summed over its pixels."""
    sums = nl.ndarray((gradient.shape[0], 1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sums, op=nl.add, data=gradient, axis=(1, 2, 3))
    return sums


def store_rows(vector, tile, first):
    """[count, size] in fp32, rounded once, to rows of a dense tensor from `first` on."""
    count, size = tile.shape[0], tile.shape[1] * tile.shape[2]
    out = nl.ndarray((count, size), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=tile.reshape((count, size)))
    nisa.dma_copy(dst=vector.ap(pattern=[[size, count], [1, size]], offset=first * size), src=out)


@nki.jit
def weight_by_channel(x, dy, shape, with_bias, axes, plain, width, groups, tile, held):
    """dw[K, C/groups, R, S] and, if asked for, dbias[K] in HBM.

    `plain` are the axes of dy itself; a tile is as in `gather_by_channel`.
    """
    outputs = [nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)]
    if with_bias:
        outputs.append(nl.ndarray((shape[0],), dtype=x.dtype, buffer=nl.shared_hbm))
    targets, area = shape[0] // groups, dy.shape[2] * dy.shape[3]
    for some in pieces(groups, tile[3]):
        channels, row, count = spread(x, some, targets, shape[1]), some[0] * targets, some[1] * targets
        total = nl.ndarray((count, shape[1], shape[2] * shape[3]), dtype=nl.float32, buffer=nl.sbuf)
        bias_total = nl.ndarray((count, 1, 1), dtype=nl.float32, buffer=nl.sbuf)
        first = True
        for place in places(x.shape[0], axes, tile):
            windows = load_windows(x, place, axes, channels) if held else []
            gradient = load_window(dy, place, plain, (row, [[area, count]], count))
            add_onto(total, window_sums((x, windows, channels), gradient, place, axes, width), first)
            if with_bias:
                add_onto(bias_total, whole_sums(gradient), first)
            first = False
        store_rows(outputs[0], total, row)
        if with_bias:
            store_rows(outputs[1], bias_total, row)
    if with_bias:
        return outputs[0], outputs[1]
    return outputs[0]
