"""Messages between the judge and a kernel's process.

Requests are pickled: a kernel's process trusts the judge. Objects that only exist there (arrays, functions, bridges)
are sent by name, and resolved when they arrive. Replies are MessagePack, read as the type that is expected: the
judge trusts nobody. Tensors lie in two files in memory, one for each direction, which neither side maps where the other
could cut it off: reading beyond its end would be a signal, not an error.
"""

from __future__ import annotations

import errno
import inspect
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal

import ml_dtypes
import numpy as np
from msgspec import Meta, Struct

from conformance.contract import Contract
from conformance.failure import Failure
from conformance.implementations.errors import shortened
from conformance.implementations.implementation import Adapted, AutogradVariant, Kernel, Setting, Waiver
from conformance.implementations.registry import BrokenFile
from conformance.zeros import LARGE, bytes_of, filled

LENGTH = 8
"""Bytes before a message that say how long it is."""
MAX_REPLY = 1 << 24
"""Bytes of the longest reply that is read; tensors are not part of it."""
READY, EXPOSED = b"r", b"e"
"""The first byte that a process sends, before it loads a file: from now on time is its kernels'. The second one where
kernels could find their judge (`conformance.worker.isolation.isolated`)."""
MAX_TEXT = 8000
"""Most characters of a text that is sent."""
MAX_RESULTS = 16
"""Most results of one call that are looked at."""
OBJECTS, MAX_OBJECTS = "object", 1 << 24
"""Name for arrays of Python objects, of which only the shape is sent, and the most elements that one may have."""
_NAMED = {
    dtype.name: dtype for dtype in map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
}
"""Dtypes that NumPy has no letter for."""


class ArrayLocation(Struct, frozen=True, array_like=True):
    """Where an array lies in a file, C-contiguous."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


class FunctionSpec(Struct, frozen=True):
    """A function that a file declares: where it can be imported from, and where it is written, as far as known."""

    module: str = ""
    qualname: str = ""
    file: str = ""
    written: str = ""
    line: int = 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("the function is in another process: see conformance.execution.remote.RemoteFunction")


class BridgeSpec(Struct, frozen=True):
    """Facts about a bridge that need no framework."""

    name: str
    place: dict[str, str]
    """Its `device` or `platform`."""
    stands_for: tuple[str, ...]
    untimed: str
    install: str
    unsafe: tuple[str, ...]
    views: bool
    pages: bool
    negative_strides: bool
    can_differentiate: bool
    measures_training: bool


class ImplementationSpec(Struct, frozen=True):
    """An `Implementation` as a file declares it, with facts about its bridge, and of functions only the place."""

    name: str
    device: str
    version: str
    contract: Contract
    bridge: BridgeSpec
    kernels: tuple[Kernel, ...]
    autograd_variants: tuple[AutogradVariant, ...]
    waivers: tuple[Waiver, ...]
    deterministic: bool
    batch_invariant: bool
    unsafe: tuple[str, ...]
    compiles_per_shape: bool
    settings: tuple[Setting, ...]
    layouts: dict[str, str]
    adapted: Adapted | None


class Loaded(Struct, frozen=True):
    """Outcome of loading a file: the implementations that it defines, or why it cannot be used."""

    implementations: tuple[ImplementationSpec, ...] = ()
    unavailable: str | None = None
    broken: BrokenFile | None = None
    file: str = ""
    """The source, where an entry point was loaded."""


class Returned(Struct, frozen=True):
    """The result of a call: the number of one object, or the numbers of several, `count` of them, in a tuple or list.
    `computes` is the type of that container where it is no plain tuple or list."""

    numbers: Annotated[tuple[int, ...], Meta(max_length=MAX_RESULTS)]
    count: int | None = None
    computes: str = ""


class Thrown(Struct, frozen=True):
    """An exception, as far as it can be sent; `failure` says it as data, and `blame` in words."""

    kind: Literal["unsupported", "unavailable", "failure", "declaration", "exception", "exit"]
    """`failure` for results that are wrong, `exit` for what is no Exception."""
    name: str
    message: str
    blame: str
    traceback: str
    failure: Failure


class Compiled(Struct, frozen=True, array_like=True):
    """Programs that JAX was asked to compile, how many of them an earlier run had kept, and the seconds of all."""

    programs: int = 0
    kept: int = 0
    seconds: float = 0.0

    def __add__(self, other: Compiled) -> Compiled:
        return Compiled(self.programs + other.programs, self.kept + other.kept, self.seconds + other.seconds)


class Opened(Struct):
    """Files that a process has opened since its last reply: those that it `read`, with their state before, those that
    it has `written`, and the installed packages, by the folder or file that lies where packages are installed."""

    read: list[tuple[str, tuple[int, ...]]] = []
    written: list[str] = []
    packages: list[str] = []


class Reply(Struct):
    """The result of the last operation of a request, or what the first that failed has thrown."""

    question: int = 0
    """Number of the request."""
    value: Any = None
    thrown: Thrown | None = None
    findings: tuple[str, ...] = ()
    """Attempts to find the judge."""
    spoiled: bool = False
    """Whether nothing else should run in the process."""
    compiled: Compiled = Compiled()
    """What JAX has compiled since the process began."""
    opened: Opened | None = None


def lookup(kind: str, *place: Any) -> Any:
    """Stand in a request for an object that the judge names: see `conformance.worker.serve.Server.lookup`."""
    raise RuntimeError(f"{kind} {place} is in another process")


@cache
def packed(geometry: Any) -> bytes:
    """Pack a geometry for a process of a kernel. The result is kept, since every `when=` is asked about the same
    ones."""
    return pickle.dumps(geometry, pickle.HIGHEST_PROTOCOL)


@cache
def unpacked(geometry: bytes) -> Any:
    """Unpack a geometry."""
    return pickle.loads(geometry)


def plain(text: str, length: int = MAX_TEXT) -> str:
    """Return a text that UTF-8 can hold: a lone surrogate is written as Python writes it."""
    return shortened(text, length).encode("utf-8", "backslashreplace").decode()


def importable(function: Any) -> FunctionSpec:
    """Return the place that a function can be imported from, if it is found there, and the place where it is
    written."""
    code: Any = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    written, line = (code.co_filename, code.co_firstlineno) if inspect.iscode(code) else ("", 0)
    module, qualname = str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))
    target: Any = sys.modules.get(module)
    file = getattr(target, "__file__", None)
    for part in qualname.split("."):
        target = getattr(target, part, None)
    if target is not function or file is None:
        return FunctionSpec(written=plain(written), line=line)
    return FunctionSpec(plain(module), plain(qualname), plain(file), plain(written), line)


def memory_file() -> int:
    """Return a file descriptor of an empty file that has no name and lies in memory where the system can do that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("conformance")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def write(descriptor: int, array: np.ndarray, offset: int) -> tuple[ArrayLocation, int]:
    """Store an array; return its place and the offset after it. Of an array of Python objects only the shape is kept.

    Blocks of zeros in large arrays become holes, which take no memory: before that, the file is cut off at the offset.
    """
    if array.dtype.hasobject:
        return ArrayLocation(0, OBJECTS, array.shape), offset
    data = bytes_of(np.ascontiguousarray(array))
    if array.nbytes >= LARGE:
        os.ftruncate(descriptor, offset)
        os.ftruncate(descriptor, offset + array.nbytes)
    for place in filled(data):
        rest, position = data[place].data, offset + place.start
        while rest:
            count = os.pwrite(descriptor, rest, position)
            rest, position = rest[count:], position + count
    position = offset + array.nbytes
    name = array.dtype.name if array.dtype.name in _NAMED else array.dtype.str
    return ArrayLocation(offset, name, tuple(array.shape)), (position + 63) // 64 * 64


def read(descriptor: int, tensor: ArrayLocation) -> np.ndarray:
    """Read an array into its own memory. Raises ValueError or TypeError where the file or the description is not what
    it says."""
    dtype, size = _NAMED.get(tensor.dtype) or np.dtype(tensor.dtype), 1
    for extent in tensor.shape:
        if extent < 0:
            raise ValueError(f"a tensor has the shape {tensor.shape}")
        size *= extent
    if dtype.hasobject and size < MAX_OBJECTS:
        return np.empty(tensor.shape, object)
    needed = size * dtype.itemsize
    if tensor.offset < 0 or needed > max(0, os.fstat(descriptor).st_size - tensor.offset):
        raise ValueError("a tensor is longer than the file that it lies in")
    array = (np.zeros if needed >= LARGE else np.empty)(tensor.shape, dtype)
    data = bytes_of(array).data
    for start, stop in _extents(descriptor, tensor.offset, needed):
        rest, position = data[start - tensor.offset : stop - tensor.offset], start
        while rest:
            count = os.preadv(descriptor, [rest[: 1 << 30]], position)
            if not count:
                raise ValueError("a tensor ends before its time")
            rest, position = rest[count:], position + count
    return array


def _extents(descriptor: int, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are no holes; all of it for a small tensor."""
    stop = start + size
    if size < LARGE or not hasattr(os, "SEEK_DATA"):
        yield start, stop
        return
    while start < stop:
        try:
            start = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing but a hole is left
                raise
            return
        end = min(os.lseek(descriptor, start, os.SEEK_HOLE), stop)
        if start < stop:
            yield start, end
        start = end
