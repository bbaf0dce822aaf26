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

PARTITIONS, DIMENSIONS, RUN, BANK = 128, 5, 8192, 512
"""Partitions of a tile; dimensions of an access pattern; elements of zeros; fp32 sums of a PSUM bank."""


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


def needed(pattern):
    """Return the pattern without dimensions of one element."""
    dimensions = []
    for step, count in pattern:
        if count > 1:
            dimensions.append([step, count])
    return dimensions


def clear(padded, rows, columns):
    """Write zeros in rows and columns (first, end) of all images."""
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
    """Return [N, rows, columns, C] in HBM: the rows and columns of the padded image that windows reach."""
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
    """Return all strips of dy; a tile is images, rows, columns, and whether the rows are turns."""
    all_strips = []
    for image, some_images in pieces(images, tile[0]):
        for row, some_rows in pieces(size[0], tile[1]):
            rows, turns = (1, some_rows) if tile[3] else (some_rows, 1)
            for column, some_columns in pieces(size[1], tile[2]):
                all_strips.append((image, some_images, row, rows, turns, column, some_columns))
    return all_strips


def load_gradient(dy, strip, first, count):
    """Load [pixels, turns, targets] to SBUF."""
    image, images, row, rows, turns, column, columns = strip
    channels, height, width = dy.shape[1], dy.shape[2], dy.shape[3]
    tile = nl.ndarray((images * rows * columns, turns, count), dtype=dy.dtype, buffer=nl.sbuf)
    pattern = [[channels * height * width, images], [width, rows], [1, columns], [rows * width, turns]]
    start = (image * channels + first) * height * width + row * width + column
    pattern = needed(pattern) + [[height * width, count]]
    nisa.dma_copy(dst=tile, src=dy.ap(pattern=pattern, offset=start))
    return tile


def load_gradients(dy, all_strips, targets):
    """Load one tile for each strip."""
    gradients = []
    for strip in all_strips:
        gradients.append(load_gradient(dy, strip, targets[0], targets[1]))
    return gradients


def load_taps(x, steps, strip, first_channel, block, window):
    """Load [pixels, rows, taps of a row, channels] to SBUF: the part of x that a strip reads for a block of taps and
    channels.

    `steps` are those of x by image, row, column and channel; `window` is stride, dilation, and the distance of the rows
    that are held where turns share a tile.
    """
    image, images, row, rows, turns, column, columns = strip
    tap_row, tap_rows, tap_column, tap_columns, channel, channels = block
    stride, dilation, pitch = window
    by_row = pitch if turns > 1 else dilation[0]
    high = ((turns - 1) * stride[0] + (tap_rows - 1) * dilation[0]) // by_row + 1
    pixels = rows * columns
    tile = nl.ndarray((images * pixels, high, tap_columns, channels), dtype=x.dtype, buffer=nl.sbuf)
    start = image * steps[0] + (row * stride[0] + tap_row * dilation[0]) * steps[1]
    start += (column * stride[1] + tap_column * dilation[1]) * steps[2] + (first_channel + channel) * steps[3]
    pattern = [[stride[0] * steps[1], rows], [stride[1] * steps[2], columns], [by_row * steps[1], high]]
    pattern = needed(pattern + [[dilation[1] * steps[2], tap_columns]]) + [[steps[3], channels]]
    whole = needed([[steps[0], images]]) + pattern
    if len(whole) <= DIMENSIONS:
        nisa.dma_copy(dst=tile, src=x.ap(pattern=whole, offset=start))
    else:
        for number in range(images):
            part = tile[number * pixels : (number + 1) * pixels, 0:high, 0:tap_columns, 0:channels]
            nisa.dma_copy(dst=part, src=x.ap(pattern=pattern, offset=start + number * steps[0]))
    return tile


def turned(tile, turn, turns, tap_rows, window):
    """Return the rows of a tile of x that one turn reads."""
    stride, dilation, pitch = window
    step = dilation[0] // pitch if turns > 1 else 1
    first = turn * stride[0] // pitch
    end = first + (tap_rows - 1) * step + 1
    return tile[0 : tile.shape[0], first:end:step, 0 : tile.shape[2], 0 : tile.shape[3]]


def blocks(kernel, channels, block):
    """Return blocks whose sums fill a PSUM bank: (first, count) of tap rows, of tap columns and of channels, in a
    row."""
    all_blocks = []
    for row, rows in pieces(kernel[0], block[0]):
        for column, columns in pieces(kernel[1], block[1]):
            for channel, count in pieces(channels, block[2]):
                all_blocks.append((row, rows, column, columns, channel, count))
    return all_blocks


def empty_sums(parts, batch):
    """Allocate a PSUM tile for each part of the targets and each block."""
    sums = []
    for part in parts:
        for block in batch:
            sums.append(nl.ndarray((part[1], block[1], block[3], block[5]), dtype=nl.float32, buffer=nl.psum))
    return sums


def empty_bias_sums(parts):
    """Allocate a PSUM tile for each part of the targets."""
    sums = []
    for part in parts:
        sums.append(nl.ndarray((part[1], 1), dtype=nl.float32, buffer=nl.psum))
    return sums


def add_strip(sums, gradient, tiles, parts, batch, turns, window, started):
    """Add one strip onto all sums."""
    for turn in range(turns):
        for part in range(len(parts)):
            first, count = parts[part]
            stationary = gradient[0 : gradient.shape[0], turn, first : first + count]
            for number in range(len(batch)):
                nisa.nc_matmul(
                    dst=sums[part * len(batch) + number],
                    stationary=stationary,
                    moving=turned(tiles[number], turn, turns, batch[number][1], window),
                    accumulate=(started or turn > 0),
                )


def store_sums(dw, sums, parts, batch, first_target):
    """Store PSUM tiles, rounded once, to their places in dw."""
    channels, high, wide = dw.shape[1], dw.shape[2], dw.shape[3]
    for part in range(len(parts)):
        first, count = parts[part]
        for number in range(len(batch)):
            row, rows, column, columns, channel, size = batch[number]
            out = nl.ndarray((count, size, rows, columns), dtype=dw.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=out.permute((0, 2, 3, 1)), src=sums[part * len(batch) + number])
            pattern = [[channels * high * wide, count], [high * wide, size], [wide, rows], [1, columns]]
            start = ((first_target + first) * channels + channel) * high * wide + row * wide + column
            nisa.dma_copy(dst=dw.ap(pattern=pattern, offset=start), src=out)


def add_bias(sums, gradient, parts, started):
    """Add a strip to dbias, as a product with ones."""
    turns = gradient.shape[1]
    ones = nl.ndarray((gradient.shape[0], 1), dtype=gradient.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    for turn in range(turns):
        for part in range(len(parts)):
            first, count = parts[part]
            stationary = gradient[0 : gradient.shape[0], turn, first : first + count]
            nisa.nc_matmul(dst=sums[part], stationary=stationary, moving=ones, accumulate=(started or turn > 0))


def store_bias(dbias, sums, parts, first_target):
    """Store PSUM tiles, rounded once, to their places in dbias."""
    for part in range(len(parts)):
        first, count = parts[part]
        out = nl.ndarray((count, 1), dtype=dbias.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=sums[part])
        nisa.dma_copy(dst=dbias.ap(pattern=[[1, count], [1, 1]], offset=first_target + first), src=out)


def gradient_of(dy, gradients, all_strips, number, target, count):
    """Return dy of a strip: held, or loaded."""
    if len(gradients) > 0:
        return gradients[number]
    return load_gradient(dy, all_strips[number], target, count)


def sum_blocks(outputs, operands, gradients, all_strips, parts, batch, targets, window, steps):
    """Sum some blocks of dw, and dbias where it is among the outputs, over all strips."""
    x, dy, first_channel = operands
    with_bias = len(outputs) > 1
    sums, bias_sums = empty_sums(parts, batch), empty_bias_sums(parts) if with_bias else []
    for number in range(len(all_strips)):
        strip = all_strips[number]
        gradient = gradient_of(dy, gradients, all_strips, number, targets[0], targets[1])
        tiles = []
        for block in batch:
            tiles.append(load_taps(x, steps, strip, first_channel, block, window))
        add_strip(sums, gradient, tiles, parts, batch, strip[4], window, number > 0)
        if with_bias:
            add_bias(bias_sums, gradient, parts, number > 0)
    store_sums(outputs[0], sums, parts, batch, targets[0])
    if with_bias:
        store_bias(outputs[1], bias_sums, parts, targets[0])


def sum_by_patterns(outputs, x, dy, before, padded_size, window, groups, tile, block, at_once, resident):
    """Compute dw and dbias by access patterns of the DMA that move element by element."""
    shape = outputs[0].shape
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
            gradients = load_gradients(dy, all_strips, targets) if resident else []
            for begin, batch_size in pieces(len(all_blocks), at_once[1]):
                operands = (source, dy, group * shape[1])
                together, results = all_blocks[begin : begin + batch_size], outputs if begin == 0 else [outputs[0]]
                sum_blocks(results, operands, gradients, all_strips, parts, together, targets, window, steps)


def bands(images, size, tile):
    """Return all strips (image, images, row, bands, turns) of dy; a tile is images, bands, turns.

    Pixel (i, b, q) of turn t is column q, of those that are transposed at once, of row `row + b * turns + t` of image
    `image + i`.
    """
    all_strips = []
    for image, some_images in pieces(images, tile[0]):
        for row, rows in pieces(size[0], tile[1] * tile[2]):
            whole = rows // tile[2] * tile[2]
            row_bands = [(row, whole // tile[2], tile[2])] if whole > 0 else []
            if rows > whole:
                row_bands.append((row + whole, 1, rows - whole))
            for first, count, turns in row_bands:
                all_strips.append((image, some_images, first, count, turns))
    return all_strips


def transpose_onto(tile, first, step, views, spoilt):
    """Set slot i of a tile [pixels, slots, channels], every `step` channels from `first` on, to the transposed
    views[i].

    On gen2 the zeros of an identity spread a NaN or an infinity to the first channel, which then adds to `spoilt`.
    """
    pixels, count = tile.shape[0], views[0].shape[0]
    for slot, slots in pieces(len(views), BANK // count):
        turned = nl.ndarray((pixels, slots, count), dtype=tile.dtype, buffer=nl.psum)
        for i in range(slots):
            data = turned[0:pixels, i, 0:count]
            nisa.nc_transpose(dst=data, data=views[slot + i], engine=nisa.engine.tensor)
        to = tile[0:pixels, slot : slot + slots, first : first + (count - 1) * step + 1 : step]
        if slot // (BANK // count) % 2 == 0:
            nisa.activation(dst=to, op=nl.copy, data=turned)
        else:
            nisa.tensor_copy(dst=to, src=turned)
    for sums in spoilt:
        zeros = nl.ndarray((pixels, len(views)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=zeros, data=tile[0:pixels, 0 : len(views), first], op0=nl.multiply, operand0=0.0)
        row = nl.ndarray((pixels, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=row, op=nl.add, data=zeros, axis=1)
        nisa.tensor_tensor(dst=sums[0:pixels, 0:1], data1=sums[0:pixels, 0:1], data2=row, op=nl.add)


def turn_gradient(dy, strip, first_target, parts, wide, spoilt):
    """Transpose to [pixels, turns, targets] in SBUF for each `wide` columns: the parts (first, step, count) in order.

    Parts that are joined come in one run.
    """
    image, images, row, count, turns = strip
    channels, height, width = dy.shape[1], dy.shape[2], dy.shape[3]
    rows, tiles, total = count * turns, [], 0
    for part in parts:
        total += part[2]
    for _, columns in pieces(width, wide):
        tiles.append(nl.ndarray((images * count * columns, turns, total), dtype=dy.dtype, buffer=nl.sbuf))
    done, together = 0, len(parts) if parts[0][1] > 1 else 1
    for begin in range(0, len(parts), together):
        first, step, size = parts[begin]
        loaded = nl.ndarray((size, images, together, rows, width), dtype=dy.dtype, buffer=nl.sbuf)
        area = height * width
        pattern = [[area * step, size], [channels * area, images], [area, together], [1, rows * width]]
        start = (image * channels + first_target + first) * area + row * width
        nisa.dma_copy(dst=loaded, src=dy.ap(pattern=pattern, offset=start))
        for part in range(together):
            for number in range(len(tiles)):
                column, columns = pieces(width, wide)[number]
                views = []
                for turn in range(turns):
                    views.append(loaded[0:size, 0:images, part, turn:rows:turns, column : column + columns])
                transpose_onto(tiles[number], done, 1, views, spoilt)
            done += size
    return tiles


def clear_border(tile, rows, columns):
    """Write zeros outside of rows and columns (begin, end) of all images."""
    count, images, high, wide = tile.shape
    for begin, end in ((0, rows[0]), (rows[1], high)):
        if end > begin:
            nisa.memset(dst=tile[0:count, 0:images, begin:end, 0:wide], value=0.0, engine=nisa.engine.gpsimd)
    for begin, end in ((0, columns[0]), (columns[1], wide)):
        if end > begin and rows[1] > rows[0]:
            part = tile[0:count, 0:images, rows[0] : rows[1], begin:end]
            nisa.memset(dst=part, value=0.0, engine=nisa.engine.gpsimd)


def load_image(x, image, rows, columns, channels):
    """Load [channels, images, rows, columns] to SBUF, zeros where rows or columns (first, count) leave the image.

    The image is loaded dense, so that neighbouring rows are neighbours in SBUF too, and padded there. `channels` are
    the first, the distance and the number of a part's channels, and how many parts are joined in one run: a result for
    each.
    """
    c, height, width = x.shape[1], x.shape[2], x.shape[3]
    first, step, count, together = channels
    top, left = min(max(0, -rows[0]), rows[1]), min(max(0, -columns[0]), columns[1])
    bottom, right = max(top, min(rows[1], height - rows[0])), max(left, min(columns[1], width - columns[0]))
    high, wide, results = bottom - top, right - left, []
    if high == 0 or wide == 0:
        for _ in range(together):
            results.append(nl.zeros((count, image[1], rows[1], columns[1]), dtype=x.dtype, buffer=nl.sbuf))
        return results
    whole = 8 * wide >= 7 * width
    column, some_columns = (0, width) if whole else (columns[0] + left, wide)
    loaded = nl.ndarray((count, image[1], together, high, some_columns), dtype=x.dtype, buffer=nl.sbuf)
    start = (image[0] * c + first) * height * width + (rows[0] + top) * width + column
    pattern = [[height * width * step, count], [c * height * width, image[1]], [height * width, together]]
    pattern += [[width, high], [1, some_columns]]
    nisa.dma_copy(dst=loaded, src=x.ap(pattern=pattern, offset=start))
    skipped = columns[0] + left - column
    for part in range(together):
        window = loaded[0:count, 0 : image[1], part, 0:high, skipped : skipped + wide]
        if high < rows[1] or wide < columns[1]:
            padded = nl.ndarray((count, image[1], rows[1], columns[1]), dtype=x.dtype, buffer=nl.sbuf)
            clear_border(padded, (top, bottom), (left, right))
            inner = padded[0:count, 0 : image[1], top:bottom, left:right]
            nisa.tensor_copy(dst=inner, src=window, engine=nisa.engine.gpsimd)
            window = padded
        results.append(window)
    return results


def turn_image(x, strip, channels, kernel, before, window, columns, spoilt):
    """Transpose to [pixels, rows, taps of a row, channels] in SBUF for each piece of the columns, for all turns of a
    strip.

    `columns` are all of dy, and how many are transposed at once; channels are the first, their number, and whether they
    are joined.
    """
    image, images, row, count, turns = strip
    stride, dilation, pitch = window
    high = (count * turns - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1
    wide = (columns[0] - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1
    slots = ((turns - 1) * stride[0] + (kernel[0] - 1) * dilation[0]) // pitch + 1
    tiles, results = [], []
    for _, width in pieces(columns[0], columns[1]):
        shape = (images * count * width, slots, kernel[1], channels[1])
        tile = nl.ndarray((shape[0], slots * kernel[1], channels[1]), dtype=x.dtype, buffer=nl.sbuf)
        tiles.append(tile)
        results.append(tile.reshape(shape))
    parts = shares(channels[1], channels[2])
    together = len(parts) if channels[2] else 1
    places = (row * stride[0] - before[0], high), (-before[1], wide)
    for begin in range(0, len(parts), together):
        first, step, size = parts[begin]
        of_part = (channels[0] + first, step, size, together)
        images_of_parts = load_image(x, (image, images), places[0], places[1], of_part)
        for part in range(together):
            for number in range(len(tiles)):
                views = views_of(images_of_parts[part], strip, kernel, window, pieces(columns[0], columns[1])[number])
                transpose_onto(tiles[number], parts[begin + part][0], step, views, spoilt)
    return results


def views_of(loaded, strip, kernel, window, columns):
    """Return the views that are transposed to each slot: rows of x, and for each the taps of a row."""
    _, images, _, count, turns = strip
    stride, dilation, pitch = window
    views = []
    for slot in range(((turns - 1) * stride[0] + (kernel[0] - 1) * dilation[0]) // pitch + 1):
        for tap in range(kernel[1]):
            top, left = slot * pitch, columns[0] * stride[1] + tap * dilation[1]
            bottom = top + (count - 1) * turns * stride[0] + 1
            right = left + (columns[1] - 1) * stride[1] + 1
            step = turns * stride[0]
            views.append(loaded[0 : loaded.shape[0], 0:images, top:bottom:step, left : right : stride[1]])
    return views


def block_of(tile, turn, block, rows, window):
    """Return the part that one turn reads of a block (first, count) of channels."""
    stride, dilation, pitch = window
    first, step = turn * stride[0] // pitch, dilation[0] // pitch if rows > 1 else 1
    end = first + (rows - 1) * step + 1
    return tile[0 : tile.shape[0], first:end:step, 0 : tile.shape[2], block[0] : block[0] + block[1]]


def empty_taps(parts, channel_blocks, kernel, paired):
    """Allocate PSUM tiles: all taps for each part of the targets and each block of channels, or, for pairs of turns,
    which have one part and one block, for each distance of a row of x from the first turn's."""
    sums = []
    for part in parts:
        for block in channel_blocks:
            if not paired:
                shape = (part[1], kernel[0], kernel[1], block[1])
                sums.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
            else:
                for _ in range(kernel[0] + 1):
                    shape = (2 * part[1], 1, kernel[1], block[1])
                    sums.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    return sums


def sum_channels(outputs, operands, turned, all_strips, targets, channels, tile, before, window, spoilt):
    """Sum some channels (first, count) of dw, and a row of dbias if asked for, over all strips.

    Operands are x, dy, and the first channel and target of the group; `turned` are x and dy of all strips, or empty;
    targets are the parts (first, step, count), and where they begin in the transposed dy. The tile ends with `wide`
    columns, channels of a block, and whether turns are taken in pairs.
    """
    x, dy, first_channel, first_target = operands
    dw, wide, paired, (images, gradients) = outputs[0], tile[3], tile[5], turned
    kernel, channel_blocks = (dw.shape[2], dw.shape[3]), pieces(channels[1], tile[4])
    parts, total = [], 0
    for part in targets[0]:
        parts.append((targets[1] + total if len(gradients) > 0 else total, part[2]))
        total += part[2]
    sums, bias_sums = empty_taps(parts, channel_blocks, kernel, paired), []
    if len(outputs) > 1:
        bias_sums.append(nl.ndarray((1, total), dtype=nl.float32, buffer=nl.psum))
    ones = nl.ones((PARTITIONS, 1), dtype=dy.dtype, buffer=nl.sbuf)
    started = False
    for number in range(len(all_strips)):
        strip = all_strips[number]
        if len(gradients) > 0:
            gradient = gradients[number]
        else:
            gradient = turn_gradient(dy, strip, first_target, targets[0], wide, spoilt)
        if len(images) > 0:
            tiles, begin = images[number], channels[0]
        else:
            taken, begin = (first_channel + channels[0], channels[1], False), 0
            tiles = turn_image(x, strip, taken, kernel, before, window, (dy.shape[3], wide), spoilt)
        for piece in range(len(tiles)):
            for turn in range(0, strip[4], 2 if paired else 1):
                if paired:
                    block = (begin, channels[1])
                    add_pair(sums, gradient[piece], parts[0], tiles[piece], block, turn, kernel[0], started)
                else:
                    add_turn(sums, gradient[piece], tiles[piece], begin, turn, parts, channel_blocks, window, started)
                for bias in bias_sums:
                    end = min(turn + 2, strip[4]) if paired else turn + 1
                    add_bias_row(bias, gradient[piece], parts[0][0], turn, end, ones, started)
                started = True
    done = 0
    for part in range(len(parts)):
        first, step, count = targets[0][part]
        own_sums = sums[part * len(channel_blocks) : (part + 1) * len(channel_blocks)]
        if paired:
            own_sums = [join_pairs(sums, count, kernel[0])]
        store_channels(dw, own_sums, (first_target + first, step, count), channels, channel_blocks)
        for bias in bias_sums:
            to = outputs[1][0:1, first : first + (count - 1) * step + 1 : step]
            nisa.tensor_copy(dst=to, src=bias[0:1, done : done + count])
        done += count


def add_turn(sums, gradient, tile, begin, turn, parts, channel_blocks, window, started):
    """Add the products of one turn onto all sums."""
    pixels = gradient.shape[0]
    for part in range(len(parts)):
        first, count = parts[part]
        stationary = gradient[0:pixels, turn, first : first + count]
        for block in range(len(channel_blocks)):
            to = sums[part * len(channel_blocks) + block]
            channels = (begin + channel_blocks[block][0], channel_blocks[block][1])
            moving = block_of(tile, turn, channels, to.shape[1], window)
            nisa.nc_matmul(dst=to, stationary=stationary, moving=moving, accumulate=started)


def add_pair(sums, gradient, targets, tile, channels, turn, taps, started):
    """Add products of two turns, side by side in the stationary operand, with every row of x that one of them reads.

    A row at a distance is a tap of the first turn, and the tap before it of the second; a product that is neither is
    not read.
    """
    pixels, turns, (first, count) = gradient.shape[0], gradient.shape[1], targets
    together, (channel, size) = min(2, turns - turn), channels
    stationary = gradient[0:pixels, turn : turn + together, first : first + count]
    for distance in range(taps + together - 1):
        row = turn + distance
        moving = tile[0:pixels, row : row + 1, 0 : tile.shape[2], channel : channel + size]
        to = sums[distance][0 : together * count, 0:1, 0 : tile.shape[2], 0:size]
        nisa.nc_matmul(dst=to, stationary=stationary, moving=moving, accumulate=started)


def join_pairs(sums, targets, taps):
    """Return [targets, taps of a column, taps of a row, channels] in SBUF of both turns of all pairs."""
    _, _, wide, count = sums[0].shape
    joined = nl.ndarray((targets, taps, wide, count), dtype=nl.float32, buffer=nl.sbuf)
    for tap in range(taps):
        to = joined[0:targets, tap : tap + 1, 0:wide, 0:count]
        nisa.tensor_copy(dst=to, src=sums[tap + 1][targets : 2 * targets])
        nisa.tensor_tensor(dst=to, data1=to, data2=sums[tap][0:targets], op=nl.add)
    return joined


def add_bias_row(sums, gradient, target, first, end, ones, started):
    """Add turns to a row of dbias, as a product with ones."""
    pixels = gradient.shape[0]
    for turn in range(first, end):
        moving = gradient[0:pixels, turn, target : target + sums.shape[1]]
        nisa.nc_matmul(dst=sums, stationary=ones[0:pixels, 0:1], moving=moving, accumulate=started or turn > first)


def store_channels(dw, sums, targets, channels, channel_blocks):
    """Store PSUM tiles, rounded once, to their places in dw: one run for all channels of a target (first, step,
    count)."""
    high, wide, (first_target, step, count) = dw.shape[2], dw.shape[3], targets
    out = nl.ndarray((count, channels[1], high, wide), dtype=dw.dtype, buffer=nl.sbuf)
    for block in range(len(channel_blocks)):
        first, size = channel_blocks[block]
        to = out[0:count, first : first + size, 0:high, 0:wide]
        if block % 2 == 0:
            nisa.tensor_copy(dst=to.permute((0, 2, 3, 1)), src=sums[block])
        else:
            nisa.activation(dst=to.permute((0, 2, 3, 1)), op=nl.copy, data=sums[block])
    run = channels[1] * high * wide
    pattern = [[dw.shape[1] * high * wide * step, count], [1, run]]
    start = (first_target * dw.shape[1] + channels[0]) * high * wide
    nisa.dma_copy(dst=dw.ap(pattern=pattern, offset=start), src=out.reshape((count, run)))


def sum_by_transposes(outputs, x, dy, before, window, groups, tile, at_once, resident, joined, spoilt):
    """Compute dw and dbias by transposes on the Tensor Engine."""
    shape, all_strips = outputs[0].shape, bands(x.shape[0], (dy.shape[2], dy.shape[3]), tile)
    filters, kernel = shape[0] // groups, (shape[2], shape[3])
    parts = shares(filters, joined[1])
    for group in range(groups):
        operands, images, gradients, begin = (x, dy, group * shape[1], group * filters), [], [], 0
        for strip in all_strips:
            if resident[0]:
                taken = (group * shape[1], shape[1], joined[0])
                images.append(turn_image(x, strip, taken, kernel, before, window, (dy.shape[3], tile[3]), spoilt))
            if resident[1]:
                gradients.append(turn_gradient(dy, strip, group * filters, parts, tile[3], spoilt))
        results = [outputs[0]]
        if len(outputs) > 1:
            results.append(nl.ndarray((1, filters), dtype=x.dtype, buffer=nl.sbuf))
        for first, count in pieces(len(parts), at_once[0]):
            targets = (parts[first : first + count], begin)
            for channels in pieces(shape[1], at_once[1]):
                block_outputs = results if channels[0] == 0 else [outputs[0]]
                turned = (images, gradients)
                sum_channels(
                    block_outputs, operands, turned, all_strips, targets, channels, tile, before, window, spoilt
                )
            for part in targets[0]:
                begin += part[2]
        if len(outputs) > 1:
            there = outputs[1].ap(pattern=[[filters, 1], [1, filters]], offset=group * filters)
            nisa.dma_copy(dst=there, src=results[1])


def outputs_of(x, shape, with_bias):
    """Allocate dw and, if asked for, dbias in HBM."""
    outputs = [nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)]
    if with_bias:
        outputs.append(nl.ndarray((shape[0],), dtype=x.dtype, buffer=nl.shared_hbm))
    return outputs


def not_zero(sums):
    """Return an int32 (1, 1): whether any of (P, 1) is not 0."""
    total = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.psum)
    ones = nl.ones((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_matmul(dst=total, stationary=sums, moving=ones, accumulate=False)
    flag = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=flag, data=total, op0=nl.not_equal, operand0=0.0)
    return flag


@nki.jit
def weight_by_transposes(x, dy, shape, with_bias, before, window, groups, tile, at_once, resident, joined, patterns):
    """Compute dw[K, C/groups, R, S] and, if asked for, dbias[K] in HBM.

    A tile is that of `bands`, columns that are transposed at once, channels of a block, and whether turns are taken in
    pairs; `at_once` are parts of the targets and channels that are summed together; `resident` is whether all of x and
    of dy stay in SBUF, `joined` whether their neighbouring channels then share a partition. `patterns` are arguments of
    `sum_by_patterns`, which repeats everything on gen2 where a NaN or an infinity passed through the Tensor Engine.
    """
    outputs, spoilt = outputs_of(x, shape, with_bias), []
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        spoilt.append(nl.zeros((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf))
    sum_by_transposes(outputs, x, dy, before, window, groups, tile, at_once, resident, joined, spoilt)
    if len(spoilt) > 0:
        flag, register = not_zero(spoilt[0]), nisa.register_alloc()
        nisa.register_load(register, flag)

        def repeat(condition):
            padded_size, by_pattern, strip, block, together, kept = patterns
            sum_by_patterns(outputs, x, dy, before, padded_size, by_pattern, groups, strip, block, together, kept)
            nisa.memset(dst=flag, value=0)
            nisa.register_load(condition, flag)
            return condition

        nl.while_loop(register, repeat)
    if with_bias:
        return outputs[0], outputs[1]
    return outputs[0]


@nki.jit
def weight_by_patterns(x, dy, shape, with_bias, before, window, groups, patterns):
    """Compute dw and dbias as `weight_by_transposes` does, without transposes on the Tensor Engine."""
    outputs = outputs_of(x, shape, with_bias)
    padded_size, by_pattern, strip, block, together, kept = patterns
    sum_by_patterns(outputs, x, dy, before, padded_size, by_pattern, groups, strip, block, together, kept)
    if with_bias:
        return outputs[0], outputs[1]
    return outputs[0]
