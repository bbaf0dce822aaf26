"""The layer that a torch module computes, and the arguments of its `__init__` for a problem.

The reference `Model` tells both: made with some arguments, on the meta device, it has one layer, which is inspected.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from conformance.implementations.implementation import Unsupported
from conformance.implementations.modules.no_cuda import as_if_cuda
from conformance.layouts import layouts_of

Values = dict[str, Any]
"""Parameters of a problem by their words, see WORDS."""
FAMILIES = {
    "Conv": "conv",
    "ConvTranspose": "conv_transpose",
    "BatchNorm": "conv_bn",
    "AvgPool": "avg_pool",
    "MaxPool": "max_pool",
    "Linear": "matmul",
}
"""Layer of torch.nn, without its number of dimensions -> family of operators."""
WORDS = {
    "conv": ("c", "k", "window", "stride", "padding", "dilation", "groups", "bias"),
    "avg_pool": ("c", "window", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "max_pool": ("c", "window", "stride", "padding", "dilation", "ceil_mode"),
    "matmul": ("c", "k", "bias"),
}
"""Family -> the parameters that a problem has beside its image."""
WORDS["conv_transpose"] = (*WORDS["conv"], "output_padding")
WORDS["conv_bn"] = (*WORDS["conv"], "eps", "momentum", "affine", "running")
OF_NORMALISATION = ("c", "k", "eps", "momentum", "affine", "running")
"""Parameters of a batch norm without a convolution."""
BY_AXIS = ("window", "stride", "padding", "dilation", "output_padding")
LAYER_NAMES = {"c": "in_channels", "k": "out_channels", "window": "kernel_size", "running": "track_running_stats"}
"""Word -> the attribute of torch's layers, where that has another name."""
LINEAR_NAMES = {"c": "in_features", "k": "out_features"}
"""The same of nn.Linear."""
ARGUMENTS = {
    "c": r"in_(channels|ch|planes|features)|(num_)?channels|c_in",
    "k": r"(out|num)_(channels|ch|planes|features)|c_out",
    "window": r"(pool_|conv_)?(kernel|window)(_size)?|ksize|pool_size",
    "stride": r"(pool_|conv_)?strides?",
    "padding": r"(pool_|conv_)?pad(ding)?",
    "groups": r"(num_)?groups",
    "bias": r"(use_|conv_)?bias",
    "eps": r"(bn_)?eps(ilon)?",
    "momentum": r"(bn_)?momentum",
}
"""Word -> pattern of the names of its argument of `__init__`, where that is not the word alone."""
AXES = {"d": 0, "depth": 0, "h": 1, "height": 1, "w": 2, "width": 2}
"""Ending of an argument's name for one axis -> the index of that axis among three."""
IMAGE = {
    "batch(_size)?": 0,
    "((input|image|img)_)?(depth|d)": -3,
    "((input|image|img)_)?(height|h)": -2,
    "((input|image|img)_)?(width|w)": -1,
}
"""Pattern of the names of arguments that say how large the image is -> axis of the image."""
SPARE = ("bias", "affine", "running")
"""Parts that a layer may have although the problem does not: zeros, or ones, are put there."""
NAMED = {"bias": "bias", "affine": "gamma and beta", "running": "running statistics"}
"""Name of each of these parts in messages."""
READ, MOVED = "read", "moved"
"""Uses of running statistics that a problem may ask for: to normalise with them, or to leave new ones."""
AVERAGED = {1 / calls: calls for calls in (1, 2, 4, 5, 10)}
"""Momentum -> the number of the call in which a cumulative average (`momentum=None`) moves by as much. Other calls are
left out: their share is no whole percent, or many calls come before them."""
RETURNED = "return_indices"
"""Argument by which a layer returns indices beside values."""


@dataclass(frozen=True)
class Layer:
    """The computation of a layer of torch.nn, or of a convolution and the batch norm behind it."""

    family: str
    rank: int
    values: Values
    parts: Sequence[nn.Module]
    returns_indices: bool = False
    """Whether the layer returns the places of the maxima beside their values, which no operator does."""

    def image(self, more: int) -> list[int]:
        """Return the shape of two images, each by `more` larger than the window less one; for a product, of
        eight times as many rows."""
        if not self.rank:
            return [8 * more, self.values["c"]]
        window, dilation = (self.values.get(word, (1,) * self.rank) for word in ("window", "dilation"))
        size = [(r - 1) * d + more for r, d in zip(window, dilation, strict=True)]
        return [2, self.values.get("c", self.values.get("k", 3)), *size]


def layer_of(model: nn.Module, *, derived: bool = False) -> Layer | None:
    """Return the layer of a model, or the two of a convolution and its batch norm; None where it has others. Classes
    that are `derived` from layers may count as these. Raises Unsupported for a layer that no problem can express."""
    parts = [part for part in model.modules() if not [*part.children()]]
    # a part of a class of the file's own may be the kernel; a model that is derived from a layer is one
    types = [_type(part) if derived or part is model else type(part) for part in parts]
    matches = [re.fullmatch(r"(\w+?)([123])d|(Linear)", cls.__name__ if is_torch(cls) else "") for cls in types]
    kinds = [(match[1] or match[3]) if match else "" for match in matches]
    if kinds not in ([kind] for kind in FAMILIES) and kinds != ["Conv", "BatchNorm"]:
        return None
    family, rank = FAMILIES[kinds[-1]], int(matches[0][2] or 0)  # type: ignore[index]
    names = LAYER_NAMES if rank else LINEAR_NAMES
    values: Values = {}
    for part in parts:
        _require_expressible(part, WORDS[family])
        for word in WORDS[family]:
            name = names.get(word, word)
            if not hasattr(part, name) or (word == "bias" and part is not parts[0]):
                continue
            value = getattr(part, name)
            if word == "stride" and value is None:
                value = part.kernel_size
            per_axis = word in BY_AXIS and isinstance(value, int)
            values[word] = (value,) * rank if per_axis else value is not None if word == "bias" else value
    if "padding" in values:
        values["padding"] = _sides(values)
    if hasattr(parts[-1], "num_features"):
        values["k"] = parts[-1].num_features
    return Layer(family, rank, values, parts, bool(getattr(parts[-1], RETURNED, False)))


def _type(part: nn.Module) -> type[nn.Module]:
    """Return the layer class of torch.nn that a part is of, or is derived from; nn.Module where there is none."""
    layers = (cls for cls in type(part).__mro__ if is_torch(cls) and re.search("d$|^Linear$", cls.__name__))
    return next(layers, nn.Module)


def _require_expressible(part: nn.Module, words: Sequence[str]) -> None:
    """Raise Unsupported where an argument of a layer that problems cannot express differs from its default, and where
    hooks change what the layer computes."""
    layer = _type(part)
    if part._forward_pre_hooks or part._forward_hooks:
        raise Unsupported(f"its reference has {layer.__name__} with hooks, as of weight_norm, which no problem can say")
    names = {LAYER_NAMES.get(word, word) for word in words} | {*LINEAR_NAMES.values(), "num_features", RETURNED}
    for name, parameter in inspect.signature(layer).parameters.items():
        value = getattr(part, name, parameter.default)
        if name == "bias" and "num_features" in vars(part):  # a batch norm has a bias where it is affine
            value = not part.affine or value is not None
        elif name in names:
            continue
        if value != parameter.default:
            raise Unsupported(f"its reference has {layer.__name__}({name}={value!r}), which no problem can say")


def _sides(values: Values) -> tuple[tuple[int, int], ...]:
    """Return the padding before and after each axis, which torch's words stand for."""
    if values["padding"] == "valid":
        return ((0, 0),) * len(values["window"])
    if values["padding"] == "same":
        totals = [d * (r - 1) for r, d in zip(values["window"], values["dilation"], strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((side, side) for side in values["padding"])


def computes(model: nn.Module, layer: Layer, alike: Callable[[Any, Any], bool] = torch.equal) -> bool:
    """Return whether a model computes its layer and nothing else, on small images. Raises Unsupported where the model
    returns no tensor."""
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    drawn = torch.randn(layer.image(4), dtype=dtype, generator=torch.Generator().manual_seed(0))
    # with each sign, and all negative: an activation behind a pooling returned maxima that chanced to be positive
    return all(_computes(model, layer, x, alike) for x in (drawn, -drawn, -drawn.abs()))


def _computes(model: nn.Module, layer: Layer, x: torch.Tensor, alike: Callable[[Any, Any], bool]) -> bool:
    with torch.no_grad():
        y = x
        for part in layer.parts:
            y = _type(part).forward(part.eval(), y)
        returned = model.eval()(x)
    if not isinstance(returned, torch.Tensor) and not layer.returns_indices:
        raise Unsupported(f"its reference returns a {type(returned).__name__}, every operator a tensor")
    expected, results = (tuple(result) if layer.returns_indices else (result,) for result in (y, returned))
    return len(expected) == len(results) and all(map(alike, expected, results))


def require_alike(model: nn.Module) -> None:
    """Raise Unsupported where layers of a model are derived from torch's own and compute something else."""
    like = layer_of(model, derived=True)
    if like is None or computes(model, like, _agree):
        return
    for part in like.parts:
        layer, cls = _type(part).__name__, type(part)
        if not is_torch(cls):
            raise Unsupported(
                f"its reference is no nn.{layer}: {cls.__name__} is derived from it, and computes something else"
            )


def _agree(y: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two results agree in half of their bits, as those of one function do in any order of sums."""
    if y.shape != other.shape:
        return False
    return bool((y - other).abs().max() <= math.sqrt(torch.finfo(y.dtype).eps) * y.abs().max())


def required(cls: Any) -> list[str]:
    """Return the names of a class's arguments without a default."""
    parameters = inspect.signature(cls).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def called(name: str) -> tuple[str, int | None]:
    """Return the word that an argument's name stands for, and the axis of three that it names, if any; an empty word
    where the name is unknown."""
    stem, _, end = name.lower().rpartition("_")
    for text, axis in ((name.lower(), None), (stem, AXES.get(end, 3))):
        for word in {*WORDS["conv_bn"], *WORDS["avg_pool"], *WORDS["conv_transpose"]} if axis != 3 else ():
            if re.fullmatch(ARGUMENTS.get(word, word), text) and (axis is None or word in BY_AXIS):
                return word, axis
    return "", None


@dataclass(frozen=True)
class Given:
    """Arguments that a file gives `__init__`, by get_init_inputs."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def by(cls, returned: Any) -> Given:
        """Read what get_init_inputs or get_inputs returns: arguments, arguments by name, a list of both kinds, or one
        value."""
        if isinstance(returned, torch.Tensor) or not isinstance(returned, Iterable):
            return cls([returned])
        if isinstance(returned, Mapping):
            return cls((), returned)
        returned = [*returned]
        if len(returned) == 2 and isinstance(returned[0], (list, tuple)) and isinstance(returned[1], Mapping):
            return cls(*returned)
        return cls(returned)

    def __bool__(self) -> bool:
        return bool(self.args or self.kwargs)

    def named(self, parameters: Iterable[str]) -> dict[str, Any]:
        """Return the arguments by the names that a class has for them."""
        return dict(zip(parameters, self.args, strict=False)) | dict(self.kwargs)

    def to(self, cls: Any, reference: Any) -> Given:
        """Return the arguments for a reference, by name where that is a layer of torch: a kernel's class has fewer
        arguments, and torch has others between them."""
        if not is_torch(reference):
            return self
        parameters = inspect.signature(reference).parameters
        words = {called(name): name for name in parameters if called(name)[0]}
        arguments = self.named(inspect.signature(cls).parameters)
        names = {name: name if name in parameters else words.get(called(name), "") for name in arguments}
        return Given((), {names[name]: value for name, value in arguments.items()}) if all(names.values()) else self


def is_torch(cls: Any) -> bool:
    """Return whether a class is one of torch's layers."""
    return str(cls.__module__).startswith("torch.nn.")


class Maker:
    """Makes modules of a class for problems. `given` is what the file gives the class."""

    def __init__(self, cls: Any, reference: Callable[..., nn.Module], layer: Layer, init_inputs: Given) -> None:
        self.cls, self.reference, self.layer, self.init_inputs = cls, reference, layer, init_inputs
        self.alone = layer.family == "conv_bn" and len(layer.parts) == 1
        """Whether the layer is a batch norm without its convolution."""
        self._taken, self._parameters = (inspect.signature(source).parameters for source in (cls, reference))
        of_class = self._taken.keys() <= self._parameters.keys()
        self._own = init_inputs.to(cls, reference).named(self._taken if of_class else self._parameters)
        words = {called(name)[0] for name in self._taken}
        spare = [word for word in SPARE if word in layer.values and (word, self.alone) != ("bias", True)]
        chooses = is_torch(reference) and not any(p.kind is p.VAR_KEYWORD for p in self._taken.values())
        self.unsaid = [word for word in spare if chooses and word not in words]
        """Parts that `__init__` has no argument for, where a line says that the reference is a layer of torch: whether
        the module has a part is its own choice."""
        self.image: Sequence[int] = ()
        """The shape of the file's own image, if it is known."""
        self._lacks: Sequence[str] = ()
        self._known: dict[tuple[Any, ...], dict[str, Any] | Unsupported] = {}
        self._has: dict[tuple[Any, ...], frozenset[str]] = {}

    def lack(self, words: Sequence[str]) -> None:
        """Note the parts that `__init__` has no argument for and the module does not have: no problem with them is
        asked for."""
        self._lacks, self._known = words, {}
        self.layer = replace(self.layer, values={**self.layer.values, **dict.fromkeys(words, False)})

    @property
    def layouts(self) -> Sequence[str]:
        """The layout in which torch's layer has its operands."""
        return layouts_of(self.layer.rank)[:1] if self.layer.rank else ("nt",)

    @property
    def sized(self) -> dict[str, int]:
        """Arguments whose defaults in the file equal a size of its image -> the axis of that size."""
        named = {name: axis for name in self._parameters for text, axis in IMAGE.items() if re.fullmatch(text, name)}
        spatial = {name: axis for name, axis in named.items() if axis == 0 or axis + len(self.image) >= 2}
        return {name: axis for name, axis in spatial.items() if self.image and self._default(name) == self.image[axis]}

    def averaged(self, values: Values) -> int:
        """Return the number of the module's call that a problem asks for, where its own reference keeps a cumulative
        average; else 0. Where a number stood for None, what a module does with None was never seen."""
        cumulative = values.get("running") == MOVED and self.layer.values.get("momentum", 0) is None
        return AVERAGED.get(values["momentum"], 0) if cumulative else 0

    def express(self, values: Values) -> dict[str, Any]:
        """Return the reference's arguments for a problem. Raises Unsupported with what these, or the class's, cannot
        say."""
        key = tuple(values.items())
        if key not in self._known:
            try:
                self._known[key] = self._arguments(values)
            except Unsupported as refusal:
                self._known[key] = refusal.with_traceback(None)
        arguments = self._known[key]
        if isinstance(arguments, Unsupported):
            raise arguments
        return arguments

    def has(self, values: Values) -> frozenset[str]:
        """Return the parts that the reference has for a problem that it can express, also those that the problem
        lacks."""
        self.express(values)
        return self._has[tuple(values.items())].difference(self._lacks)

    def make(self, arguments: Mapping[str, Any]) -> nn.Module:
        """Make a module with the reference's arguments."""
        with as_if_cuda():
            module: nn.Module = self.cls(**self._passed(arguments))
        return module

    def part(self, place: int, argument: torch.Tensor, geometry: Any) -> torch.Tensor:
        """Return what a problem of fewer images has of the file's own tensor at this place."""
        if self.layer.rank:
            return argument[: geometry.n]
        return argument.flatten(0, -2)[: geometry.n].unflatten(0, self.rows(geometry.n))

    def rows(self, m: int) -> tuple[int, ...]:
        """Return the axes in which a module is given m rows: as many as those of the file's own input, and their sizes
        behind the first if m has that divisor."""
        inner = tuple(self.image[1:-1])
        if m % math.prod(inner) == 0:
            return m // math.prod(inner), *inner
        axes = []
        for _ in inner:
            axes.append(next(size for size in (4, 3, 2, 1) if m % size == 0))
            m //= axes[-1]
        return *axes, m

    def without_memory(self, arguments: Mapping[str, Any]) -> nn.Module:
        """Make the reference on the meta device."""
        with torch.device("meta"), as_if_cuda():
            return self.reference(**arguments)

    def _default(self, name: str) -> Any:
        return self._own.get(name, self._parameters[name].default)

    def _arguments(self, values: Values) -> dict[str, Any]:
        for word in self._lacks:
            if values.get(word):
                raise Unsupported(f"the module has no {NAMED[word]}, and __init__ no argument for one")
        arguments: dict[str, Any] = {}
        sized = self.sized if "image" in values else {}
        for name, parameter in self._parameters.items():
            if name in sized:
                arguments[name] = values["image"][sized[name]]
                continue
            (word, axis), default = called(name), self._default(name)
            value = values.get(word, default)
            if value is parameter.empty:
                raise Unsupported(f"cannot tell what to give __init__ for {name}")
            if word == "padding" and word in values:
                if (
                    isinstance(default, str)
                    and _sides({**values, word: default}) == value
                    and {*values["stride"]} <= {1}
                ):
                    arguments[name] = default  # as the file gives it: the class's own reading of the word is verified
                    continue
                if any(before != after for before, after in value):
                    raise Unsupported("padding differs between the sides of an axis")
                value = tuple(before for before, _ in value)
            if word == "momentum" and self.averaged(values):
                arguments[name] = None
                continue
            of_class = self._taken.get(name, parameter).default
            if word == "stride" and values.get("window") == value and None is parameter.default is of_class:
                arguments[name] = (
                    None  # None is the window; with a number, what the class does with None was never seen
                )
                continue
            if word in BY_AXIS and word in values:
                meant = re.match(r"(<class ')?(typing\.)?tuple", str(parameter.annotation).lower())
                by_axis = isinstance(default, (tuple, list)) or meant is not None
                # of one number for all axes the reference says whether it fits: a window of (r, 1) may have one too
                value = value[axis - 3 + self.layer.rank] if axis is not None else value if by_axis else max(value)
            arguments[name] = value
        self._passed(arguments)
        try:
            layer = layer_of(self.without_memory(arguments))
        except Unsupported:
            raise
        except Exception as error:
            raise Unsupported(f"the reference refuses: {error}") from None
        if layer is None:
            raise Unsupported("the reference has other layers for this problem")
        self._has[tuple(values.items())] = frozenset(word for word in SPARE if layer.values.get(word))
        for word, value in values.items():
            has = layer.values.get(word)
            if word == "image":
                continue
            if word == "running":
                if value and not has:
                    raise Unsupported("the reference keeps no running statistics")
                if value == MOVED and layer.values["momentum"] is None and not self.averaged(values):
                    raise Unsupported("momentum=None is a cumulative average, of one to ten calls")
                continue
            spare = (word in SPARE and not value) or (word in ("c", "k", "momentum") and has is None)
            if has != value and not spare:
                raise Unsupported(f"__init__ cannot say this {word}")
        return arguments

    def _passed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the class's arguments from the reference's: by name, or by place where it has other names. Raises
        Unsupported where the class does not take an argument that differs from its default."""
        taken = [n for n, p in self._taken.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if len(taken) < len(self._taken):
            return dict(arguments)
        names = {n: n for n in arguments if n in taken}
        if not {*required(self.cls)} <= names.keys():
            names = dict(zip(arguments, taken, strict=False))
        for name in arguments.keys() - names.keys():
            if arguments[name] != self._default(name) and called(name)[0] not in self.unsaid:
                raise Unsupported(f"__init__ has no {name}")
        return {names[name]: value for name, value in arguments.items() if name in names}
