"""The modules that a kernel imports: `nki` and its parts, and for the first generation `neuronxcc.nki` and its."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from . import (
    beta_isa,
    beta_language,
    beta_random,
    beta_search,
    beta_select,
    isa_matmul,
    isa_memory,
    isa_vector,
    language,
)  # fmt: skip
from .beta_alloc import Allocator
from .beta_index import Index, MeshGrid, arange
from .beta_math import data_type
from .beta_tensor import BetaTensor
from .dtypes import DTYPES, UNSUPPORTED
from .engines import DgeMode, Engine, MatmulPerfMode, NcVersion, NkiInstruction, OobMode, ReduceCmd
from .errors import refuse
from .indexing import DynamicSlice, VirtualRegister
from .machine import running
from .storage import Region
from .targets import Target, TileSize
from .tensor import NKIObject, NkiTensor

Sources = tuple[tuple[ModuleType, str], ...]
"""Modules, and the names of what a kernel finds of them."""
_ISA: Sources = (
    (isa_memory, "dma_copy dma_transpose tensor_copy memset tensor_copy_predicated iota affine_select select_reduce"),
    (isa_matmul, "nc_matmul nc_transpose"),
    (isa_vector, "tensor_tensor tensor_scalar scalar_tensor_tensor tensor_reduce tensor_scalar_reduce"),
    (isa_vector, "reciprocal bn_stats bn_aggr"),
    (isa_vector, "activation activation_reduce tensor_tensor_scan tensor_scalar_cumulative"),
    (isa_memory, "register_alloc register_move register_load register_store"),
)
_ISA_MISSING = """nc_matmul_mx tensor_partition_reduce activate2 local_gather nc_n_gather nc_stream_shuffle rng dropout
set_rng_seed rand_set_state rand_get_state rand2 exponential max8 sequence_bounds core_barrier dma_compute quantize_mx
range_select sendrecv nc_find_index8 nc_match_replace8 nonzero_with_count topk get_nc_sub_version"""
_LANGUAGE: Sources = (
    (language, "ndarray full zeros ones empty_like zeros_like load store load_transpose2d transpose matmul"),
    (language, "broadcast_to expand_dims shared_identity_matrix program_id num_programs program_ndim"),
    (language, "is_sbuf is_psum is_hbm is_on_chip no_reorder device_print mean var negative where"),
    (isa_memory, "fori_loop while_loop"),
)
_LANGUAGE_MISSING = f"""average prelu bypass gelu_dx gelu_apprx_sigmoid gelu_apprx_sigmoid_dx silu_dx mish erf_dx cos
tan ceil floor trunc fmod mod all softmax rms_norm dropout random_seed rand gather_flattened dynamic_range
shared_constant {" ".join(UNSUPPORTED)}"""
_BETA_ISA: Sources = (
    (beta_isa, "nc_matmul nc_transpose activation activation_reduce tensor_reduce tensor_tensor tensor_scalar"),
    (beta_isa, "scalar_tensor_tensor tensor_copy reciprocal memset iota affine_select dma_copy bn_stats bn_aggr"),
    (beta_isa, "tensor_tensor_scan dma_transpose tensor_copy_predicated tensor_partition_reduce tensor_scalar_reduce"),
    (beta_search, "max8 nc_find_index8 nc_match_replace8 nc_stream_shuffle local_gather sequence_bounds"),
    (
        beta_select,
        "range_select select_reduce tensor_scalar_cumulative tensor_copy_dynamic_src tensor_copy_dynamic_dst",
    ),
    (beta_random, "dropout"),
)
_BETA_ISA_MISSING = "builtin_custom_op"
_BETA_LANGUAGE: Sources = (
    (beta_language, "ndarray full zeros ones empty_like zeros_like load store load_transpose2d copy matmul transpose"),
    (beta_language, "broadcast_to expand_dims mean var softmax where program_id num_programs program_ndim"),
    (
        beta_language,
        "shared_constant shared_identity_matrix device_print atomic_rmw static_cast rms_norm finfo loop_reduce",
    ),
    (beta_search, "gather_flattened"),
    (beta_random, "rand random_seed"),
)
_BETA_LANGUAGE_MISSING = "all_reduce"
_RANGES = ("affine_range", "sequential_range", "static_range")


def operations() -> tuple[str, ...]:
    """Names of what is implemented, "nisa.<name>" and "nl.<name>"."""
    isa = [f"nisa.{name}" for _, names in _ISA for name in names.split()]
    names = " ".join(names for _, names in _LANGUAGE).split()
    names += [*language.FUNCTIONS, *language.REDUCTIONS, *_RANGES, "copy", "ds"]
    return tuple(sorted({*isa, *(f"nl.{name}" for name in names)}))


class Missing:
    """What is documented and refused when it is called."""

    def __init__(self, name: str, rule: str = "not-implemented", why: str = "is documented but not implemented here"):
        self.__name__, self.rule, self.why = name, rule, why

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        refuse(self.rule, f"{self.__name__} {self.why}")


def _found(prefix: str, sources: Sources, missing: str) -> dict[str, Any]:
    found = {name: getattr(module, name) for module, names in sources for name in names.split()}
    return {name: Missing(f"{prefix}.{name}") for name in missing.split()} | found


def _shared_language(target: Target, functions: Any) -> dict[str, Any]:
    """What nki.language has in both generations."""
    return {
        **functions.FUNCTIONS,
        **functions.REDUCTIONS,
        **dict.fromkeys(_RANGES, functions.loop_range),
        **DTYPES,
        **{region.name: region for region in Region},
        "ds": DynamicSlice,
        "tile_size": TileSize(target),
    }


def _shared_isa(target: Target) -> dict[str, Any]:
    """What nki.isa has in both generations."""
    return {
        **{f"{engine.name}_engine": engine for engine in Engine if engine is not Engine.sync},
        "dge_mode": DgeMode,
        "reduce_cmd": ReduceCmd,
        "nc_version": NcVersion,
        "get_nc_version": lambda: NcVersion((running() or target).generation),
    }


def modules(target: Target, jit: Callable[..., Any]) -> dict[str, ModuleType]:
    """What goes into sys.modules while a file of kernels is loaded."""
    why = "is not supported by the device; multiply with nl.reciprocal"
    return _installed(
        {
            "nki": {"jit": jit, "simulate": lambda kernel: kernel},
            "nki.language": {
                **_found("nl", _LANGUAGE, _LANGUAGE_MISSING),
                **_shared_language(target, language),
                "copy": language.Copy(),
                "divide": Missing("nl.divide", "unsupported-operation", why),
                "NkiTensor": NkiTensor,
                "NKIObject": NKIObject,
                "MemoryRegion": Region,
            },
            "nki.isa": {
                **_found("nisa", _ISA, _ISA_MISSING),
                **_shared_isa(target),
                "engine": Engine,
                "oob_mode": OobMode,
                "matmul_perf_mode": MatmulPerfMode,
                "NkiInstruction": NkiInstruction,
                "VirtualRegister": VirtualRegister,
            },
            "nki.typing": {"tensor": NkiTensor},
        }
    )


def beta_modules(target: Target, jit: Callable[..., Any]) -> dict[str, ModuleType]:
    """The same for a file of the first generation, and while its kernels run: they may import in functions."""
    return _installed(
        {
            "neuronxcc": {},
            "neuronxcc.nki": {
                **{name: _on_device(f"nki.{name}") for name in ("benchmark", "profile")},
                "baremetal": jit,
                "jit": jit,
                "trace": jit,
                "simulate_kernel": lambda kernel, *args, **kwargs: kernel(*args, **kwargs),
                "tensor": BetaTensor,
            },
            "neuronxcc.nki.language": {
                **_shared_language(target, beta_language),
                **_found("nl", _BETA_LANGUAGE, _BETA_LANGUAGE_MISSING),
                "par_dim": beta_language.ParDim,
                "arange": arange,
                "mgrid": MeshGrid(),
                "nc": int,
                "spmd_dim": lambda *sizes: prod(sizes),
                "all": beta_language.all_true,
                "dropout": beta_random.language_dropout,
                "fp32": SimpleNamespace(min=float(np.finfo(np.float32).min)),
            },
            "neuronxcc.nki.isa": _found("nisa", _BETA_ISA, _BETA_ISA_MISSING)
            | _shared_isa(target)
            | {"oob_mode": OobMode},
            "neuronxcc.nki.isa.constants": _shared_isa(target) | {"oob_mode": OobMode},
            "neuronxcc.nki.compiler": _compiler(),
            "neuronxcc.nki.typing": {"tensor": TensorHint(), "mutable_tensor": TensorHint()},
            "neuronxcc.nki.language.constants": {"sizeinbytes": _size_in_bytes},
            # no page names them; the vendor's public kernels annotate with them
            **{f"neuronxcc.nki.compiler.backends{rest}": {} for rest in ("", ".neuron")},
            "neuronxcc.nki.compiler.backends.neuron.tensor": {"local_tile": BetaTensor},
            "neuronxcc.nki.compiler.backends.neuron.indexing": {"TileIndex": Index},
        }
    )


def _size_in_bytes(dtype: Any) -> int:
    return data_type(dtype).itemsize


class TensorHint:
    """nki.typing.tensor, which annotates and means nothing to the emulator."""

    def __getitem__(self, _: Any) -> TensorHint:
        return self


def _on_device(name: str) -> Callable[..., Any]:
    """A decorator, with or without options, of functions that are refused when they are called."""

    def decorator(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        return decorator if function is None else Missing(f"{name}, which runs on a device,")

    return decorator


def _compiler() -> dict[str, Any]:
    """Hints that change no result, and memory that a kernel places itself."""
    hints = ("skip_middle_end_transformations", "enable_stack_allocator", "force_auto_alloc")
    return {
        "no_reorder": nullcontext,
        "allocation_scope": nullcontext,
        "multi_buffer": lambda factor=2: factor,
        **{name: lambda function=None, **_: function or (lambda found: found) for name in hints},
        **{region.name: Allocator(region) for region in (Region.sbuf, Region.psum)},
    }


def _installed(contents: dict[str, dict[str, Any]]) -> dict[str, ModuleType]:
    """Modules with these contents, each an attribute of its package."""
    found = {name: ModuleType(name) for name in contents}
    for name, values in contents.items():
        vars(found[name]).update(values, __path__=[])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(found[parent], child, found[name])
    return found


def imports_beta(tree: ast.Module) -> bool:
    """Whether a source is written against `neuronxcc.nki`, which excludes the `nki` of later releases."""
    named = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    roots = {name.partition(".")[0] for name in named}
    if {"nki", "neuronxcc"} <= roots:
        refuse("mixed-generations", "the file imports both nki and neuronxcc; their tensors are not the same")
    return "neuronxcc" in roots
