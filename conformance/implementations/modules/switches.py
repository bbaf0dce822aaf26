"""Switches of torch that hold for a whole process: a module leaves them as they were."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import Any

import torch

ATTRIBUTES = (
    *("backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32", "backends.mkldnn.enabled"),
    *("backends.cudnn.benchmark", "backends.cudnn.deterministic", "backends.cudnn.enabled"),
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
)
FUNCTIONS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic_algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
}
"""Switches that are read and set by functions; these functions themselves may be replaced later."""
PLACES = ("", "Tensor", "nn", "nn.functional", "nn.Module", "nn.Conv2d")
"""Modules and classes of torch whose functions a file may replace."""


class Switches:
    """The values of torch's switches, and its functions, at the time when this object is made."""

    def __init__(self) -> None:
        self._values = {path: _read(path) for path in ATTRIBUTES} | {name: FUNCTIONS[name][0]() for name in FUNCTIONS}
        self._functions = {path: {n: f for n, f in vars(_read(path)).items() if callable(f)} for path in PLACES}

    @contextmanager
    def as_now(self, name: str) -> Iterator[None]:
        """Take the present value of a switch for its recorded one in the block."""
        old, self._values[name] = self._values[name], _read(name)
        try:
            yield
        finally:
            self._values[name] = old

    def restored(self, file: str = "") -> list[str]:
        """Put back what has changed since, and return the changes in words, with the line of `file` that makes each if
        there is one."""
        changed = []
        for name, old in self._values.items():
            new = FUNCTIONS[name][0]() if name in FUNCTIONS else _read(name)
            if new != old:
                setter = FUNCTIONS[name][1].__name__ if name in FUNCTIONS else ""
                changed.append(f"torch.{name} from {old} to {new}{_line(file, name, setter)}")
                if name in FUNCTIONS:
                    FUNCTIONS[name][1](old)
                else:
                    setattr(_read(name.rpartition(".")[0]), name.rpartition(".")[2], old)
        for path, functions in self._functions.items():
            place = _read(path)
            now = vars(place)
            for name, function in functions.items():
                if now.get(name) is not function:
                    dotted = ".".join(filter(None, ("torch", path, name)))
                    changed.append(f"the function {dotted}{_line(file, name)}")
                    setattr(place, name, function)
        return changed


def _read(path: str) -> Any:
    """Return the attribute of torch with this dotted name; None for a switch that was set by a newer interface."""
    with suppress(RuntimeError):
        return reduce(getattr, filter(None, path.split(".")), torch)
    return None


def _line(file: str, name: str, setter: str = "") -> str:
    """Return ` (FILE:LINE)` of the first assignment to a target that ends like a switch's dotted name, or call of its
    setter; an empty text where the file has neither."""
    try:
        tree = ast.parse(Path(file).read_bytes()) if file else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return ""
    ending = name.split(".")[-2:]
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        assigned = any(ast.unparse(target).split(".")[-len(ending) :] == ending for target in targets)
        called = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == setter != ""
        if assigned or called:
            return f" ({file}:{node.lineno})"  # type: ignore[attr-defined]
    return ""


class Watch:
    """Puts back what calls of a module of `file` change in torch, and keeps the changes in words.

    Switches are set to their values `before` the import, not at the beginning of a call: of two calls at once in two
    threads, the second began with what the first had changed, and left it so.
    """

    def __init__(self, before: Switches, file: str) -> None:
        self._before, self._file = before, file
        self.changes: list[str] = []

    @contextmanager
    def knowing(self, switch: str) -> Iterator[None]:
        """Accept the value of a switch that the suite itself has set before the calls in the block."""
        with self._before.as_now(switch):
            yield

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Put back what one call, or several, change in the block."""
        try:
            yield
        finally:
            changes = self._before.restored(self._file)
            self.changes += [change for change in changes if change not in self.changes]
