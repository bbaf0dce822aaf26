"""What a framework's autodiff keeps between a call and its backward, and what a training step takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class Saved:
    """One buffer that is kept: the tensor that was seen first, and the bytes of all the memory it belongs to."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: Count
    itemsize: Annotated[int, Meta(ge=1)]

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


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one training step.

    peak       maximum
    forward    what is allocated when forward has ended
    explained  of that: parameters, the batch, the loss and what the graph keeps
    scratch    what a meter may count that belongs to no tensor
    """

    peak: Count
    forward: Count
    explained: Count
    scratch: Count

    @property
    def hidden(self) -> int:
        """What is allocated and belongs to no known tensor."""
        return self.forward - self.explained


def of_some(
    function: Callable[..., Any], given: Sequence[Any], wanted: Sequence[int], parameters: dict[str, Any]
) -> Callable[..., Any]:
    """A kernel as a function of its arguments at `wanted`, the others being as they are in `given`."""

    def call(*arrays: Any) -> Any:
        full = list(given)
        for index, array in zip(wanted, arrays, strict=True):
            full[index] = array
        return function(*full, **parameters)

    return call


def first(result: Any) -> Any:
    """The first of several results."""
    return result[0] if isinstance(result, (tuple, list)) else result
