"""The buffers that torch's autograd keeps, and the bytes that tensors hold while a network is trained.

The network is that of a PyTorch tutorial on fusing convolution and batch norm by a custom function: two convolutions
3x3 without padding, 1 -> 32 -> 64 channels, on 28x28 pixels, each followed by batch norm without parameters and ReLU;
max-pooling by 2; fully connected layers 9216 -> 128 -> 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conformance.implementations.bridges.tape import Footprint, Saved, Tape, first

IMAGE = (1, 28, 28)
PARAMETERS = ((32, 1, 3, 3), (64, 32, 3, 3), (128, 9216), (128,), (10, 128), (10,))
CLASSES = 10
SMALLEST = 32 * 26 * 26 * 4
"""Bytes an image of the smallest activation behind a convolution. CUDA's libraries keep less than that for
themselves."""

Pair = Callable[[Any, Any], Any]
"""(x, w) -> batch norm of conv(x, w), of one implementation."""


def differentiate(call: Callable[..., Any], arrays: Sequence[Any]) -> Tape:
    """Make a call on tensors that require gradients, and record the buffers that its graph keeps."""
    leaves = [array.detach().requires_grad_() for array in arrays]
    with torch.enable_grad(), recorded() as kept:
        result = call(*leaves)
    main = first(result)
    if main.grad_fn is None:
        raise TypeError(f"returned {type(main).__name__} without a graph: torch's autograd cannot go through it")
    kept += stashed(main.grad_fn)

    def pull(gradient: Any) -> tuple[Any, ...]:
        return tuple(torch.autograd.grad(main, leaves, gradient, retain_graph=True))

    return Tape(result, tuple(map(_described, by_memory(kept).values())), pull)


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """Yield a list of the tensors that functions save for their backward; it keeps them alive: no address is used
    twice."""
    kept: list[Any] = []

    def pack(tensor: Any) -> Any:
        kept.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def stashed(root: Any) -> list[Any]:
    """Return the tensors that functions written in Python keep in their context, where no hook sees them."""
    tensors, visited, waiting = [], set(), [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            waiting += [other for other, _ in node.next_functions]
            tensors += [tensor.detach() for tensor in _reached(getattr(node, "__dict__", {}))]
    return tensors


def _reached(root: Any) -> Iterator[Any]:
    """Yield the tensors in an object, in the objects that it holds, and in the closures of functions that it holds."""
    visited: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in visited:
            continue
        visited[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield value
        else:
            waiting += _held(value)


def _held(value: Any) -> list[Any]:
    """Return the objects that an object holds directly."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or ()] + list(value.__defaults__ or ())
    if isinstance(value, (type, ModuleType)):
        return []
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *slots]


def by_memory(tensors: Sequence[Any]) -> dict[int, Any]:
    """Return the first tensor of each storage that is not empty."""
    first: dict[int, Any] = {}
    for tensor in tensors:
        if tensor.untyped_storage().nbytes():
            first.setdefault(tensor.untyped_storage()._cdata, tensor)
    return first


def _described(tensor: Any) -> Saved:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Saved(tuple(tensor.shape), dtype, tensor.untyped_storage().nbytes(), tensor.element_size())


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of all tensors that operations returned and that still live, and their peak; scratch memory inside an
    operation is not seen. Deterministic, on any device."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[Any, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.count(tree_leaves(result))
        return result

    def count(self, values: Sequence[Any]) -> None:
        """Add the memory of those tensors that are not counted yet."""
        for value in values:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self._storages.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, self.live)

    @property
    def live(self) -> int:
        """Bytes that are alive now. A weak reference keeps a storage's address from being used again."""
        self._storages = {key: pair for key, pair in self._storages.items() if not pair[0].expired()}
        return sum(size for _, size in self._storages.values())


class CudaBytes:
    """Bytes of live tensors and their peak by CUDA's caching allocator, scratch memory included. Earlier ones do not
    count."""

    def __init__(self) -> None:
        self._before: int = torch.cuda.memory_allocated()

    def __enter__(self) -> CudaBytes:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize()

    def count(self, values: Sequence[Any]) -> None:
        """Do nothing: the allocator counts by itself."""

    @property
    def live(self) -> int:
        now: int = torch.cuda.memory_allocated()
        return now - self._before

    @property
    def peak(self) -> int:
        peak: int = torch.cuda.max_memory_allocated()
        return peak - self._before


def footprint(pair: Pair, batch: int, device: str) -> Footprint:
    """Measure one training step on `batch` images; on CUDA after another one, in which libraries allocate what they
    keep."""
    meter = CudaBytes if device == "cuda" else LiveBytes
    if device == "cuda":
        _step(pair, batch, device, CudaBytes())
    return _step(pair, batch, device, meter())


def _step(pair: Pair, batch: int, device: str, meter: Any) -> Footprint:
    images, target, parameters = _drawn(batch, device)
    inputs = [images, target, *parameters]
    with meter:
        meter.count(inputs)
        with recorded() as kept:
            loss = _loss(pair, images, target, parameters)
        kept += stashed(loss.grad_fn)
        distinct = by_memory([*inputs, loss, *kept]).values()
        explained = sum(tensor.untyped_storage().nbytes() for tensor in distinct)
        kept.clear()  # the graph keeps the list
        del distinct
        forward = meter.live
        loss.backward()
    scratch = batch * SMALLEST if device == "cuda" else 0
    return Footprint(meter.peak, forward, explained, scratch)


def _drawn(batch: int, device: str) -> tuple[Any, Any, list[Any]]:
    generator = torch.Generator().manual_seed(0)
    images, *parameters = (torch.randn(shape, generator=generator) for shape in ((batch, *IMAGE), *PARAMETERS))
    target = torch.randint(CLASSES, (batch,), generator=generator)
    return images.to(device), target.to(device), [(p / 8).to(device).requires_grad_() for p in parameters]


def _loss(pair: Pair, images: Any, target: Any, parameters: list[Any]) -> Any:
    of_first, second, *rest = parameters
    x = functional.relu_(pair(images, of_first))
    x = functional.relu_(pair(x, second))
    x = functional.max_pool2d(x, 2).flatten(1)
    x = functional.relu_(functional.linear(x, *rest[:2]))
    return functional.cross_entropy(functional.linear(x, *rest[2:]), target)
