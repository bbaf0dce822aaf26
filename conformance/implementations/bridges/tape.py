"""What a framework's autodiff keeps between a call and its backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Saved:
    """One buffer that is kept: the tensor that was seen first, and the bytes of all the memory it belongs to."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    itemsize: int

    @property
    def elements(self) -> int:
        """What the memory holds: more than `shape` says where the tensor is a view of a part."""
        return self.nbytes // self.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} {self.nbytes:,} B"


@dataclass(frozen=True, slots=True)
class Tape:
    """A call that was recorded: its result, what is kept for its backward, each buffer once, and the backward itself.

    pull  gradient of the first result -> gradients of the inputs, by position
    """

    result: Any
    saved: tuple[Saved, ...]
    pull: Callable[[Any], tuple[Any, ...]]


def first(result: Any) -> Any:
    """The first of several results."""
    return result[0] if isinstance(result, (tuple, list)) else result
