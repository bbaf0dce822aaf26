"""Hides the judge and the references from a kernel's process and its children, where Linux lets a user do that.

`isolate` comes before anything else in the process: a thread that is there already, as NumPy starts some, would stay
outside. The process then sees a copy of the suite without what knows right results, and no memory but its own.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from conformance.resources import GOLDEN, PACKAGE
from conformance.worker.guard import readable

CLONE_NEWNS, CLONE_NEWUSER, MS_REC, MS_SLAVE, PR_SET_NO_NEW_PRIVS = 0x20000, 0x10000000, 0x4000, 0x80000, 38
PR_SET_PDEATHSIG = 1
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
REFER, SIGNAL, PATH_BENEATH, VERSION = 1 << 13, 1 << 1, 1, 1
"""Landlock's: the right to move a file to another folder, signals to other processes, a kind of rule, a flag."""
LOADS_DRIVER, DRIVER = Path("/usr/bin/nvidia-modprobe"), Path("/dev/nvidia-uvm")
"""CUDA starts the one with root's rights where the other is not there yet, which a restricted process cannot do."""
INSTEAD = {"execution/check.py": b"CheckResult = check = None", "execution/export.py": b"export = None"}
"""What a kernel's child finds in files of the package: a kernel's file may import it for a script of its own. Others
that it may not read are empty."""


def isolate() -> None:
    """Hide what can be hidden."""
    if not hasattr(os, "O_PATH") or (LOADS_DRIVER.exists() and not DRIVER.exists()):
        return
    with suppress(OSError):
        copies = _copies()
        room = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        cut = room != resource.RLIM_INFINITY and any(len(content) > room for _, content, _ in copies)
        if not cut and _possible(_hide):
            _hide()
            for file, content, time in copies:
                os.makedirs(os.path.dirname(file), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib takes 20 ms in all
                with open(file, "wb") as copy:  # noqa: PTH123
                    copy.write(content)
                os.utime(file, ns=(time, time))  # what is compiled from it stays valid
            os.chdir(Path.cwd())  # it may lie in what was hidden
    with suppress(OSError):
        if _possible(_restrict):
            _restrict()


def end_with(parent: int) -> None:
    """End this process when its parent is killed, in the middle of a kernel too. Elsewhere than on Linux it ends when
    the kernel returns, and nobody listens."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # killed before this was called
        os._exit(1)


def isolated() -> bool:
    """Whether this process sees neither its judge's memory nor a reference."""
    with suppress(OSError):
        os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY))
        return False
    return not (PACKAGE / "judge/limits.py").stat().st_size


def _copies() -> list[tuple[str, bytes, int]]:
    """Files of the package, their contents as far as kernels may read them, and when they were written."""
    found = []
    for file in (os.path.join(folder, name) for folder, _, names in os.walk(PACKAGE) for name in names):  # noqa: PTH118
        within = os.path.relpath(file, PACKAGE)
        known = readable(within) and not file.startswith(str(GOLDEN))
        if known or within.endswith(".py"):
            with suppress(OSError), open(file, "rb") as content:  # noqa: PTH123 - compiled files come and go
                time = os.fstat(content.fileno()).st_mtime_ns
                found.append((file, content.read() if known else INSTEAD.get(within, b""), time))
    return found


def _possible(step: Callable[[], None]) -> bool:
    """Whether a child can do it: what fails half-way, or ends who asks for it, must not do so here."""
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            step()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _hide() -> None:
    """Mount empty folders over the package and the goldens.

    For that, users other than root need a namespace in which they have root's rights: over it, and nothing outside.
    """
    user, group = os.geteuid(), os.getegid()
    _call("unshare", CLONE_NEWNS | (CLONE_NEWUSER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", None, b"/", None, MS_REC | MS_SLAVE, None)
    for folder in (PACKAGE, GOLDEN):
        folder.mkdir(parents=True, exist_ok=True)  # the second may lie in the first
        _call("mount", b"none", bytes(folder), b"tmpfs", 0, b"mode=755")


def _restrict() -> None:
    """Forbid to look into processes that are not restricted alike and to change mounts; from Linux 6.12 on, signals."""
    version = _call("syscall", LANDLOCK_CREATE_RULESET, None, 0, VERSION)
    attributes = struct.pack("QQQ", REFER, 0, SIGNAL)[: 24 if version >= 6 else 8]
    ruleset = _call("syscall", LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    root = os.open("/", os.O_PATH)
    # files may be moved everywhere, as before
    _call("syscall", LANDLOCK_ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", REFER, root), 0)
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("syscall", LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(root)
    os.close(ruleset)


def _call(name: str, *given: object) -> int:
    """A function of the C library. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: int = getattr(libc, name)(*given)
    if found < 0:
        raise OSError(ctypes.get_errno(), name)
    return found
