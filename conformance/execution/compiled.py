"""Compiled kernels of earlier runs: JAX and Numba keep them in the user's cache folder, because compiling them is most
of what a run costs.

No verdict may depend on what is kept. The folder's name says for which processor, compilers and libraries it is, so
that code for others is never looked at: a home may be shared by several machines. JAX names an entry by the whole
program, its options and flags; variables that its key leaves out are in the name of its folder, and so are those of a
variant. At the start of a run every file must have the digest that the run which wrote it has noted; what has not,
because it was damaged or its writer was killed, is deleted. JAX checks nothing but lengths, and puts no entry in the
place of one that it could not read; a damaged one of Numba's ends the call. Numba's index does not stand two writers,
one of whom would be given the other's code: each judge has a folder of its own for it. Of Numba's only the suite's own
kernels are kept here, whose names contain a digest of all their sources: Numba does not notice when a function of
another file has changed. A vendor's are kept wherever Numba keeps them.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import msgspec
import platformdirs

from conformance import __version__

LIMIT = 1 << 30
"""Bytes that folders of all versions may take when a run begins."""
ENTRIES = re.compile(r"-cache$|\.nbc$")
"""Names of files with one compiled kernel, JAX's and Numba's."""
PROCESSOR = re.compile(
    r"(vendor_id|cpu family|model|model name|stepping|flags|Features|isa|uarch|CPU (implementer|architecture|variant|"
    r"part|revision))\s*:"
)
"""What Linux says of a processor and code may depend on."""
COMPILERS = re.compile(
    r"(jax|numba|llvmlite|numpy|ml[-_]dtypes|libtpu|libneuron|neuron|nvidia|cuda|rocm|triton)", re.IGNORECASE
)
"""Names of packages that compile, or are compiled against."""
LIBRARY = re.compile(r"\.(so|dylib)\b")
LIBRARIES = "jaxlib", "jax_plugins", "llvmlite"
"""Packages whose libraries may be somebody's own build, of a version that does not change."""
READ_BY_COMPILERS = re.compile(r"JAX_|XLA_|TF_|PJRT_|TPU_|LIBTPU_|NEURON_|NVIDIA_|CUDA_|DNNL_|ONEDNN_|LLVM_")
READ_BY_NUMBA = re.compile(r"NUMBA_|LLVM_")
OF_JAX, OF_NUMBA = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"), "NUMBA_CACHE_DIR"
"""Variables of users who have a cache of their own, or want none."""
LOCK, DIGESTS, ABOUT = "lock", "digests.json", "about.txt"
_Digests = dict[str, str]


def home() -> Path:
    """Where the folders of all versions are."""
    return Path(platformdirs.user_cache_dir("kernel-conformance", appauthor=False)) / "compiled"


def about() -> str:
    """What compiled code depends on, beside its source and settings."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = [
        f"kernel-conformance {__version__}",
        f"{sys.implementation.cache_tag} {platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}",
        f"{cores} cores",  # XLA divides loops among them
        *_processor(),
    ]
    for folder in map(Path, sys.path):
        with suppress(OSError):
            lines += sorted(found.name for found in folder.glob("*.dist-info") if COMPILERS.match(found.name))
    plugins = os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", "").split(",")
    files = [Path(word.partition(":")[2]) for word in plugins if ":" in word]
    for package in LIBRARIES:
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            files += sorted(file for file in Path(place).rglob("*") if LIBRARY.search(file.name))
    installed = {name: digest for package in LIBRARIES for name, digest in _installed(package)}
    for file in files:
        with suppress(OSError):
            found = file.stat()
            lines.append(f"{file.name} {found.st_size} {installed.get(str(file)) or found.st_mtime_ns}")
    return "\n".join(lines) + "\n"


def _installed(package: str) -> Iterator[tuple[str, str]]:
    """Libraries that are as they were installed, with the digests that the installer has noted: an environment that is
    made anew is the same one. A file that is younger than the note was built by somebody."""
    with suppress(PackageNotFoundError, OSError):
        files = distribution(package).files or []
        noted = next(Path(str(file.locate())).stat().st_mtime_ns for file in files if file.name == "RECORD")
        for file in files:
            path = Path(str(file.locate()))
            if file.hash is not None and LIBRARY.search(file.name) and path.stat().st_mtime_ns <= noted:
                yield str(path), file.hash.value


def _processor() -> list[str]:
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        first = []
    # elsewhere a processor's name says nothing of its features, and a home may be shared by several machines
    return [line for line in first if PROCESSOR.match(line)] or [f"{platform.processor()} of {platform.node()}"]


class Compiled:
    """The folder of this machine, as one judge uses it.

    The keeper, one for each run, sees to it before the judges do. Raises OSError where it cannot be written.
    """

    def __init__(self, folder: Path | None = None, *, keeper: bool = True, judge: bool = True) -> None:
        text = about() if folder is None else ""
        self.folder = home() / _short(text) if folder is None else folder
        self._keeper, self._slot = keeper, -1
        self._locks: list[IO[bytes]] = []
        for name in ("jax", "numba"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        try:
            if keeper:
                (self.folder / ABOUT).write_text(text)
                self._keep()
            if judge:
                self._slot = next(slot for slot in range(1 << 16) if self._lock(self.folder / "numba" / f"{slot}.lock"))
        except BaseException:
            self.close()
            raise
        self.begun = self.holds() if keeper else (0, 0)

    def environment(self, given: Mapping[str, str], shipped: bool) -> dict[str, str]:
        """Variables of a process that is `given` these beside the judge's own; what a user has set is left as it is.
        `shipped` says whether what it runs are the suite's own kernels."""
        known = {**os.environ, **given}
        found = {}
        if not any(name in known for name in OF_JAX):
            found = {
                "JAX_COMPILATION_CACHE_DIR": str(self.folder / "jax" / _settings(READ_BY_COMPILERS, given)),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
                "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
            }
        if shipped and self._slot >= 0 and OF_NUMBA not in known:
            found[OF_NUMBA] = str(self.folder / "numba" / str(self._slot) / _settings(READ_BY_NUMBA, given))
        return {name: value for name, value in found.items() if name not in known}

    def holds(self) -> tuple[int, int]:
        """How many compiled kernels, and the bytes of all files."""
        sizes = {file: _size(file) for file in _files(self.folder)}
        return sum(bool(ENTRIES.search(file.name)) for file in sizes), sum(sizes.values())

    def close(self) -> None:
        """Note what is there now, when all processes have ended. Idempotent."""
        if self._keeper and self._locks:
            with suppress(OSError):
                self._note({name: digest for name, digest in self._digests().items() if ".tmp." not in name})
        for lock in self._locks:
            lock.close()
        self._locks = []

    def _keep(self) -> None:
        """Delete what is damaged or too much, unless another run is at it: it has done so, and may be writing."""
        alone = self._lock(self.folder / LOCK)
        if alone:
            try:
                noted = msgspec.json.decode((self.folder / DIGESTS).read_bytes(), type=_Digests)
            except (OSError, msgspec.DecodeError):
                noted = {}
            for name, digest in self._digests().items():
                if noted.get(name) != digest:
                    (self.folder / name).unlink(missing_ok=True)
            _prune(self.folder)
        self._lock(self.folder / LOCK, shared=True)

    def _lock(self, path: Path, shared: bool = False) -> bool:
        """Whether the file could be locked, until this process ends. One that is locked already changes its kind."""
        import fcntl  # not on Windows, where kernels run in the judge's process and nothing is kept

        file = next((lock for lock in self._locks if lock.name == str(path)), None)
        if file is None:
            file = open(path, "ab")  # noqa: PTH123, SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._locks += [] if file in self._locks else [file]
        return True

    def _digests(self) -> _Digests:
        return {file.relative_to(self.folder).as_posix(): _digest(file) for file in _files(self.folder)}

    def _note(self, digests: _Digests) -> None:
        """Whole or not at all."""
        beside = self.folder / f"{DIGESTS}.{os.getpid()}"
        beside.write_bytes(msgspec.json.encode(digests))
        beside.replace(self.folder / DIGESTS)


def _prune(folder: Path) -> None:
    """Keep to the limit: folders of other versions go first, then what has not been read for longest."""
    import fcntl

    others = [other for other in folder.parent.iterdir() if other.is_dir() and other != folder]
    sizes = {one: sum(map(_size, _files(one))) for one in (*others, folder)}
    total = sum(sizes.values())
    for other in sorted(others, key=lambda one: _used(one / DIGESTS)):
        if total <= LIMIT:
            return
        with suppress(OSError), (other / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other)
            total -= sizes[other]
    for file in sorted(_files(folder), key=_used):
        if total <= LIMIT // 2 or sizes[folder] <= LIMIT // 2:  # not a little in every run from now on
            return
        total, sizes[folder] = total - _size(file), sizes[folder] - _size(file)
        file.unlink(missing_ok=True)


def _settings(read: re.Pattern[str], given: Mapping[str, str]) -> str:
    """A name for the variables that a compiler may read, and for all that a variant sets."""
    own = {name: value for name, value in os.environ.items() if read.match(name)}
    return _short(repr(sorted({**own, **given}.items())))


def _files(folder: Path) -> Iterator[Path]:
    for name in ("jax", "numba"):
        yield from (file for file in (folder / name).rglob("*") if file.suffix != ".lock" and file.is_file())


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0


def _used(file: Path) -> float:
    with suppress(OSError):
        found = file.stat()
        return max(found.st_atime, found.st_mtime)
    return 0.0


def _digest(file: Path) -> str:
    with suppress(OSError), open(file, "rb", opener=_unnoticed) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
    return ""


def _unnoticed(path: str, flags: int) -> int:
    """Where the system can do that, a look at a file is no use of it."""
    return os.open(path, flags | getattr(os, "O_NOATIME", 0))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
