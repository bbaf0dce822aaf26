"""Convolution of few channels: taps side by side with channels on the partitions, and pixels as stationary operand.

    target[n, t, i, j] = sum over channels c and offsets (o, p) of
                         weights[t, c, o, p] * source[n, c, i * u + low + o * d, j * v + low + p * e]

A padded image is split into its u * v lattices, each dense with a pitch of `wide`, so that a tap is a lattice from one
element on, and all its rows are one run. Groups of taps hold it once each on the partitions, shifted against one
another; a step multiplies one such group of taps, and later steps read the same groups further on.

A product takes as many cycles as the moving operand has columns. Few targets are therefore the moving operand, and 128
positions of a lattice the stationary one; the sums are transposed back. On gen2 the Tensor Engine spreads a NaN or an
infinity when it transposes: then everything is computed again without transposes.
"""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS, BANK, QUADRANT = 128, 512, 32
"""Partitions of a tile; fp32 sums of a PSUM bank; partitions where an engine may begin."""
STRIDE, LOW, REACH, TAPS, GROUP, SIZE, REST = 0, 1, 2, 3, 4, 5, 6
"""Places in the tuple of an axis: source rows from target to target, of the first tap of target 0, from tap to tap;
taps; taps of a group; targets; of columns, taps of a group where fewer rows are left than a group has."""


def pieces(total, size):
    """Return the pieces [(first, count)] that cover range(total)."""
    all_pieces = []
    for first in range(0, total, size):
        all_pieces.append((first, min(size, total - first)))
    return all_pieces


def lattice(axis, tap):
    """Return which lattice a tap reads, and from which element on."""
    return tap * axis[REACH] % axis[STRIDE], tap * axis[REACH] // axis[STRIDE]


def pitch(axis, count):
    """Count the elements of a lattice that `count` targets read."""
    return count + (axis[TAPS] - 1) * axis[REACH] // axis[STRIDE]


def watch(spoilt, tile):
    """Add NaN to `spoilt` (128, 1) where the first column of a transposed tile is not finite."""
    for sums in spoilt:
        size = tile.shape[0]
        zeros = nl.ndarray((size, tile.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=zeros, data=tile, op0=nl.multiply, operand0=0.0)
        row = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=row, op=nl.add, data=zeros, axis=1)
        nisa.tensor_tensor(dst=sums[0:size, 0:1], data1=sums[0:size, 0:1], data2=row, op=nl.add)


def steps_of(axes):
    """Return [((first row tap, count), (first column tap, count))] of the taps that are multiplied at once."""
    all_steps = []
    for rows in pieces(axes[0][TAPS], axes[0][GROUP]):
        for columns in pieces(axes[1][TAPS], axes[1][REST] if is_rest(axes, rows) else axes[1][GROUP]):
            all_steps.append((rows, columns))
    return all_steps


def is_rest(axes, rows):
    """Return whether these row taps, fewer than a group has, are multiplied with groups of columns of their own."""
    return rows[1] < axes[0][GROUP] and axes[1][REST] > 1


def load_matrices(weights, steps, axes, sources, targets, flipped, exact, spoilt):
    """Load [(column taps, row taps, sources), targets] to SBUF for each step; `steps` are by target and source."""
    matrices, high, wide = [], axes[0][TAPS], axes[1][TAPS]
    if exact:
        for rows, columns in steps_of(axes):
            shape = (columns[1] * rows[1] * sources, targets)
            matrix = nl.ndarray(shape, dtype=weights.dtype, buffer=nl.sbuf)
            for column in range(columns[1]):
                for row in range(rows[1]):
                    tap = tap_of(axes, rows[0] + row, columns[0] + column, flipped)
                    first = (column * rows[1] + row) * sources
                    pattern = [[steps[1], sources], [steps[0], targets]]
                    nisa.dma_copy(
                        dst=matrix[first : first + sources, 0:targets], src=weights.ap(pattern=pattern, offset=tap)
                    )
            matrices.append(matrix)
        return matrices
    if flipped:
        return matrices_of_sources(weights, axes, sources, targets)
    for rows, columns in steps_of(axes):
        shape = (columns[1] * rows[1] * sources, targets)
        matrices.append(nl.ndarray(shape, dtype=weights.dtype, buffer=nl.sbuf))
    for first, count in pieces(targets, PARTITIONS):
        filters = nl.ndarray((count, sources * high * wide), dtype=weights.dtype, buffer=nl.sbuf)
        pattern = [[steps[0], count], [1, sources * high * wide]]
        nisa.dma_copy(dst=filters, src=weights.ap(pattern=pattern, offset=first * steps[0]))
        filters = filters.reshape((count, sources, high, wide))
        for number in range(len(matrices)):
            rows, columns = steps_of(axes)[number]
            part = filters[
                0:count, 0:sources, rows[0] : rows[0] + rows[1], columns[0] : columns[0] + columns[1]
            ].permute((0, 3, 2, 1))
            turned = nl.ndarray((matrices[number].shape[0], count), dtype=weights.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=part, engine=nisa.engine.tensor)
            nisa.tensor_copy(dst=matrices[number][0 : turned.shape[0], first : first + count], src=turned)
            watch(spoilt, matrices[number][0 : turned.shape[0], first : first + 1])
    return matrices


def tap_of(axes, row, column, flipped):
    """Return the place of a tap's weight; taps are counted from the lowest row that is read."""
    high, wide = axes[0][TAPS], axes[1][TAPS]
    if flipped:
        return (high - 1 - row) * wide + wide - 1 - column
    return row * wide + column


def matrices_of_sources(weights, axes, sources, targets):
    """Load matrices where rows of the weights are sources: one load, and copies to the partitions of each group."""
    taps = axes[0][TAPS] * axes[1][TAPS]
    loaded = nl.ndarray((sources, targets, taps), dtype=weights.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded, src=weights.ap(pattern=[[targets * taps, sources], [1, targets * taps]], offset=0))
    matrices = []
    for rows, columns in steps_of(axes):
        shape = (columns[1] * rows[1] * sources, targets)
        matrix = nl.ndarray(shape, dtype=weights.dtype, buffer=nl.sbuf)
        for column in range(columns[1]):
            for row in range(rows[1]):
                first, tap = (column * rows[1] + row) * sources, tap_of(axes, rows[0] + row, columns[0] + column, True)
                nisa.tensor_copy(dst=matrix[first : first + sources, 0:targets], src=loaded[0:sources, 0:targets, tap])
        matrices.append(matrix)
    return matrices


def load_columns(vectors, count):
    """Load fp32 (targets, 1) for each part of a vector in one run; a row that is alone keeps its NaN apart."""
    columns = []
    for vector in vectors:
        row = nl.ndarray((1, count), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=vector.ap(pattern=[[count, 1], [1, count]], offset=0))
        for first, size in pieces(count, PARTITIONS):
            turned = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=row[0:1, first : first + size], engine=nisa.engine.tensor)
            tile = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=turned)
            columns.append(tile)
    return columns


def fill_lattice(plane, dense, axes, first, extents, a, b):
    """Set plane[C, high, wide] to the lattice (a, b) of an image, of which `dense` holds the rows from `first[2]`
    on."""
    count, high, wide = plane.shape
    u, v = axes[0][STRIDE], axes[1][STRIDE]
    row, row_end = inside(first[0] + a, u, high, extents[0])
    column, column_end = inside(first[1] + b, v, wide, extents[1])
    borders = [((0, row), (0, wide)), ((row_end, high), (0, wide))]
    borders += [((row, row_end), (0, column)), ((row, row_end), (column_end, wide))]
    for rows, columns in borders:
        if rows[1] > rows[0] and columns[1] > columns[0]:
            part = plane[0:count, rows[0] : rows[1], columns[0] : columns[1]]
            nisa.memset(dst=part, value=0.0, engine=nisa.engine.gpsimd)
    if row_end > row and column_end > column:
        top, left = first[0] + a + row * u - first[2], first[1] + b + column * v
        bottom, right = top + (row_end - row - 1) * u + 1, left + (column_end - column - 1) * v + 1
        to, data = plane[0:count, row:row_end, column:column_end], dense[0:count, top:bottom:u, left:right:v]
        if b % 2 == 0:
            nisa.tensor_copy(dst=to, src=data, engine=nisa.engine.gpsimd)
        else:
            nisa.activation(dst=to, op=nl.copy, data=data)


def inside(first, step, count, extent):
    """Return begin and end of the elements of a lattice that lie in the image."""
    begin = min(max(0, (-first + step - 1) // step), count)
    return begin, max(begin, min(count, (extent - 1 - first) // step + 1))


def load_groups(source, image, place, axes):
    """Load [[(column taps, row taps, C), elements]] to SBUF, pitched as `pitch` says, for the first group of taps.

    A second group is loaded where the columns of the last rows have groups of their own. `place` are the first and the
    number of target rows.
    """
    channels, height, width = source.shape[1], source.shape[2], source.shape[3]
    u, v = axes[0][STRIDE], axes[1][STRIDE]
    high, wide = pitch(axes[0], place[1]) + 2, pitch(axes[1], axes[1][SIZE])
    top, left = place[0] * u + axes[0][LOW], axes[1][LOW]
    begin, end = max(0, top), min(height, top + high * u)
    size = high * wide
    rows, columns = axes[0][GROUP], axes[1][GROUP]
    groups = nl.ndarray((columns * rows * channels, size), dtype=source.dtype, buffer=nl.sbuf)
    dense = nl.ndarray((channels, max(1, end - begin), width), dtype=source.dtype, buffer=nl.sbuf)
    if end > begin:
        start = image * channels * height * width + begin * width
        pattern = [[height * width, channels], [1, (end - begin) * width]]
        nisa.dma_copy(dst=dense, src=source.ap(pattern=pattern, offset=start))
    planes = []
    for a in range(u):
        for b in range(v):
            if a + b == 0 and u * v == 1:
                plane = groups[0:channels, 0:size]
            else:
                plane = nl.ndarray((channels, size), dtype=source.dtype, buffer=nl.sbuf)
            fill_lattice(plane.reshape((channels, high, wide)), dense, axes, (top, left, begin), (height, width), a, b)
            planes.append(plane)
    for column in range(columns):
        for row in range(rows):
            (a, down), (b, right) = lattice(axes[0], row), lattice(axes[1], column)
            first, shift = (column * rows + row) * channels, down * wide + right
            data = planes[a * v + b][0:channels, shift:size]
            if first == 0 and u * v == 1:
                continue
            to = groups[first : first + channels, 0 : size - shift]
            if channels % QUADRANT == 0:
                nisa.activation(dst=to, op=nl.copy, data=data)
            else:
                nisa.dma_copy(dst=to, src=data)
    if axes[1][REST] == 1:
        return [groups]
    rest = nl.ndarray((axes[1][REST] * channels, size), dtype=source.dtype, buffer=nl.sbuf)
    for column in range(axes[1][REST]):
        first, shift = column * channels, column * axes[1][REACH]
        to, data = rest[first : first + channels, 0 : size - shift], planes[0][0:channels, shift:size]
        if column == 0:
            nisa.tensor_copy(dst=to, src=data, engine=nisa.engine.gpsimd)
        else:
            nisa.activation(dst=to, op=nl.copy, data=data)
    return [groups, rest]


def multiplied(sums, matrices, groups, axes, first, count, columns, swapped):
    """Set PSUM sums of `count` elements of the lattices from `first` on, or of rows of them (row, rows) if not
    swapped."""
    wide, steps = pitch(axes[1], axes[1][SIZE]), steps_of(axes)
    for number in range(len(steps)):
        rows_of_step, columns_of_step = steps[number]
        shift = lattice(axes[0], rows_of_step[0])[1] * wide + lattice(axes[1], columns_of_step[0])[1]
        matrix = matrices[number]
        size, group = matrix.shape[0], groups[1 if is_rest(axes, rows_of_step) else 0]
        if swapped:
            stationary = group[0:size, first + shift : first + shift + count]
            nisa.nc_matmul(dst=sums, stationary=stationary, moving=matrix, accumulate=number > 0)
        else:
            start = first * wide + shift
            rows = group[0:size, start : start + count * wide].reshape((size, count, wide))
            moving = rows[0:size, 0:count, 0 : axes[1][SIZE]]
            stationary = matrix[0:size, columns[0] : columns[0] + columns[1]]
            nisa.nc_matmul(dst=sums, stationary=stationary, moving=moving, accumulate=number > 0)


def swapped_sums(matrices, groups, axes, runs, targets, spoilt):
    """Return PSUM [(runs, targets), rows, columns] of runs of rows (first, count): positions as stationary operand.

    The sums are transposed back, those of all runs at once, and after all products: the Tensor Engine takes its
    instructions in order, and would wait for each copy.
    """
    wide, number, rows = pitch(axes[1], axes[1][SIZE]), len(runs), runs[0][1]
    # a single row is not computed behind its last column, which may save the last of the pieces
    kept = axes[1][SIZE] if rows == 1 else wide
    all_pieces, tiles = pieces(rows * kept, PARTITIONS), []
    for at, count in all_pieces:
        sums = nl.ndarray((count, number * targets), dtype=nl.float32, buffer=nl.psum)
        for run in range(number):
            part = sums[0:count, run * targets : (run + 1) * targets]
            multiplied(part, matrices, groups, axes, runs[run][0] * wide + at, count, (0, targets), True)
        tile = nl.ndarray((count, number * targets), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=tile, op=nl.copy, data=sums)
        tiles.append(tile)
    turned = nl.ndarray((number * targets, rows * kept), dtype=nl.float32, buffer=nl.psum)
    for piece in range(len(all_pieces)):
        at, count = all_pieces[piece]
        to = turned[0 : number * targets, at : at + count]
        nisa.nc_transpose(dst=to, data=tiles[piece], engine=nisa.engine.tensor)
    if len(spoilt) > 0:
        heads = nl.ndarray((number * targets, len(all_pieces)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=heads, src=turned[0 : number * targets, 0 : rows * kept : PARTITIONS])
        watch(spoilt, heads)
    return turned.reshape((number * targets, rows, kept))[0 : number * targets, 0:rows, 0 : axes[1][SIZE]]


def runs_of(rows, size, together):
    """Return [[(first, count)]]: runs of `size` rows, `together` in a list; a shorter rest is a list of its own."""
    all_runs, whole = [], pieces(rows // size * size, size)
    for first, count in pieces(len(whole), together):
        all_runs.append(whole[first : first + count])
    if rows % size > 0:
        all_runs.append([(rows // size * size, rows % size)])
    return all_runs


def finish(out, sums, biases):
    """Add the bias to fp32 sums and round them once."""
    if len(biases) > 0:
        nisa.tensor_scalar(dst=out, data=sums, op0=nl.add, operand0=biases[0])
    else:
        nisa.tensor_copy(dst=out, src=sums)


def gather(target, source, weights, vectors, axes, steps, tile, flipped, swapped, exact, spoilt):
    """Fill the whole target."""
    sources, targets, high, wide = source.shape[1], target.shape[1], target.shape[2], target.shape[3]
    matrices = load_matrices(weights, steps, axes, sources, targets, flipped, exact, spoilt)
    biases = load_columns(vectors, targets)
    together = 2 if swapped and 2 * targets <= PARTITIONS and targets % QUADRANT == 0 else 1
    for image in range(target.shape[0]):
        for place in pieces(high, tile[0]):
            groups = load_groups(source, image, place, axes)
            for first, count in pieces(targets, PARTITIONS):
                out = nl.ndarray((count, place[1], wide), dtype=target.dtype, buffer=nl.sbuf)
                for runs in runs_of(place[1], tile[1], together):
                    if swapped:
                        both = swapped_sums(matrices, groups, axes, runs, targets, spoilt)
                    for run in range(len(runs)):
                        row, rows = runs[run]
                        to = out[0:count, row : row + rows, 0:wide]
                        if swapped:
                            finish(to, both[run * targets : (run + 1) * targets, 0:rows, 0:wide], biases)
                        else:
                            sums = nl.ndarray((count, rows, wide), dtype=nl.float32, buffer=nl.psum)
                            multiplied(sums, matrices, groups, axes, row, rows, (first, count), False)
                            finish(to, sums, biases[first // PARTITIONS : first // PARTITIONS + 1])
                start = ((image * targets + first) * high + place[0]) * wide
                pattern = [[high * wide, count], [1, place[1] * wide]]
                nisa.dma_copy(dst=target.ap(pattern=pattern, offset=start), src=out.reshape((count, place[1] * wide)))


@nki.jit
def gather_packed(source, weights, bias, with_bias, shape, axes, steps, tile, flipped, swapped):
    """Compute [N, targets, H, W] in HBM; axes are as above, `steps` are between targets and sources of the weights.

    A tile is rows that are loaded and rows that are summed at once. `flipped` says that the taps of the weights are
    counted from the highest row, and that their rows are sources. `swapped` is whether positions are stationary.
    """
    target = nl.ndarray(shape, dtype=source.dtype, buffer=nl.shared_hbm)
    vectors, spoilt = [], []
    if with_bias:
        vectors.append(bias)
    if nisa.get_nc_version() == nisa.nc_version.gen2 and (swapped or not flipped):
        spoilt.append(nl.zeros((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf))
    gather(target, source, weights, vectors, axes, steps, tile, flipped, swapped, False, spoilt)
    if len(spoilt) > 0:
        flag, register = not_zero(spoilt[0]), nisa.register_alloc()
        nisa.register_load(register, flag)

        def repeat(condition):
            gather(target, source, weights, vectors, axes, steps, tile, flipped, False, True, [])
            nisa.memset(dst=flag, value=0)
            nisa.register_load(condition, flag)
            return condition

        nl.while_loop(register, repeat)
    return target


def not_zero(sums):
    """Return an int32 (1, 1): whether any of (P, 1) is not 0."""
    total = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.psum)
    ones = nl.ones((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_matmul(dst=total, stationary=sums, moving=ones, accumulate=False)
    flag = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=flag, data=total, op0=nl.not_equal, operand0=0.0)
    return flag
