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
    isa_accumulate,
    isa_gather,
    isa_indirect,
    isa_matmul,
    isa_memory,
    isa_search,
    isa_vector,
    language,
    language_more,
)  # fmt: skip
from .beta_alloc import Allocator
from .beta_index import Index, MeshGrid, arange
from .beta_math import data_type
from .beta_tensor import BetaTensor
from .dtypes import DTYPES, UNSUPPORTED
from .engines import DgeMode, DmaEngine, Engine, MatmulPerfMode, NcVersion, NkiInstruction, OobMode, ReduceCmd, needs
from .errors import refuse
from .indexing import DynamicSlice, VirtualRegister
from .machine import current, running
from .objects import NKIObject
from .storage import Region
from .targets import Target, TileSize
from .tensor import NkiTensor

Sources = tuple[tuple[ModuleType, str], ...]
"""Modules, and the names of what a kernel finds of them."""
_ISA: Sources = (
    (isa_memory, "dma_copy dma_transpose tensor_copy memset tensor_copy_predicated iota affine_select"),
    (isa_indirect, "dma_compute"),
    (isa_matmul, "nc_matmul nc_transpose"),
    (isa_vector, "tensor_tensor tensor_scalar scalar_tensor_tensor tensor_reduce reciprocal bn_stats bn_aggr"),
    (isa_vector, "activation activation_reduce tensor_tensor_scan"),
    (isa_accumulate, "tensor_scalar_reduce range_select"),
    (isa_gather, "local_gather nc_n_gather nc_stream_shuffle tensor_partition_reduce"),
    (isa_search, "max8 nc_find_index8 nc_match_replace8 nonzero_with_count"),
    (isa_memory, "register_alloc register_move register_load register_store"),
)
_ISA_MISSING = {
    "nc_matmul_mx": 4, "quantize_mx": 4, "core_barrier": 3, "sendrecv": 3, "topk": 2, "exponential": 4, "activate2": 4,
    "tensor_scalar_cumulative": 2, "select_reduce": 2, "sequence_bounds": 2, "rng": 2, "rand2": 2, "dropout": 2,
    "set_rng_seed": 2, "rand_get_state": 3, "rand_set_state": 3,
}  # fmt: skip
"""Documented, not here, and the generation that has it: scaled formats, several cores, random numbers, a layout that
its page does not define, and what no public kernel needs."""
_LANGUAGE: Sources = (
    (language, "ndarray full zeros ones empty_like zeros_like load store load_transpose2d transpose matmul"),
    (language, "broadcast_to expand_dims shared_identity_matrix program_id num_programs program_ndim"),
    (language, "is_sbuf is_psum is_hbm is_on_chip no_reorder device_print mean negative"),
    (language_more, "where all var shared_constant"),
    (isa_memory, "fori_loop while_loop dynamic_range"),
)
_LANGUAGE_MISSING = dict.fromkeys(
    (*UNSUPPORTED, "softmax", "rms_norm", "gather_flattened", "rand", "random_seed", "dropout"), 2
)
_UNSUPPORTED = {
    "divide": "multiply with nl.reciprocal",
    "fmod": "no instruction of the device divides",
    "mod": "no instruction of the device divides",
}
"""Documented as operations that the device does not have."""
_REMOVED = {
    "nl": {
        "arange": "slice, or use .ap",
        "mgrid": "slice, or use .ap",
        "par_dim": "the partition is the first dimension",
    },
    "nisa": {
        "tensor_copy_dynamic_src": "use tensor_copy of .ap with a scalar_offset",
        "tensor_copy_dynamic_dst": "use tensor_copy to .ap with a scalar_offset",
    },
}
"""Of earlier generations: "NKI Migration Guides"."""
_COLLECTIVES = """all_reduce all_gather all_gather_v reduce_scatter all_to_all all_to_all_v collective_permute
collective_permute_implicit collective_permute_implicit_reduce collective_permute_implicit_current_processing_rank_id
rank_id ReplicaGroup"""
_BETA_ISA: Sources = (
    (beta_isa, "nc_matmul nc_transpose activation activation_reduce tensor_reduce tensor_tensor tensor_scalar"),
    (beta_isa, "scalar_tensor_tensor tensor_copy reciprocal memset iota affine_select dma_copy bn_stats bn_aggr"),
    (beta_isa, "tensor_tensor_scan dma_transpose tensor_copy_predicated tensor_partition_reduce tensor_scalar_reduce"),
    (beta_search, "max8 nc_find_index8 nc_match_replace8 nc_stream_shuffle local_gather sequence_bounds"),
    (
        beta_select,
        "range_select select_reduce tensor_scalar_cumulative tensor_copy_dynamic_src",
    ),
    (beta_random, "dropout"),
)
_BETA_ISA_MISSING = "builtin_custom_op tensor_copy_dynamic_dst"
_BETA_LANGUAGE: Sources = (
    (beta_language, "ndarray full zeros ones empty_like zeros_like load store load_transpose2d copy matmul transpose"),
    (beta_language, "broadcast_to expand_dims mean var where program_id num_programs program_ndim"),
    (
        beta_language,
        "shared_constant shared_identity_matrix device_print atomic_rmw finfo loop_reduce",
    ),
    (beta_search, "gather_flattened"),
    (beta_random, "rand"),
)
_BETA_LANGUAGE_MISSING = "all_reduce softmax rms_norm static_cast random_seed dropout"
_RANGES = ("affine_range", "sequential_range", "static_range")


def operations() -> tuple[str, ...]:
    """Names of what is implemented, "nisa.<name>" and "nl.<name>"."""
    isa = [f"nisa.{name}" for _, names in _ISA for name in names.split()]
    names = " ".join(names for _, names in _LANGUAGE).split()
    names += [*language.FUNCTIONS, *language.REDUCTIONS, *language_more.COMPUTED, *_RANGES, "copy", "ds"]
    return tuple(sorted({*isa, *(f"nl.{name}" for name in names)}))


def missing() -> tuple[str, ...]:
    """Names of what is documented and refused as not implemented, or as not supported by any device."""
    names = [f"nisa.{name}" for name in _ISA_MISSING]
    names += [f"nl.{name}" for name in (*_LANGUAGE_MISSING, *_UNSUPPORTED)]
    names += [f"nki.collectives.{name}" for name in _COLLECTIVES.split()]
    return tuple(sorted(names))


class Missing:
    """What is documented and refused when it is called; on a target that does not have it, for that."""

    def __init__(
        self, name: str, rule: str = "not-implemented", why: str = "is documented but not implemented here",
        generation: int = 2,
    ) -> None:  # fmt: skip
        self.__name__, self.rule, self.why, self.generation = name, rule, why, generation

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        needs(current(), self.generation, self.__name__)
        refuse(self.rule, f"{self.__name__} {self.why}")

    def __getitem__(self, _: Any) -> NoReturn:
        self()


def _found(prefix: str, sources: Sources, missing: str | dict[str, int]) -> dict[str, Any]:
    contents = {name: getattr(module, name) for module, names in sources for name in names.split()}
    generations = dict.fromkeys(missing.split(), 2) if isinstance(missing, str) else missing
    return {
        name: Missing(f"{prefix}.{name}", generation=generation) for name, generation in generations.items()
    } | contents


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
    unsupported = {
        name: Missing(f"nl.{name}", "unsupported-operation", f"is not supported by the device; {why}")
        for name, why in _UNSUPPORTED.items()
    }
    removed = {
        prefix: {
            name: Missing(f"{prefix}.{name}", "removed", f"was removed from nki; {why}") for name, why in names.items()
        }
        for prefix, names in _REMOVED.items()
    }
    return _installed(
        {
            "nki": {"jit": jit, "simulate": jit},
            "nki.language": {
                **_found("nl", _LANGUAGE, _LANGUAGE_MISSING),
                **_shared_language(target, language),
                **language_more.COMPUTED,
                **language_more.SHADOWED,
                **language_more.CONSTANTS,
                **unsupported,
                **removed["nl"],
                "copy": language.Copy(),
                "NkiTensor": NkiTensor,
                "NKIObject": NKIObject,
                "MemoryRegion": Region,
            },
            "nki.isa": {
                **_found("nisa", _ISA, _ISA_MISSING),
                **removed["nisa"],
                **_shared_isa(target),
                "engine": Engine,
                "oob_mode": OobMode,
                "matmul_perf_mode": MatmulPerfMode,
                "dma_engine": DmaEngine,
                "get_nc_sub_version": lambda: 0,
                "NkiInstruction": NkiInstruction,
                "VirtualRegister": VirtualRegister,
            },
            "nki.collectives": {name: Missing(f"nki.collectives.{name}") for name in _COLLECTIVES.split()},
            "nki.typing": {"tensor": TensorHint()},
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
        **{name: lambda function=None, **_: function or (lambda decorated: decorated) for name in hints},
        **{region.name: Allocator(region) for region in (Region.sbuf, Region.psum)},
    }


def _installed(contents: dict[str, dict[str, Any]]) -> dict[str, ModuleType]:
    """Modules with these contents, each an attribute of its package."""
    modules = {name: ModuleType(name) for name in contents}
    for name, values in contents.items():
        vars(modules[name]).update(values, __path__=[])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, modules[name])
    return modules


def imports_beta(tree: ast.Module) -> bool:
    """Whether a source is written against `neuronxcc.nki`, which excludes the `nki` of later releases."""
    named = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    roots = {name.partition(".")[0] for name in named}
    if {"nki", "neuronxcc"} <= roots:
        refuse("mixed-generations", "the file imports both nki and neuronxcc; their tensors are not the same")
    return "neuronxcc" in roots
