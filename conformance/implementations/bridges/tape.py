"""The buffers that a framework's autodiff keeps between a call and its backward, and the memory of a training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class Saved:
    """One buffer that is kept: shape and dtype of the tensor that was seen first, and the bytes of the whole memory."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: Count
    itemsize: Annotated[int, Meta(ge=1)]

    @property
    def elements(self) -> int:
        """Number of elements in the memory: more than `shape` says where the tensor is a view of a part."""
        return self.nbytes // self.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} {self.nbytes:,} B"


@dataclass(frozen=True, slots=True)
class Tape:
    """A recorded call: its result, the buffers that are kept for its backward, each once, and the backward itself.

    pull  gradient of the first result -> gradients of the inputs, by position
    """

    result: Any
    saved: tuple[Saved, ...]
    pull: Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one training step.

    peak       most bytes that are allocated at a time
    forward    bytes that are allocated when forward has ended
    explained  part of these: parameters, the batch, the loss and the tensors that the graph keeps
    scratch    bytes that a meter may count although they belong to no tensor
    """

    peak: Count
    forward: Count
    explained: Count
    scratch: Count

    @property
    def hidden(self) -> int:
        """Bytes that are allocated when forward has ended and belong to no known tensor."""
        return self.forward - self.explained


def of_some(
    function: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int], parameters: dict[str, Any]
) -> Callable[..., Any]:
    """Return a kernel as a function of its `arguments` at `places`; the others are as they are."""

    def call(*arrays: Any) -> Any:
        full = list(arguments)
        for index, array in zip(places, arrays, strict=True):
            full[index] = array
        return function(*full, **parameters)

    return call


def first(result: Any) -> Any:
    """Return the first of several results."""
    return result[0] if isinstance(result, (tuple, list)) else result
