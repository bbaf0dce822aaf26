"""Hides the judge and the references from a kernel's process and its children, where Linux lets a user do that.

`isolate` comes before anything else in the process: a thread that is there already, as NumPy starts some, would stay
outside. The process then sees a copy of the suite without what knows right results, no memory but its own, and nothing
that another kernel's process has written for it; it cannot write what the judge or another kernel's process imports.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from conformance.import_path import installed_folders
from conformance.resources import GOLDEN, PACKAGE
from conformance.worker.guard import readable

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
MS_BIND, MS_REC, MS_SLAVE, MS_INERT = 0x1000, 0x4000, 0x80000, 2 | 4 | 8
"""MS_INERT is for a folder in which neither programs nor devices work."""
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
SET_MODE_FILTER, SPEC_ALLOW, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
PASSED_ON = {signal.SIGCONT, signal.SIGABRT, signal.SIGTERM}
"""Signals that a judge sends to a process that does not answer, so that it says where it is, or that is to end."""
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
REFER, SIGNAL, PATH_BENEATH, VERSION = 1 << 13, 1 << 1, 1, 1
"""Landlock's: the right to move a file to another folder, signals to other processes, a kind of rule, a flag."""
CAPABILITIES, VERSION_3 = 41, 0x20080522
"""Number of root's rights in Linux (capabilities(7)), and the version of the form in which they are given back."""
KEPT = (0, 1, 3, 4, 6, 7, 10, 14, 15)
"""Rights that a kernel's process keeps: files and users, low ports, locked and shared memory."""
CALLS = {
    "x86_64": (0xC000003E, 317, 16, 302, (101, 246, 298, 304, 310, 311, 320, 321)),
    "aarch64": (0xC00000B7, 277, 29, 261, (104, 117, 241, 265, 270, 271, 280, 294)),
}
"""Machine -> its number for filters, `seccomp`, `ioctl`, `prlimit64`, and what no kernel calls: kexec_load, ptrace,
perf_event_open, open_by_handle_at, process_vm_readv, process_vm_writev, kexec_file_load, bpf."""
EVERYWHERE = (428, 429, 430, 431, 432, 433, 438, 442, 467)
"""open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, pidfd_getfd, mount_setattr, open_tree_attr."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""Requests of `ioctl` that type on a terminal."""
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
"""Instructions of classic BPF: a word of the call, jumps on what was loaded, the end."""
ALLOW, REFUSE, OF_X32 = 0x7FFF0000, 0x00050001, 0x40000000
"""Answers of a filter, the second with EPERM, and numbers of calls in x86's third mode."""
LOADS_DRIVER, DRIVER = Path("/usr/bin/nvidia-modprobe"), Path("/dev/nvidia-uvm")
"""CUDA starts the one with root's rights where the other is not there yet, which a restricted process cannot do."""
INSTEAD = {
    "engine/check.py": b"CheckResult = check = None",
    "engine/export.py": b"export = None",
    "engine/reading.py": b"read_contract = None",
}
"""Contents that a kernel's child finds in files of the package: a kernel's file may import them for a script of its
own. Other files that it may not read are empty."""


def isolate(parent: int, hidden: Sequence[str] = (), caches: Sequence[str] = ()) -> None:
    """Hide what can be hidden, and end with the parent. Folders that are `hidden` hold what other kernels' processes
    leave; this process's `caches`, folders in them, stay. The code after this call runs in another process, where the
    system's processes can be hidden."""
    parted = hasattr(os, "O_PATH") and (not LOADS_DRIVER.exists() or DRIVER.exists()) and _isolate(hidden, caches)
    end_with(1 if parted else parent)


def _isolate(hidden: Sequence[str], caches: Sequence[str]) -> bool:
    """Return whether this is another process now."""
    parted = False
    with suppress(OSError):
        copies = _copies()
        room = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        cut = room != resource.RLIM_INFINITY and any(len(content) > room for _, content, _ in copies)
        hide = partial(_hide, hidden, caches)
        if not cut and _possible(hide):
            hide()
            for file, content, time in copies:
                os.makedirs(os.path.dirname(file), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib takes 20 ms in all
                with open(file, "wb") as copy:  # noqa: PTH123
                    copy.write(content)
                os.utime(file, ns=(time, time))  # code that was compiled from it stays valid
            os.chdir(Path.cwd())  # it may lie in what was hidden
            if parted := _possible(_number_elsewhere):
                _part()
    with suppress(OSError):
        if _possible(partial(_restrict, parted)):
            _restrict(parted)
    if parted:
        _call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # the judge looks at its memory
    return parted


def end_with(parent: int) -> None:
    """End this process when its parent is killed, in the middle of a kernel too. Elsewhere than on Linux it ends when
    the kernel returns, and nobody listens."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent was killed before this was called
        os._exit(1)


def isolated() -> bool:
    """Return whether this process sees neither its judge's memory nor a reference, and can write to no package."""
    with suppress(OSError):
        os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY))
        return False
    try:
        filtered = "Seccomp:\t2\n" in Path("/proc/self/status").read_text()
    except OSError:  # not on Linux
        return False
    readonly = os.statvfs(os.path.dirname(os.__file__)).f_flag & os.ST_RDONLY  # noqa: PTH120
    return bool(filtered and readonly) and not (PACKAGE / "judge/limits.py").stat().st_size


def _copies() -> list[tuple[str, bytes, int]]:
    """Return the files of the package, their contents as far as kernels may read them, and when they were written."""
    copies = []
    for file in (os.path.join(folder, name) for folder, _, names in os.walk(PACKAGE) for name in names):  # noqa: PTH118
        within = os.path.relpath(file, PACKAGE)
        is_readable = readable(within) and not file.startswith(str(GOLDEN))
        if is_readable or within.endswith(".py"):
            with suppress(OSError), open(file, "rb") as content:  # noqa: PTH123 - compiled files come and go
                time = os.fstat(content.fileno()).st_mtime_ns
                copies.append((file, content.read() if is_readable else INSTEAD.get(within, b""), time))
    return copies


def _possible(step: Callable[[], None]) -> bool:
    """Return whether a child can carry out a step: one that fails half-way, or ends its process, must not do so
    here."""
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            step()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _hide(hidden: Sequence[str], caches: Sequence[str]) -> None:
    """Mount empty folders over the package, the goldens and what is hidden; nothing else of the interpreter, its
    packages and the system's settings can be written to, and no terminal but new ones can be opened.

    For that, users other than root need a namespace in which they have root's rights: over it, and nothing outside.
    """
    user, group = os.geteuid(), os.getegid()
    terminals = [*_terminals()]
    # memory that System V's calls share stays when all processes have ended
    _call("unshare", CLONE_NEWNS | CLONE_NEWIPC | (CLONE_NEWUSER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", None, b"/", None, MS_REC | MS_SLAVE, None)
    covered, protected = (str(PACKAGE), str(GOLDEN), *hidden), installed_folders()
    _pin({*protected, *covered})
    for folder in protected | ({"/sys", "/proc/sys"} if not user else set()):
        _write_protect(folder)
    kept = [(folder, os.open(folder, os.O_PATH)) for folder in caches]
    for folder in covered:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - of a wheel the goldens lie in the package, which is hidden
        _call("mount", b"none", os.fsencode(folder), b"tmpfs", 0, b"mode=755")
    for folder, opened in kept:
        os.makedirs(folder)  # noqa: PTH103
        _bind(f"/proc/self/fd/{opened}", folder)
        os.close(opened)
    if os.path.isdir("/dev/pts"):  # noqa: PTH112
        _call("mount", b"devpts", b"/dev/pts", b"devpts", 0, b"newinstance,ptmxmode=0666,mode=620")
    for terminal in terminals:
        _bind(os.devnull, terminal)


def _pin(folders: Iterable[str]) -> None:
    """Let nobody rename the parents of folders and put others in their place: a folder on which something is mounted is
    busy."""
    above = {str(folder) for path in folders for folder in Path(os.path.realpath(path)).parents} - {os.sep}
    for folder in sorted(above):
        _bind(folder, folder)


def _number_elsewhere() -> None:
    """Try out the namespace of `_part`; what it mounts goes with this process. Raises OSError."""
    _call("unshare", CLONE_NEWNS | CLONE_NEWPID)
    if not _possible(partial(_show_own, os.getpid())):
        raise OSError("no namespace of processes")


def _show_own(number: int) -> None:
    """Let /proc show the processes of this one's namespace alone, and give the next one the same number as the process
    has that stands for it outside: libraries name files after it, as OpenMP's do in /dev/shm, which kernels share."""
    _call("mount", b"proc", b"/proc", b"proc", MS_INERT, None)
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
    if not os.geteuid():
        _write_protect("/proc/sys")


def _part() -> None:
    """Return in a process that sees none but those that it starts: otherwise it could set limits, processors and
    priorities of the judge and of other kernels. The calling process stands for it: it has the number that the judge
    knows, passes signals on, and ends as the other does. Between them is the namespace's first process, which adopts
    orphans, and with which all end."""
    parent, number = os.getppid(), os.getpid()
    above = max(map(int, os.listdir("/proc/self/fd"))) + 3  # noqa: PTH208
    _call("unshare", CLONE_NEWPID)
    before, (answer, report) = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()), os.pipe()
    if (first := os.fork()) == 0:
        kernel = -1
        with suppress(BaseException):
            _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _show_own(number)
            if (kernel := os.fork()) > 0:
                os.dup2(report, 0)
                os.closerange(1, above)  # a pipe that the kernel closes must end for whoever reads it
                os.write(0, str(os.waitstatus_to_exitcode(_ended(kernel, signal.SIGKILL))).encode())
        if kernel:
            os._exit(0)
        os.close(answer)
        os.close(report)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os.close(report)
    end_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise the judge could not look through its /proc
    os.dup2(answer, 0)
    os.closerange(1, above)
    _ended(first, signal.SIGTERM)
    status = int(os.read(0, 9) or 1)
    if status < 0:
        with suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(number, -status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    os._exit(status)


def _ended(child: int, end: int) -> int:
    """Return how a child has ended. All signals are blocked; some are passed on to it, `end` for SIGTERM."""
    while True:
        if (number := signal.sigwait({*PASSED_ON, signal.SIGCHLD})) != signal.SIGCHLD:
            os.kill(child, end if number == signal.SIGTERM else number)
            continue
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return ended[1]


def _terminals() -> Iterator[str]:
    """Yield the terminals that the judge's input and output are connected to, and a machine's own console."""
    for number in (0, 1, 2):
        with suppress(OSError):
            place = os.readlink(f"/proc/{os.getppid()}/fd/{number}")  # noqa: PTH115
            if place.startswith("/dev/tty"):
                yield place
    if os.path.exists("/dev/console"):  # noqa: PTH110
        yield "/dev/console"


def _write_protect(folder: str) -> None:
    _bind(folder, folder)
    attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    _call("syscall", MOUNT_SETATTR, AT_FDCWD, os.fsencode(folder), AT_RECURSIVE, attributes, len(attributes))


def _bind(source: str, target: str) -> None:
    _call("mount", os.fsencode(source), os.fsencode(target), None, MS_BIND | MS_REC, None)


def _restrict(parted: bool) -> None:
    """Forbid this process to look into processes that are not restricted alike and to change mounts, also those of a
    namespace of its own; from Linux 6.12 on, to send them signals. Root keeps few of its rights."""
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
    _drop()
    _refuse(os.uname().machine, parted)


def _drop() -> None:
    """Give back the rights that are not kept, for this process and what it starts."""
    for right in set(range(CAPABILITIES)) - {*KEPT}:
        with suppress(OSError):  # a right that this Linux, or this process, does not have
            _call("prctl", PR_CAPBSET_DROP, right, 0, 0, 0)
    header, now = struct.pack("Ii", VERSION_3, 0), ctypes.create_string_buffer(24)
    _call("capget", header, now)
    kept = sum(1 << right for right in KEPT)
    low = (word & kept for word in struct.unpack("6I", now.raw)[:3])
    _call("capset", header, struct.pack("6I", *low, 0, 0, 0))


def _refuse(machine: str, parted: bool) -> None:
    """Refuse calls by which a process reaches what was hidden from it, or other processes, where it has not been
    `parted` from them. Nothing is refused on a machine whose numbers of calls are not known here. The processor's
    speculation stays as it is: a kernel's speed depends on it."""
    if machine not in CALLS:
        return
    architecture, seccomp, ioctl, prlimit, of_machine = CALLS[machine]
    steps = [
        *((LOAD, 4), (EQUAL, architecture, 1, 0), (RETURN, REFUSE)),
        *((LOAD, 0), (AT_LEAST, OF_X32, 0, 1), (RETURN, REFUSE)),
    ]
    for number in (*of_machine, *EVERYWHERE):
        steps += [(EQUAL, number, 0, 1), (RETURN, REFUSE)]
    if not parted:  # limits of this process can be set, and those of others read: the third argument is nothing
        steps += [
            *((EQUAL, prlimit, 0, 9), (LOAD, 16), (EQUAL, 0, 6, 0), (EQUAL, os.getpid(), 5, 0)),
            *((LOAD, 32), (EQUAL, 0, 0, 2), (LOAD, 36), (EQUAL, 0, 1, 0), (RETURN, REFUSE), (RETURN, ALLOW)),
        ]
    steps += [(EQUAL, ioctl, 1, 0), (RETURN, ALLOW), (LOAD, 24)]  # the second argument's lower half
    steps += [(EQUAL, TIOCSTI, 1, 0), (EQUAL, TIOCLINUX, 0, 1), (RETURN, REFUSE), (RETURN, ALLOW)]
    program = b"".join(struct.pack("HBBI", code, *(jumps or (0, 0)), value) for code, value, *jumps in steps)
    content = ctypes.create_string_buffer(program, len(program))
    _call("syscall", seccomp, SET_MODE_FILTER, SPEC_ALLOW, struct.pack("HQ", len(steps), ctypes.addressof(content)))


def _call(name: str, *arguments: object) -> int:
    """Call a function of the C library. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    status: int = getattr(libc, name)(*arguments)
    if status < 0:
        raise OSError(ctypes.get_errno(), name)
    return status
