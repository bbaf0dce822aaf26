"""Loading a file of NKI source and calling its kernels with NumPy arrays."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import update_wrapper
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from . import beta_machine
from .beta_machine import BetaMachine
from .dtypes import DType, dtype_of
from .errors import SOURCES, EmulationError, Refusal, place, refuse
from .machine import Machine, executing, running
from .modules import beta_modules, imports_beta, modules
from .storage import Region, Storage
from .subset import check
from .targets import TARGETS, Target
from .tensor import NKIObject, NkiTensor
from .watchdog import TimeUp, Watchdog

INSTRUCTIONS = 5_000_000
SECONDS = 120.0
_PLAIN = (bool, int, float, str)
_loading = threading.RLock()


def load(
    path: Path,
    *,
    target: str = "gen2",
    precise: bool = True,
    instructions: int = INSTRUCTIONS,
    seconds: float = SECONDS,
) -> ModuleType:
    """Execute a file of NKI source; its functions under `@nki.jit` are then called with NumPy arrays.

    `target` is gen2 (trn1), gen3 (trn2) or gen4 (trn3). With `precise` off, bf16 and 8-bit tensors keep float32 values
    until they are returned. A call ends with `EmulationError` after so many `instructions` or `seconds`.

    Raises:
        EmulationError: the file cannot be parsed or executed, or a kernel leaves the subset of Python.
        ValueError: no such target.
    """
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is none of {', '.join(TARGETS)}")
    file = str(path)
    source = path.read_bytes()
    SOURCES.add(file)
    module = ModuleType(f"nki_{path.stem}_{hashlib.sha256(file.encode()).hexdigest()[:8]}")
    module.__file__ = file
    try:
        tree = ast.parse(source, file)
        beta = imports_beta(tree)
        if not beta:
            check(tree, file)
        jit = _decorator(BetaMachine if beta else Machine, TARGETS[target], precise, instructions, seconds)
        with _injected((beta_modules if beta else modules)(TARGETS[target], jit)):
            exec(compile(tree, file, "exec"), vars(module))
    except EmulationError:
        raise
    except SyntaxError as problem:
        raise EmulationError(
            "(file)", file, problem.lineno or 0, "kernel-error", f"SyntaxError: {problem.msg}"
        ) from None
    except Exception as problem:
        _translate("(file)", file, problem)
    return module


@contextmanager
def _injected(found: dict[str, ModuleType]) -> Iterator[None]:
    """Names in sys.modules for as long as a file loads, then what was there before.

    The same for the environment, in which vendors' examples choose the target of a real toolchain.
    """
    with _loading:
        environment = dict(os.environ)
        roots = {name.partition(".")[0] for name in found}
        before = _removed(roots)
        sys.modules.update(found)
        try:
            yield
        finally:
            _removed(roots)
            sys.modules.update(before)
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update(environment)


def _removed(roots: set[str]) -> dict[str, ModuleType]:
    """What was in sys.modules under these names and is no longer."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in roots}


def _decorator(
    machine: type[Machine], target: Target, precise: bool, instructions: int, seconds: float
) -> Callable[..., Any]:
    """nki.jit, with or without parentheses."""

    def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        def wrapped(found: Callable[..., Any]) -> Kernel:
            plain = found.function if isinstance(found, Kernel) else found
            return Kernel(plain, machine, target, precise, instructions, seconds)

        return wrapped if function is None else wrapped(function)

    return jit


class Kernel:
    """A jitted function. Called by another kernel it is part of that one."""

    def __init__(
        self,
        function: Callable[..., Any],
        machine: type[Machine],
        target: Target,
        precise: bool,
        instructions: int,
        seconds: float,
        grid: tuple[int, ...] = (),
    ) -> None:
        self.function, self.machine, self.target, self.precise = function, machine, target, precise
        self.instructions, self.seconds, self.grid = instructions, seconds, grid
        update_wrapper(self, function)

    def __getitem__(self, cores: Any) -> Kernel:
        if self.machine is BetaMachine:
            grid = cores if isinstance(cores, tuple) else (cores,)
            return Kernel(self.function, self.machine, self.target, self.precise, self.instructions, self.seconds, grid)
        if cores != 1:
            raise EmulationError(
                self.function.__name__, self.function.__code__.co_filename, 0, "not-implemented", "cores"
            )
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; arrays become tensors in HBM, tensors that are returned become arrays.

        Raises:
            EmulationError: the kernel broke a rule, raised something itself, or did not end.
        """
        if running() is not None:
            return self.function(*args, **kwargs)
        name = self.function.__name__
        machine = self.machine(name, self.target, self.precise, self.instructions)
        try:
            with executing(machine), Watchdog(self.seconds), np.errstate(all="ignore"), self._imports():
                return self._run(machine, args, kwargs)
        except TimeUp as problem:
            message = f"still running after {self.seconds:g} seconds"
            _located(name, self._file, problem, "time-limit", message, self._last_line)
        except Exception as problem:
            _translate(name, self._file, problem, self._last_line)

    def _imports(self) -> AbstractContextManager[None]:
        """Kernels of Beta 1 also import while they run."""
        if self.machine is Machine:
            return nullcontext()
        jit = _decorator(self.machine, self.target, self.precise, self.instructions, self.seconds)
        return _injected(beta_modules(self.target, jit))

    @property
    def _file(self) -> str:
        return self.function.__code__.co_filename

    @property
    def _last_line(self) -> int:
        return [line for *_, line in self.function.__code__.co_lines() if line][-1]

    def _run(self, machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = signature(self.function).bind(*args, **kwargs)
        if isinstance(machine, BetaMachine):
            return beta_machine.call(machine, self.function, self.grid, bound)
        given = {key: _argument(machine, value, key) for key, value in bound.arguments.items()}
        bound.arguments.update(given)
        returned = self.function(*bound.args, **bound.kwargs)
        return _returned(returned)


def _translate(kernel: str, file: str, problem: Exception, last_line: int = 0) -> NoReturn:
    """What left a kernel, as an EmulationError; what is wrong with its results stands in its last line."""
    if isinstance(problem, EmulationError):
        raise problem
    if isinstance(problem, Refusal):
        _located(kernel, file, problem, problem.rule, problem.message, last_line)
    _located(kernel, file, problem, "kernel-error", f"{type(problem).__name__}: {problem}", last_line)


def _located(kernel: str, file: str, problem: BaseException, rule: str, message: str, last_line: int = 0) -> NoReturn:
    found, line = place(problem.__traceback__)
    line = line or last_line
    cause = None if isinstance(problem, Refusal | TimeUp) else problem
    raise EmulationError(kernel, found or file, line, rule, message) from cause


def _argument(machine: Machine, value: Any, name: str) -> Any:
    """An array as a tensor in HBM; containers are gone through; other values are those that NKI has."""
    if isinstance(value, np.ndarray):
        if value.size == 0 or value.ndim == 0:
            refuse("argument", f"{name} is an array of shape {value.shape}")
        return NkiTensor.of(Storage.of_input(machine, value, dtype_of(value), name))
    if type(value) in (tuple, list):
        return type(value)(_argument(machine, item, f"{name}[{i}]") for i, item in enumerate(value))
    if isinstance(value, dict):
        return {key: _argument(machine, item, f"{name}[{key!r}]") for key, item in value.items()}
    if value is not None and type(value) not in _PLAIN and not isinstance(value, DType | NKIObject):
        kind = type(value).__name__
        refuse("argument", f"{name} is a {kind}; kernels take arrays, numbers, strings, None and containers")
    return value


def _returned(value: Any) -> Any:
    """Tensors as arrays; every one in shared HBM, whole and written."""
    if type(value) in (tuple, list):
        return tuple(_returned(item) for item in value)
    if not isinstance(value, NkiTensor):
        refuse("output-missing", f"the kernel returned {value!r}; return tensors in nl.shared_hbm")
    storage = value.storage
    if storage.region is not Region.shared_hbm:
        refuse("output-buffer", f"the kernel returned {value}; outputs are in nl.shared_hbm")
    if value.size != storage.size or not value.is_contiguous():
        refuse("output-view", f"the kernel returned {value}, a part or another order of {storage}; return all of it")
    missing = value.size - storage.written.count(value.shape, value.strides, value.offset)
    if missing:
        refuse("output-unwritten", f"{missing} of {value.size} elements of {value} were never written")
    return np.ascontiguousarray(value.array).astype(value.dtype.stored)
