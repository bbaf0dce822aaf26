"""Kernels of the first generation of NKI that break a rule each, at the marked line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.nki_emulator.sources import BFLOAT16, MARK, indented

BETA_HEADER = """import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import neuronxcc.nki.typing as nt

kept = []


"""
FRAME = """y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
p, x = nl.mgrid[0:{rows}, 0:{columns}]
tile = nl.load(a)
{body}
nl.store(y, value=tile)
return y"""


@dataclass(frozen=True)
class Refused:
    """A rule, and the lines between the load of an array a [rows, columns] and the store of y; ! marks the line."""

    rule: str
    body: str
    shape: tuple[int, ...] = (16, 24)
    dtype: str = "float32"
    framed: bool = True
    head: str = ""

    @property
    def source(self) -> str:
        """The file."""
        body = "\n".join(line[:-1].rstrip() + MARK if line.endswith("!") else line for line in self.body.splitlines())
        if self.framed:
            body = FRAME.format(rows=self.shape[0], columns=self.shape[-1], body=body)
        return f"{self.head}{BETA_HEADER}@nki.jit\ndef kernel(a):\n{indented(body)}"

    def arguments(self) -> tuple[np.ndarray]:
        """The array: whole numbers from 0 on."""
        dtype = BFLOAT16 if self.dtype == "bfloat16" else np.dtype(self.dtype)
        return (np.arange(np.prod(self.shape)).reshape(self.shape).astype(dtype),)


MEMORY = (
    Refused("partition-limit", "tile = nl.ndarray((129, 4), dtype=nl.float32) !"),
    Refused("partition-limit", "tile = nl.ndarray((2, nl.par_dim(129), 4), dtype=nl.float32) !"),
    Refused("partition-limit", "tile = nl.broadcast_to(tile[0:1, :], shape=(200, 24)) !"),
    Refused("sbuf-capacity", "tile = nl.ndarray((2, 49153), dtype=nl.float32) !"),
    Refused("psum-capacity", "tile = nl.ndarray((2, 4097), dtype=nl.float32, buffer=nl.psum) !"),
    Refused("shape", "tile = nl.ndarray((128,), dtype=nl.float32) !"),
    Refused("dtype", "tile = nl.ndarray((2, 2), dtype=np.float64) !"),
    Refused("uninitialised", "b = nl.ndarray(a.shape, dtype=a.dtype)\nnl.store(y, value=b + tile) !"),
    Refused("uninitialised", "nl.store(y, value=nl.add(tile, 1.0, mask=p < 15)) !"),
    Refused("uninitialised", "b = nl.ndarray((16, 16), dtype=a.dtype)\nnl.store(y, value=nl.matmul(b, tile)) !"),
    Refused("uninitialised", "nl.store(y[0:16, 0:1], value=nl.max(nl.load(y), axis=1)) !"),
    Refused("uninitialised", "b = nl.load(a[p, x], mask=x < 9)\nnl.store(y[:, 0:1], value=nl.sum(b, axis=1)) !"),
    Refused("uninitialised", "nl.store(y[:, 0:1], value=nl.sum(tile, axis=1, mask=p < 15)) !"),
    Refused("uninitialised", "b = nl.load_transpose2d(a, mask=p < 15)\nnl.store(y, value=nl.transpose(b)) !"),
    Refused("overlapping-write", "row = tile[0:1, :].broadcast_to((16, 24))\nrow[...] = tile !"),
    Refused("overlapping-write", "nl.store(y[p, x * 0], value=tile) !"),
    Refused("buffer", "tile = a + 1 !"),
    Refused("buffer", "tile = nisa.nc_matmul(nl.matmul(tile, tile, transpose_x=True), tile) !"),
)
ACCESS = (
    Refused("out-of-bounds", "tile = nl.load(a[0:17, 0:24]) !"),
    Refused("out-of-bounds", "tile = nl.load(a[16]) !"),
    Refused("out-of-bounds", "b = tile[-1, :] !"),
    Refused("out-of-bounds", "tile = nl.load(a[p + 1, x], mask=p < 16) !"),
    Refused("out-of-bounds", "nl.store(y[p, x - 1], value=tile, mask=x > -1) !"),
    Refused("index", "b = tile[0, 0, 0] !"),
    Refused("index", "b = tile[p] !"),
    Refused("index-affine", "b = tile[p, x * x] !"),
    Refused("mixed-index", "b = tile[p, 0:24] !"),
    Refused("mask", "tile = nl.load(a[p, x], mask=tile) !"),
    Refused("mask", "tile = nisa.bn_stats(tile, mask=x > 3) !"),
    Refused("mask", "tile = nisa.bn_stats(tile, mask=x < p + 1) !"),
    Refused("mask", "tile = nl.load(a[p, x], mask=nl.arange(25)[None, :] < 20) !"),
    Refused("tensor-value", "if p < 3: !\n    tile = nl.load(a)"),
    Refused("tensor-value", "if tile: !\n    tile = nl.load(a)"),
    Refused("partition-first", "b = nl.ndarray((2, nl.par_dim(16), 4), dtype=nl.float32)\ntile = nl.exp(b) !"),
    Refused("partition-index", "b = tile[x, p] !"),
    Refused("partition-index", "b = tile[p, p + x] !"),
    Refused("partition-stride", "b = tile[2 * nl.arange(8)[:, None], nl.arange(24)[None, :]] !"),
    Refused("partition-view", "b = tile.reshape((8, 48)) !"),
    Refused("reshape", "b = a[:, 0:12].reshape((192, 1)) !"),
    Refused("not-implemented", "b = tile[p, x][0:2, 0:2] !"),
    Refused("grid", "b = nl.program_id(1) !"),
)
OPERANDS = (
    Refused("shape", "tile = tile + nl.load(a[0:16, 0:23]) !"),
    Refused("shape", "tile = nisa.tensor_tensor(tile, tile[0:16, 0:1], op=nl.add) !"),
    Refused("shape", "nl.store(y, value=nl.load(a[0:8, 0:24])) !"),
    Refused("shape", "tile[...] = nl.load(a[0:8, 0:24]) !"),
    Refused("shape", "tile = nisa.nc_matmul(tile[0:8, 0:4], tile) !"),
    Refused("operand", "tile = nl.add(2, 3) !"),
    Refused("operand", "tile = nl.exp(tile, tile) !"),
    Refused("operand-shape", "tile = nisa.tensor_scalar(tile, nl.add, tile) !"),
    Refused("operator", "tile = nisa.tensor_scalar(tile, nl.load, 1.0) !"),
    Refused("operator", "tile = nisa.tensor_reduce(nl.subtract, tile, axis=1) !"),
    Refused("reduce-axis", "tile = nl.sum(tile, axis=0) !"),
    Refused("matmul-size", "b = nl.zeros((16, 129), dtype=nl.float32)\ntile = nisa.nc_matmul(b, tile) !"),
    Refused("matmul-size", "b = nl.zeros((16, 513), dtype=nl.float32)\ntile = nisa.nc_matmul(tile, b) !"),
    Refused("matmul-dtype", "tile = nisa.nc_matmul(tile, tile) !", dtype="int32"),
    Refused("transpose-shape", "tile = nisa.nc_transpose(nl.zeros((2, 129), dtype=nl.float32)) !"),
    Refused("bn-stats-size", "tile = nisa.bn_stats(nl.zeros((2, 513), dtype=nl.float32)) !"),
    Refused("activation-bias", "tile = nisa.activation(nl.exp, tile, bias=1.0) !"),
    Refused("activation-range", "tile = nl.sqrt(tile * 0.0) !"),
    Refused("inexact-integer", "tile = nl.copy(tile * 0.3, dtype=nl.int32) !"),
    Refused("not-implemented", "tile = nl.gather_flattened(tile, tile) !"),
    Refused("kernel-error", "tile = nl.nothing(tile) !"),
)
KERNELS = (
    Refused("output-unwritten", "y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)\nreturn y", framed=False),
    Refused("output-missing", "return nl.load(a)", framed=False),
    Refused("output-missing", "b = nl.load(a)", framed=False),
    Refused("argument", "return a", shape=(0, 2), framed=False),
    Refused("mixed-generations", "return a", framed=False, head="import nki\n"),
)
REFUSALS = (*MEMORY, *ACCESS, *OPERANDS, *KERNELS)
