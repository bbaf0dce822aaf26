"""Kernels from a class of torch modules: make a module with a problem's arguments, give it its weights, call it.

In every call there are two modules of the class. One is fresh. The other is kept for the next problem with the same
arguments, and has been called with other weights before: if a module packs anything once, in `__init__` or at its first
call, the kept one is wrong. Its results are returned; a fresh module that differs is a failure. Where a call is slow,
only the fresh module is called.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from time import thread_time
from typing import Any

import torch
from torch import nn

from conformance.failure import Failure
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.implementations.modules import KEEPS
from conformance.implementations.modules.interpreter import as_on_cuda
from conformance.implementations.modules.layers import BY_AXIS, MOVED, OF_NORMALISATION, READ, WORDS, Maker, Values
from conformance.implementations.modules.switches import Watch
from conformance.implementations.vocabulary import vocabulary
from conformance.operators.matmul.geometry import Sizes

Tensors = dict[str, Any]
"""Tensors by name; None for those that the problem does not have."""
Results = tuple[torch.Tensor, ...]
KEPT = 4
"""Most modules that each thread keeps."""
OTHER = 0.5
"""Value of every weight in the first call of a kept module."""
SLOW = 0.5
"""Seconds of this thread, for one module, above which no second module is called, unless the problem is the file's
own."""
MAX_NODES = 4096
"""Nodes of a graph above which no gradient is asked for, unless the problem is the file's own: a correct loop in Python
over 70,001 channels had no answer within a minute. The limit is not in seconds: on a busy machine a correct module was
refused in one call and answered in the next, which was reported as its failure."""
MAX_AVERAGED = 1 << 22
"""Elements of all images of a cumulative average above which none is asked for, unless the problem is the file's
own."""
DIFFERENT = 1 / 16
"""Difference as a share of the largest result: more than rounding does to a module that repeats its bits."""
MAX_PROBED = 1 << 18
"""Elements of the file's own image above which gradients are tried on small images only."""
GRADIENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "conv": {"backward_data": ("x",), "backward_weight": ("w", "bias")},
    "conv_bn": {"inference": (), "backward": ("x", "w", "gamma", "beta")},
    "avg_pool": {"backward": ("x",)},
    "max_pool": {"backward": ("x",)},
    "matmul": {"backward_a": ("x",), "backward_b": ("w", "bias")},
}
"""Family -> its operators beside the forward one, each with the tensors whose gradients it returns, in their order."""
GRADIENTS["conv_transpose"] = GRADIENTS["conv"]
OF_PRODUCT = {"a": "x", "b": "w"}
"""Operand of a matrix product -> its name here, that of a convolution without space."""
PRODUCT_NAMES = {"x": "a", "w": "b", "bias": "bias"}
"""The other way round, for messages."""
SHOWN = {"bias": "bias", "affine": "gamma", "running": "running_mean"}
"""Optional part of a problem -> a tensor that is given where the problem has that part."""
TENSORS = {"bias": ("bias",), "affine": ("gamma", "beta"), "running": ("running_mean", "running_var")}
"""Optional part of a problem -> all tensors that are given then."""
FILL = {"bias": 0.0, "gamma": 1.0, "beta": 0.0}
"""Value that a module is given for a parameter that the problem does not have."""
CALLED = {
    "running_mean": ("mean",),
    "running_var": ("var",),
    "gamma": ("gamma|scale", r"(bn|norm).*weight", "weight$"),
    "beta": ("beta|shift", r"(bn|norm).*bias", r"[1-9]\.bias", "bias$"),
    "bias": ("conv.*bias", "bias"),
}
"""Tensor with a number for each channel -> patterns of its name in a module, the clearest first."""


class ModuleKernels:
    """The kernels of one class, whose calls are watched for what they change in torch. `most` is the limit on the
    elements of an image where Triton's interpreter runs the kernels, `launches` returns how many kernels of the file it
    has run, if the file has some; `shape` is that of the file's own image, if it has one."""

    _keeps = KEEPS

    def __init__(
        self, maker: Maker, watch: Watch, dtype: str, most: int | None, launches: Callable[[], int | None],
        shape: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._maker, self._watch, self._dtype, self._launches = maker, watch, dtype, launches
        self._most, self._device = most or 1 << 62, nullcontext if most is None else as_on_cuda
        self._family, self._rank, self._alone = maker.layer.family, maker.layer.rank, maker.alone
        self._words = OF_NORMALISATION if self._alone else WORDS[self._family]
        self._copied = {"conv_bn": ("w", *CALLED), "avg_pool": (), "max_pool": ()}.get(self._family, ("w", "bias"))
        if self._alone:
            self._copied = tuple(name for name in CALLED if name != "bias")
        self._local = threading.local()
        self._shape = shape
        self._refusals: dict[Any, Unsupported | None] = {}
        """Problem and direction -> why no module is asked for it, if none is."""
        self._graphs: bool | None = None
        """Whether results have a graph on some problem; determined where a result has none."""

    def offer(self, implementation: Implementation) -> None:
        """Add the kernels to an implementation."""
        dtypes = ("fp32",) if self._family == "conv_bn" else (self._dtype,)  # whose statistics are fp32
        for direction, gradients in {"forward": (), **GRADIENTS[self._family]}.items():
            operator = operator_of(self._family, direction)
            kernel = self._kernel(vocabulary().operators[operator].arguments, gradients, direction)
            when = partial(self.expresses, direction=direction)
            implementation.implements(operator, dtypes=dtypes, layouts=self._maker.layouts, when=when)(kernel)

    def expresses(self, geometry: Any, direction: str = "forward") -> bool:
        """Return True if `__init__` can say what a problem is; else raises Unsupported with what it cannot say. Answers
        are kept, since the operators of a class ask for the same, each for hundreds of problems."""
        if isinstance(geometry, Sizes):
            geometry = geometry.geometry
        key = geometry, direction
        if key not in self._refusals:
            try:
                self._refusals[key] = None
                self.require(geometry, direction)
            except Unsupported as refusal:
                self._refusals[key] = refusal.with_traceback(None)
        if (unsupported := self._refusals[key]) is not None:
            raise unsupported
        return True

    def require(self, geometry: Any, direction: str = "forward") -> None:
        """Raise Unsupported with the reason where `__init__` cannot say what a problem is, or its image is empty or
        too large."""
        if not geometry.x.size:
            raise Unsupported(f"no module is asked for an empty {'batch' if self._rank else 'operand'}")
        if not self._rank and geometry.groups > 1:
            raise Unsupported("a linear layer has one weight, no batch of them")
        if geometry.x.size > self._most:
            size = geometry.x.size
            raise Unsupported(f"an image of {size:,} elements: Triton's interpreter is given at most {self._most:,}")
        if getattr(geometry, "eps_outside", False):
            raise Unsupported("no layer of torch adds epsilon outside of the root")
        values = {word: getattr(geometry, word) for word in self._words}
        values |= {"image": (geometry.y if self._alone else geometry.x).shape}
        arguments = self._maker.express(self._asked(values, direction))
        if "pool" in self._family:
            try:
                # torch requires more than an element in every window
                y = _first(self._maker.without_memory(arguments)(torch.empty(geometry.x.shape, device="meta")))
            except RuntimeError as error:
                raise Unsupported(f"the reference refuses: {error}") from None
            if tuple(y.shape) != geometry.y.shape:
                raise Unsupported(f"the reference returns {tuple(y.shape)}, the problem has {geometry.y.shape}")

    def _asked(self, values: Values, direction: str) -> Values:
        """Return the parameters of a problem that a module must have, by their words."""
        words = (*self._words, "image") if self._maker.sized else self._words
        values = {word: values[word] for word in words if word in values}
        if "running" in values:
            running = {"forward": MOVED if values["running"] else "", "inference": READ}
            values["running"] = running.get(direction, "")
        return values

    def _kernel(self, operands: Sequence[str], gradients: Sequence[str], direction: str) -> Callable[..., Any]:
        """Return the kernel of an operator with these operands by position: its results are the gradients by the
        tensors in `gradients`, or else those of a forward."""

        def kernel(*arrays: Any, **parameters: Any) -> Any:
            passed = zip((OF_PRODUCT.get(name, name) for name in operands), arrays, strict=True)
            tensors: Tensors = dict.fromkeys(("x", "w", "dy", *CALLED)) | dict(passed)
            values = self._completed(tensors, parameters)
            absent = [n for n in ("bias", "gamma", "beta") if tensors[n] is None]
            names = [name for name in gradients if name not in absent]
            statistics = (
                self._statistics(tensors, parameters) if (self._family, direction) == ("conv_bn", "forward") else ()
            )
            # computed once: torch's own convolution of 70,001 groups takes two seconds
            z = self._seen(tensors["x"], tensors["w"], parameters) if self._alone and not names else None

            def compute(module: nn.Module) -> Results:
                module.train(direction != "inference")
                if names:
                    return self._gradients(module, tensors, names, parameters)
                x = tensors["x"] if z is None else z.clone()
                y = self._values(module, x)
                if z is not None and not _same_bits(x, z):  # which nobody else holds
                    what = "the call changes its input"
                    raise KernelFailure(what, Failure(kind="memory", message=what))
                moved = _leaves(
                    module,
                    ["running_mean", "running_var"] if statistics and tensors["running_mean"] is not None else [],
                )
                return y, *statistics, *(tensor.detach().reshape(-1).clone() for tensor in moved)

            image = tensors["dy"] if z is None and self._alone else tensors["x"] if z is None else z
            words = self._asked({**values, "image": tuple(image.shape)}, direction)
            call, arguments = self._maker.averaged(words), self._maker.express(words)
            has = [name for word in self._maker.has(words) for name in TENSORS[word] if word == "bias" or self._alone]
            results = self._called(arguments, values.get("k", 0), tensors, compute, call, has)
            return results if len(results) > 1 else results[0]

        return kernel

    def _values(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Call a module. Raises KernelFailure where it returns no indices beside its result, as its reference does."""
        returned: Any = module(x) if self._rank else by_rows(module, self._maker.rows(len(x)), x)
        if not self._maker.layer.returns_indices:
            return returned
        if not isinstance(returned, (tuple, list)) or len(returned) != 2:
            what = "the module returns no pair of values and indices, as its reference does"
            raise KernelFailure(what, Failure(kind="malformed", message=what))
        return _first(returned)

    def _completed(self, tensors: Tensors, parameters: Mapping[str, Any]) -> Values:
        """Return the parameters of a problem; add to `tensors` those that a gradient does not depend on and that
        modules need."""
        x, w, dy = tensors["x"], tensors["w"], tensors["dy"]
        swapped = self._family == "conv_transpose"
        if "pool" in self._family:
            if x is None:
                tensors["x"] = dy.new_zeros(*dy.shape[:2], *parameters["input_size"])
            return {**parameters, "c": tensors["x"].shape[1], "window": parameters["kernel_size"]}
        groups = parameters.get("groups", 1)
        if w is None:
            outer, inner = (x.shape[1], dy.shape[1]) if swapped else (dy.shape[1], x.shape[1])
            w = tensors["w"] = dy.new_zeros(outer, inner // groups, *parameters.get("kernel_size", ()))
        outer, inner = w.shape[0], w.shape[1] * groups
        c, k = (outer, inner) if swapped else (inner, outer)
        if x is None:
            size = parameters.get("input_size") or (_size_before(dy, w, parameters) if self._rank else ())
            tensors["x"] = dy.new_zeros(dy.shape[0], c, *size)
        if parameters.get("with_bias"):
            tensors["bias"] = dy.new_zeros(k)
        if dy is not None and tensors["gamma"] is not None:
            tensors["beta"] = torch.zeros_like(tensors["gamma"])
        present = {name: tensors[of] is not None for name, of in SHOWN.items()}
        return {**parameters, "c": k if self._alone else c, "k": k, "window": tuple(w.shape[2:]), **present}

    def _statistics(self, tensors: Tensors, parameters: Mapping[str, Any]) -> Results:
        """Return mean and variance of a batch, which modules do not return."""
        z = self._seen(tensors["x"].double(), tensors["w"].double(), parameters)
        places = (0, *range(2, z.dim()))
        return tuple(moment.to(tensors["w"].dtype) for moment in (z.mean(places), z.var(places, unbiased=False)))

    def _seen(self, x: torch.Tensor, w: torch.Tensor, parameters: Mapping[str, Any]) -> torch.Tensor:
        """Return torch's convolution of x and w, which is the input of a batch norm."""
        function = {1: nn.functional.conv1d, 2: nn.functional.conv2d, 3: nn.functional.conv3d}[self._rank]
        sides = [side for pair in reversed(parameters["padding"]) for side in pair]
        return function(
            nn.functional.pad(x, sides), w, None, parameters["stride"], 0, parameters["dilation"], parameters["groups"]
        )

    def _gradients(
        self, module: nn.Module, tensors: Tensors, names: Sequence[str], parameters: Mapping[str, Any]
    ) -> Results:
        """Compute gradients by autograd. Raises Unsupported where there is no graph, KernelFailure where a gradient is
        missing."""
        copies = {"x": tensors["x"].clone(), **({"w": tensors["w"].clone()} if self._alone else {})}
        leaves = [copies[n] if n in copies else _leaves(module, [n])[0] for n in names]
        with torch.enable_grad():
            for leaf in (*copies.values(), *leaves):
                leaf.requires_grad_()
            y = self._values(module, self._seen(copies["x"], copies["w"], parameters) if self._alone else copies["x"])
        return self._differentiated(y, dict(zip(names, leaves, strict=True)), tensors)

    def _differentiated(self, y: torch.Tensor, leaves: Tensors, tensors: Tensors) -> Results:
        """Return the gradients of a result by its leaves, of the shapes of the tensors of the same names. Raises as
        `_gradients`."""
        if tensors["x"].shape != self._shape and _has_more_nodes(y, MAX_NODES):
            raise Unsupported(f"no gradient is asked for: the forward alone is more than {MAX_NODES:,} operations")
        if not y.requires_grad:
            if self._differentiable(tensors["x"]):
                raise KernelFailure("the result has no graph here, and has one on other problems")
            raise Unsupported("has no backward: autograd does not go through it")
        of_shape(y, tensors["dy"].shape)
        # dy is copied: the gradient of a bias may be dy itself
        gradients = torch.autograd.grad(y, [*leaves.values()], tensors["dy"].clone(), allow_unused=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            if gradient is None:
                raise KernelFailure(f"no gradient reaches {name if self._rank else PRODUCT_NAMES[name]}")
        return tuple(gradient.reshape(tensors[name].shape) for name, gradient in zip(leaves, gradients, strict=True))

    def _differentiable(self, like: torch.Tensor) -> bool:
        """Return whether autograd goes through the module at its own shape, or on one of some small problems near it.
        Earlier calls of the process do not matter: a case has the same verdict when it is repeated alone."""
        if self._graphs is None:
            layer = self._maker.layer
            values = {word: layer.values[word] for word in self._words if word in layer.values}
            changes: list[Values] = [
                {
                    word: tuple(
                        tuple(side + 1 for side in extent) if word == "padding" else extent + 1
                        for extent in values[word]
                    )
                }
                for word in BY_AXIS
                if word in values
            ]
            images = [layer.image(6), layer.image(13)]
            near = [(values | change, image) for change in ({}, *changes) for image in images]
            if self._shape and math.prod(self._shape) <= min(MAX_PROBED, self._most):
                near.append((values, [*self._shape]))
            self._graphs = any(self._has_graph(values, like.new_ones(*image)) for values, image in near)
        return self._graphs

    def _has_graph(self, values: Values, x: torch.Tensor) -> bool:
        with suppress(Exception), self._device(), torch.enable_grad():  # a problem that the module cannot take has none
            arguments = self._maker.express(values | {"image": tuple(x.shape)} if self._maker.sized else values)
            module, before = self._maker.make(arguments).to(x.device, x.dtype), self._launches()
            has_graph = bool(self._values(module.requires_grad_(False), x.requires_grad_()).requires_grad)
            # a graph of torch's own layers, which a file calls on problems that its kernel is not for, does not count
            return has_graph and (before is None or self._launches() != before)
        return False

    def _called(
        self, arguments: dict[str, Any], channels: int, tensors: Tensors, compute: Callable[[nn.Module], Results],
        call: int, has: Sequence[str], before: Callable[[nn.Module], Results] | None = None,
    ) -> Results:  # fmt: skip
        """Return what the kept module, made with `arguments`, computes, or for a module that counts its calls what a
        fresh one computes in that `call`. `has` names tensors that the reference has; `before` is the first call of the
        kept module, if that is not `compute` with other weights. Raises KernelFailure where the two modules differ,
        Unsupported where a module refuses in words. Changes of torch's switches are put back and noted."""
        weights = {name: tensors[name] for name in self._copied}
        kept: OrderedDict[str, nn.Module] = self._local.__dict__.setdefault("kept", OrderedDict())
        key = repr((arguments, tensors["x"].dtype))

        def new_module() -> nn.Module:
            module = self._maker.make(arguments).to(tensors["x"].device, tensors["x"].dtype)
            # before a call adds tensors that it packs
            object.__setattr__(module, "_conformance", _places(module, weights, channels, has))
            return module

        with self._watch.watching(), self._device(), torch.no_grad():
            try:
                fresh, start, is_own = new_module(), thread_time(), tensors["x"].shape == self._shape
                if call * tensors["x"].numel() > MAX_AVERAGED and not is_own:
                    raise Unsupported(f"no cumulative average is asked for: {call} calls on a large image")
                for _ in range(call - 1):
                    _put(fresh, _others(weights))
                    compute(fresh)
                _put(fresh, weights)
                first = compute(fresh)
                if call or (thread_time() - start > SLOW and not is_own):
                    return first
                if key not in kept:
                    kept[key] = new_module()
                    _put(kept[key], _others(weights))
                    (before or compute)(kept[key])
                    while len(kept) > KEPT:
                        kept.popitem(last=False)
                kept.move_to_end(key)
                _put(kept[key], weights)
                results = compute(kept[key])
                if any(_apart(result, other) for result, other in zip(first, results, strict=True)):
                    _put(kept[key], weights)
                    again = compute(kept[key])
                    if not any(_apart(result, other) for result, other in zip(again, results, strict=True)):
                        raise KernelFailure(self._keeps, Failure(kind="state", message=self._keeps))
            except (NotImplementedError, ValueError, AssertionError) as refusal:
                kept.pop(key, None)
                if not str(refusal).strip():
                    raise
                raise Unsupported(f"refuses: {refusal}") from None
        return results


def by_rows(module: nn.Module, axes: tuple[int, ...], a: torch.Tensor, *operands: torch.Tensor) -> Any:
    """Call a module with rows in these axes, and return its result with one axis of rows. Raises KernelFailure where
    they do not lie in the same axes there."""
    if len(axes) == 1:
        return module(a, *operands)
    y = module(a.unflatten(0, axes), *operands)
    if not isinstance(y, torch.Tensor):
        return y
    return of_shape(y, (*axes, *y.shape[-1:])).flatten(0, -2)


def of_shape(y: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a result that has the shape of its reference's. Raises KernelFailure for another one."""
    if tuple(y.shape) != tuple(shape):
        what = f"y has shape {tuple(y.shape)}; expected {tuple(shape)}"
        raise KernelFailure(what, Failure(kind="malformed", message="y has another shape"))
    return y


def operator_of(family: str, direction: str) -> str:
    """Return the operator of a family in a direction; that of a product has no word for forward."""
    return family if (family, direction) == ("matmul", "forward") else f"{family}_{direction}"


def lacking(maker: Maker) -> list[str]:
    """Return the parts that modules of the class have no place for, of those without an argument of `__init__`; none
    where no module can be made."""
    rank, channels = maker.layer.rank, 6
    sizes: Values = {"c": channels, "k": channels, "window": (2,) * rank}
    parameters = {word: value for word, value in maker.layer.values.items() if word not in ("running", "padding")}
    for groups in (1, channels) if maker.unsaid else ():
        with suppress(Exception):
            values = {word: sizes.get(word, value) for word, value in (parameters | {"groups": groups}).items()}
            module = maker.make(maker.express({word: value for word, value in values.items() if word in parameters}))
            weights: Tensors = {name: torch.ones(channels) for word in maker.unsaid for name in TENSORS[word]}
            if not maker.alone:
                weights["w"] = torch.ones(channels, channels // groups, *sizes["window"])
            places = _places(module, weights, channels)
            return [word for word in maker.unsaid if not {*TENSORS[word]} <= places.keys()]
    return []


def _same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits, so that NaN equals itself."""
    return bool(torch.equal(tensor.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)))


def _has_more_nodes(y: torch.Tensor, most: int) -> bool:
    """Return whether the graph of a result has more than `most` nodes."""
    nodes, waiting = set[Any](), [y.grad_fn]
    while waiting and len(nodes) <= most:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [before for before, _ in node.next_functions]
    return len(nodes) > most


def _first(returned: Any) -> torch.Tensor:
    """Return the values among what a module returns."""
    values: torch.Tensor = returned[0] if isinstance(returned, (tuple, list)) else returned
    return values


def _places(module: nn.Module, weights: Tensors, channels: int, has: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    """Return the tensors that weights are copied to, found by shape and name: parameters before buffers before plain
    attributes. Tensors that the reference `has`, and a bias that is to be copied, take whatever is left, in this order.
    Raises Unsupported where no tensor fits the filters."""
    parameters = dict(module.named_parameters())
    remaining = {**parameters, **dict(module.named_buffers())}
    for prefix, part in module.named_modules():
        remaining |= {
            f"{prefix}.{name}": value for name, value in vars(part).items() if isinstance(value, torch.Tensor)
        }
    places: dict[str, torch.Tensor] = {}
    if "w" in weights:
        shape = weights["w"].shape
        bare = [extent for extent in shape if extent > 1]
        fitting = [n for n, tensor in remaining.items() if tensor.shape == shape]
        fitting = fitting or [
            n for n, tensor in remaining.items() if [e for e in tensor.shape if e > 1] == bare and "weight" in n
        ]
        if not fitting:
            raise Unsupported(f"has no parameter of the weights' shape, {tuple(shape)}")
        places["w"] = remaining.pop(next((n for n in fitting if "weight" in n), fitting[0]))
    fitting = [
        n
        for n, tensor in remaining.items()
        if tensor.numel() == channels and tensor.dim() and tensor.is_floating_point()
    ]
    names = [name for name in CALLED if name in weights]
    named = [(name, pattern, fitting) for name in names for pattern in CALLED[name]]
    for name in names:
        if name in has or (name == "bias" and weights[name] is not None):
            named.append((name, "", [n for n in fitting if name == "bias" or (n in parameters) == (name in FILL)]))
    for name, pattern, among in named:
        place = next((n for n in among if n in remaining and re.search(pattern, n.lower())), None)
        if name not in places and place is not None:
            places[name] = remaining.pop(place)
    return places


def _others(weights: Tensors) -> Tensors:
    """Return the weights of the earlier call of a kept module."""
    return {name: None if weight is None else torch.full_like(weight, OTHER) for name, weight in weights.items()}


def _put(module: nn.Module, weights: Tensors) -> None:
    for name, tensor in vars(module)["_conformance"].items():
        if (value := weights[name]) is not None:
            tensor.copy_(value.reshape(tensor.shape))
        elif name in FILL:
            tensor.fill_(FILL[name])


def _leaves(module: nn.Module, names: Sequence[str]) -> list[torch.Tensor]:
    """Return tensors of a module by name. Raises KernelFailure for those that it does not have."""
    places = vars(module)["_conformance"]
    if lacking := [name for name in names if name not in places]:
        raise KernelFailure(f"the module has no {', '.join(lacking)}")
    return [places[name] for name in names]


def _size_before(dy: torch.Tensor, w: torch.Tensor, parameters: Mapping[str, Any]) -> list[int]:
    """Return the size in space of a transposed convolution's input, from that of its result."""
    steps = (parameters[name] for name in ("stride", "padding", "dilation", "output_padding"))
    axes = zip(dy.shape[2:], w.shape[2:], *steps, strict=True)
    return [(p + sum(sides) - d * (r - 1) - 1 - more) // u + 1 for p, r, u, sides, d, more in axes]


def _apart(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether results differ by more than rounding."""
    if tensor.shape != other.shape:
        return True
    first, second = tensor.detach().double(), other.detach().double()
    both = first.isfinite() & second.isfinite()
    largest = torch.maximum(first.abs(), second.abs())[both].max().item() if both.any() else 0.0
    return bool(((first - second).abs()[both] > DIFFERENT * largest).any())
