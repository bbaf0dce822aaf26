"""The modules `nki`, `nki.language`, `nki.isa` and `nki.typing` that a kernel imports."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from . import isa_matmul, isa_memory, isa_registers, isa_scalar, isa_vector, lang_create, lang_math
from .dtypes import DTYPES, UNSUPPORTED
from .engines import DgeMode, Engine, MatmulPerfMode, NcVersion, NkiInstruction, OobMode, ReduceCmd
from .errors import refuse
from .indexing import VirtualRegister
from .storage import Region
from .targets import Target, TileSize
from .tensor import NKIObject, NkiTensor

_ISA = (
    (isa_memory, "dma_copy dma_transpose tensor_copy memset tensor_copy_predicated iota affine_select select_reduce"),
    (isa_matmul, "nc_matmul nc_transpose"),
    (isa_vector, "tensor_tensor tensor_scalar scalar_tensor_tensor tensor_reduce tensor_scalar_reduce"),
    (isa_vector, "reciprocal bn_stats bn_aggr"),
    (isa_scalar, "activation activation_reduce tensor_tensor_scan tensor_scalar_cumulative"),
    (isa_registers, "register_alloc register_move register_load register_store"),
)
_ISA_MISSING = """nc_matmul_mx tensor_partition_reduce activate2 local_gather nc_n_gather nc_stream_shuffle rng dropout
set_rng_seed rand_set_state rand_get_state rand2 exponential max8 sequence_bounds core_barrier dma_compute quantize_mx
range_select sendrecv nc_find_index8 nc_match_replace8 nonzero_with_count topk get_nc_sub_version"""
_LANGUAGE = (
    (lang_create, "ndarray full zeros ones empty_like zeros_like load store load_transpose2d transpose matmul"),
    (lang_create, "broadcast_to expand_dims shared_identity_matrix ds program_id num_programs program_ndim"),
    (lang_create, "is_sbuf is_psum is_hbm is_on_chip no_reorder device_print"),
    (lang_math, "mean var negative where"),
    (isa_registers, "fori_loop while_loop"),
)
_LANGUAGE_MISSING = """average prelu bypass gelu_dx gelu_apprx_sigmoid gelu_apprx_sigmoid_dx silu_dx mish erf_dx cos tan
ceil floor trunc fmod mod all softmax rms_norm dropout random_seed rand gather_flattened dynamic_range
shared_constant"""


def operations() -> tuple[str, ...]:
    """Names of what is implemented, "nisa.<name>" and "nl.<name>"."""
    isa = [f"nisa.{name}" for _, names in _ISA for name in names.split()]
    language = [f"nl.{name}" for _, names in _LANGUAGE for name in names.split()]
    functions = [f"nl.{name}" for name in (*lang_math.FUNCTIONS, *lang_math.REDUCTIONS, "copy")]
    ranges = ["nl.affine_range", "nl.sequential_range", "nl.static_range"]
    return tuple(sorted({*isa, *language, *functions, *ranges}))


class Missing:
    """A documented operation that is not implemented."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        refuse("not-implemented", f"{self.__name__} is documented but not implemented here")


class Divide(Missing):
    """nl.divide, which no engine has."""

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        refuse("unsupported-operation", "nl.divide is not supported by the device; multiply with nl.reciprocal")


def _gathered(sources: tuple[tuple[ModuleType, str], ...]) -> dict[str, Any]:
    return {name: getattr(module, name) for module, names in sources for name in names.split()}


def _language(target: Target) -> dict[str, Any]:
    return {
        **{name: Missing(f"nl.{name}") for name in (*_LANGUAGE_MISSING.split(), *UNSUPPORTED)},
        **_gathered(_LANGUAGE),
        **lang_math.FUNCTIONS,
        **lang_math.REDUCTIONS,
        **DTYPES,
        **{region.name: region for region in Region},
        "copy": lang_math.Copy(),
        "divide": Divide("nl.divide"),
        "affine_range": lang_create.loop_range,
        "sequential_range": lang_create.loop_range,
        "static_range": lang_create.loop_range,
        "tile_size": TileSize(target),
        "NkiTensor": NkiTensor,
        "NKIObject": NKIObject,
        "MemoryRegion": Region,
    }


def _isa(target: Target) -> dict[str, Any]:
    engines = {f"{engine.name}_engine": engine for engine in Engine if engine is not Engine.sync}
    return {
        **{name: Missing(f"nisa.{name}") for name in _ISA_MISSING.split()},
        **_gathered(_ISA),
        **engines,
        "engine": Engine,
        "dge_mode": DgeMode,
        "oob_mode": OobMode,
        "reduce_cmd": ReduceCmd,
        "matmul_perf_mode": MatmulPerfMode,
        "nc_version": NcVersion,
        "NkiInstruction": NkiInstruction,
        "VirtualRegister": VirtualRegister,
        "get_nc_version": lambda: NcVersion(target.generation),
    }


def modules(target: Target, jit: Callable[..., Any]) -> dict[str, ModuleType]:
    """What goes into sys.modules while a kernel is loaded."""
    contents: dict[str, dict[str, Any]] = {
        "nki": {"jit": jit, "simulate": lambda kernel: kernel, "__path__": []},
        "nki.language": _language(target),
        "nki.isa": _isa(target),
        "nki.typing": {"tensor": NkiTensor},
    }
    found = {name: ModuleType(name) for name in contents}
    for name, values in contents.items():
        vars(found[name]).update(values)
        if "." in name:
            setattr(found["nki"], name.partition(".")[2], found[name])
    return found
