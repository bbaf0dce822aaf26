"""How far a campaign is, on stderr: a terminal, a file and CI see the same lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

SECONDS = 10.0
"""Between two lines."""

T = TypeVar("T")


def counted(parts: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The parts as they come; every ten seconds, and at the end, how many of all have come."""
    start = said = time.perf_counter()
    for number, part in enumerate(parts, 1):
        now = time.perf_counter()
        if now - said >= SECONDS or number == total:
            print(f"{number} of {total} {what}, {now - start:.0f} s", file=sys.stderr, flush=True)
            said = now
        yield part
