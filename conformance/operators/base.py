"""What an operator is: named tensors, exact reference, magnitude, contraction lengths, work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

Arrays = dict[str, np.ndarray]


class Geometry(Protocol):
    """The parameters of one problem; immutable, with a canonical descriptor that parses back to it."""

    family: ClassVar[str]
    """Which operators take it: those of the same family."""

    @property
    def descriptor(self) -> str:
        """Canonical text of the problem, see `conformance.operators.descriptor`."""
        ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """One argument or result: its axes in canonical order (`NCHW`, `KCRS`, `K`) and their extents.

    wide      statistics and parameters of normalisation, which are fp32 where the other tensors are 16 bits wide
    positive  a variance: drawn above zero
    """

    axes: str
    shape: tuple[int, ...]
    wide: bool = False
    positive: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def stored_as(self, dtype: str) -> str:
        """The tensor's own dtype in a problem of `dtype`."""
        return "fp32" if self.wide and dtype in ("bf16", "fp16") else dtype


class Operator(Protocol):
    """The mathematics of one operator. Every array is in canonical order; layouts are the harness's business."""

    name: str
    family: str
    """The geometries it takes."""
    data: str
    """Name of the input that distributions scatter impulses and special values over."""
    operand: str
    """Name of the input that multiplies it; `data` itself where nothing does."""
    free_axis: int
    """Axis of `operand` that is not summed over: scaling it scales outputs and nothing else."""
    factors: int
    """Inputs that are multiplied in one term of a sum."""
    infinities: bool
    """Whether an infinity among the data has one right result."""
    keywords: tuple[str, ...]
    """Keyword arguments an implementation may ask for: those of `parameters`, and layout."""

    def inputs(self, geometry: Any) -> dict[str, Tensor]:
        """Arguments in call order; an absent optional argument is not listed."""
        ...

    def outputs(self, geometry: Any) -> dict[str, Tensor]:
        """Results in return order."""
        ...

    def arguments(self, geometry: Any) -> tuple[str, ...]:
        """All positional arguments of an implementation, absent optional ones (passed as None) included."""
        ...

    def parameters(self, geometry: Any) -> dict[str, Any]:
        """Values of the keyword arguments, layout apart."""
        ...

    def terms(self, geometry: Any) -> dict[str, int]:
        """Most products (or summands) in one element of each output: the contraction length KS."""
        ...

    def span(self, geometry: Any) -> int:
        """Largest quotient of an exact intermediate result and one term: what must fit in float64 beside the data."""
        ...

    def constants(self, geometry: Any) -> int:
        """Rounded constants, such as the reciprocal of a divisor, that a result may be multiplied with."""
        ...

    def alike(self, geometry: Any) -> bool:
        """Whether these constants are the same for every element."""
        ...

    def sharing(self, geometry: Any) -> int:
        """Most elements of an output that one rounding may reach, by way of an intermediate result that they share."""
        ...

    def nan_place(self, geometry: Any) -> tuple[int, ...] | None:
        """Index of an element of `operand` that may be NaN: no algorithm multiplies it with an element of padding, and
        results that it does not reach remain. None where there is no such element."""
        ...

    def exact_on_integers(self, geometry: Any) -> bool:
        """Whether small integers have results that every format holds."""
        ...

    def reference(self, geometry: Any, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """The outputs computed in `dtype`; exact in float64 for data of `conformance.inputs`."""
        ...

    def magnitude(self, geometry: Any, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> Arrays:
        """What rounding errors are measured in.

        For sums, by output: s2 = sqrt(operator applied to squared inputs) (Higham and Mary 2019). For operators whose
        bounds `conformance.judge.propagation` propagates: the intermediate results it needs, by their names.
        """
        ...

    def flops(self, geometry: Any) -> int:
        """Required floating-point operations, a multiply-add counted as two."""
        ...

    def bytes(self, geometry: Any, itemsize: int) -> int:
        """Least traffic: every input read once, every output written once."""
        ...
