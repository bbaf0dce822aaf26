"""JAX's and Numba's own caches of compiled code, in the user's cache folder: compiling is most of what a run costs.

No verdict may depend on cached code. JAX finds a program by its text, options, flags and jaxlib, Numba by the source's
digest and the processor. The folder's name covers what these keys leave out: the installed compilers (a library that is
built over the installed one is not noticed), the processor, and variables that compilers read. Neither cache notices
all damage, so a folder must have the digest that its last run noted; otherwise it is deleted, as after a run that was
killed. Two writers of one Numba index overwrite each other's code, so every run, and every judge in it, has its own
folder. A kernel could change the code that is cached for another kernel, or for a later version of itself: the cache of
a source is in a folder named by its digest, and a kernel's process sees no other (`hidden`). Only that of the suite's
own kernels is kept for the next run: a submission left a program for the next one, whose file had the same text beside
another helper; and Numba, CuPy and torch's extensions compile what a function calls, reads or includes into its code.
JAX's size limit needs another package, and reads all files to write one.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import platform
import re
import shutil
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
from conformance.files import below, content_of, remove, require_regular

LIMIT = 1 << 30
"""Bytes in the cache above which a run starts by deleting all of it."""
ROOM = 1 << 28
"""Bytes that must be free on the disk; a run writes a quarter of that."""
OF_JAX, OF_NUMBA = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"), "NUMBA_CACHE_DIR"
"""Variables that users set to have their own cache, or none."""
SETTINGS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
"""Cache programs that compile in less than JAX's default of a second, as most do; how an earlier run tuned a GPU's
kernels is in no key, and is not cached."""
OTHERS = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "CUPY_CACHE_DIR")
"""Variables that name cache folders of other compilers; some find code by a name alone, which two files may share."""
SHIPPED = "shipped"
"""Name of the suite's own kernels as one source; they share processes."""
PACKAGES = re.compile(r"(jax|numba|llvmlite|numpy|ml_dtypes|libtpu|libneuron|neuron|nvidia|cuda|rocm|triton)", re.I)
VARIABLES = re.compile(r"(JAX|XLA|TF|PJRT|TPU|LIBTPU|NEURON|NVIDIA|CUDA|LLVM|NUMBA)_(?!NUM_THREADS)")
PROCESSOR = re.compile(r"^(?:vendor_id|cpu family|model|stepping|flags|Features|isa|uarch|CPU ).*", re.MULTILINE)
"""Lines of Linux's /proc/cpuinfo that compiled code may depend on."""


@dataclass(frozen=True)
class CompilerCache:
    """Cache folder of a run, as one judge uses it: `judge` is a name that no other judge of the run has."""

    folder: Path
    judge: str

    def kept_for(self, source: str, limits: Limits) -> Limits:
        """Return the limits of the process that loads a source, given the source's digest: it sees its own cache folder
        and none of the others. If the folder cannot be made, return `limits` unchanged, and nothing is kept."""
        folder = self.folder / source
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            return limits
        environment = {**limits.environment, **self.environment(limits.environment, source)}
        return replace(limits, environment=environment, hidden=(str(self.folder.parent),), own=(str(folder),))

    def environment(self, variables: Mapping[str, str], source: str = SHIPPED) -> dict[str, str]:
        """Return the cache variables of a process that loads a source and is told `variables` beside the judge's own.
        A variable that a user has set is left as it is."""
        environment, digest = (
            {**os.environ, **variables},
            _short(repr(sorted(variables.items()))),
        )  # a variant's may be in no key
        folder = self.folder / source
        jax = (
            {} if any(name in environment for name in OF_JAX) else {OF_JAX[0]: str(folder / "jax" / digest), **SETTINGS}
        )
        kept = {OF_NUMBA: str(folder / self.judge / digest)} | {
            name: str(folder / name.lower() / digest) for name in OTHERS
        }
        return {name: value for name, value in (jax | kept).items() if name not in environment}


def of_run(stack: ExitStack) -> tuple[CompilerCache | None, str]:
    """Return the cache of a run, which lasts until its stack is closed, and a note if it is not the cache that all runs
    use. The cache is then a temporary folder, since the folders that compilers choose by default may be on the same
    disk, or None if there is no room for that."""
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
    """Yield the folder of this run, which no other run uses meanwhile. Raises OSError if the folder cannot be used."""
    home, name = Path(platformdirs.user_cache_dir("kernel-conformance", appauthor=False)) / "compiled", _name()
    home.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(home).free < ROOM:  # a kernel would be blamed for what a compiler cannot write
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
        seal.truncate(0)  # empty until the end of the run
        yield folder
        with suppress(OSError):  # somebody may delete the folder
            for part in folder.iterdir():
                if part.name != SHIPPED:
                    remove(part)
            seal.write(_digest(folder))


def _name() -> str:
    """Return a name made of everything that compiled code depends on, beside its source and options."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()  # XLA divides loops
    about = [__version__, str(sys.implementation.cache_tag), platform.machine(), *platform.libc_ver(), str(cores)]
    try:
        about += PROCESSOR.findall(Path("/proc/cpuinfo").read_text().split("\n\n")[0])
    except OSError:  # other systems name no features of the processor, and machines may share a home folder
        about += [platform.processor(), platform.node()]
    about += sorted(f"{name}={value}" for name, value in os.environ.items() if VARIABLES.match(name))
    installed = [file for folder in sys.path for file in sorted(Path(folder).glob("*.dist-info/RECORD"))]
    about += [file.read_text() for file in installed if PACKAGES.match(file.parent.name)]
    return _short("\n".join(about))


def _locked(folder: Path) -> FileIO | None:
    """Open and lock the file with a folder's digest; return None if another process has locked it."""
    import fcntl  # not on Windows, where kernels run in the judge's process and nothing is kept

    seal = folder.with_suffix(".seal").open("a+b", buffering=0)  # else closing it may raise
    require_regular(os.fstat(seal.fileno()), Path(seal.name))
    try:
        fcntl.flock(seal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        seal.close()
        return None
    return seal


def _digest(folder: Path) -> bytes:
    """Return the digest of all files, names and contents; empty if they are no cache: too large, too deep, or pipes."""
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
    """Return the bytes of all files in a folder; infinity if its folders are nested too deep."""
    try:
        return sum(file.lstat().st_size for file in below(folder))
    except FileNotFoundError:
        raise
    except OSError:
        return math.inf


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
