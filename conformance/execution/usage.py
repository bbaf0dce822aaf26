"""Memory of the machine that a kernel's process and all that it has started take, read from /proc.

psutil reads one /proc, the same for all threads, and the judge looks at kernels that have one of their own each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

IN_MEMORY = ("/memfd:", "/dev/shm/")
"""Prefixes of names of open files that are in memory, and resident in no process unless that maps them."""


def resident(process: str) -> tuple[int, int]:
    """Return the bytes of a process that are resident, and how many of these are of files or shared memory; 0 where the
    system does not say."""
    try:
        pages = Path(f"{process}/statm").read_text().split()
        return int(pages[1]) * os.sysconf("SC_PAGE_SIZE"), int(pages[2]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0, 0


def numbered(processes: str) -> list[str]:
    """Return the folders of all processes in a /proc."""
    try:
        return [entry.path for entry in os.scandir(processes) if entry.name.isdigit()]
    except OSError:
        return []


def taken(processes: Sequence[str], most: int, written: tuple[int, int]) -> int:
    """Return the bytes that processes take together, exactly where they may be more than `most`.

    Memory that several share, as after a fork, counts once; so does a file in memory, mapped or not. The file with the
    inode `given[0]` counts without as many bytes as `given[1]`, which the judge has written.
    """
    rough = sum(resident(process)[0] for process in processes)
    if rough + of_the_machine("shared", 0) <= most:
        return rough
    shares = [_shares(process) for process in processes]
    files = {inode: size for process in processes for inode, size in _files(process).items()}
    if written[0] in files:
        files[written[0]] = max(0, files[written[0]] - written[1])
    return sum(private for private, _ in shares) + max(sum(shared for _, shared in shares), sum(files.values()))


def of_the_machine(field: str, unknown: float) -> float:
    """Return a field of `psutil.virtual_memory()`; `unknown` where the system does not say."""
    try:
        return float(getattr(psutil.virtual_memory(), field, unknown))
    except OSError:  # a /proc that shows processes and nothing else
        return unknown


def _shares(process: str) -> tuple[int, int]:
    """Return the bytes of a process's own memory, and of its files in memory; of shared memory, its share, of which
    psutil does not tell the files apart."""
    with suppress(OSError):
        lines = map(str.split, Path(f"{process}/smaps_rollup").read_text().splitlines())
        sizes = {line[0]: int(line[1]) << 10 for line in lines if line[-1:] == ["kB"]}
        if "Pss_Shmem:" in sizes:
            return sizes["Pss:"] - sizes["Pss_Shmem:"], sizes["Pss_Shmem:"]
    return resident(process)[0], 0


def _files(process: str) -> dict[int, int]:
    """Return the sizes of the files in memory that a process has open, by their inodes."""
    sizes = {}
    with suppress(OSError):
        for entry in os.scandir(f"{process}/fd"):
            with suppress(OSError):
                if os.readlink(entry.path).startswith(IN_MEMORY):  # noqa: PTH115
                    status = entry.stat()
                    sizes[status.st_ino] = status.st_blocks * 512
    return sizes
