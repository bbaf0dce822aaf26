"""What an implementation declares of one operator; each thing is asked once, however many cases depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.execution.invocation import require_storage
from conformance.execution.remote import Condition
from conformance.implementations.implementation import Implementation, ImplementationError, Kernel, Unsupported
from conformance.layouts import is_optional, rank_of
from conformance.problems import Problem, Variant


class Declared:
    """The kernels of an implementation for an operator. Those in another process are asked about all of some
    `geometries` in one exchange."""

    def __init__(self, implementation: Implementation, operator: str, geometries: Sequence[Any] = ()) -> None:
        self.implementation, self.operator = implementation, operator
        self.kernels = [kernel for kernel in implementation.kernels if kernel.operator == operator]
        self.pairs = tuple(dict.fromkeys((d, la) for k in self.kernels for la in k.layouts for d in k.dtypes))
        """The dtypes and layouts of which it has a kernel."""
        self.layouts = tuple(dict.fromkeys(layout for kernel in self.kernels for layout in kernel.layouts))
        self._found: dict[tuple[str, str, str], Kernel | Unsupported | ImplementationError] = {}
        self._stored: dict[tuple[str, str], Unsupported | None] = {}
        for kernel in self.kernels:
            if isinstance(kernel.when, Condition):
                ranks = {rank_of(layout) for layout in kernel.layouts}
                kernel.when.learn(geometry for geometry in geometries if geometry.rank in ranks)

    def kernel(self, geometry: Any, dtype: str, layout: str) -> Kernel:
        """The kernel for a problem. Raises Unsupported with the reason where there is none, and ImplementationError
        where a predicate raises."""
        key = geometry.descriptor, dtype, layout
        if key not in self._found:
            try:
                self._found[key] = self.implementation.find(self.operator, geometry, dtype, layout)
            except (Unsupported, ImplementationError) as refusal:
                self._found[key] = refusal.with_traceback(None)
        found = self._found[key]
        if isinstance(found, Exception):
            raise found
        return found

    def takes(self, problem: Problem, variant: Variant) -> bool:
        """Whether a kernel declares that it can be verified on a case. A predicate that raises is reported by the case
        itself."""
        try:
            kernel = self.kernel(problem.geometry, variant.dtype, variant.layout)
        except (Unsupported, ImplementationError):
            return False
        return not kernel.contract.exempts(variant.distribution, variant.dtype)

    def lacks(self, variant: Variant) -> Unsupported | None:
        """Why it has no case in a variant's layout and storage, whatever the problem: it does not declare a layout that
        is for those who do, or its framework has no such storage."""
        key = variant.layout, variant.storage
        if key not in self._stored:
            try:
                if is_optional(variant.layout) and variant.layout not in self.layouts:
                    raise Unsupported(f"layout {variant.layout} is not declared")
                require_storage(self.implementation.arrays, variant.storage)
                self._stored[key] = None
            except Unsupported as absence:
                self._stored[key] = absence
        return self._stored[key]
