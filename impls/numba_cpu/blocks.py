"""How the dense kernel of gather.py cuts a problem into blocks, tiles and shares of the workers.

Sizes: CHANNELS = 128 keeps a weight panel (9 taps * 128 * 13 * 4 bytes = 60 KB) and, with BLOCK_BYTES, the
source block in a 2 MB second-level cache; about 1024..4096 outputs amortise copying the panel there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from .gather import PIECE, STATUS
from .geometry import Array, Axis, even_split
from .microkernel import LOW_ROWS, TILES
from .plan import F, Lattice, joined, record
from .vectors import lanes_of

CHANNELS = 128
BLOCK_BYTES = 768 * 1024
BLOCK_COLUMNS = 128
BLOCK_OUTPUTS = 2048
PART_OUTPUTS = 256
MERGED_OUTPUTS = 512
FEW_OUTPUTS = 128
PANELS_BYTES = 256 * 1024
LOW_COST = 1.15
UNITS_PER_WORKER = 4
UNPACKED_USES = 8


@dataclass(frozen=True)
class Dense:
    """A plan, the plan of the lattices whose weights are packed, and the numbers of elements that they need in
    memory."""

    plan: Array
    packing: Array
    work: int
    scratch: int
    panels: int
    pads: bool


@dataclass(frozen=True)
class _Plane:
    """One channel of a block's buffer: rows, the distance between them, and that between channels.

    The channel pitch is an odd number of vectors: a power of two would put all channels into one cache set.
    """

    rows: int
    pitch: int
    channel_pitch: int
    by_row: bool
    vectors: int


def _plane(axes: tuple[Axis, Axis], extent: tuple[int, int], lanes: int) -> _Plane:
    height, width = (extent[i] + int(axes[i].slots.max()) for i in (0, 1))
    in_rows, across = extent[0] * -(-extent[1] // lanes), -(-((extent[0] - 1) * width + extent[1]) // lanes)
    by_row = in_rows <= across
    pitch = -(-width // lanes) * lanes if by_row else width
    size = len(axes[0].phases) * len(axes[1].phases) * height * pitch
    return _Plane(height, pitch, (-(-size // lanes) | 1) * lanes, by_row, min(in_rows, across))


def _lines_up(lattice: Lattice) -> bool:
    """Return whether outputs and their source pixels are the same unbroken lines of memory."""
    (rows, columns), (_, _, h, w), (_, _, u, v) = lattice.axes, lattice.src_strides, lattice.out_strides
    same = all(axis.count == axis.source and axis.step == axis.target_step == 1 for axis in (rows, columns))
    single = rows.taps.size == columns.taps.size == 1 and rows.low == columns.low == 0
    return same and single and w == v == 1 and h == u == columns.count


def _line(axis: Axis, count: int) -> Axis:
    return Axis(axis.taps, axis.offsets, 1, count, count, 1, axis.target_start, axis.starts)


def tile_of(rows: int, vectors: int, lowest: bool = False) -> tuple[int, int]:
    """Return the register tile that leaves the fewest elements unused; only low ones count if `lowest`. A low tile has
    more to load for each element."""
    costs = {tile: -(-rows // tile[0]) * tile[0] * -(-vectors // tile[1]) * tile[1] for tile in TILES}
    allowed = [tile for tile in TILES if tile[0] == LOW_ROWS or not lowest]
    return min(allowed, key=lambda tile: costs[tile] * (LOW_COST if tile[0] == LOW_ROWS else 1))


@dataclass(frozen=True)
class _Block:
    """Images, outputs (U, V) and channels of a block, and the number of parts that the targets are divided into."""

    n: int
    u: int
    v: int
    c: int
    parts_k: int


def _cut(lattice: Lattice, in_place: bool, dtype: np.dtype, workers: int) -> _Block:
    """Return the largest block that stays in cache, of several images where they are small; and a number of parts of
    the targets that gives every worker the same work."""
    images, groups, channels, _ = lattice.problem
    (rows, columns), lanes = lattice.axes, lanes_of(dtype)
    if in_place:
        u, v = 1, even_split(columns.count, BLOCK_OUTPUTS, lanes)
    else:
        most = BLOCK_OUTPUTS if rows.source == rows.count == 1 else BLOCK_COLUMNS  # of one dimension
        v = columns.count if columns.count <= most * 3 // 2 else most
        u = even_split(rows.count, max(1, BLOCK_OUTPUTS // v))
        channel_bytes = min(channels, CHANNELS // 2) * dtype.itemsize
        while u > 1 and _plane(lattice.axes, (u, v), lanes).channel_pitch * channel_bytes > BLOCK_BYTES:
            u = -(-u // 2)
    planes = -(-rows.count // u) * -(-columns.count // v)
    n = 1
    if planes == 1:
        n = even_split(images, max(1, MERGED_OUTPUTS // (u * v)))
        while n > 1 and -(-images // n) * groups % workers:
            n -= 1

    def blocks(u: int) -> int:
        return -(-images // n) * groups * -(-rows.count // u) * -(-columns.count // v)

    while u > 1 and blocks(u) % workers and blocks(u) < UNITS_PER_WORKER * workers and u * v >= 2 * PART_OUTPUTS:
        u = -(-u // 2)
    size = n * (lanes if in_place else _plane(lattice.axes, (u, v), lanes).channel_pitch) * dtype.itemsize
    most = 4 * CHANNELS if in_place else max(1, min(CHANNELS if u * v > FEW_OUTPUTS else channels, BLOCK_BYTES // size))
    enough = blocks(u) >= UNITS_PER_WORKER * workers
    return _Block(n, u, v, even_split(channels, most), 1 if enough else workers // gcd(workers, blocks(u)))


def _record(lattice: Lattice, dtype: np.dtype, workers: int, panels_at: int) -> tuple[Array, Dense]:
    lanes, in_place = lanes_of(dtype), False
    if _lines_up(lattice) and lattice.axes[0].count * lattice.axes[1].count >= lanes:
        size = lattice.axes[0].count * lattice.axes[1].count
        lattice, in_place = replace(lattice, axes=(_line(lattice.axes[0], 1), _line(lattice.axes[1], size))), True
    images, groups, channels, targets = lattice.problem
    rows, columns = lattice.axes
    block = _cut(lattice, in_place, dtype, workers)
    n, u, v, c = block.n, block.u, block.v, block.c
    plane = _plane(lattice.axes, (u, v), lanes)
    tile_rows, tile_vectors = tile_of(targets, n * plane.vectors)
    blocks = -(-images // n) * -(-rows.count // u) * -(-columns.count // v)
    units, uses = blocks * groups * block.parts_k, blocks * -(-n * plane.vectors // tile_vectors)
    packed = uses > UNPACKED_USES * min(workers, units) or targets < LOW_ROWS
    if not packed:
        tile_rows, tile_vectors = tile_of(targets, n * plane.vectors, lowest=True)
    k = even_split(targets, -(-targets // block.parts_k), tile_rows)
    taps = rows.taps.size * columns.taps.size
    planes = rows.planes[:, None] * len(columns.phases) + columns.planes
    offsets = ((planes * plane.rows + rows.slots[:, None]) * plane.pitch + columns.slots).ravel()
    weights = (rows.taps[:, None] * lattice.w_strides[2] + columns.taps * lattice.w_strides[3]).ravel()
    in_panel = np.arange(taps) * tile_rows if packed else weights
    table, single = np.stack((in_panel, offsets), axis=1), taps == 1 and packed
    if single:  # one loop over channels instead of two nested ones
        table = np.arange(c)[:, None] * (tile_rows, lattice.src_strides[1] if in_place else n * plane.channel_pitch)
    buffer = 0 if in_place else n * plane.channel_pitch * c + max(vectors for _, vectors in TILES) * 2 * lanes
    buffer = -(-buffer // lanes) * lanes
    scratch = buffer + max(rows * vectors for rows, vectors in TILES) * lanes
    room = n * u * -(-v // lanes) + tile_vectors + 1
    work = 2 * room + PIECE * (room + n * (u + 1)) + 3 * lanes
    panels = groups * -(-channels // c) * -(-targets // tile_rows) * taps * c * tile_rows if packed else 0
    fields = lattice.fields() | {
        "low_h": rows.low, "low_w": columns.low, "block_u": u, "block_v": v, "block_c": c, "block_k": k,
        "height": plane.rows, "pitch": plane.pitch, "channel_pitch": n * plane.channel_pitch,
        "block_n": n, "image_pitch": lattice.src_strides[0] if in_place else plane.channel_pitch,
        "by_row": plane.by_row, "single": single, "by_tile": in_place and k * c * dtype.itemsize <= PANELS_BYTES,
        "in_place": in_place, "packed": packed, "tile_rows": tile_rows, "tile_vectors": tile_vectors,
        "phases_h": len(rows.phases), "phases_w": len(columns.phases), "taps": taps, "panels_at": panels_at,
        "tile_at": buffer, "room": room,
    }  # fmt: skip
    tables = {
        "phases_h_at": rows.phases * (1, lattice.src_strides[2]), "phases_w_at": columns.phases[:, 0],
        "weights_at": weights, "taps_at": table,
    }  # fmt: skip
    pads = not (in_place or all(_stays_inside(axis) for axis in (rows, columns)))
    return record(fields, tables), Dense(np.empty(0), np.empty(0), work, scratch, panels, pads)


def _stays_inside(axis: Axis) -> bool:
    return axis.low >= 0 and (axis.count - 1) * axis.step + int(axis.offsets.max()) < axis.source


def dense_plan(lattices: list[Lattice], dtype: np.dtype, workers: int) -> Dense:
    """Plan the lattices; those that take the same weights in the same blocks, as inner planes do, share their
    panels."""
    records, sizes, owners, panels = [], [], {}, 0
    for lattice in lattices:
        part, size = _record(lattice, dtype, workers, panels)
        rows, columns = lattice.axes
        cut = part[[F.block_c, F.tile_rows, F.packed]]
        owner = owners.setdefault((rows.taps.tobytes(), columns.taps.tobytes(), cut.tobytes()), part)
        part[F.panels_at] = owner[F.panels_at]
        panels += size.panels if owner is part else 0
        records.append(part)
        sizes.append(size)
    work, scratch = (max((getattr(size, name) for size in sizes), default=0) for name in ("work", "scratch"))
    for part in records:  # workers need not be at the same lattice
        part[[F.work_size, F.scratch_size]] = work, scratch
    return Dense(
        joined(records), joined(list(owners.values())), STATUS + workers * work, workers * scratch, panels,
        any(size.pads for size in sizes),
    )  # fmt: skip
