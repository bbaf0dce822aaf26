"""JAX's and Numba's own caches of compiled code, in the user's cache folder: compiling is most of what a run costs.

No verdict may depend on what is kept. JAX finds a program by its text, options, flags and jaxlib, Numba by the source's
digest and the processor. What these leave out is in the folder's name: compilers as they are installed (a library that
is built over the installed one is not noticed), the processor, variables that compilers read. Neither notices all
damage, so a folder must have the digest that its last run has noted; else it is deleted, as after a run that was
killed. Two writers of an index of Numba's overwrite each other's code: every run, and in it every judge, has a folder
of its own. A kernel could put other code into what a compiler has kept for another one, or for itself as it will be:
what is kept for a source is in a folder by its digest, and a kernel's process sees no other (`hidden`). JAX's limit of
size needs another package, and looks at all files to write one.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from itertools import count
from pathlib import Path

import platformdirs

from conformance import __version__
from conformance.execution.process import Limits
from conformance.files import below, content_of, remove

LIMIT = 1 << 30
"""Bytes: a run that finds more begins with nothing."""
ROOM = 1 << 28
"""Bytes that must be free on the disk: a run writes a quarter of that."""
OF_JAX, OF_NUMBA = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"), "NUMBA_CACHE_DIR"
"""Variables of users who have a cache of their own, or want none."""
SETTINGS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
"""Most programs take less than JAX's second; how a GPU's kernels were tuned by an earlier run is in no key."""
OTHERS = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "CUPY_CACHE_DIR")
"""Where other compilers keep what they have compiled: some by a name alone, which two files may give."""
BY_CONTENT = ("jax", *(name.lower() for name in OTHERS[:2]), "cuda_cache_path")
"""Folders of those that find a program by all that it is made of. The others' are kept for the suite's own kernels
alone: Numba and CuPy find code by a function's own file or text, and compile what it calls or includes into it, Numba
globals too; an extension of torch is built again where a header is newer, not where it is another one."""
SHIPPED = "shipped"
"""The suite's own kernels, which share processes."""
PACKAGES = re.compile(r"(jax|numba|llvmlite|numpy|ml_dtypes|libtpu|libneuron|neuron|nvidia|cuda|rocm|triton)", re.I)
VARIABLES = re.compile(r"(JAX|XLA|TF|PJRT|TPU|LIBTPU|NEURON|NVIDIA|CUDA|LLVM|NUMBA)_(?!NUM_THREADS)")
PROCESSOR = re.compile(r"^(?:vendor_id|cpu family|model|stepping|flags|Features|isa|uarch|CPU ).*", re.MULTILINE)
"""Lines of Linux's /proc/cpuinfo that code may depend on."""


@dataclass(frozen=True)
class CompilerCache:
    """The folder of a run, as a judge uses it whose name no other judge of the run has."""

    folder: Path
    judge: str

    def kept_for(self, source: str, limits: Limits) -> Limits:
        """What the process of a source may take, given its digest: its own folder, and none of what is kept for others.
        Where no folder can be made, nothing is kept."""
        folder = self.folder / source
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            return limits
        environment = {**limits.environment, **self.environment(limits.environment, source)}
        return replace(limits, environment=environment, hidden=(str(self.folder.parent),), own=(str(folder),))

    def environment(self, given: Mapping[str, str], source: str = SHIPPED) -> dict[str, str]:
        """Variables of a process that loads a source and is `given` these beside the judge's own; what a user has set
        is left as it is."""
        known, own = {**os.environ, **given}, _short(repr(sorted(given.items())))  # a variant's may be in no key
        folder = self.folder / source
        jax = {} if any(name in known for name in OF_JAX) else {OF_JAX[0]: str(folder / "jax" / own), **SETTINGS}
        kept = {OF_NUMBA: str(folder / self.judge / own)} | {name: str(folder / name.lower() / own) for name in OTHERS}
        return {name: value for name, value in (jax | kept).items() if name not in known}


def of_run(stack: ExitStack) -> tuple[CompilerCache | None, str]:
    """Return the cache of a run, until its stack is closed, and why it is not that of all runs, if it is not: a
    temporary one then, as what compilers are left to choose may lie on the same disk; None where there is no room."""
    try:
        return CompilerCache(stack.enter_context(kept()), "main"), ""
    except OSError as error:
        note = f"compilation cache: none, the folder cannot be used ({error.strerror}: {error.filename})"
    try:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))) / "run"
        folder.mkdir()
    except OSError:
        return None, note
    return CompilerCache(folder, "main"), note


@contextmanager
def kept() -> Iterator[Path]:
    """The folder of this run, which no other run has meanwhile. Raises OSError where it cannot be used."""
    home, name = Path(platformdirs.user_cache_dir("kernel-conformance", appauthor=False)) / "compiled", _name()
    home.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(home).free < ROOM:  # what a compiler cannot write, a kernel would be blamed for
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(home))
    with suppress(FileNotFoundError):  # another run renames its files
        if _size(home) > LIMIT:
            for other in filter(Path.is_dir, home.iterdir()):
                if (seal := _locked(other)) is not None:
                    with seal:
                        remove(other)
    folder, seal = next((home / f"{name}-{n}", seal) for n in count() if (seal := _locked(home / f"{name}-{n}")))
    with seal:
        folder.mkdir(exist_ok=True)
        seal.seek(0)
        if not (noted := seal.read()) or noted != _digest(folder):
            remove(folder)
            folder.mkdir()
        seal.truncate(0)  # until the end of the run
        yield folder
        with suppress(OSError):  # somebody deletes it
            for part in folder.glob("*/*"):
                if part.parent.name != SHIPPED and part.name not in BY_CONTENT:
                    remove(part)
            seal.write(_digest(folder))


def _name() -> str:
    """Of what code depends on, beside its source and options."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()  # XLA divides loops
    about = [__version__, str(sys.implementation.cache_tag), platform.machine(), *platform.libc_ver(), str(cores)]
    try:
        about += PROCESSOR.findall(Path("/proc/cpuinfo").read_text().split("\n\n")[0])
    except OSError:  # elsewhere a processor's name says nothing of its features, and machines may share a home
        about += [platform.processor(), platform.node()]
    about += sorted(f"{name}={value}" for name, value in os.environ.items() if VARIABLES.match(name))
    installed = [file for folder in sys.path for file in sorted(Path(folder).glob("*.dist-info/RECORD"))]
    about += [file.read_text() for file in installed if PACKAGES.match(file.parent.name)]
    return _short("\n".join(about))


def _locked(folder: Path) -> FileIO | None:
    """The file with a folder's digest, where no other process has it."""
    import fcntl  # not on Windows, where kernels run in the judge's process and nothing is kept

    seal = folder.with_suffix(".seal").open("a+b", buffering=0)  # else closing it may raise
    if not stat.S_ISREG(os.fstat(seal.fileno()).st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", seal.name)
    try:
        fcntl.flock(seal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        seal.close()
        return None
    return seal


def _digest(folder: Path) -> bytes:
    """Of the names and contents of all files; empty where these are no cache: too large, too deep, or pipes."""
    digest = hashlib.sha256()
    try:
        if _size(folder) > LIMIT:
            return b""
        for file in below(folder):
            content = content_of(file, LIMIT)
            digest.update(f"\n{file.relative_to(folder)} {len(content)}\n".encode("utf-8", "surrogateescape") + content)
    except OSError:
        return b""
    return digest.hexdigest().encode()


def _size(folder: Path) -> float:
    """Bytes of all in it; more than any number where folders in it are too deep."""
    try:
        return sum(file.lstat().st_size for file in below(folder))
    except FileNotFoundError:
        raise
    except OSError:
        return math.inf


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
