"""The arithmetic of an implementation's kernel, read off it where it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from conformance.contract import Contract
from conformance.diagnosis.terms import Compute
from conformance.execution.invocation import Invocation
from conformance.execution.process import Crash
from conformance.execution.remote import Exited, blame
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import Implementation, ImplementationError, Kernel, Unsupported
from conformance.judge.accuracy import KNOWN
from conformance.layouts import rank_of
from conformance.operators import Arrays, Operator
from conformance.reading.chosen import Sums, UnreadableError
from conformance.reading.declaration import contradictions, fitting, summary
from conformance.reading.problems import candidates
from conformance.reading.read import Reading, read


@dataclass(frozen=True, slots=True)
class ReadContract:
    """The arithmetic of one kernel in one dtype, as read, beside the contract that it declares."""

    kernel: str
    reading: Reading
    declared: Contract
    error: str = ""
    """How a call ended, if not with a result; then nothing was read."""

    @property
    def contract(self) -> Contract | None:
        """Strictest contract that allows what was read; None if nothing was."""
        return None if self.error else fitting(self.reading)

    @property
    def whole(self) -> Contract | None:
        """The declared contract with the arithmetic that was read, if all of it was, and makes limits wider."""
        read, contract = self.reading, self.contract
        if contract is None or not ((read.inputs and read.bits) or read.algorithm not in ("direct", None)):
            return None
        names = ("inputs", "accumulate", "rounding", "algorithm", "subnormals", "splits", "partials")
        contract = replace(self.declared, **{name: getattr(contract, name) for name in names})
        written = replace(contract, accumulate="fp32")
        contract = written if contract.accumulate == "auto" and written in KNOWN else contract
        return contract if contract.weakness not in ("", self.declared.weakness) else None

    @property
    def contradictions(self) -> list[str]:
        """Fields of the declared contract that do not allow what was read."""
        return [] if self.error else contradictions(self.reading, self.declared)

    def explain(self, width: int = 100) -> str:
        """Return what was read, how sure it is, the line to declare, and what is unknown."""
        return "\n".join(summary(self.reading, self.declared, self.error, width))


def arithmetic_of(implementation: Implementation, operator: Operator, dtype: str) -> ReadContract:
    """Return what is read off an implementation's kernel in a dtype; of a call that ends without a result, how."""
    used = list[Kernel]()

    def problem(purpose: str) -> Sums | None:
        """Return the sums of the first problem for a purpose that the kernel supports, as a first call shows."""
        for geometry in candidates(operator, purpose):
            for layout in _layouts(implementation, operator, geometry, dtype):
                with suppress(Unsupported, UnreadableError, *([] if purpose == "terms" else [CallError])):
                    kernel = implementation.find(operator.name, geometry, dtype, layout)
                    invocation = Invocation(kernel, implementation.arrays, operator.on(geometry), dtype, layout)
                    simulated = bool(implementation.arrays.stands_for)
                    sums = Sums(invocation.workload, dtype, _compute(invocation), is_simulated=simulated)
                    sums.at().of({0: 1.0})
                    used.append(kernel)
                    return sums
        return None

    try:
        reading, error = read(operator, dtype, problem), ""
    except (Crash, CallError, ImplementationError) as failure:
        reading, error = Reading(operator.name, dtype), str(failure)
    except Unsupported as refusal:  # by the values of a later call
        reading, error = Reading(operator.name, dtype), f"the kernel refuses inputs that are needed: {refusal}"
    able = [kernel for kernel in implementation.kernels if kernel.operator == operator.name and dtype in kernel.dtypes]
    return ReadContract(implementation.name, reading, (*used, *able)[0].contract, error)


class CallError(Exception):
    """Raised where a call gives no result; the message says how it ended."""


def _layouts(implementation: Implementation, operator: Operator, geometry: Any, dtype: str) -> Iterator[str]:
    """Yield the layouts, of the geometry's number of dimensions, that kernels for it declare."""
    kernels = [k for k in implementation.kernels if k.operator == operator.name and dtype in k.dtypes]
    layouts = dict.fromkeys(layout for kernel in kernels for layout in kernel.layouts)
    yield from (layout for layout in layouts if rank_of(layout) == geometry.rank)


def _compute(invocation: Invocation) -> Compute:
    """Return a function that calls the kernel. It raises Unsupported, CallError, Crash."""

    def compute(inputs: Arrays) -> Arrays:
        try:
            return invocation.outputs(invocation.call(invocation.to_device(inputs)))
        except (Unsupported, ImplementationError):
            raise
        except KernelFailure as failure:
            raise CallError(str(failure)) from None
        except (Exited, Exception) as error:  # whatever a kernel raises
            raise CallError(blame(error)) from None

    return compute
