"""The modules of `neuronxcc.nki`, the Beta 1 API, and how its kernels are called."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from . import beta_isa, beta_language
from .beta_index import MeshGrid, arange
from .beta_tensor import BetaTensor, Memory
from .dtypes import DTYPES, dtype_of
from .engines import DgeMode, Engine, NcVersion, ReduceCmd
from .errors import refuse
from .indexing import DynamicSlice
from .machine import Machine
from .storage import Region
from .targets import Target, TileSize

_LANGUAGE = """ndarray full zeros ones empty_like zeros_like load store load_transpose2d copy matmul transpose
broadcast_to expand_dims mean var softmax where program_id num_programs program_ndim shared_constant
shared_identity_matrix device_print"""
_ISA = """nc_matmul nc_transpose activation activation_reduce tensor_reduce tensor_tensor tensor_scalar
scalar_tensor_tensor tensor_copy reciprocal memset iota affine_select dma_copy bn_stats bn_aggr tensor_tensor_scan
dma_transpose tensor_copy_predicated tensor_partition_reduce tensor_scalar_reduce"""
_LANGUAGE_MISSING = """all all_reduce atomic_rmw bitwise_and bitwise_or bitwise_xor ceil cos dropout erf_dx floor fmod
gather_flattened gelu_apprx_sigmoid gelu_dx invert left_shift right_shift loop_reduce mish mod rand random_seed rms_norm
silu_dx static_cast tan trunc tfloat32"""
_ISA_MISSING = """builtin_custom_op dropout local_gather max8 nc_find_index8 nc_match_replace8
nc_stream_shuffle range_select select_reduce sequence_bounds tensor_copy_dynamic_dst tensor_copy_dynamic_src"""


class BetaMachine(Machine):
    """A run of a kernel, or of one instance of a grid; shared HBM is that of the first instance."""

    def __init__(self, kernel: str, target: Target, precise: bool, instructions: int) -> None:
        super().__init__(kernel, target, precise, instructions)
        self.arithmetic = SimpleNamespace(**beta_language.FUNCTIONS)
        self.grid: tuple[int, ...] = ()
        self.program: tuple[int, ...] = ()
        self._shared: list[Memory] = []
        self._taken = 0

    def instance(self, program: tuple[int, ...]) -> None:
        """Begin an instance of the grid."""
        self.program, self._taken = program, 0

    def shared(self, make: Callable[[], Memory]) -> Memory:
        """The memory that every instance of the grid allocates at this point."""
        if self._taken == len(self._shared):
            self._shared.append(make())
        self._taken += 1
        return self._shared[self._taken - 1]

    def argument(self, value: Any, name: str) -> Any:
        """An array as a tensor in HBM; other values stay as they are."""
        if not isinstance(value, np.ndarray):
            return value
        if value.size == 0 or value.ndim == 0:
            refuse("argument", f"{name} is an array of shape {value.shape}")
        memory = Memory(self, value.shape, dtype_of(value), Region.hbm, 0, name)
        memory.values[...], memory.known[...], memory.is_input = value, True, True
        return BetaTensor.of(memory)

    def returned(self, value: Any) -> Any:
        """Tensors as arrays; each in HBM and written."""
        if type(value) in (tuple, list):
            return tuple(self.returned(item) for item in value)
        if not isinstance(value, BetaTensor) or value.buffer.on_chip:
            refuse("output-missing", f"the kernel returned {value!r}; return tensors in nl.shared_hbm")
        values, known = value.read()
        missing = known.size - np.count_nonzero(known)
        if missing:
            refuse("output-unwritten", f"{missing} of {known.size} elements of {value} were never written")
        return np.ascontiguousarray(values).astype(value.dtype.stored)


def call(machine: BetaMachine, function: Callable[..., Any], grid: tuple[int, ...], bound: Any) -> Any:
    """Run every instance of a grid, one after another; what kernels store into arguments reaches their arrays.

    Raises:
        Refusal: neither a tensor was returned nor an argument written.
    """
    given = dict(bound.arguments)
    machine.grid = grid or (1,)
    tensors = {key: machine.argument(value, key) for key, value in given.items()}
    bound.arguments.update(tensors)
    for number in range(prod(machine.grid)):
        machine.instance(tuple(int(i) for i in np.unravel_index(number, machine.grid)))
        value = function(*bound.args, **bound.kwargs)
    stored = {key for key, tensor in tensors.items() if isinstance(tensor, BetaTensor) and tensor.memory.is_stored}
    for key in stored:
        given[key][...] = tensors[key].values.astype(given[key].dtype)
    return None if value is None and stored else machine.returned(value)


class Missing:
    """A documented operation that is not implemented."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        refuse("not-implemented", f"{self.__name__} is documented but not implemented here")


class TensorHint:
    """nki.typing.tensor, which annotates and means nothing to the emulator."""

    def __getitem__(self, _: Any) -> TensorHint:
        return self


def imports(tree: ast.Module) -> bool:
    """Whether a source is written against `neuronxcc.nki`, which excludes the `nki` of later releases."""
    named = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    roots = {name.partition(".")[0] for name in named}
    if {"nki", "neuronxcc"} <= roots:
        refuse("mixed-generations", "the file imports both nki and neuronxcc; their tensors are not the same")
    return "neuronxcc" in roots


def _language(target: Target) -> dict[str, Any]:
    ranges = ("affine_range", "sequential_range", "static_range")
    return {
        **{name: Missing(f"nl.{name}") for name in _LANGUAGE_MISSING.split()},
        **{name: getattr(beta_language, name) for name in _LANGUAGE.split()},
        **dict.fromkeys(ranges, beta_language.loop_range),
        **beta_language.FUNCTIONS,
        **beta_language.REDUCTIONS,
        "copy": beta_language.copy,
        **DTYPES,
        **{region.name: region for region in Region},
        "par_dim": beta_language.ParDim,
        "arange": arange,
        "mgrid": MeshGrid(),
        "ds": DynamicSlice,
        "nc": int,
        "spmd_dim": lambda *sizes: prod(sizes),
        "tile_size": TileSize(target),
        "fp32": SimpleNamespace(min=float(np.finfo(np.float32).min)),
    }


def _isa(target: Target) -> dict[str, Any]:
    engines = {f"{engine.name}_engine": engine for engine in Engine if engine is not Engine.sync}
    return {
        **{name: Missing(f"nisa.{name}") for name in _ISA_MISSING.split()},
        **{name: getattr(beta_isa, name) for name in _ISA.split()},
        **engines,
        "reduce_cmd": ReduceCmd,
        "dge_mode": DgeMode,
        "nc_version": NcVersion,
        "get_nc_version": lambda: NcVersion(target.generation),
    }


def _package(jit: Callable[..., Any]) -> dict[str, Any]:
    return {
        **{name: _on_device(f"nki.{name}") for name in ("benchmark", "profile", "baremetal")},
        "jit": jit,
        "trace": jit,
        "simulate_kernel": lambda kernel, *args, **kwargs: kernel(*args, **kwargs),
        "tensor": BetaTensor,
    }


def _on_device(name: str) -> Callable[..., Any]:
    """A decorator, with or without options, of functions that are refused when they are called."""

    def decorator(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        return decorator if function is None else Missing(f"{name}, which runs on a device,")

    return decorator


def _compiler() -> dict[str, Any]:
    """Hints that change no result. Memory that a kernel places itself, where tiles may share it, is refused."""
    hints = ("skip_middle_end_transformations", "enable_stack_allocator", "force_auto_alloc")
    return {
        "no_reorder": nullcontext,
        **{name: lambda function=None, **_: function or (lambda found: found) for name in hints},
        **{
            region.name: SimpleNamespace(
                auto_alloc=lambda region=region: region,
                alloc=Missing(f"nki.compiler.{region.name}.alloc"),
                mod_alloc=Missing(f"nki.compiler.{region.name}.mod_alloc"),
            )
            for region in (Region.sbuf, Region.psum)
        },
    }


def modules(target: Target, jit: Callable[..., Any]) -> dict[str, ModuleType]:
    """What goes into sys.modules while a kernel of Beta 1 is loaded."""
    contents: dict[str, dict[str, Any]] = {
        "neuronxcc": {},
        "neuronxcc.nki": _package(jit),
        "neuronxcc.nki.language": _language(target),
        "neuronxcc.nki.isa": _isa(target),
        "neuronxcc.nki.compiler": _compiler(),
        "neuronxcc.nki.typing": {"tensor": TensorHint(), "mutable_tensor": TensorHint()},
    }
    found = {name: ModuleType(name) for name in contents}
    for name, values in contents.items():
        vars(found[name]).update(values, __path__=[])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(found[parent], child, found[name])
    return found
