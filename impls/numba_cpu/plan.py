"""The description of a problem for a gathering kernel: one array of integers, made once for a problem and kept.

A plan is the number of its lattices, the place of each one's record, and the records: the `Fields`, then their tables.
The lattices are disjoint parts of the output, see geometry.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .geometry import Array, Axis, Problem, Strides, lattice_strides


class Fields(NamedTuple):
    """Places of the numbers within a record; *_at are places of tables, counted from the record."""

    images: int = 0
    groups: int = 1
    channels: int = 2
    targets: int = 3
    out_n: int = 4
    out_k: int = 5
    out_u: int = 6
    out_v: int = 7
    out_at: int = 8
    src_n: int = 9
    src_c: int = 10
    src_h: int = 11
    src_w: int = 12
    size_h: int = 13
    size_w: int = 14
    w_k: int = 15
    w_c: int = 16
    w_group: int = 17
    count_u: int = 18
    count_v: int = 19
    step_h: int = 20
    step_w: int = 21
    rows_at: int = 22  # per row of taps: weight offset, source row, where its plane starts in the source
    row_taps: int = 23
    columns_at: int = 24
    column_taps: int = 25
    low_h: int = 26  # from here on: the dense kernel's own
    low_w: int = 27
    block_u: int = 28
    block_v: int = 29
    block_c: int = 30
    block_k: int = 31
    height: int = 32
    pitch: int = 33
    channel_pitch: int = 34
    by_row: int = 35
    in_place: int = 36
    packed: int = 37
    tile_rows: int = 38
    tile_vectors: int = 39
    phases_h_at: int = 40
    phases_h: int = 41
    phases_w_at: int = 42
    phases_w: int = 43
    taps_at: int = 44  # per tap: offset in a panel or the weights, offset in the buffer
    taps: int = 45
    panels_at: int = 46
    tile_at: int = 47
    scratch_size: int = 48
    work_size: int = 49
    room: int = 50
    weights_at: int = 51  # per tap: offset in the weights
    bands: int = 52  # the row kernel's own: shares of the rows of a plane
    row_kind: int = 53  # and number of its loop
    window: int = 54
    block_n: int = 55  # images of a block of the dense kernel, and their distance in its buffer
    image_pitch: int = 56
    by_tile: int = 57
    single: int = 58  # whether the taps of the table are the channels, of windows of one tap
    src_at: int = 59  # where the first plane starts in the source


class GradientFields(NamedTuple):
    """Places of the numbers in a plan for backward-weight, which is a single record."""

    images: int = 0
    groups: int = 1
    channels: int = 2
    targets: int = 3
    dw_k: int = 4
    dw_c: int = 5
    dw_r: int = 6
    dw_s: int = 7
    x_n: int = 8
    x_c: int = 9
    x_h: int = 10
    x_w: int = 11
    dy_n: int = 12
    dy_k: int = 13
    dy_p: int = 14
    dy_q: int = 15
    size_h: int = 16
    kernel_h: int = 17
    step_h: int = 18
    before_h: int = 19
    dilation_h: int = 20
    count_p: int = 21
    size_w: int = 22
    kernel_w: int = 23
    step_w: int = 24
    before_w: int = 25
    dilation_w: int = 26
    count_q: int = 27
    biased: int = 28
    row_kind: int = 29  # number of the row kernel's loop
    window: int = 30
    folded: int = 31  # from here on: the dense kernel's own
    parts: int = 32
    block_p: int = 33
    block_q: int = 34
    block_k: int = 35
    block_c: int = 36
    tile_rows: int = 37
    tile_vectors: int = 38
    columns_at: int = 39  # per column of outputs: offset in the packed dy, offset in the packed x
    vectors_at: int = 40  # where the vectors of a pixel begin
    lanes_at: int = 41  # per lane, where lanes are weights: channel, row and column offset
    b_at: int = 42
    tile_at: int = 43
    scratch_size: int = 44
    work_size: int = 45
    part_size: int = 46
    units: int = 47  # shares in which the parts are added
    block_n: int = 48
    planes: int = 49  # planes of each image; `images` counts the planes of all images
    x_d: int = 50
    dy_d: int = 51


F, G = Fields(), GradientFields()


@dataclass(frozen=True)
class Lattice:
    """One part of the output, and the strides of the source that it gathers from; those of w are (target, channel, R,
    S)."""

    axes: tuple[Axis, Axis]
    problem: Problem
    out_strides: Strides
    src_strides: Strides
    w_strides: Strides
    w_group: int

    def fields(self) -> dict[str, int]:
        rows, columns = self.axes
        start, out = lattice_strides(self.axes, self.out_strides)
        values = (
            *self.problem, *out, start, *self.src_strides, rows.source, columns.source, *self.w_strides[:2],
            self.w_group, rows.count, columns.count, rows.step, columns.step,
        )  # fmt: skip
        return dict(zip(F._fields, values, strict=False)) | {"src_at": rows.first * self.src_strides[2]}

    def tables(self) -> dict[str, Array]:
        (rows, columns), (*_, by_row, by_column) = self.axes, self.w_strides
        starts = (rows.starts - rows.first) * self.src_strides[2]
        return {
            "rows_at": np.stack((rows.taps * by_row, rows.offsets, starts), axis=1),
            "columns_at": np.stack((columns.taps * by_column, columns.offsets), axis=1),
        }


def record(fields: dict[str, int], tables: dict[str, Array], places: NamedTuple = F) -> Array:
    """Return a record; `tables` go by the names of the fields that hold their places."""
    values = np.zeros(len(places), np.int64)
    parts, end = [values], len(places)
    for name, table in tables.items():
        fields[name] = end
        parts.append(np.ascontiguousarray(table, np.int64).ravel())
        end += table.size
    for name, value in fields.items():
        values[getattr(places, name)] = value
    return np.concatenate(parts)


def joined(records: list[Array]) -> Array:
    places = np.cumsum([1 + len(records), *(part.size for part in records)])[:-1]
    return np.concatenate([[len(records)], places, *records]).astype(np.int64)
