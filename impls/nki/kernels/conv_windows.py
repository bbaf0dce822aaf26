"""Convolution by windows of a source in SBUF: forward and backward-data as one gather; backward-weight of many groups.

    target[n, t, h, w] = sum over channels c and taps (r, s) of weights[t, c, r, s] * source[n, c, ...]

Position i of a residue is target row `TARGET + i * SPACING`. Its tap j is weight row `TAP + j * TAP_STEP` and reads
source row `i * STEP + START + j * REACH`. A window in SBUF holds, from LOW to HIGH, every EVERY-th row of the image
that any tap of any residue reads, so that it is loaded once for all of them. Padding is not held: a tap adds to the
positions that it reaches from inside of the image. Forward has one residue, backward-data one for each row of a stride.

`gather_by_matmul` contracts over source channels on the Tensor Engine, one group at a time: a NaN of one group would
spread through the zeros between groups. `gather_by_channel` and `weight_by_channel` have the target channels of many
groups on partitions and use the Vector Engine, where no partition sees another one.
"""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS, BANK = 128, 512
"""Partitions of a tile; fp32 sums of a PSUM bank."""
STEP, EVERY, LOW, HIGH, SPACING, SIZE, RESIDUES = 0, 1, 2, 3, 4, 5, 6
"""Places in the tuple of an axis."""
TARGET, START, REACH, TAP, TAP_STEP, TAPS = 0, 1, 2, 3, 4, 5
"""Places in the tuple of a residue."""


def pieces(total, size):
    """Return the pieces [(first, count)] that cover range(total)."""
    all_pieces = []
    for first in range(0, total, size):
        all_pieces.append((first, min(size, total - first)))
    return all_pieces


def shares(total, joined):
    """Return [(first, step, count)] of at most 128 channels each; joined, a partition's channels are neighbours in
    HBM."""
    all_parts = []
    if joined:
        parts = (total + PARTITIONS - 1) // PARTITIONS
        for first in range(parts):
            all_parts.append((first, parts, total // parts))
    else:
        for first, count in pieces(total, PARTITIONS):
            all_parts.append((first, 1, count))
    return all_parts


def places(images, axes, tile):
    """Return all tiles: (first, count) of images, of row and of column positions."""
    all_places = []
    rows = (axes[0][SIZE] + axes[0][SPACING] - 1) // axes[0][SPACING]
    columns = (axes[1][SIZE] + axes[1][SPACING] - 1) // axes[1][SPACING]
    for some_images in pieces(images, tile[0]):
        for some_rows in pieces(rows, tile[1]):
            for some_columns in pieces(columns, tile[2]):
                all_places.append((some_images, some_rows, some_columns))
    return all_places


def span(axis, place, extent):
    """Return a window's rows: the first in the source, their number, and the first and end of those in the image."""
    first = place[0] * axis[STEP] + axis[LOW]
    count = ((place[1] - 1) * axis[STEP] + axis[HIGH] - axis[LOW]) // axis[EVERY] + 1
    begin = min(max(0, -(first // axis[EVERY])), count)
    end = max(begin, min(count, (extent - 1 - first) // axis[EVERY] + 1))
    return first, count, begin, end


def inside(source, place, axes):
    """Return rows and columns (begin, end) of a window that lie in the image; the others are padding, which is not
    loaded.

    Where few columns of the image are missing they are taken too: then all rows are one run.
    """
    rows = span(axes[0], place[1], source.shape[2])
    left, _, begin, end = span(axes[1], place[2], source.shape[3])
    if axes[1][EVERY] == 1 and 8 * (end - begin) >= 7 * source.shape[3]:
        begin, end = -left, source.shape[3] - left
    return (rows[2], rows[3]), (begin, end)


def load_window(source, place, axes, channels):
    """Load [channels, images, rows, columns] to SBUF of the window's part in the image; channels are (first, pattern,
    count).

    The part is dense, so that neighbouring rows of the image are neighbours in SBUF. It is one zero if no row or column
    lies in the image.
    """
    (row, row_end), (column, column_end) = inside(source, place, axes)
    first, pattern, count = channels
    if row_end <= row or column_end <= column:
        return nl.zeros((count, 1, 1, 1), dtype=source.dtype, buffer=nl.sbuf)
    window = nl.ndarray((count, place[0][1], row_end - row, column_end - column), dtype=source.dtype, buffer=nl.sbuf)
    start, image = start_and_image(source, place, axes, first)
    pattern = pattern + [[source.shape[1] * source.shape[2] * source.shape[3], place[0][1]]] + image
    nisa.dma_copy(dst=window, src=source.ap(pattern=pattern, offset=start))
    return window


def start_and_image(source, place, axes, channel):
    """Return where a window begins in HBM, and the access pattern of its rows and columns."""
    c, height, width = source.shape[1], source.shape[2], source.shape[3]
    top, left = span(axes[0], place[1], height)[0], span(axes[1], place[2], width)[0]
    (row, row_end), (column, column_end) = inside(source, place, axes)
    row_step, column_step = axes[0][EVERY], axes[1][EVERY]
    start = (place[0][0] * c + channel) * height * width
    start += (top + row * row_step) * width + left + column * column_step
    return start, [[row_step * width, row_end - row], [column_step, column_end - column]]


def load_windows(source, place, axes, parts, joined):
    """Load one window for each part of the channels; joined parts come in one run."""
    all_windows = []
    if not joined:
        for part in parts:
            all_windows.append(load_window(source, place, axes, part))
        return all_windows
    first, pattern, count = parts[0]
    area, number = source.shape[2] * source.shape[3], len(parts)
    (row, row_end), (column, column_end) = inside(source, place, axes)
    if row_end <= row or column_end <= column:
        return load_windows(source, place, axes, parts, False)
    high, wide = row_end - row, column_end - column
    windows = nl.ndarray((count, place[0][1], number, high, wide), dtype=source.dtype, buffer=nl.sbuf)
    start, image = start_and_image(source, place, axes, first)
    pattern = pattern + [[source.shape[1] * area, place[0][1]], [area, number]] + image
    nisa.dma_copy(dst=windows, src=source.ap(pattern=pattern, offset=start))
    for part in range(number):
        all_windows.append(windows[0:count, 0 : place[0][1], part, 0:high, 0:wide])
    return all_windows


def part_of(tile, rows, columns):
    """Return all channels and images of a tile, and some of its rows and columns (first, count, step)."""
    row, high, row_step = rows
    column, wide, column_step = columns
    row_end, column_end = row + (high - 1) * row_step + 1, column + (wide - 1) * column_step + 1
    return tile[0 : tile.shape[0], 0 : tile.shape[1], row:row_end:row_step, column:column_end:column_step]


def covered(axis, residue, tap, skip, count, window):
    """Return the positions from `skip` on whose tap lies in the image, (first, count, 1), and where a window holds it.

    `window` is the begin and end of the window's rows in the image.
    """
    first = (residue[START] + tap * residue[REACH] + skip * axis[STEP] - axis[LOW]) // axis[EVERY]
    step = axis[STEP] // axis[EVERY]
    low = max(0, (window[0] - first + step - 1) // step)
    high = min(count, (window[1] - 1 - first) // step + 1)
    return (low, high - low, 1), (first + low * step - window[0], high - low, step)


def only_tap(axis, residue, tap):
    """Return the axis of a window that holds one tap."""
    row = residue[START] + tap * residue[REACH]
    return axis[STEP], axis[STEP], row, row, axis[SPACING], axis[SIZE], axis[RESIDUES]


def tap_axes(tensors, axes, residue, taps):
    """Return the axes of the window that a pair of taps reads: one that is held, or its own."""
    if len(tensors[1]) > 0:
        return axes
    return only_tap(axes[0], residue[0], taps[0]), only_tap(axes[1], residue[1], taps[1])


def reads(tensors, place, skip, axes, residue):
    """Return [(taps, positions, rows and columns that they read)] of the taps inside the image for some position of a
    place.

    A tap for all positions comes first, if there is one. A held window begins `skip` row positions before the place.
    """
    source, windows = tensors[0], tensors[1]
    whole, partly = [], []
    for taps in tap_pairs(residue):
        residue_axes = tap_axes(tensors, axes, residue, taps)
        before = skip if len(windows) > 0 else 0
        window = inside(source, (place[0], (place[1][0] - before, place[1][1] + before), place[2]), residue_axes)
        rows, some_rows = covered(residue_axes[0], residue[0], taps[0], before, place[1][1], window[0])
        columns, some_columns = covered(residue_axes[1], residue[1], taps[1], 0, place[2][1], window[1])
        if rows[1] > 0 and columns[1] > 0:
            read = (taps, (rows, columns), (some_rows, some_columns))
            if rows[1] == place[1][1] and columns[1] == place[2][1]:
                whole.append(read)
            else:
                partly.append(read)
    return whole, partly


def residue_pairs(axes):
    """Pair residues of rows with those of columns."""
    pairs = []
    for row in axes[0][RESIDUES]:
        for column in axes[1][RESIDUES]:
            pairs.append((row, column))
    return pairs


def tap_pairs(residue):
    """Pair taps of rows with those of columns."""
    pairs = []
    for row in range(residue[0][TAPS]):
        for column in range(residue[1][TAPS]):
            pairs.append((row, column))
    return pairs


def has(axis, residue, place):
    """Return a place without the positions that a residue does not have; none may be left."""
    total = (axis[SIZE] - residue[TARGET] + axis[SPACING] - 1) // axis[SPACING]
    return place[0], min(place[0] + place[1], total) - place[0]


def runs(images, rows, columns):
    """Return [(skip, count)] of row positions: as many at once as a PSUM bank holds."""
    return [] if min(rows, columns) < 1 else pieces(rows, BANK // (images * columns))


def weight_of(residue, taps, width):
    """Return the place of the weight of a pair of taps, in a filter that is `width` wide."""
    row = residue[0][TAP] + taps[0] * residue[0][TAP_STEP]
    return row * width + residue[1][TAP] + taps[1] * residue[1][TAP_STEP]


def target_rows(axis, place):
    """Return the first and the number of the target's rows in a tile."""
    first = place[0] * axis[SPACING]
    return first, min((place[0] + place[1]) * axis[SPACING], axis[SIZE]) - first


def store(target, out, first, place, axes):
    """Store an output tile [channels, images, blocks, rows, columns] to HBM, its channels from `first` on."""
    c, height, width = target.shape[1], target.shape[2], target.shape[3]
    row, high = target_rows(axes[0], place[1])
    column, wide = target_rows(axes[1], place[2])
    start = (place[0][0] * c + first) * height * width + row * width + column
    area, blocks = height * width, out.shape[2]
    pattern = [[blocks * area, out.shape[0]], [c * area, place[0][1]], [area, blocks], [width, high], [1, wide]]
    nisa.dma_copy(dst=target.ap(pattern=pattern, offset=start), src=out)


def load_columns(vectors, first, blocks):
    """Load fp32 (targets, 1) for each of the blocks of a vector in one run; return an empty list without a vector."""
    columns, total = [], 0
    for block in blocks:
        total += block[2]
    for vector in vectors:
        row = nl.ndarray((1, total), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=vector.ap(pattern=[[total, 1], [1, total]], offset=first))
        for at, step, size in blocks:
            # the transpose of a single row sums no elements: a NaN does not spread
            turned = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.psum)
            data = row[0:1, at : at + (size - 1) * step + 1 : step]
            nisa.nc_transpose(dst=turned, data=data, engine=nisa.engine.tensor)
            tile = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=turned)
            columns.append(tile)
    return columns


def finish(out, sums, biases):
    """Add the bias to fp32 sums and round them once."""
    if len(biases) > 0:
        nisa.tensor_scalar(dst=out, data=sums, op0=nl.add, operand0=biases[0])
    else:
        nisa.tensor_copy(dst=out, src=sums)


def copy_matrices(matrices, weights, steps, start, parts):
    """Copy weights element by element, from `start` on, where sources are not the rows of the weights."""
    for number in range(len(matrices)):
        size, targets, taps = matrices[number].shape
        pattern = [[steps[2] * parts[number][1], size], [steps[1], targets], [1, taps]]
        offset = start + parts[number][0] * steps[2]
        nisa.dma_copy(dst=matrices[number], src=weights.ap(pattern=pattern, offset=offset))


def transpose_filters(matrices, weights, steps, start, parts, fold, stage):
    """Load the weights in runs of `fold` whole filters, or of `stage` parts of one, and transpose on the Tensor
    Engine."""
    count, taps = matrices[0].shape[1], steps[3]
    for first, size in pieces(count, PARTITIONS * fold):
        rows = size // fold
        for begin, staged in pieces(len(matrices), stage):
            sources = 0
            for number in range(begin, begin + staged):
                sources += parts[number][2]
            filters = nl.ndarray((rows, fold, sources, taps), dtype=weights.dtype, buffer=nl.sbuf)
            pattern = [[fold * steps[1], rows], [steps[1], fold], [1, sources * taps]]
            offset = start + first * steps[1] + parts[begin][0] * steps[2]
            nisa.dma_copy(dst=filters, src=weights.ap(pattern=pattern, offset=offset))
            for number in range(begin, begin + staged):
                source = (parts[number][0] - parts[begin][0], parts[number][1])
                for member in range(fold):
                    transpose_part(matrices[number], (first + member, rows, fold), filters, member, source)


def transpose_part(matrix, place, filters, member, source):
    """Transpose the taps of some filters (first, count, step), and of the sources (first, step) of a matrix."""
    first, rows, fold = place
    size, end = matrix.shape[0], first + (rows - 1) * fold + 1
    last = source[0] + (size - 1) * source[1] + 1
    for tap, count in pieces(matrix.shape[2], BANK // rows):
        turned = nl.ndarray((size, count, rows), dtype=matrix.dtype, buffer=nl.psum)
        for i in range(count):
            data = filters[0:rows, member, source[0] : last : source[1], tap + i]
            nisa.nc_transpose(dst=turned[0:size, i, 0:rows], data=data, engine=nisa.engine.tensor)
        to = matrix[0:size, first:end:fold, tap : tap + count].permute((0, 2, 1))
        if tap // (BANK // rows) % 2 == 0:
            nisa.tensor_copy(dst=to, src=turned)
        else:
            nisa.activation(dst=to, op=nl.copy, data=turned)


def not_finite(matrices, fold):
    """Return an int32 (1, 1): whether a filter that was transposed holds a NaN or an infinity.

    The Tensor Engine of gen2 transposes by products with an identity, whose zeros make all other elements of a row NaN,
    and so the first one of each row, unless it is itself infinite.
    """
    total = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.psum)
    ones = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    started = False
    for matrix in matrices:
        size, count, taps = matrix.shape
        for first in range(0, count, PARTITIONS * fold):
            zeros = nl.ndarray((size, fold, taps), dtype=nl.float32, buffer=nl.sbuf)
            heads = matrix[0:size, first : first + fold, 0:taps]
            nisa.tensor_scalar(dst=zeros, data=heads, op0=nl.multiply, operand0=0.0)
            row = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=row, op=nl.add, data=zeros, axis=(1, 2))
            nisa.nc_matmul(dst=total, stationary=row, moving=ones[0:size, 0:1], accumulate=started)
            started = True
    flag = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=flag, data=total, op0=nl.not_equal, operand0=0.0)
    return flag


def load_matrices(weights, steps, start, parts, targets, turning):
    """Load [source channels, target channels, taps] to SBUF for each part of the sources.

    `steps` are by group, target, source, and the number of taps. `turning` are `fold` and `stage` of
    `transpose_filters`, or zeros where the rows of the weights are the sources.
    """
    matrices = []
    if turning[0] == 0:
        together = len(parts) if parts[0][1] > 1 else 1
        for begin in range(0, len(parts), together):
            first, step, size = parts[begin]
            rows = nl.ndarray((size, together, targets, steps[3]), dtype=weights.dtype, buffer=nl.sbuf)
            pattern = [[steps[2] * step, size], [steps[2], together], [steps[1], targets], [1, steps[3]]]
            nisa.dma_copy(dst=rows, src=weights.ap(pattern=pattern, offset=start + first * steps[2]))
            for part in range(together):
                matrices.append(rows[0:size, part, 0:targets, 0 : steps[3]])
        return matrices
    for _, _, size in parts:
        matrix = nl.ndarray((size, steps[3], targets), dtype=weights.dtype, buffer=nl.sbuf)
        matrices.append(matrix.permute((0, 2, 1)))
    transpose_filters(matrices, weights, steps, start, parts, turning[0], turning[1])
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        flag, register = not_finite(matrices, turning[0]), nisa.register_alloc()
        nisa.register_load(register, flag)

        def load_again(condition):
            copy_matrices(matrices, weights, steps, start, parts)
            nisa.memset(dst=flag, value=0)
            nisa.register_load(condition, flag)
            return condition

        nl.while_loop(register, load_again)
    return matrices


def moving_of(tensors, place, axes, residue, read, part):
    """Return the part of x that a pair of taps reads for one part of the channels: of a held window, or loaded for it
    alone."""
    source, windows, channels = tensors
    if len(windows) > 0:
        return part_of(windows[part], read[2][0], read[2][1])
    window = load_window(source, place, tap_axes(tensors, axes, residue, read[0]), channels[part])
    return part_of(window, read[2][0], read[2][1])


def start_sums(sums):
    """Write zeros from the Tensor Engine, which on gen2 and gen3 adds only to its own results."""
    count = sums.shape[0]
    stationary = nl.zeros((1, count), dtype=nl.float32, buffer=nl.sbuf)
    moving = nl.zeros((1, sums.shape[1], sums.shape[2], sums.shape[3]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_matmul(dst=sums, stationary=stationary, moving=moving, accumulate=False)


def contract(tensors, matrices, block, place, skip, axes, residue, width):
    """Return PSUM sums of a residue's positions, over all channels and taps, for a block (first, step, count) of
    targets."""
    first, step_of_targets, count = block
    end = first + (count - 1) * step_of_targets + 1
    shape = (count, place[0][1], place[1][1], place[2][1])
    sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    whole, partly = reads(tensors, place, skip, axes, residue)
    started = len(whole) > 0
    if not started:
        start_sums(sums)
    step = 0
    for read in whole + partly:
        for part in range(len(matrices)):
            matrix = matrices[part]
            tap = weight_of(residue, read[0], width)
            stationary = matrix[0 : matrix.shape[0], first:end:step_of_targets, tap]
            moving = moving_of(tensors, place, axes, residue, read, part)
            target = part_of(sums, read[1][0], read[1][1])
            nisa.nc_matmul(dst=target, stationary=stationary, moving=moving, accumulate=(step > 0 or not started))
            step += 1
    return sums


def add_products(tensors, scalars, place, skip, axes, residue, width):
    """Return PSUM sums of a residue's positions, where each partition has its own weights [partitions, channels, taps].

    The Scalar Engine multiplies while the Vector Engine adds, which takes half as long where one operand is in PSUM.
    """
    shape = (scalars.shape[0], place[0][1], place[1][1], place[2][1])
    sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    whole, partly = reads(tensors, place, skip, axes, residue)
    started = len(whole) > 0
    if not started:
        nisa.memset(dst=sums, value=0.0)
    step = 0
    for read in whole + partly:
        for part in range(scalars.shape[1]):
            tap = weight_of(residue, read[0], width)
            weight = scalars[0 : scalars.shape[0], part, tap : tap + 1]
            data, target = moving_of(tensors, place, axes, residue, read, part), part_of(sums, read[1][0], read[1][1])
            if started and step == 0:
                nisa.activation(dst=target, op=nl.copy, data=data, scale=weight)
            else:
                product = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=product, op=nl.copy, data=data, scale=weight)
                nisa.tensor_tensor(dst=target, data1=target, data2=product, op=nl.add)
            step += 1
    return sums


def gather(out, tensors, weights, by_channel, biases, place, axes, width):
    """Fill an output tile: the residues of its rows and columns, interleaved, and zeros where no tap reaches.

    `weights` are matrices with the block of targets that is asked for, or scalars.
    """
    for residue in residue_pairs(axes):
        rows, columns = has(axes[0], residue[0], place[1]), has(axes[1], residue[1], place[2])
        for skip, some_rows in runs(place[0][1], rows[1], columns[1]):
            part = (place[0], (rows[0] + skip, some_rows), columns)
            filled_rows = (residue[0][TARGET] + skip * axes[0][SPACING], some_rows, axes[0][SPACING])
            filled = part_of(out, filled_rows, (residue[1][TARGET], columns[1], axes[1][SPACING]))
            if residue[0][TAPS] * residue[1][TAPS] == 0:
                nisa.memset(dst=filled, value=0.0)
            elif by_channel:
                finish(filled, add_products(tensors, weights, part, skip, axes, residue, width), biases)
            else:
                sums = contract(tensors, weights[0], weights[1], part, skip, axes, residue, width)
                finish(filled, sums, biases)


def empty_tile(target, count, blocks, place, axes):
    """Allocate [channels, images, blocks, rows, columns] in SBUF, for the results of a place."""
    high, wide = target_rows(axes[0], place[1])[1], target_rows(axes[1], place[2])[1]
    return nl.ndarray((count, place[0][1], blocks, high, wide), dtype=target.dtype, buffer=nl.sbuf)


def block_of(out, number):
    """Return [channels, images, rows, columns] of a tile of results."""
    return out[0 : out.shape[0], 0 : out.shape[1], number, 0 : out.shape[3], 0 : out.shape[4]]


def vectors_of(bias, with_bias):
    """Return a list of one vector, or an empty one."""
    vectors = []
    if with_bias:
        vectors.append(bias)
    return vectors


def gather_block(target, source, weights, vectors, axes, steps, width, group, piece, parts, how):
    """Compute some targets (first, count) of a group, whose weights are held; free all of SBUF in the end.

    `steps` are those of the weights, and the sources and targets of a group.
    """
    (first, count), area = piece, source.shape[2] * source.shape[3]
    sources, targets, (tile, resident, turning, joined) = steps[4], steps[5], how
    row, start = group * targets + first, group * steps[0] + first * steps[1]
    channels, blocks = [], shares(count, joined[1])
    for part, step, size in parts:
        channels.append((group * sources + part, [[area * step, size]], size))
    matrices = load_matrices(weights, steps, start, parts, count, turning)
    biases = load_columns(vectors, row, blocks)
    for place in places(target.shape[0], axes, tile):
        windows = load_windows(source, place, axes, channels, joined[0]) if resident else []
        tensors = (source, windows, channels)
        for number in range(len(blocks)):
            block_weights = (matrices, blocks[number])
            if number == 0 or not joined[1]:
                out = empty_tile(target, blocks[number][2], len(blocks) if joined[1] else 1, place, axes)
            to = block_of(out, number if joined[1] else 0)
            gather(to, tensors, block_weights, False, biases[number : number + 1], place, axes, width)
            if number == len(blocks) - 1 or not joined[1]:
                store(target, out, row + (0 if joined[1] else blocks[number][0]), place, axes)


@nki.jit
def gather_by_matmul(
    source, weights, bias, with_bias, shape, axes, steps, width, groups, tile, resident, turning, joined
):
    """Compute [N, targets, H, W] in HBM; a tile is images, row and column positions, and targets with weights held in
    SBUF.

    `steps` are between groups, targets and sources of the weights, and the number of taps of a filter, which is `width`
    wide. `resident` windows stay in SBUF for all targets and taps. `turning` is that of `load_matrices`. `joined` is
    whether neighbouring sources, and targets, share a partition: small images are then moved in longer runs.
    """
    target = nl.ndarray(shape, dtype=source.dtype, buffer=nl.shared_hbm)
    sources, targets, vectors = source.shape[1] // groups, shape[1] // groups, vectors_of(bias, with_bias)
    sizes, parts = (steps[0], steps[1], steps[2], steps[3], sources, targets), shares(sources, joined[0])
    for group in range(groups):
        for piece in pieces(targets, tile[3]):
            how = (tile, resident, turning, joined)
            gather_block(target, source, weights, vectors, axes, sizes, width, group, piece, parts, how)
    return target


def load_scalars(weights, steps, piece, targets, sources):
    """Load fp32 [targets of some groups, their source channels, taps] to SBUF."""
    scalars = nl.ndarray((piece[1] * targets, sources, steps[3]), dtype=nl.float32, buffer=nl.sbuf)
    pattern = [[steps[0], piece[1]], [steps[1], targets], [steps[2], sources], [1, steps[3]]]
    nisa.dma_copy(dst=scalars, src=weights.ap(pattern=pattern, offset=piece[0] * steps[0]))
    return scalars


def spread(source, piece, targets, sources):
    """Return, for each source channel of a group, that channel of some groups, on the partitions of their targets."""
    area, channels = source.shape[2] * source.shape[3], []
    for part in range(sources):
        pattern = [[sources * area, piece[1]]]
        if targets > 1:
            pattern.append([0, targets])
        channels.append((piece[0] * sources + part, pattern, piece[1] * targets))
    return channels


@nki.jit
def gather_by_channel(source, weights, bias, with_bias, shape, axes, steps, width, groups, tile, resident):
    """Compute [N, targets, H, W] as `gather_by_matmul` does, where a tile has all targets of `tile[3]` groups."""
    target = nl.ndarray(shape, dtype=source.dtype, buffer=nl.shared_hbm)
    sources, targets = source.shape[1] // groups, shape[1] // groups
    for piece in pieces(groups, tile[3]):
        channels, row, count = spread(source, piece, targets, sources), piece[0] * targets, piece[1] * targets
        scalars = load_scalars(weights, steps, piece, targets, sources)
        biases = load_columns(vectors_of(bias, with_bias), row, [(0, 1, count)])
        for place in places(shape[0], axes, tile):
            windows = load_windows(source, place, axes, channels, False) if resident else []
            tensors, out = (source, windows, channels), empty_tile(target, count, 1, place, axes)
            gather(block_of(out, 0), tensors, scalars, True, biases, place, axes, width)
            store(target, out, row, place, axes)
    return target


def add_onto(total, part, first):
    """Add partial sums onto a total, or start it with them."""
    if first:
        nisa.tensor_copy(dst=total, src=part)
    else:
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)


def window_sums(tensors, gradient, place, skip, axes, width):
    """Return fp32 [targets, channels, taps]: products of a tile of dy with each tap's part of x, summed over the tile.

    The Vector Engine multiplies, with dy in PSUM, and the Scalar Engine sums.
    """
    residue = (axes[0][RESIDUES][0], axes[1][RESIDUES][0])
    count, channels, taps = gradient.shape[0], len(tensors[2]), residue[0][TAPS] * residue[1][TAPS]
    sums = nl.ndarray((count, channels, taps), dtype=nl.float32, buffer=nl.sbuf)
    factors = nl.ndarray(gradient.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.activation(dst=factors, op=nl.copy, data=gradient)
    whole, partly = reads(tensors, place, skip, axes, residue)
    if len(whole) + len(partly) < taps:
        nisa.memset(dst=sums, value=0.0)
    for read in whole + partly:
        for part in range(channels):
            factor = part_of(factors, read[1][0], read[1][1])
            products = nl.ndarray(factor.shape, dtype=nl.float32, buffer=nl.sbuf)
            data = moving_of(tensors, place, axes, residue, read, part)
            nisa.tensor_tensor(dst=products, data1=data, data2=factor, op=nl.multiply)
            tap = weight_of(residue, read[0], width)
            to = sums[0:count, part, tap : tap + 1]
            nisa.activation_reduce(dst=products, op=nl.copy, data=products, reduce_op=nl.add, reduce_res=to)
    return sums


def whole_sums(gradient):
    """Return fp32 [targets, 1, 1]: a tile of dy summed over its pixels."""
    sums = nl.ndarray((gradient.shape[0], 1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sums, op=nl.add, data=gradient, axis=(1, 2, 3))
    return sums


def store_rows(vector, tile, first):
    """Store fp32 [count, size], rounded once, to rows of a dense tensor from `first` on."""
    count, size = tile.shape[0], tile.shape[1] * tile.shape[2]
    out = nl.ndarray((count, size), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=tile.reshape((count, size)))
    nisa.dma_copy(dst=vector.ap(pattern=[[size, count], [1, size]], offset=first * size), src=out)


@nki.jit
def weight_by_channel(x, dy, shape, with_bias, axes, plain, width, groups, tile, resident):
    """Compute dw[K, C/groups, R, S] and, if asked for, dbias[K] in HBM.

    `plain` are the axes of dy itself; a tile is as in `gather_by_channel`.
    """
    outputs = [nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)]
    if with_bias:
        outputs.append(nl.ndarray((shape[0],), dtype=x.dtype, buffer=nl.shared_hbm))
    targets, area = shape[0] // groups, dy.shape[2] * dy.shape[3]
    for piece in pieces(groups, tile[3]):
        channels, row, count = spread(x, piece, targets, shape[1]), piece[0] * targets, piece[1] * targets
        total = nl.ndarray((count, shape[1], shape[2] * shape[3]), dtype=nl.float32, buffer=nl.sbuf)
        bias_total = nl.ndarray((count, 1, 1), dtype=nl.float32, buffer=nl.sbuf)
        first = True
        for place in places(x.shape[0], axes, tile):
            windows = load_windows(x, place, axes, channels, False) if resident else []
            gradient = load_window(dy, place, plain, (row, [[area, count]], count))
            for skip, rows in runs(place[0][1], place[1][1], place[2][1]):
                some_rows = (place[0], (place[1][0] + skip, rows), place[2])
                part = gradient[0:count, 0 : place[0][1], skip : skip + rows, 0 : place[2][1]]
                sums = window_sums((x, windows, channels), part, some_rows, skip, axes, width)
                add_onto(total, sums, first and skip == 0)
            if with_bias:
                add_onto(bias_total, whole_sums(gradient), first)
            first = False
        store_rows(outputs[0], total, row)
        if with_bias:
            store_rows(outputs[1], bias_total, row)
    if with_bias:
        return outputs[0], outputs[1]
    return outputs[0]
