"""The arithmetic of an implementation's kernels, read off them where they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conformance.dtypes import DECLARABLE
from conformance.engine.check import loaded
from conformance.execution.arithmetic import ReadContract, arithmetic_of
from conformance.execution.process import SECONDS
from conformance.execution.selection import SelectionError, require_known
from conformance.execution.trial import absence_reason
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS

__all__ = ["AbsentError", "ReadContract", "read_contract", "results"]


def read_contract(
    kernel: Implementation | Path | str,
    *,
    operator: str | None = None,
    dtype: str | None = None,
    in_process: bool = False,
    timeout: float = SECONDS,
) -> list[ReadContract]:
    """Read the arithmetic off the kernels of an implementation, as `conformance contract` does: one result for each
    operator and dtype that it declares, or for those that are named.

        for result in conformance.read_contract("acme.py", dtype="fp16"):
            print(result.explain(), result.contract)

    Arguments are those of `check`. Raises ValueError for arguments that make no sense, and where nothing can be read
    because the kernel's device is not here.
    """
    return [*results(kernel, operator, dtype, in_process, timeout)]


def results(
    kernel: Implementation | Path | str, operator: str | None, dtype: str | None, in_process: bool, timeout: float
) -> Iterator[ReadContract]:
    """Yield the results of `read_contract` one by one. Raises ValueError."""
    require_known("operator", [operator] if operator else [], OPERATORS)
    require_known("dtype", [dtype] if dtype else [], DECLARABLE)
    if not 0 < timeout <= 1e6:
        raise SelectionError(f"timeout {timeout!r}: must be a number of seconds above 0")
    implementation, absent = loaded(kernel, operator, in_process, timeout)
    if reason := absent or absence_reason(implementation):
        raise AbsentError(reason)
    pairs = dict.fromkeys(
        (declared.operator, name) for declared in implementation.kernels for name in declared.dtypes
        if operator in (None, declared.operator) and dtype in (None, name)
    )  # fmt: skip
    if not pairs:
        choices = ", ".join(
            dict.fromkeys(f"{k.operator} in {name}" for k in implementation.kernels for name in k.dtypes)
        )
        raise SelectionError(f"kernel {implementation.name}: has no such kernel. Choices: {choices or 'none'}")
    for name, used_dtype in pairs:
        yield arithmetic_of(implementation, OPERATORS[name], used_dtype)


class AbsentError(ValueError):
    """Raised where a kernel cannot run here; the message is the reason."""
