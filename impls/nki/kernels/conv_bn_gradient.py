"""The gradient of batch normalisation at z, through the batch's own statistics, in fp32.

    dz = dy * scale - mean over the batch of that - (z - mean) * slope,   scale = gamma / deviation

The deviation is sqrt(var + eps), and its derivative by z is (z - mean) / (M * deviation); or, with eps outside, it is
sqrt(var) + eps with the unbiased variance, and its derivative (z - mean) / ((M - 1) * sqrt(var)), of which a constant
channel takes none. So slope = scale * sum(dy * (z - mean)) / deviation / (M * deviation, or (M - 1) * sqrt(var)).

Channels are on partitions; a tile is some images and some of their pixels.
"""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS = 128
SMALLEST = 1e-30
"""Replaces the root of a variance of 0, which divides only zeros."""


def pieces(total, size):
    """Return the pieces [(first, count)] that cover range(total)."""
    all_pieces = []
    for first in range(0, total, size):
        all_pieces.append((first, min(size, total - first)))
    return all_pieces


def places(images, pixels, tile):
    """Return all tiles: (first, count) of images and of pixels."""
    all_places = []
    for some_images in pieces(images, tile[0]):
        for some_pixels in pieces(pixels, tile[1]):
            all_places.append((some_images, some_pixels))
    return all_places


def part_of(tensor, block, place):
    """Return the access pattern of a tile of [N, K, P, Q] in HBM; a block is (first, count) of channels."""
    k, area = tensor.shape[1], tensor.shape[2] * tensor.shape[3]
    start = (place[0][0] * k + block[0]) * area + place[1][0]
    pattern = [[area, block[1]], [k * area, place[0][1]], [1, place[1][1]]]
    return tensor.ap(pattern=pattern, offset=start)


def load_part(tensor, block, place):
    """Load a tile of [N, K, P, Q] to SBUF."""
    tile = nl.ndarray((block[1], place[0][1], place[1][1]), dtype=tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=part_of(tensor, block, place))
    return tile


def load_pair(dy, z, mean, block, place):
    """Load a tile of dy, and one of z less its mean."""
    centred = load_part(z, block, place)
    nisa.tensor_scalar(dst=centred, data=centred, op0=nl.subtract, operand0=mean)
    return load_part(dy, block, place), centred


def column(block):
    """Allocate (channels, 1) in fp32."""
    return nl.ndarray((block[1], 1), dtype=nl.float32, buffer=nl.sbuf)


def load_columns(vectors, block):
    """Load a column for each vector, of which there may be none."""
    columns = []
    for vector in vectors:
        tile = column(block)
        nisa.dma_copy(dst=tile, src=vector.ap(pattern=[[1, block[1]], [1, 1]], offset=block[0]))
        columns.append(tile)
    return columns


def times(block, data, factor, divisor):
    """Return a new column: data times another column, divided by a number."""
    product = column(block)
    nisa.tensor_scalar(
        dst=product, data=data, op0=nl.multiply, operand0=factor, op1=nl.multiply, operand1=1.0 / divisor
    )
    return product


def deviations(block, biased, how):
    """Return the inverse of the deviation, and that of the root of the variance."""
    eps, outside, elements = how
    inverse, root = column(block), column(block)
    if outside:
        freedom = elements / (elements - 1)
        nisa.tensor_scalar(dst=root, data=biased, op0=nl.multiply, operand0=freedom, op1=nl.power, operand1=0.5)
        nisa.tensor_scalar(dst=inverse, data=root, op0=nl.add, operand0=eps)
        nisa.reciprocal(dst=inverse, data=inverse)
        nisa.tensor_scalar(dst=root, data=root, op0=nl.maximum, operand0=SMALLEST)
        nisa.reciprocal(dst=root, data=root)
        return inverse, root
    nisa.tensor_scalar(dst=inverse, data=biased, op0=nl.add, operand0=eps, op1=nl.power, operand1=-0.5)
    return inverse, inverse


def sums_of(block, pairs, dy, z, mean, all_places):
    """Return two columns: dy and dy * (z - mean) summed over all tiles, which are held as pairs or loaded."""
    parts = nl.ndarray((block[1], 2, len(all_places)), dtype=nl.float32, buffer=nl.sbuf)
    for number in range(len(all_places)):
        gradient, centred = pair_of(pairs, number, dy, z, mean, block, all_places[number])
        products = nl.ndarray(centred.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=products, data1=gradient, data2=centred, op=nl.multiply)
        nisa.tensor_reduce(dst=parts[0 : block[1], 0, number : number + 1], op=nl.add, data=gradient, axis=(1, 2))
        nisa.tensor_reduce(dst=parts[0 : block[1], 1, number : number + 1], op=nl.add, data=products, axis=(1, 2))
    sums = nl.ndarray((block[1], 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sums, op=nl.add, data=parts, axis=(2,))
    return sums[0 : block[1], 0:1], sums[0 : block[1], 1:2]


def pair_of(pairs, number, dy, z, mean, block, place):
    """Return a pair of tiles that is held, or load it."""
    if len(pairs) > 0:
        return pairs[number]
    return load_pair(dy, z, mean, block, place)


def store_gradient(dz, block, place, pair, coefficients):
    """Store dy * scale + ((z - mean) * slope + shift) to its place in HBM."""
    scale, slope, shift = coefficients
    out = nl.ndarray(pair[1].shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=out, data=pair[1], op0=nl.multiply, operand0=slope, op1=nl.add, operand1=shift)
    nisa.scalar_tensor_tensor(dst=out, data=pair[0], op0=nl.multiply, operand0=scale, op1=nl.add, operand1=out)
    nisa.dma_copy(dst=part_of(dz, block, place), src=out)


def block_gradient(dy, z, statistics, affine, outputs, block, all_places, resident, how):
    """Compute all results of some channels."""
    elements, outside = how[2], how[1]
    mean, biased = load_columns(statistics, block)
    inverse, root = deviations(block, biased, how)
    pairs = []
    for place in all_places if resident else []:
        pairs.append(load_pair(dy, z, mean, block, place))
    total, product = sums_of(block, pairs, dy, z, mean, all_places)
    normal = times(block, product, inverse, 1.0)
    scale = inverse
    for gamma in load_columns(affine, block):
        scale = times(block, inverse, gamma, 1.0)
    along = times(block, normal, root, -1.0 * (elements - 1 if outside else elements))
    coefficients = (scale, times(block, along, scale, 1.0), times(block, total, scale, -1.0 * elements))
    for number in range(len(all_places)):
        pair = pair_of(pairs, number, dy, z, mean, block, all_places[number])
        store_gradient(outputs[0], block, all_places[number], pair, coefficients)
    if len(outputs) > 1:
        vectors = [normal, total]
        for number in range(2):
            there = outputs[1 + number].ap(pattern=[[1, block[1]], [1, 1]], offset=block[0])
            nisa.dma_copy(dst=there, src=vectors[number])


@nki.jit
def gradient(dy, z, mean, variance, gamma, with_gamma, tile, resident, how):
    """Compute dz[N, K, P, Q] and, with gamma, dgamma[K] and dbeta[K], all fp32 in HBM.

    The variance of z is the biased one; `how` is eps, outside, and the elements of a channel. `resident` tiles stay in
    SBUF between the sums and the gradient that needs them.
    """
    statistics, affine = [mean, variance], [gamma] if with_gamma else []
    outputs = [nl.ndarray(z.shape, dtype=nl.float32, buffer=nl.shared_hbm)]
    for _ in range(2 * len(affine)):
        outputs.append(nl.ndarray((z.shape[1],), dtype=nl.float32, buffer=nl.shared_hbm))
    all_places = places(z.shape[0], z.shape[2] * z.shape[3], tile)
    for block in pieces(z.shape[1], PARTITIONS):
        block_gradient(dy, z, statistics, affine, outputs, block, all_places, resident, how)
    if len(affine) > 0:
        return outputs[0], outputs[1], outputs[2]
    return outputs[0]
