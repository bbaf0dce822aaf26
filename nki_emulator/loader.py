"""Loading a file of NKI source and calling its kernels with NumPy arrays."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, update_wrapper
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from . import beta_machine
from .beta_machine import BetaMachine
from .cost import assumed_register, deliver, trace_for
from .dtypes import DType, dtype_of
from .errors import NOT_IMPLEMENTED, SOURCES, EmulationError, Refusal, located, place, refuse
from .machine import MEMORY, Machine, executing, running
from .modules import beta_modules, imports_beta
from .modules import modules as current_modules
from .objects import Dictionary, NKIObject
from .pages import page_of
from .storage import Region, Storage
from .subset import DICTIONARY, check
from .targets import PLATFORMS, TARGETS, Target
from .tensor import NkiTensor
from .watchdog import MemoryUp, TimeUp, Watchdog

INSTRUCTIONS = 5_000_000
SECONDS = 120.0
_PLAIN = (bool, int, float, str)
_loading = threading.RLock()


@cache
def source_hash() -> str:
    """SHA-256 of the emulator's modules, for a record of what was computed; what its tests say makes no difference."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def load(
    path: Path, *, target: str = "gen2", precise: bool = True, instructions: int = INSTRUCTIONS,
    seconds: float = SECONDS, partial_outputs: bool = False, modules: Mapping[str, Path] | None = None,
) -> ModuleType:  # fmt: skip
    """Execute a file of NKI source; its functions under `@nki.jit` are then called with NumPy arrays.

    `target` is gen2 (trn1), gen3 (trn2) or gen4 (trn3). With `precise` off, bf16 and 8-bit tensors keep float32 values
    until they are returned. A call ends with `EmulationError` after so many `instructions` or `seconds`. With
    `partial_outputs`, floats of an output that nothing wrote are NaN where they are refused else: for callers that look
    at the others only, in the first generation. `modules` are files that take the place of modules which the source
    imports and the emulator has not, by their names; what such a file imports may lie beside it.

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
            vars(module)[DICTIONARY] = Dictionary
        core = Core(BetaMachine if beta else Machine, TARGETS[target], precise, instructions, seconds, partial_outputs)
        with core.imports(), _registered(module), _given(modules or {}):
            exec(compile(tree, file, "exec"), vars(module))
    except SyntaxError as problem:
        message = f"SyntaxError: {problem.msg}"
        raise EmulationError("(file)", file, problem.lineno or 0, "kernel-error", message, page_of("")) from None
    except Exception as problem:
        raise _located("(file)", file, problem) from _cause(problem)
    return module


@contextmanager
def _registered(module: ModuleType) -> Iterator[None]:
    """In sys.modules while its file is executed, where decorators of classes look for it."""
    with _loading:
        sys.modules[module.__name__] = module
        try:
            yield
        finally:
            sys.modules.pop(module.__name__, None)


@contextmanager
def _given(files: Mapping[str, Path]) -> Iterator[None]:
    """Files as modules of sys.modules, with their packages; what they import from beside them is removed again."""
    folders = [str(file.parent.resolve()) for file in files.values()]
    search, before = list(sys.path), set(sys.modules)
    sys.path[:0] = folders
    try:
        for name, file in files.items():
            parts = name.split(".")
            for package in (".".join(parts[:end]) for end in range(1, len(parts))):
                if package not in sys.modules:
                    sys.modules[package] = ModuleType(package)
                    sys.modules[package].__path__ = []
            module = sys.modules[name] = ModuleType(name)
            module.__file__ = str(file)
            SOURCES.add(str(file))
            exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
        yield
    finally:
        sys.path[:] = search
        for name in set(sys.modules) - before:
            origin = str(getattr(sys.modules[name], "__file__", None) or "(none)")
            if origin.startswith(tuple(folders)) or any(
                module == name or module.startswith(f"{name}.") for module in files
            ):
                del sys.modules[name]


@dataclass(frozen=True)
class Core:
    """What kernels of a file run on, and how long they may."""

    machine: type[Machine]
    target: Target
    precise: bool
    instructions: int
    seconds: float
    partial_outputs: bool = False

    def jit(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """nki.jit, with or without parentheses; platform_target of the first generation names another target."""
        if "platform_target" in options and self.machine is not BetaMachine:
            refuse("jit-option", "nki.jit takes no platform_target since nki 0.3; the environment names the target")
        platform = options.get("platform_target")
        core = replace(self, target=TARGETS[PLATFORMS[platform]]) if platform in PLATFORMS else self
        if function is None:
            return core.jit
        return Kernel(function.function if isinstance(function, Kernel) else function, core)

    @contextmanager
    def imports(self) -> Iterator[None]:
        """The modules of nki in sys.modules, then what was there before.

        The same for the environment, in which vendors' examples choose the target of a real toolchain.
        """
        modules = (beta_modules if self.machine is BetaMachine else current_modules)(self.target, self.jit)
        with _loading:
            environment = dict(os.environ)
            roots = {name.partition(".")[0] for name in modules}
            before = _removed(roots)
            sys.modules.update(modules)
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


class Kernel:
    """A jitted function. Called by another kernel it is part of that one."""

    def __init__(self, function: Callable[..., Any], core: Core, grid: tuple[int, ...] = ()) -> None:
        self.function, self.core, self.grid = function, core, grid
        update_wrapper(self, function)

    def __getitem__(self, cores: Any) -> Kernel:
        if self.core.machine is BetaMachine:
            return Kernel(self.function, self.core, cores if isinstance(cores, tuple) else (cores,))
        if cores == 1:
            return self
        code, rule = self.function.__code__, "not-implemented"
        message = f"a launch on {cores!r} cores"
        if type(cores) is not int or cores != 2 or self.core.target.generation == 2:
            rule, message = "cores", f"{message}; 1, or from gen3 on 2, make a logical core"
        raise located(self.function.__name__, code.co_filename, code.co_firstlineno, rule, message, page_of("cores"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; arrays become tensors in HBM, tensors that are returned become arrays.

        Raises:
            EmulationError: the kernel broke a rule, raised something itself, or did not end.
        """
        if running() is not None:
            return self.function(*args, **kwargs)
        core, name, code = self.core, self.function.__name__, self.function.__code__
        machine = core.machine(name, core.target, core.precise, core.instructions)
        if isinstance(machine, BetaMachine):
            machine.partial_outputs = core.partial_outputs
        # kernels of the first generation also import while they run
        imports = core.imports() if core.machine is BetaMachine else nullcontext()
        try:
            with executing(machine), Watchdog(core.seconds, MEMORY), np.errstate(all="ignore"), imports:
                machine.trace, machine.computes = trace_for(core.target)
                machine.assumed = assumed_register()
                bound = signature(self.function).bind(*args, **kwargs)
                if isinstance(machine, BetaMachine):
                    if machine.trace is not None:
                        refuse("not-implemented", "the time of a kernel written for neuronxcc.nki")
                    return beta_machine.call(machine, self.function, self.grid, bound)
                inputs: list[Storage] = []
                arguments = {key: _argument(machine, value, key, inputs) for key, value in bound.arguments.items()}
                bound.arguments.update(arguments)
                result = self.function(*bound.args, **bound.kwargs)
                written = any(storage.modified for storage in inputs)
                output = None if result is None and written else _returned(result)
                for storage in inputs:
                    storage.give_back()
                if machine.trace is not None:
                    deliver(machine.trace)
                return output
        except (Exception, TimeUp) as problem:
            last_line = [line for *_, line in code.co_lines() if line][-1]
            if isinstance(problem, MemoryUp):
                problem.args = (f"Python holds {MEMORY} bytes more than before the call; the kernel may not end",)
            elif isinstance(problem, TimeUp):
                problem.args = (f"still running after {core.seconds:g} seconds",)
            raise _located(name, code.co_filename, problem, last_line) from _cause(problem)


def _located(kernel: str, file: str, problem: BaseException, last_line: int = 0) -> EmulationError:
    """What left a kernel, with its place; what is wrong with its results stands in its last line."""
    if isinstance(problem, EmulationError):
        return problem
    rule, message = "kernel-error", f"{type(problem).__name__}: {problem}"
    if isinstance(problem, Refusal):
        rule, message = problem.rule, problem.message
    elif isinstance(problem, MemoryError | MemoryUp):
        rule, message = "memory-limit", str(problem) or "more memory than there is"
    elif isinstance(problem, TimeUp):
        rule, message = "time-limit", str(problem)
    elif isinstance(problem, ImportError) and (problem.name or "").partition(".")[0] in ("nki", "neuronxcc"):
        rule, message = NOT_IMPLEMENTED, f"an import of what this emulator has not: {type(problem).__name__}: {problem}"
    innermost, line = place(problem.__traceback__)
    return located(kernel, innermost or file, line or last_line, rule, message, page_of(rule, problem.__traceback__))


def _cause(problem: BaseException) -> BaseException | None:
    """What a kernel itself raised."""
    is_own = isinstance(problem, EmulationError | Refusal | TimeUp)
    return problem.__cause__ if is_own else problem


def _argument(machine: Machine, value: Any, name: str, inputs: list[Storage]) -> Any:
    """An array as a tensor in HBM, kept in `inputs`; tuples, dictionaries and objects of NKI are gone through."""
    if isinstance(value, np.ndarray):
        if value.size == 0 or value.ndim == 0:
            refuse("argument", f"{name} is an array of shape {value.shape}")
        inputs.append(Storage.of_input(machine, value, dtype_of(value), name))
        return NkiTensor.of(inputs[-1])
    if type(value) is tuple:
        return tuple(_argument(machine, item, f"{name}[{i}]", inputs) for i, item in enumerate(value))
    if type(value) is list:
        refuse("argument", f"{name} is a list; kernels take tuples")
    if isinstance(value, dict):
        return {key: _argument(machine, item, f"{name}[{key!r}]", inputs) for key, item in value.items()}
    if isinstance(value, NKIObject) and not isinstance(value, NkiTensor):
        return _object(machine, value, name, inputs)
    if value is not None and type(value) not in _PLAIN and not isinstance(value, DType | NKIObject | Enum):
        kind = type(value).__name__
        refuse("argument", f"{name} is a {kind}; kernels take arrays, numbers, strings, None and containers")
    return value


def _object(machine: Machine, value: NKIObject, name: str, inputs: list[Storage]) -> NKIObject:
    """The object that a kernel gets: one of the same class with what stands in the dictionary of this one.

    Lists are those of the object, and not arguments themselves.
    """
    copy = object.__new__(type(value))
    for key, item in vars(value).items():
        inner = tuple(item) if type(item) is list else item
        argument = _argument(machine, inner, f"{name}.{key}", inputs)
        vars(copy)[key] = list(argument) if type(item) is list else argument
    return copy


def _returned(value: Any) -> Any:
    """Tensors as arrays; every one in shared HBM, whole and written."""
    if type(value) in (tuple, list):
        return tuple(_returned(item) for item in value)
    if type(value) is not NkiTensor:
        refuse("output-missing", f"the kernel returned {value!r}; return tensors in nl.shared_hbm")
    storage = value.storage
    if storage.region is not Region.shared_hbm and not storage.modified:
        refuse("output-buffer", f"the kernel returned {value}; outputs are in nl.shared_hbm")
    if value.size != storage.size or not value.is_contiguous():
        refuse("output-view", f"the kernel returned {value}, a part or another order of {storage}; return all of it")
    if not storage.machine.computes:
        return np.zeros(value.shape, value.dtype.stored)
    missing = value.size - storage.written.count(value.shape, value.strides, value.offset)
    if missing:
        refuse("output-unwritten", f"{missing} of {value.size} elements of {value} were never written")
    return np.ascontiguousarray(value.array).astype(value.dtype.stored)
