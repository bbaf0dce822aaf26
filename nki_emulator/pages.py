"""The page of the documentation that a refusal stands on: of the rule where it has one, else of what was called."""

from __future__ import annotations

from types import TracebackType

from .errors import SOURCES

GUIDE = "NKI Language Guide"
MIGRATION = "NKI Migration Guides"
NOTES = "NKI Release Notes"
TRAINIUM = "Trainium/Inferentia2 Architecture Guide"
ACCESS = "NKI Access Patterns"
TENSOR = "nki.language.NkiTensor"
SIMULATOR = "NKI CPU Simulator"
LOOPS = "NKI Dynamic Loops"
DGE = "Descriptor Generation Engine (DGE) Reference"
COMMON = "NKI ISA API Common Fields"

BY_RULE = {
    "partition-limit": "Tiling Overview",
    "sbuf-capacity": TRAINIUM,
    "psum-capacity": TRAINIUM,
    "psum-bank": TRAINIUM,
    "uninitialised": GUIDE,
    "psum-uninitialised": GUIDE,
    "psum-not-started": "nki.isa.nc_matmul",
    "gpsimd-psum": TRAINIUM,
    "start-partition": TRAINIUM,
    "access-dimensions": TRAINIUM,
    "partition-stride": ACCESS,
    "ap-on-view": ACCESS,
    "indirect": ACCESS,
    "activation-range": COMMON,
    "inexact-integer": NOTES,
    "stale-tensor": GUIDE,
    "tensor-value": GUIDE,
    "argument": MIGRATION,
    "input-written": SIMULATOR,
    "output-missing": MIGRATION,
    "output-buffer": MIGRATION,
    "output-view": MIGRATION,
    "output-unwritten": SIMULATOR,
    "removed": MIGRATION,
    "cores": "NKI FAQ",
    "loop": MIGRATION,
    "jit-option": MIGRATION,
    "enum": MIGRATION,
    "memset-value": MIGRATION,
    "python-is": MIGRATION,
    "python-dict-key": GUIDE,
    "python-keyword-only": MIGRATION,
    "python-with": "nki.language.no_reorder",
}
"""Rules that hold whatever is called, or that another page says more of."""

_TENSOR_MODULES = ("tensor", "indexing", "storage", "indirect")
_MODULES = {"nisa": "nki.isa", "nl": "nki.language"}
_ALIASES = {"loop_range": "affine_range"}
_LOOPS = ("fori_loop", "while_loop", "dynamic_range")


def page_of(rule: str, traceback: TracebackType | None = None) -> str:
    """Page for a rule that was broken in a call that left this traceback."""
    return BY_RULE.get(rule) or _called(traceback) or GUIDE


def _called(traceback: TracebackType | None) -> str:
    """Page of the function of NKI that the innermost line of a kernel calls, "" if it calls none."""
    frame = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename in SOURCES:
            frame = traceback.tb_next.tb_frame if traceback.tb_next is not None else None
        traceback = traceback.tb_next
    if frame is None:
        return ""
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__", "").rpartition(".")[2]
    if name == "__call__":
        name = getattr(frame.f_locals.get("self"), "__name__", name)
    prefix, _, rest = name.rpartition(".")
    if prefix:
        return f"{_MODULES.get(prefix, prefix)}.{rest}"
    if module in _TENSOR_MODULES:
        return TENSOR
    if module in ("loader", "subset"):
        return "nki.jit"
    part = "isa" if module.removeprefix("beta_").startswith("isa") and name not in _LOOPS else "language"
    return f"nki.{part}.{_ALIASES.get(name, name)}"
