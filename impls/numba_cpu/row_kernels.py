"""Vector loops of the row kernels: rows of outputs in registers, sources read in place.

Lanes whose window leaves the image keep their sum; no product with zero is added to them: NaN and Inf stay where they
belong.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from numba import types

from .microkernel import AHEAD
from .plan import F, G
from .vectors import INT, INTS, POINTER, SCALAR, Emitter, emitted, i64

ANY = 0  # in place of a step: any step, and any distance between the elements of a row
OPEN = 0  # in place of a window: any number of taps and of channels
# Number -> rows and columns of the windows that are unrolled, for one channel: whole windows, and the parts of them
# that a stride of two leaves for each residue of the pixels.
WINDOWS = dict(enumerate(((3, 3), (5, 5), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2)), 1))
WHOLE = 1, 2
VARIANTS = (
    *((1, step, OPEN) for step in (ANY, 1, 2)), *((v, s, w) for v in (1, 2, 4) for s in (1, 2) for w in WHOLE),
    *((v, 1, w) for v in (1, 2, 4) for w in WINDOWS if w not in WHOLE),
)  # fmt: skip
MOST_VECTORS = 4


def unrolled(window: tuple[int, int], kind: int) -> int:
    """Return the number of the window, OPEN where it is not among those unrolled for this step."""
    number = next((number for number, candidate in WINDOWS.items() if candidate == window), OPEN)
    return number if (MOST_VECTORS, kind, number) in VARIANTS else OPEN


def _read(e: Emitter, kind: int, base: Any, row: Any, start: Any, step: Any, size: Any, increment: Any) -> Any:
    if kind == ANY:
        return e.scattered(base, row, start, step, size, increment)
    return e.source(base, row, start, kind, size)


@emitted(POINTER, INT, INT, INT, INT, POINTER, INT, INT, INT, INT, POINTER, INT, SCALAR, INTS, INT)
def row_product(
    e: Emitter, out: Any, out_at: Any, pitch: Any, count: Any, vectors: Any, src: Any, src_at: Any, h: Any, rows: Any,
    column: Any, w: Any, w_at: Any, initial: Any, plan: Any, p: Any,
) -> None:  # fmt: skip
    """Compute out = initial + the sum over channels and taps of weight * source, for `count` outputs of `rows` rows.

    The outputs of a row are neighbours or, where out_v is 2, have one element between them.  `h` and `column` are the
    place in the source of the first output's tap of offset 0.
    """
    channels, size_h, size_w, src_c, src_h, increment, w_c, step_h, step_w, row_taps, column_taps, kind, window = (
        e.scalar(plan, e.sum(p, place)) for place in (
            F.channels, F.size_h, F.size_w, F.src_c, F.src_h, F.src_w, F.w_c, F.step_h, F.step_w, F.row_taps,
            F.column_taps, F.row_kind, F.window,
        )
    )  # fmt: skip
    doubled = e.builder.icmp_signed("==", e.scalar(plan, e.sum(p, F.out_v)), i64(2))
    tables = [e.sum(p, e.scalar(plan, e.sum(p, place))) for place in (F.rows_at, F.columns_at)]

    def tap(axis: int, number: Any) -> tuple[Any, ...]:
        """Return the offset in the weights, the place along the axis and, of a row, where its plane starts."""
        size = 3 - axis
        entry = e.sum(tables[axis], e.product(e.sum(number), size))
        return tuple(e.scalar(plan, e.sum(entry, i)) for i in range(size))

    def add(sums: list[Any], kind: int, weight: Any, at: Any, start: Any) -> None:
        for v, total in enumerate(sums):
            first = e.sum(start, e.product(step_w, v * e.lanes))
            vector, mask = _read(e, kind, src, at, first, step_w, size_w, increment)
            old = e.builder.load(total)
            e.builder.store(e.builder.select(mask, e.fma(weight, vector, old), old), total)

    def in_full(sums: list[Any], kind: int, window: int) -> Any:
        over_rows, over_columns = (
            [tap(axis, i64(t)) for t in range(size)] for axis, size in enumerate(WINDOWS[window])
        )
        weights = [[e.splat(e.scalar(w, e.sum(w_at, r[0], s[0]))) for s in over_columns] for r in over_rows]

        def write(line: Any) -> None:
            for row, v in product(range(kind), range(len(sums) * kind)):
                line_at = e.sum(src_at, e.product(e.sum(line, row), src_h), column)
                e.prefetch(src, e.sum(line_at, v * e.lanes + AHEAD // e.bytes))
            for (_, offset, _), row_weights in zip(over_rows, weights, strict=True):
                row = e.sum(line, offset)
                with e.builder.if_then(e.builder.icmp_unsigned("<", row, size_h)):
                    at = e.opaque(e.sum(src_at, e.product(row, src_h)))
                    for (_, shift), weight in zip(over_columns, row_weights, strict=True):
                        add(sums, kind, weight, at, e.sum(column, shift))

        return write

    def looped(sums: list[Any], kind: int, _: int) -> Any:
        def write(line: Any) -> None:
            with e.loop(channels) as c, e.loop(row_taps) as r:
                weights, offset, start = tap(0, r)
                row = e.sum(line, offset)
                with e.builder.if_then(e.builder.icmp_unsigned("<", row, size_h)):
                    at = e.sum(src_at, e.product(c, src_c), e.product(row, src_h), start)
                    weights = e.sum(w_at, e.product(c, w_c), weights)
                    with e.loop(column_taps) as s:
                        place, shift = tap(1, s)
                        add(sums, kind, e.splat(e.scalar(w, e.sum(weights, place))), at, e.sum(column, shift))

        return write

    variants = {registers + 8 * (step + 8 * size): (registers, step, size) for registers, step, size in VARIANTS}
    for variant in e.cases(e.sum(vectors, e.product(e.sum(kind, e.product(window, 8)), 8)), variants):
        registers, step, size = variants[variant]
        sums = e.variables(registers, e.zero)
        write = (in_full if size else looped)(sums, step, size)
        with e.loop(rows) as u:
            for total in sums:
                e.builder.store(e.splat(initial), total)
            write(e.sum(h, e.product(u, step_h)))
            at = e.sum(out_at, e.product(u, pitch))
            with e.builder.if_else(doubled) as (apart, together):
                with apart:
                    for v, total in enumerate(sums):
                        e.store_apart(
                            e.builder.load(total), out, e.sum(at, 2 * v * e.lanes), e.sum(count, -v * e.lanes)
                        )
                with together:
                    for v, total in enumerate(sums):
                        mask = e.within(i64(v * e.lanes), 1, count)
                        e.store(e.builder.load(total), out, e.sum(at, v * e.lanes), mask)


@emitted(POINTER, INT, INT, POINTER, INT, POINTER, INT, INTS)
def correlation(e: Emitter, dw: Any, dw_at: Any, r: Any, x: Any, x_at: Any, dy: Any, dy_at: Any, plan: Any) -> None:
    """Compute dw[r, s] = sum over images, rows p and columns q of dy[p, q] * x[p * step + offset r, q * step + offset
    s].

    An unrolled window is computed in all its rows r, another one only in the row given.
    """
    size_h, step_h, before_h, dilation_h, size_w, step_w, before_w, dilation_w, x_n, x_h, x_w, dy_n, dy_p, dy_q = (
        e.scalar(plan, i64(place)) for place in (
            G.size_h, G.step_h, G.before_h, G.dilation_h, G.size_w, G.step_w, G.before_w, G.dilation_w, G.x_n, G.x_h,
            G.x_w, G.dy_n, G.dy_p, G.dy_q,
        )
    )  # fmt: skip
    images, planes, x_d, dy_d, count_p, count_q, kernel_w, dw_r, dw_s, kind, window = (
        e.scalar(plan, i64(place)) for place in (
            G.images, G.planes, G.x_d, G.dy_d, G.count_p, G.count_q, G.kernel_w, G.dw_r, G.dw_s, G.row_kind, G.window,
        )
    )  # fmt: skip
    vectors = e.builder.sdiv(e.sum(count_q, e.lanes - 1), i64(e.lanes))

    def write(step: int, taps: list[tuple[Any, list[Any]]]) -> None:
        """Emit the sums for `taps`, which are rows of the window and the columns of each."""
        sums = [e.variables(len(columns), e.zero) for _, columns in taps]
        with e.loop(images) as number:
            image, plane = e.builder.sdiv(number, planes), e.builder.srem(number, planes)
            x_image = e.sum(x_at, e.product(image, x_n), e.product(plane, x_d))
            dy_image = e.sum(dy_at, e.product(image, dy_n), e.product(plane, dy_d))
            with e.loop(count_p) as p, e.loop(vectors) as v:
                first = e.product(v, e.lanes)
                line = e.sum(dy_image, e.product(p, dy_p))
                factor, live = _read(e, min(step, 1), dy, line, first, i64(1), count_q, dy_q)
                if step != ANY:
                    e.prefetch(dy, e.sum(line, first, AHEAD // e.bytes))
                    x_line = e.product(e.product(p, step_h), x_h)
                    for v in range(step * step):
                        ahead = AHEAD // e.bytes + v * e.lanes
                        e.prefetch(x, e.sum(x_image, x_line, e.product(first, step_w), ahead))
                for (row, columns), totals in zip(taps, sums, strict=True):
                    h = e.builder.sub(e.sum(e.product(p, step_h), e.product(dilation_h, row)), before_h)
                    with e.builder.if_then(e.builder.icmp_unsigned("<", h, size_h)):
                        at = e.opaque(e.sum(x_image, e.product(h, x_h)))
                        for s, total in zip(columns, totals, strict=True):
                            place = e.builder.sub(e.sum(e.product(first, step_w), e.product(dilation_w, s)), before_w)
                            vector, mask = _read(e, step, x, at, place, step_w, size_w, x_w)
                            old = e.builder.load(total)
                            added = e.fma(factor, vector, old)
                            e.builder.store(e.builder.select(e.builder.and_(mask, live), added, old), total)
        for (row, columns), totals in zip(taps, sums, strict=True):
            for s, total in zip(columns, totals, strict=True):
                at = e.sum(dw_at, e.product(dw_r, row), e.product(dw_s, s))
                e.builder.store(e.total(e.builder.load(total)), e.builder.gep(dw, [at]))

    variants = {step + 8 * size: (step, size) for _, step, size in VARIANTS if size in (OPEN, *WHOLE)}
    for variant in e.cases(e.sum(kind, e.product(window, 8)), variants):
        step, size = variants[variant]
        if size == OPEN:
            with e.loop(kernel_w) as s:
                write(step, [(r, [s])])
        else:
            rows, columns = WINDOWS[size]
            write(step, [(i64(row), [i64(column) for column in range(columns)]) for row in range(rows)])


@emitted(POINTER, INT, INT, POINTER, INT, INT, INT, INT, INTS, types.boolean)
def bias_gradient(
    e: Emitter, dbias: Any, dbias_at: Any, kind: Any, dy: Any, dy_at: Any, images: Any, rows: Any, columns: Any,
    plan: Any, adds: Any,
) -> None:  # fmt: skip
    """Compute dbias (+)= the sum of dy over the given numbers of images, rows and columns."""

    def field(place: int) -> Any:
        return e.scalar(plan, i64(place))

    vectors = e.builder.sdiv(e.sum(columns, e.lanes - 1), i64(e.lanes))
    for scattered in e.cases(e.builder.zext(e.builder.icmp_signed("==", kind, i64(ANY)), i64), (0, 1)):
        (total,) = e.variables(1, e.zero)
        with e.loop(images) as image, e.loop(rows) as row, e.loop(vectors) as v:
            line = e.sum(dy_at, e.product(image, field(G.dy_n)), e.product(row, field(G.dy_p)))
            dy_kind = ANY if scattered else 1
            vector, _ = _read(e, dy_kind, dy, line, e.product(v, e.lanes), i64(1), columns, field(G.dy_q))
            e.builder.store(e.builder.fadd(e.builder.load(total), vector), total)
        old = e.builder.select(adds, e.scalar(dbias, dbias_at), e.element(0))
        e.builder.store(e.builder.fadd(old, e.total(e.builder.load(total))), e.builder.gep(dbias, [dbias_at]))
