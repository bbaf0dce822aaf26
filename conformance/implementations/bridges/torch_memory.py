"""What torch's autograd keeps, buffer by buffer, and the bytes that tensors hold while a network is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conformance.implementations.bridges.tape import Saved, Tape, first


def differentiate(call: Callable[..., Any], arrays: Sequence[Any]) -> Tape:
    """Call on tensors that want gradients, and see what the graph keeps."""
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
    """Tensors that functions save for their backward, in a list that keeps them alive: no address is used twice."""
    kept: list[Any] = []

    def pack(tensor: Any) -> Any:
        kept.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def stashed(root: Any) -> list[Any]:
    """Tensors that functions written in Python keep in their context, where no hook sees them."""
    found, seen, waiting = [], set(), [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [other for other, _ in node.next_functions]
            found += [tensor.detach() for tensor in _reached(getattr(node, "__dict__", {}))]
    return found


def _reached(root: Any) -> Iterator[Any]:
    """Tensors in an object, in what it holds, and in the closures of functions that it holds."""
    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield value
        else:
            waiting += _held(value)


def _held(value: Any) -> list[Any]:
    """What an object holds directly."""
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
    """The first tensor of each storage that holds anything."""
    found: dict[int, Any] = {}
    for tensor in tensors:
        if tensor.untyped_storage().nbytes():
            found.setdefault(tensor.untyped_storage()._cdata, tensor)
    return found


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
        """Add the memory of tensors that is not known yet."""
        for value in values:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self._storages.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, self.live)

    @property
    def live(self) -> int:
        """Bytes that live now. A weak reference keeps a storage's address from being used again."""
        self._storages = {key: pair for key, pair in self._storages.items() if not pair[0].expired()}
        return sum(size for _, size in self._storages.values())


class CudaBytes:
    """The same by CUDA's caching allocator, scratch memory included. What was allocated before is not counted."""

    def __init__(self) -> None:
        self._before: int = torch.cuda.memory_allocated()

    def __enter__(self) -> CudaBytes:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize()

    def count(self, values: Sequence[Any]) -> None:
        """The allocator counts by itself."""

    @property
    def live(self) -> int:
        now: int = torch.cuda.memory_allocated()
        return now - self._before

    @property
    def peak(self) -> int:
        peak: int = torch.cuda.max_memory_allocated()
        return peak - self._before
