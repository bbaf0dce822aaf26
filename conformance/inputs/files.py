"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def replace_all(contents: Mapping[Path, bytes]) -> None:
    """Write files so that neither an interrupt nor a full disk leaves one half-written.

    All are written beside their places before the first is moved there, in the order given. Folders are created.
    Raises OSError, and then leaves no temporary file.
    """
    staged = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    try:
        for path, temporary in staged.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(temporary, contents[path])
        for path, temporary in staged.items():
            temporary.replace(path)
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    """Down to the disk: a move may otherwise outlive the bytes."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
