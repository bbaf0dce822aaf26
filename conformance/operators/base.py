"""Definition of an operator: named tensors, exact reference, error model, work, and the facts that checks need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from conformance.dtypes import DTYPES, FILTERS, PACKED, STORAGE, TRAINED, sums_of
from conformance.layouts import B, Y
from conformance.operators.spatial import unpadded

if TYPE_CHECKING:
    from conformance.operators.double_double import Double
    from conformance.operators.sparse import SparseRule

Arrays = dict[str, np.ndarray]
Given = Mapping[str, np.ndarray]
"""Arrays that are only read."""
Special = tuple[str, tuple[Any, ...], float]
"""A value that is put into an input: the input's name, an index into it, of numbers or slices, and the value."""


class Geometry(Protocol):
    """The parameters of one problem; immutable, with a canonical descriptor that parses back to it."""

    family: ClassVar[str]
    """Name of the family; the operators of that family take this geometry."""

    @property
    def n(self) -> int:
        """Number of images in the batch; may be 0."""
        ...

    @property
    def descriptor(self) -> str:
        """Canonical text of the problem, see `conformance.operators.descriptor`."""
        ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument or a result: its axes in canonical order (`NCHW`, `KCRS`, `K`) and their extents.

    wide      statistics, parameters of normalisation and scales, which are fp32 where the other tensors have fewer bits
    positive  a variance or a scale: its values are drawn above zero
    sums      sums of products, and terms added to such sums: they have a format of their own if inputs have 8 bits
    packed    numbers of 4 bits without a sign; a kernel gets two of a row in each byte, the first one in the low half
    shared    channels that belong to all groups, as those of rows do that are multiplied by the b of one group each
    """

    axes: str
    shape: tuple[int, ...]
    wide: bool = False
    positive: bool = False
    sums: bool = False
    packed: bool = False
    shared: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_filter(self) -> bool:
        """True if the tensor holds weights: axes KCRS, or CKRS for a transposed convolution."""
        return self.axes.startswith(("KC", "CK")) or self.axes == B

    @property
    def is_gradient(self) -> bool:
        """True if the tensor has the shape of a result: that of an input is the gradient of one."""
        return self.axes == Y or (self.axes.startswith("NK") and self.axes != B)

    @property
    def counts_images(self) -> bool:
        """True if the first axis counts the images of a batch, or the rows of a matrix product."""
        return self.axes[0] in "NM" and not self.is_filter

    @property
    def channel_axis(self) -> int:
        """Axis of the channels: the first one of a filter and of a vector, the second one of an image or a matrix."""
        return 0 if self.is_filter or len(self.axes) == 1 else 1

    def stored_as(self, dtype: str) -> str:
        """Return the dtype of this tensor in a problem of `dtype`."""
        if self.sums:
            return sums_of(dtype)
        if self.packed:
            return PACKED
        if self.is_filter and dtype in FILTERS:
            return FILTERS[dtype]
        if dtype in TRAINED:
            return TRAINED[dtype][0 if self.is_gradient else 1]
        return "fp32" if self.wide and dtype not in ("fp32", "fp64") else dtype


class Arithmetic(Protocol):
    """A contract applied to tensors of one dtype: the interface that error propagation uses, implemented by the judge.

    Bounds are `deviations` standard deviations wide; arrays are float64.
    """

    @property
    def deviations(self) -> float: ...

    @property
    def u(self) -> float:
        """The accumulator's unit roundoff."""
        ...

    @property
    def rounds_between(self) -> bool:
        """True if intermediate tensors of a fused operator are rounded to the storage format."""
        ...

    @property
    def ties(self) -> str:
        """How a number half way between two integers is rounded: `even`, `away` or `up`; or `gemmlowp`."""
        ...

    @property
    def saturates(self) -> bool:
        """True if a result that overflows an 8-bit format becomes the largest finite number."""
        ...

    @property
    def stochastic(self) -> bool:
        """True if results are rounded at random to one of the numbers beside them."""
        ...

    @property
    def exact(self) -> bool:
        """True if sums of these inputs are exact in every order of addition."""
        ...

    @property
    def raw_moments(self) -> bool:
        """True if the variance is computed from raw moments: the mean of squares minus the square of the mean."""
        ...

    def holds(self, bits: int) -> bool:
        """Tell whether the accumulator adds sums that need `bits` bits exactly, in every order."""
        ...

    def product(self, exact: np.ndarray, s2: np.ndarray, terms: int, bits: int | None = None) -> np.ndarray:
        """Bound the error of sums of `terms` products; `bits` is the most bits that any of them needs, if known."""
        ...

    def sum(self, elements: np.ndarray) -> np.ndarray:
        """Bound the error of sums of exact elements [K, M] over the last axis."""
        ...

    def between(self, values: np.ndarray) -> np.ndarray | float:
        """Bound the error that rounding to storage adds to values whose own error is already bounded."""
        ...

    def stored(self, values: np.ndarray) -> np.ndarray:
        """Return the values as the next part of a fused operator reads them."""
        ...


Propagation = Callable[[Any, Arrays, Arrays, Arithmetic], Arrays]
"""(geometry, inputs, magnitude, arithmetic) -> bound of every output before its rounding."""

Interval = tuple[np.ndarray, np.ndarray]
"""Smallest and largest correct value of every element, float64; NaN at an end means that NaN is correct, too."""
Enclosure = Callable[[Any, Arrays, Arrays, Arithmetic], dict[str, Interval]]
"""(geometry, inputs, magnitude, arithmetic) -> interval of correct values of every output."""


@dataclass(frozen=True, slots=True)
class PrefixSums:
    """Sums of windows that are computed as differences of prefix sums.

    additions  roundings that a result may depend on, each of at most u times `largest`
    largest    (inputs) -> largest prefix sum of each image, in the unit of the results, by output: broadcasts to it
    """

    additions: int
    largest: Callable[[Given], Arrays]


@dataclass(frozen=True, slots=True)
class ErrorModel:
    """Facts about rounding errors that follow from an operator's structure on one geometry.

    terms              largest number of products (or summands) in an element of each output: the contraction length KS
    span               largest quotient of an exact intermediate result and one term: its bits must fit in float64
                       beside the bits of the data
    exact_on_integers  whether small integers have results that every format holds
    selects            whether every result is an element of the inputs, so that nothing is rounded
    divisor            common multiple of the numbers that results are divided by
    constants          number of rounded constants, such as the reciprocal of a divisor, that multiply a result
    shared_constant    whether these constants are the same for every element
    factor             largest number that sums, and what underflow has lost of them, are multiplied by; at least 1
    error_fan_out      largest number of elements of an output that one rounding may reach, by an intermediate result
    propagate          derives the bounds of outputs that are not plain sums from the bounds of their parts
    encloses           gives the interval of correct outputs, where rounding is so coarse that they can be counted
    prefix_sums        algorithm (`conformance.contract.PREFIX_SUMS`) -> what errors depend on in it
    """

    terms: Mapping[str, int]
    span: int
    exact_on_integers: bool = True
    selects: bool = False
    divisor: int = 1
    constants: int = 0
    shared_constant: bool = True
    factor: float = 1.0
    error_fan_out: int = 1
    propagate: Propagation | None = None
    encloses: Enclosure | None = None
    prefix_sums: Mapping[str, PrefixSums] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Homogeneous:
    """Inputs that are scaled together and outputs that scale with them: by powers of two, by -1, or by both."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    powers: bool = True
    signs: bool = True


@dataclass(frozen=True, slots=True)
class ProbeMethods:
    """Ways to check a main output that is too large to be computed in full.

    channels  (geometry) -> extent of the axis that is summed over with random signs
    project   (geometry, inputs, signs, risk, arithmetic) -> `conformance.operators.conv.probes.Projection`
    sample    (geometry, inputs, index[T, axes]) -> exact values and magnitudes at these indices
    """

    channels: Callable[[Any], int]
    project: Callable[[Any, Arrays, np.ndarray, float, np.dtype], Any]
    sample: Callable[[Any, Arrays, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A case taken from a public text, with results that every format holds; `inputs` are float64."""

    descriptor: str
    inputs: Arrays
    what: str
    """Description of the inputs in a failure message."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a call, in canonical order, and its keyword parameters."""

    inputs: Arrays
    parameters: Mapping[str, Any]


Spoil = Callable[[Any, Request], Request | None]
"""(geometry, valid request) -> a request that no kernel can fulfil; None if the changed request is valid."""


def _window_beyond_image(geometry: Any, request: Request) -> Request | None:
    """Cut images, or the images that gradients are for, to one unpadded pixel. None for windows of one element."""
    if math.prod(geometry.window) == 1:
        return None
    pixel = (slice(None), slice(None), *[slice(1)] * geometry.rank)
    images = {name: array[pixel] for name, array in request.inputs.items() if name == "x"}
    parameters = dict(request.parameters) | {"padding": unpadded(geometry.rank)}
    if "input_size" in parameters:
        parameters["input_size"] = (1,) * geometry.rank
    return Request(request.inputs | images, parameters)


def _channels_mismatch(geometry: Any, request: Request) -> Request:
    """Remove the last channel of the first input, so that it has one fewer than the filters."""
    name = next(iter(request.inputs))
    return Request(request.inputs | {name: request.inputs[name][:, :-1]}, request.parameters)


def _integers(geometry: Any, request: Request) -> Request:
    return Request({name: array.astype(np.int32) for name, array in request.inputs.items()}, request.parameters)


WINDOW_BEYOND_IMAGE: dict[str, Spoil] = {"a window larger than the padded image": _window_beyond_image}
CHANNELS_MISMATCH: dict[str, Spoil] = {"channels that do not match": _channels_mismatch}
INTEGER_TENSORS: dict[str, Spoil] = {"integer tensors": _integers}
"""Listed by operators with averages or roots only; convolutions, sums and maxima of integers are well defined."""


def _with_parameter(name: str, value: Any) -> Spoil:
    """Replace a parameter by `value`, which is repeated if the parameter has a value for each axis."""

    def spoil(geometry: Any, request: Request) -> Request:
        changed = value if name == "groups" else (value,) * geometry.rank
        return Request(request.inputs, {**request.parameters, name: changed})

    return spoil


def invalid_parameters(keywords: tuple[str, ...]) -> dict[str, Spoil]:
    """Return the requests that give one of these parameters a value that it cannot have."""
    values = {
        "stride 0": ("stride", 0),
        "dilation 0": ("dilation", 0),
        "groups 0": ("groups", 0),
        "groups -1": ("groups", -1),
        "padding -1": ("padding", (-1, -1)),
    }
    return {what: _with_parameter(name, value) for what, (name, value) in values.items() if name in keywords}


def invalid_filters(axis: int) -> dict[str, Spoil]:
    """Return the requests whose filters do not fit the other input; `axis` of the filters meets its channels."""

    def channels(geometry: Any, request: Request) -> Request:
        w = request.inputs["w"]
        return Request(request.inputs | {"w": np.concatenate([w, w], axis)}, request.parameters)

    def rank(geometry: Any, request: Request) -> Request:
        return Request(request.inputs | {"w": request.inputs["w"][..., 0]}, request.parameters)

    return {"w of twice the channels": channels, "w without its last axis": rank}


_TENSORS = {"x": "x", "dx": "x", "w": "filter", "dw": "filter", "y": "y", "dy": "y"}
_TENSORS |= {"a": "x", "da": "x", "b": "filter", "db": "filter"}
"""Argument or result -> attribute of a geometry: a gradient has the shape of the tensor that it belongs to."""
_PARAMETERS = {"kernel_size": "window", "input_size": "size", "with_bias": "bias"}
"""Keyword argument -> attribute of a geometry, if their names differ. `input_size` is passed because dy does not
determine it if the stride leaves a remainder; `with_bias` says whether (dw, dbias) is requested."""


class Operator:
    """The mathematics of one operator. Every array is in canonical order; layouts are the harness's business.

    The defaults are for an operator with a single input that matters and without special cases.
    """

    name: str
    family: str
    """Family of the geometries that the operator takes."""
    arguments: tuple[str, ...]
    """All positional arguments of an implementation, including those that are absent (passed as None) on some
    geometries."""
    returns: tuple[str, ...]
    """All results in return order, including those that are absent on some geometries."""
    keywords: tuple[str, ...]
    """Keyword arguments that an implementation may accept: those of `parameters`, and layout."""
    capabilities: tuple[str, ...] = ()
    """Optional keyword arguments; a kernel that has one supports the feature. `output_mask`: whether each output is
    requested; `into`: the array (for several outputs: arrays) to add results to, None for new arrays."""
    data: str
    """Name of the input that distributions scatter impulses and special values over."""
    operand: str
    """Name of the input that `data` is multiplied with; `data` itself if there is none."""
    free_axis: int = 1
    """Axis of `operand` that is not summed over: scaling along it scales outputs and has no other effect."""
    factors: int = 1
    """Number of inputs that are multiplied in one term of a sum."""
    homogeneous = Homogeneous()
    invalid: Mapping[str, Spoil] = {}
    """Requests that no kernel can fulfil; the key says what is wrong with the request."""
    gradients: tuple[str | Operator, ...] = ()
    """Operators as which the gradients of this operator are verified: names of operators that kernels implement, or an
    operator that only autodiff computes. Empty if no check differentiates this operator."""
    cofactor: str = ""
    """Input of the family's other operators by which the adjoint identity multiplies the main output."""
    takes_empty_batch = True
    """Whether the operator is defined for a batch without images; operators that compute statistics are not."""
    probes: ProbeMethods | None = None
    sparse: tuple[tuple[str, SparseRule], ...] = ()
    """Outputs with the rule for their nonzero elements if inputs have few; without rules, no problem is huge."""
    sparse_is_positive = False
    """Whether sparse inputs have no negative numbers, because the rule takes every element that it does not list for
    zero."""
    worked_example: WorkedExample | None = None
    dtypes: tuple[str, ...] = DTYPES
    """Dtypes of the problems on which the operator is defined."""

    @property
    def has_independent_images(self) -> bool:
        """Return whether the results of an image depend on no other image of the batch: they are of images, and not on
        statistics of a batch."""
        return self.takes_empty_batch and all(_TENSORS.get(name) in ("x", "y") for name in self.returns)

    def on(self, geometry: Any) -> Workload:
        """Bind the operator to a geometry of its family. Kernels, dtypes and layouts of a problem share the result."""
        return _workload(self, geometry)

    def defined(self, geometry: Any, dtype: str) -> bool:
        """Return whether a problem exists in a dtype."""
        return dtype in self.dtypes

    def tensor(self, geometry: Any, name: str) -> Tensor | None:
        """Return an argument or a result by name; None if the problem does not have it."""
        if name in ("bias", "dbias"):
            result: Tensor | None = geometry.per_channel if geometry.bias else None
        else:
            result = getattr(geometry, _TENSORS[name])
        return result

    def inputs(self, geometry: Any) -> dict[str, Tensor]:
        """Return the arguments in call order; an absent optional argument is not listed."""
        return {name: tensor for name in self.arguments if (tensor := self.tensor(geometry, name))}

    def outputs(self, geometry: Any) -> dict[str, Tensor]:
        """Return the results in return order."""
        return {name: tensor for name in self.returns if (tensor := self.tensor(geometry, name))}

    def elements(self, geometry: Any) -> int:
        """Count the elements of all arguments and results."""
        tensors = (self.tensor(geometry, name) for name in (*self.arguments, *self.returns))
        return sum(math.prod(tensor.shape) for tensor in tensors if tensor)

    def parameters(self, geometry: Any) -> dict[str, Any]:
        """Return the values of the keyword arguments, except layout."""
        return {name: getattr(geometry, _PARAMETERS.get(name, name)) for name in self.keywords if name != "layout"}

    def determines(self, geometry: Any, distribution: str) -> bool:
        """Tell whether results are unique on a distribution."""
        return True

    def unread(self, geometry: Any) -> tuple[str, ...]:
        """Return the arguments that a kernel must not read on this geometry; they are full of NaN."""
        return ()

    def addends(self, geometry: Any) -> dict[str, int]:
        """Return the arguments that are added to sums of products, by column, with the sign in which they are added."""
        return {"bias": 1}

    def reached(self, geometry: Any) -> dict[str, np.ndarray]:
        """Return positions in inputs that are not zero on the sparse distribution, so that results beside powers of two
        are not zero."""
        from conformance.operators.sparse import through_windows

        return through_windows(geometry, self.data, self.inputs(geometry)[self.data])

    def special(self, geometry: Any) -> tuple[Special, ...]:
        """Return the values of the special distribution: in the data NaN first, and infinity last."""
        dimensions = len(self.inputs(geometry)[self.data].shape)
        return (self.data, (-1,) * dimensions, math.inf), (self.data, (0,) * dimensions, math.nan)

    def nonfinite(self, geometry: Any) -> Iterator[Special]:
        """Yield the values of the nonfinite distribution: minus infinity in the data. Operators that multiply have
        other values, which meet no padding, see `conformance.operators.special_values`."""
        yield self.data, (-1, *(0,) * (1 + geometry.rank)), -math.inf

    @property
    def scattered(self) -> tuple[str, ...]:
        """Inputs of which any element may be NaN or infinite, because none is multiplied by padding or by zeros that an
        algorithm inserts."""
        return (self.data,)

    def errors(self, geometry: Any) -> ErrorModel:
        raise NotImplementedError

    def reference(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute the outputs in `dtype`; exact in float64 for data of `conformance.inputs`."""
        raise NotImplementedError

    def magnitude(self, geometry: Any, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Return the scales in which rounding errors are measured.

        For sums, by output: s2 = sqrt(operator applied to squared inputs) (Higham and Mary 2019). For operators whose
        bounds are propagated: the intermediate results that the propagation needs, by name.
        """
        raise NotImplementedError

    def normwise(self, geometry: Any, inputs: Given, dropped: float) -> np.ndarray:
        """Return the scale of errors of slices (`conformance.judge.limits`)."""
        raise NotImplementedError

    def exact(self, geometry: Any, inputs: Arrays) -> dict[str, Double]:
        """Return the outputs as high and low parts, for finite inputs that use all bits of float64, whose products
        float64 does not hold. The low part is zero if the limits allow for the reference's own rounding."""
        return {name: (high, np.zeros_like(high)) for name, high in self.reference(geometry, inputs).items()}

    def flops(self, geometry: Any) -> int:
        """Count the required floating-point operations; a multiply-add counts as two."""
        raise NotImplementedError


@dataclass(frozen=True)
class Workload:
    """An operator on one geometry. What follows from the two is derived once, and kept as long as this object."""

    operator: Operator
    geometry: Any
    """A `Geometry` of the operator's family."""

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """Arguments in call order, without absent ones."""
        return self.operator.inputs(self.geometry)

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        """Results in return order."""
        return self.operator.outputs(self.geometry)

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Values of the keyword arguments, except layout."""
        return self.operator.parameters(self.geometry)

    @cached_property
    def errors(self) -> ErrorModel:
        """Facts about rounding errors."""
        return self.operator.errors(self.geometry)

    @cached_property
    def flops(self) -> int:
        """Number of required floating-point operations."""
        return self.operator.flops(self.geometry)

    def bytes(self, itemsize: int) -> int:
        """Return the least traffic in bytes: every input read once, every output written once."""
        return itemsize * self.operator.elements(self.geometry)

    def traffic(self, dtype: str) -> int:
        """Return the least traffic in bytes of a problem of `dtype`, with every tensor in its own format."""
        tensors = *self.inputs.values(), *self.outputs.values()
        return sum(tensor.size * STORAGE[tensor.stored_as(dtype)].itemsize for tensor in tensors)

    def reference(self, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute the outputs in `dtype`."""
        return self.operator.reference(self.geometry, inputs, dtype)

    def magnitude(self, inputs: Given, dtype: Any = np.float64) -> Arrays:
        """Compute the scales in which rounding errors are measured."""
        return self.operator.magnitude(self.geometry, inputs, dtype)


_workload = lru_cache(maxsize=1 << 8)(Workload)
"""Few are kept, because cases are ordered by problem: a plan holds tens of thousands of cases until it ends."""
