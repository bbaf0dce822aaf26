"""Searching, selecting and gathering operations of the first generation, and access by data: what they give."""

from __future__ import annotations

import numpy as np

from nki_emulator.tests.beta_operations import COLUMNS, ROWS, BetaOperation, F, P

RANKS = "u = x * 100.0 + nisa.iota(f + p * 0, dtype=nl.float32)\n"
"""All elements of a partition differ."""
LOWEST = float(np.finfo(np.float32).min)


def _ranks(a: np.ndarray) -> np.ndarray:
    return a * 100 + COLUMNS


def _eight(a: np.ndarray) -> np.ndarray:
    return np.asarray(-np.sort(-_ranks(a), axis=1)[:, :8])


def _places(a: np.ndarray) -> np.ndarray:
    return np.asarray(np.argsort(-_ranks(a), axis=1)[:, :8])


def _replaced(a: np.ndarray) -> np.ndarray:
    found = _ranks(a)
    np.put_along_axis(found, _places(a), -1.0, axis=1)
    return found


SEARCHES = (
    BetaOperation("max8", f"{RANKS}t = nisa.max8(src=u)", lambda a, b: _eight(a)),
    BetaOperation(
        "max8 masked",
        f"{RANKS}t = nisa.max8(src=u[p, f], mask=f < 12)",
        lambda a, b: np.asarray(-np.sort(-_ranks(a)[:, :12], axis=1)[:, :8]),
    ),
    BetaOperation(
        "find_index8", f"{RANKS}t = nisa.nc_find_index8(data=u, vals=nisa.max8(src=u))", lambda a, b: _places(a)
    ),
    BetaOperation(
        "find_index8 twice",
        "t = nisa.nc_find_index8(data=x * 0.0, vals=nl.zeros((16, 8), dtype=nl.float32))",
        lambda a, b: np.zeros((P, 8)),
    ),
    BetaOperation(
        "match_replace8",
        f"{RANKS}t = nisa.nc_match_replace8(data=u, vals=nisa.max8(src=u), imm=-1.0)",
        lambda a, b: _replaced(a),
    ),
    BetaOperation(
        "match_replace8 twice",
        "t = nl.ndarray((16, 8), dtype=nl.uint32)\n"
        "nisa.nc_match_replace8(data=x * 0.0, vals=nl.zeros((16, 8), dtype=nl.float32), imm=1.0, dst_idx=t)",
        lambda a, b: np.broadcast_to(np.arange(8.0), (P, 8)),
    ),
    BetaOperation(
        "stream_shuffle",
        "t = nl.copy(x)\nnisa.nc_stream_shuffle(x, t, [1, 0] + [255] * 30)",
        lambda a, b: np.concatenate([a[1:2], a[0:1], a[2:]]),
    ),
    BetaOperation(
        "local_gather",
        "t = nisa.local_gather(x, nl.copy(nisa.iota(p + 0 * nl.arange(1)[None, :], dtype=nl.int32), dtype=nl.uint16),"
        " num_elem_per_idx=2, num_valid_indices=10)",
        lambda a, b: np.stack([a[:, i : i + 2] for i in range(10)], axis=1),
    ),
    BetaOperation(
        "gather_flattened",
        "t = nl.gather_flattened(x, nisa.iota(23 - f + p * 0, dtype=nl.uint32))",
        lambda a, b: a[:, ::-1],
    ),
    BetaOperation(
        "sequence_bounds",
        "u = nl.zeros((1, 8), dtype=nl.float32)\nu[0:1, 2:5] = nl.full((1, 3), 4, dtype=nl.float32)\n"
        "u[0:1, 5:8] = nl.full((1, 3), 7, dtype=nl.float32)\nt = nisa.sequence_bounds(segment_ids=u)",
        lambda a, b: np.array([[[8, 8, 2, 2, 2, 5, 5, 5], [-1, -1, 5, 5, 5, 8, 8, 8]]]),
    ),
)


def _selected(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(b > 0, a, LOWEST))


FLAGS = "u = nl.greater(y, 0.0)\nt, r = nl.ndarray((16, 24), dtype=nl.float32), nl.ndarray((16, 1), dtype=nl.float32)\n"
SELECTIONS = (
    BetaOperation(
        "select_reduce",
        f"{FLAGS}nisa.select_reduce(dst=t, predicate=u, on_true=x, on_false=nl.fp32.min)",
        _selected,
    ),
    BetaOperation(
        "select_reduce reversed",
        f"{FLAGS}nisa.select_reduce(dst=t, predicate=u, on_true=x, on_false=y[:, 0:1], reverse_pred=True)",
        lambda a, b: np.where(b > 0, b[:, :1], a),
    ),
    BetaOperation(
        "select_reduce in parts",
        f"{FLAGS}nisa.select_reduce(dst=t, predicate=u, on_true=y, on_false=nl.fp32.min,"
        " reduce_cmd=nisa.reduce_cmd.reset_reduce)\n"
        "nisa.select_reduce(dst=t, predicate=u, on_true=x, on_false=nl.fp32.min,"
        " reduce_cmd=nisa.reduce_cmd.reduce, reduce_res=r)\nt = r",
        lambda a, b: np.maximum(_selected(a, b), _selected(b, b)).max(axis=1, keepdims=True),
    ),
    BetaOperation(
        "tensor_scalar_cumulative",
        "t = nl.ndarray((16, 24), dtype=nl.float32)\n"
        "nisa.tensor_scalar_cumulative(src=x, dst=t, op0=nl.multiply, op1=nl.add, imm0=2.0, imm1=y[:, 0:1],"
        " reduce_cmd=nisa.reduce_cmd.load_reduce)\n"
        "nisa.tensor_scalar_cumulative(src=x, dst=t, op0=nl.multiply, op1=nl.add, imm0=0.0,"
        " reduce_cmd=nisa.reduce_cmd.reduce)",
        lambda a, b: np.broadcast_to((b[:, 0] + 2 * a.sum(axis=1))[:, None], (P, F)),
    ),
    BetaOperation(
        "tensor_reduce masked",
        "t = nisa.tensor_reduce(np.add, x[p, f], axis=1, mask=f < 7)",
        lambda a, b: a[:, :7].sum(axis=1, keepdims=True),
    ),
    BetaOperation(
        "partition_reduce masked",
        "t = nisa.tensor_partition_reduce(np.max, x[p, f], mask=p < 7)",
        lambda a, b: a[:7].max(axis=0, keepdims=True),
    ),
    BetaOperation(
        "bits", "t = nl.bitwise_and(nl.copy(x, dtype=nl.int32), 5)", lambda a, b: np.bitwise_and(a.astype(int), 5)
    ),
    BetaOperation(
        "shift", "t = nl.left_shift(nl.copy(x, dtype=nl.int32), 3)", lambda a, b: a.astype(int) * 8, positive=True
    ),
    BetaOperation("floor", "t = nl.floor(x / 4.0)", lambda a, b: np.floor(a / 4)),
    BetaOperation("mod", "t = nl.mod(x, 3.0)", lambda a, b: np.mod(a, 3)),
    BetaOperation("integer quotient", "t = nl.copy(x, dtype=nl.int32) / 4", lambda a, b: a / 4),
    BetaOperation("all", "t = nl.all(x, axis=1)", lambda a, b: (a != 0).all(axis=1, keepdims=True)),
    BetaOperation(
        "loop_reduce",
        "t = nl.copy(y)\nfor i in nl.affine_range(3):\n    t[...] = nl.loop_reduce(x, op=np.add, loop_indices=[i])",
        lambda a, b: b + 3 * a,
    ),
)
ACCESSES = (
    BetaOperation(
        "offsets that are data",
        "i = nisa.iota(15 - p, dtype=nl.int32)\nt = nl.load(a[i, f])",
        lambda a, b: a[::-1],
    ),
    BetaOperation(
        "stored at offsets that are data",
        "i = nisa.iota(15 - p, dtype=nl.int32)\nh = nl.ndarray((16, 24), dtype=nl.float32, buffer=nl.private_hbm)\n"
        "nl.store(h[i, f], value=x)\nt = nl.load(h)",
        lambda a, b: a[::-1],
    ),
    BetaOperation(
        "skipped beyond the end",
        "i = nisa.iota(3 * p, dtype=nl.int32)\nt = nl.copy(y)\n"
        "nisa.dma_copy(src=a[i, f], dst=t[p, f], oob_mode=nisa.oob_mode.skip)",
        lambda a, b: np.concatenate([a[::3], b[6:]]),
    ),
    BetaOperation(
        "added in HBM",
        "h = nl.ndarray((16, 24), dtype=nl.float32, buffer=nl.private_hbm)\nnl.store(h, value=y)\n"
        "i = nisa.iota(p * 0 + 3, dtype=nl.int32)\nnl.atomic_rmw(h[i, f], value=x, op=np.add)\nt = nl.load(h)",
        lambda a, b: b + (ROWS == 3) * a.sum(axis=0),
    ),
    BetaOperation(
        "column at an offset that is data",
        "i = nisa.iota(nl.arange(1)[None, :] + 5, dtype=nl.int32)\n"
        "t = nisa.tensor_copy_dynamic_src(x[p, i[0, 0] + nl.arange(4)[None, :]])",
        lambda a, b: a[:, 5:9],
    ),
    BetaOperation("part of an access", "t = nl.copy(x[p, 23 - f][0:16, 2:5])", lambda a, b: a[:, ::-1][:, 2:5]),
    BetaOperation(
        "slices cut by a mask",
        "t = nl.copy(y)\nt[p, f] = nl.load(a[nl.ds(4, 16), nl.ds(0, 24)], mask=p < 12)",
        lambda a, b: np.concatenate([a[4:], b[12:]]),
    ),
    BetaOperation(
        "product of several free dimensions",
        "u = x.reshape((16, 4, 6))\nt = nl.copy(nisa.nc_matmul(y, u))",
        lambda a, b: (b.T @ a).reshape(F, 4, 6),
    ),
    BetaOperation(
        "operand masks",
        "u = nl.zeros((24, 24), dtype=nl.float32, buffer=nl.psum)\n"
        "u += nisa.nc_matmul(y[p, f][f < 20][p < 9], x[p, f][f < 7][p < 9])\nt = nl.copy(u)",
        lambda a, b: np.pad(b[:9, :20].T @ a[:9, :7], ((0, 4), (0, 17))),
    ),
    BetaOperation(
        "operand left out",
        "u = nl.zeros((24, 24), dtype=nl.float32, buffer=nl.psum)\n"
        "for i in nl.affine_range(3):\n    u += nisa.nc_matmul(y[p, f], x[p, f][i < 2])\nt = nl.copy(u)",
        lambda a, b: 2 * (b.T @ a),
    ),
    BetaOperation(
        "sum that a product starts",
        "u = nl.ndarray((24, 24), dtype=nl.float32, buffer=nl.psum)\nfor i in nl.affine_range(2):\n"
        "    u += nisa.nc_matmul(y, x)\nt = nl.copy(u)",
        lambda a, b: 2 * (b.T @ a),
    ),
    BetaOperation(
        "tensor_tensor of a column", "t = nisa.tensor_tensor(x, y[:, 0], op=nl.add)", lambda a, b: a + b[:, :1]
    ),
    BetaOperation(
        "tiles placed in turn",
        "import neuronxcc.nki.compiler as ncc\nt = nl.zeros((16, 24), dtype=nl.float32)\n"
        "u = nl.ndarray((4, nl.par_dim(16), 24), dtype=nl.float32,"
        " buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2,)))\n"
        "for i in nl.affine_range(4):\n    u[i] = x * float(i)\n    t[...] = t + u[i]",
        lambda a, b: 6 * a,
    ),
)
BETA_SELECTIONS = (*SEARCHES, *SELECTIONS, *ACCESSES)
