"""What an operator is: named tensors, exact reference, error model, work, and what checks must know of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from conformance.dtypes import DTYPES, STORAGE, sums_of
from conformance.operators.spatial import unpadded

if TYPE_CHECKING:
    from conformance.operators.double_double import Double

Arrays = dict[str, np.ndarray]
Given = Mapping[str, np.ndarray]
"""Arrays that are only read."""


class Geometry(Protocol):
    """The parameters of one problem; immutable, with a canonical descriptor that parses back to it."""

    family: ClassVar[str]
    """Which operators take it: those of the same family."""

    @property
    def n(self) -> int:
        """Images, or none."""
        ...

    @property
    def descriptor(self) -> str:
        """Canonical text of the problem, see `conformance.operators.descriptor`."""
        ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """One argument or result: its axes in canonical order (`NCHW`, `KCRS`, `K`) and their extents.

    wide      statistics, parameters of normalisation and scales, which are fp32 where the other tensors have fewer bits
    positive  a variance or a scale: drawn above zero
    sums      sums of products, and what is added to them, which have a format of their own where inputs have 8 bits
    """

    axes: str
    shape: tuple[int, ...]
    wide: bool = False
    positive: bool = False
    sums: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_filter(self) -> bool:
        """Whether its axes are those of weights: KCRS, or CKRS of a transposed convolution."""
        return self.axes.startswith(("KC", "CK"))

    def stored_as(self, dtype: str) -> str:
        """The tensor's own dtype in a problem of `dtype`."""
        if self.sums:
            return sums_of(dtype)
        return "fp32" if self.wide and dtype not in ("fp32", "fp64") else dtype


class Arithmetic(Protocol):
    """A contract at work on tensors of one dtype, as the propagation of errors asks for it (the judge has it).

    Bounds are of `deviations` standard deviations; arrays are float64.
    """

    @property
    def deviations(self) -> float: ...

    @property
    def u(self) -> float:
        """The accumulator's unit roundoff."""
        ...

    @property
    def rounds_between(self) -> bool:
        """Whether what lies between the parts of a fused operator is rounded to the storage format."""
        ...

    @property
    def ties(self) -> str:
        """Where a number half way between two whole ones is rounded: `even`, `away` or `up`."""
        ...

    @property
    def saturates(self) -> bool:
        """Whether what overflows 8 bits becomes the largest finite number."""
        ...

    @property
    def exact(self) -> bool:
        """Whether sums of these inputs are exact in every order."""
        ...

    @property
    def raw_moments(self) -> bool:
        """Whether a variance is the mean of squares less the square of the mean."""
        ...

    def holds(self, bits: int) -> bool:
        """Whether sums that need so many bits are exact in the accumulator, in every order."""
        ...

    def product(self, exact: np.ndarray, s2: np.ndarray, terms: int, bits: int | None = None) -> np.ndarray:
        """The bound of sums of `terms` products; `bits`: the most that any of these sums needs, where it is known."""
        ...

    def sum(self, elements: np.ndarray) -> np.ndarray:
        """The bound of sums over the last axis of exact elements [K, M]."""
        ...

    def between(self, values: np.ndarray) -> np.ndarray | float:
        """What rounding to storage adds to values that have a bound of their own."""
        ...

    def stored(self, values: np.ndarray) -> np.ndarray:
        """Values as the next part reads them."""
        ...


Propagation = Callable[[Any, Arrays, Arrays, Arithmetic], Arrays]
"""(geometry, inputs, magnitude, arithmetic) -> bound of every output before its rounding."""

Interval = tuple[np.ndarray, np.ndarray]
"""The least and the largest right value of every element, float64; NaN at an end: NaN is right, too."""
Enclosure = Callable[[Any, Arrays, Arrays, Arithmetic], dict[str, Interval]]
"""(geometry, inputs, magnitude, arithmetic) -> what every output may be."""


@dataclass(frozen=True, slots=True)
class ErrorModel:
    """What an operator's structure says about rounding errors on one geometry.

    terms              most products (or summands) in one element of each output: the contraction length KS
    span               largest quotient of an exact intermediate result and one term: what must fit in float64 beside
                       the data
    exact_on_integers  whether small integers have results that every format holds
    selects            whether every result is an element of the inputs, so that nothing is rounded
    divisor            common multiple of what results are divided by
    constants          rounded constants, such as the reciprocal of a divisor, that a result may be multiplied with
    shared_constant    whether these are the same for every element
    error_fan_out      most elements of an output that one rounding may reach, by way of an intermediate result
    propagate          how bounds follow from those of the parts, where an output is no plain sum
    encloses           which outputs are right, where they are rounded so coarsely that these can be counted
    """

    terms: Mapping[str, int]
    span: int
    exact_on_integers: bool = True
    selects: bool = False
    divisor: int = 1
    constants: int = 0
    shared_constant: bool = True
    error_fan_out: int = 1
    propagate: Propagation | None = None
    encloses: Enclosure | None = None


@dataclass(frozen=True, slots=True)
class Homogeneous:
    """Which inputs are scaled together, and which outputs scale with them: by powers of two, by -1, or by both."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    powers: bool = True
    signs: bool = True


@dataclass(frozen=True, slots=True)
class ProbeMethods:
    """What is known of a main output that is too large to be computed.

    channels  extent of the axis that is summed over with random signs
    project   (geometry, inputs, signs, risk, arithmetic) -> `conformance.operators.conv.probes.Projection`
    sample    (geometry, inputs, index[T, axes]) -> exact values and magnitudes there
    """

    channels: Callable[[Any], int]
    project: Callable[[Any, Arrays, np.ndarray, float, np.dtype], Any]
    sample: Callable[[Any, Arrays, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A case that a public text works out, with results that every format holds; `inputs` are float64."""

    descriptor: str
    inputs: Arrays
    what: str
    """What the inputs are, in a failure."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a call, canonical order, and its parameters."""

    inputs: Arrays
    parameters: Mapping[str, Any]


Spoil = Callable[[Any, Request], Request | None]
"""(geometry, valid request) -> a request that no kernel can fulfil; None where this one has a result."""


def _window_beyond_image(geometry: Any, request: Request) -> Request | None:
    """Images of one pixel, without padding; gradients of such images. One pixel holds a window of one element."""
    if math.prod(geometry.window) == 1:
        return None
    pixel = (slice(None), slice(None), *[slice(1)] * geometry.rank)
    images = {name: array[pixel] for name, array in request.inputs.items() if name == "x"}
    given = dict(request.parameters) | {"padding": unpadded(geometry.rank)}
    if "input_size" in given:
        given["input_size"] = (1,) * geometry.rank
    return Request(request.inputs | images, given)


def _channels_mismatch(geometry: Any, request: Request) -> Request:
    """The first image has one channel less than the filters are for."""
    name = next(iter(request.inputs))
    return Request(request.inputs | {name: request.inputs[name][:, :-1]}, request.parameters)


def _integers(geometry: Any, request: Request) -> Request:
    return Request({name: array.astype(np.int32) for name, array in request.inputs.items()}, request.parameters)


WINDOW_BEYOND_IMAGE: dict[str, Spoil] = {"a window larger than the padded image": _window_beyond_image}
CHANNELS_MISMATCH: dict[str, Spoil] = {"channels that do not match": _channels_mismatch}
INTEGER_TENSORS: dict[str, Spoil] = {"integer tensors": _integers}
"""For averages and roots; convolutions and maxima of integers have a meaning."""


def _with_parameter(name: str, value: Any) -> Spoil:
    """The request with another value of a parameter, on each axis where it has one for each."""

    def spoil(geometry: Any, request: Request) -> Request:
        changed = value if name == "groups" else (value,) * geometry.rank
        return Request(request.inputs, {**request.parameters, name: changed})

    return spoil


def invalid_parameters(keywords: tuple[str, ...]) -> dict[str, Spoil]:
    """Values that none of these parameters can have."""
    values = {
        "stride 0": ("stride", 0),
        "dilation 0": ("dilation", 0),
        "groups 0": ("groups", 0),
        "groups -1": ("groups", -1),
        "padding -1": ("padding", (-1, -1)),
    }
    return {what: _with_parameter(name, value) for what, (name, value) in values.items() if name in keywords}


def invalid_filters(axis: int) -> dict[str, Spoil]:
    """Filters that do not fit to the other input, with whose channels their `axis` is summed over."""

    def channels(geometry: Any, request: Request) -> Request:
        w = request.inputs["w"]
        return Request(request.inputs | {"w": np.concatenate([w, w], axis)}, request.parameters)

    def rank(geometry: Any, request: Request) -> Request:
        return Request(request.inputs | {"w": request.inputs["w"][..., 0]}, request.parameters)

    return {"w of twice the channels": channels, "w without its last axis": rank}


_TENSORS = {"x": "x", "dx": "x", "w": "filter", "dw": "filter", "y": "y", "dy": "y"}
"""Argument or result -> the attribute of a geometry: a gradient has the shape of what it is taken by."""
_PARAMETERS = {"kernel_size": "window", "input_size": "size", "with_bias": "bias"}
"""Keyword argument -> the attribute of a geometry, where that has another name. `input_size` is what dy does not
determine where the stride leaves a remainder; `with_bias` is whether (dw, dbias) is asked for."""


class Operator:
    """The mathematics of one operator. Every array is in canonical order; layouts are the harness's business.

    The defaults are those of an operator with one input that matters and nothing special about it.
    """

    name: str
    family: str
    """The geometries it takes."""
    arguments: tuple[str, ...]
    """All positional arguments of an implementation, those that are absent on some geometries (passed as None)
    included."""
    returns: tuple[str, ...]
    """All results in their order, those that are absent on some geometries included."""
    keywords: tuple[str, ...]
    """Keyword arguments an implementation may ask for: those of `parameters`, and layout."""
    capabilities: tuple[str, ...] = ()
    """Keyword arguments by which a kernel says that it can do more: `output_mask`, whether each output is asked for,
    and `into`, the array (of several outputs: arrays) that results are added to, None for new ones."""
    data: str
    """Name of the input that distributions scatter impulses and special values over."""
    operand: str
    """Name of the input that multiplies it; `data` itself where nothing does."""
    free_axis: int = 1
    """Axis of `operand` that is not summed over: scaling it scales outputs and nothing else."""
    factors: int = 1
    """Inputs that are multiplied in one term of a sum."""
    homogeneous = Homogeneous()
    invalid: Mapping[str, Spoil] = {}
    """What no kernel can fulfil, by what is wrong with it."""
    gradients: tuple[str | Operator, ...] = ()
    """The operators that its gradients are verified as: names of those that kernels are of, or one that only autodiff
    computes. Empty where no check differentiates it."""
    cofactor: str = ""
    """The input of the family's other operators that the main output is multiplied with in the adjoint identity."""
    takes_empty_batch = True
    """Whether a batch without images has a result; it has no statistics."""
    probes: ProbeMethods | None = None
    worked_example: WorkedExample | None = None
    dtypes: tuple[str, ...] = DTYPES
    """Of the problems that it is defined on."""

    def defined(self, geometry: Any, dtype: str) -> bool:
        """Whether a problem exists in a dtype."""
        return dtype in self.dtypes

    def tensor(self, geometry: Any, name: str) -> Tensor | None:
        """An argument or a result; None where the problem has none of that name."""
        if name in ("bias", "dbias"):
            found: Tensor | None = geometry.per_channel if geometry.bias else None
        else:
            found = getattr(geometry, _TENSORS[name])
        return found

    def inputs(self, geometry: Any) -> dict[str, Tensor]:
        """Arguments in call order; an absent optional argument is not listed."""
        return {name: tensor for name in self.arguments if (tensor := self.tensor(geometry, name))}

    def outputs(self, geometry: Any) -> dict[str, Tensor]:
        """Results in return order."""
        return {name: tensor for name in self.returns if (tensor := self.tensor(geometry, name))}

    def parameters(self, geometry: Any) -> dict[str, Any]:
        """Values of the keyword arguments, layout apart."""
        return {name: getattr(geometry, _PARAMETERS.get(name, name)) for name in self.keywords if name != "layout"}

    def errors(self, geometry: Any) -> ErrorModel:
        raise NotImplementedError

    def reference(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """The outputs computed in `dtype`; exact in float64 for data of `conformance.inputs`."""
        raise NotImplementedError

    def magnitude(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """What rounding errors are measured in.

        For sums, by output: s2 = sqrt(operator applied to squared inputs) (Higham and Mary 2019). For operators whose
        bounds are propagated: the intermediate results that takes, by their names.
        """
        raise NotImplementedError

    def exact(self, geometry: Any, inputs: Arrays) -> dict[str, Double]:
        """The outputs as high and low part, for finite inputs with all the bits of float64, whose products it does not
        hold. The low part is zero where the limits allow for the reference's own rounding."""
        return {name: (high, np.zeros_like(high)) for name, high in self.reference(geometry, inputs).items()}

    def flops(self, geometry: Any) -> int:
        """Required floating-point operations, a multiply-add counted as two."""
        raise NotImplementedError

    def bytes(self, geometry: Any, itemsize: int) -> int:
        """Least traffic: every input read once, every output written once."""
        tensors = [*self.inputs(geometry).values(), *self.outputs(geometry).values()]
        return itemsize * sum(tensor.size for tensor in tensors)

    def traffic(self, geometry: Any, dtype: str) -> int:
        """The same of a problem of `dtype`, every tensor in its own format."""
        tensors = [*self.inputs(geometry).values(), *self.outputs(geometry).values()]
        return sum(tensor.size * STORAGE[tensor.stored_as(dtype)].itemsize for tensor in tensors)
