"""What travels to the machines of a cluster: the suite, and the kernels' files with the folders that they lie in."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from conformance.execution.selection import SelectionError
from conformance.resources import CHECKOUT, PACKAGE

KERNELS = "kernels"
"""Folder, in what travels, that stands for the current folder."""
LARGEST = 1 << 28
"""Most bytes of the kernels' folders."""
LEFT_OUT = ("__pycache__", "node_modules", "*.pyc", "*.jsonl", ".*")
"""Names of files and folders that do not travel: what others make again, results, and hidden ones."""


def shipped(paths: Iterable[Path], stack: ExitStack, beside: Iterable[Path] = ()) -> Path:
    """Return a folder with the suite, folders `beside` it and the folders of kernels, which is deleted with the stack.
    Raises SelectionError for a path that is not below the current folder, since a machine could not be given it by the
    same name."""
    here, base = Path.cwd(), Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
    suite = [PACKAGE, *beside, *((CHECKOUT / name for name in ("golden", "impls", "nki_emulator")) if CHECKOUT else ())]
    for folder in suite:
        shutil.copytree(folder, base / folder.name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    # Ray deletes the files of a run that has ended by what they hold, and a next one that held the same had none
    (base / "run").write_text(secrets.token_hex())
    kernels = base / KERNELS
    kernels.mkdir()
    folders = dict.fromkeys(path.resolve() if path.is_dir() else path.resolve().parent for path in paths)
    size = 0
    for folder in folders:
        if not folder.is_relative_to(here.resolve()):
            raise SelectionError(
                f"--ray: {folder} is not below the current folder; go to a folder that holds all kernels of the run"
            )
        for file in _files(folder):
            size += file.stat().st_size
            if size > LARGEST:
                raise SelectionError(
                    f"--ray: {folder} holds more than {LARGEST >> 20} MiB, and travels to each machine; give the "
                    "kernels a folder of their own"
                )
            place = kernels / file.relative_to(here.resolve())
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)
    return base


def _files(top: Path) -> Iterator[Path]:
    """Yield the files below a folder that travel, without those of virtual environments."""
    ignored = shutil.ignore_patterns(*LEFT_OUT)
    for name, folders, files in os.walk(top):
        left_out = ignored(name, [*folders, *files])
        folders[:] = [
            folder for folder in folders if folder not in left_out and not Path(name, folder, "pyvenv.cfg").exists()
        ]
        yield from (Path(name, file) for file in files if file not in left_out and Path(name, file).is_file())
