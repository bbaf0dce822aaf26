"""What a torch module computes, and how its `__init__` is told to: by a reference `Model`, or by its name.

The reference says what arguments mean: it is made with them, on the meta device, and its one layer is looked at.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from conformance.implementations.implementation import Unsupported

Values = dict[str, Any]
"""Parameters of a problem by their words, see WORDS."""
FAMILIES = {
    "Conv": "conv",
    "ConvTranspose": "conv_transpose",
    "BatchNorm": "conv_bn",
    "AvgPool": "avg_pool",
    "MaxPool": "max_pool",
}
"""Layer of torch.nn, without its number of dimensions -> family of operators."""
ARGUMENTS = {
    "c": ("in_channels", "channels", "in_ch", "in_planes", "num_channels", "c_in"),
    "k": ("out_channels", "out_ch", "out_planes", "num_features", "c_out", "features"),
    "window": ("kernel_size", "kernel", "ksize", "pool_size", "window_size", "pool_kernel_size"),
    "stride": ("stride", "strides", "conv_stride", "pool_stride"),
    "padding": ("padding", "pad"),
    "dilation": ("dilation",),
    "output_padding": ("output_padding",),
    "groups": ("groups", "num_groups"),
    "bias": ("bias", "use_bias"),
    "ceil_mode": ("ceil_mode",),
    "count_include_pad": ("count_include_pad",),
    "divisor_override": ("divisor_override",),
    "eps": ("eps", "epsilon", "bn_eps"),
    "momentum": ("momentum", "bn_momentum"),
    "affine": ("affine",),
}
"""What arguments of `__init__` are called."""
WORDS = {
    "conv": ("c", "k", "window", "stride", "padding", "dilation", "groups", "bias"),
    "avg_pool": ("c", "window", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "max_pool": ("c", "window", "stride", "padding", "dilation", "ceil_mode"),
}
"""What a problem of a family is, beside its image."""
WORDS["conv_transpose"] = (*WORDS["conv"], "output_padding")
WORDS["conv_bn"] = (*WORDS["conv"], "eps", "momentum", "affine")
_CALLED = {name: word for word, names in ARGUMENTS.items() for name in names}
LAYER_NAMES = {"c": "in_channels", "k": "out_channels", "window": "kernel_size"}
"""Arguments of torch's layers that have another name than the word."""
BY_AXIS = ("window", "stride", "padding", "dilation", "output_padding")
AXES = {"d": 0, "depth": 0, "h": 1, "height": 1, "w": 2, "width": 2}
"""The end of an argument's name for one axis -> which of three."""
SPARE = {"bias": False, "affine": False}
"""What a layer may have without the problem: zeros, or ones, stand for it."""
NAMED = (
    ("conv_transpose", re.compile(r"transposed?|deconv(olution)?")),
    ("conv_bn", re.compile(r"batch_?norm(alization)?|bn")),
    ("avg_pool", re.compile(r"(average|avg)_?pool(ing)?")),
    ("max_pool", re.compile(r"max_?pool(ing)?")),
    ("conv", re.compile(r"conv(olution)?|depthwise|pointwise")),
)
"""Words in the names of problems, the most special one first."""
BESIDE = re.compile(
    r"\d+[sd]?|[1-3]d|bias|standard|square|asymmetric|rectangular|input|kernel|image|dilat(ed|ion)|strided?|pad(ded|ding)|"
    r"group(ed|s)?|new|model|solution|module|custom|optimized|naive|fast|tiled|triton|cuda|cpp|torch|fused|"
    r"right|wrong|v\d+|and|with|the"
)
"""What else the name of a problem may say without its being another one."""


@dataclass(frozen=True)
class Layer:
    """What a layer of torch.nn, or a convolution and the batch norm behind it, computes."""

    family: str
    rank: int
    values: Values


def layer_of(model: nn.Module) -> tuple[Layer, list[nn.Module]] | None:
    """The one layer of a model, or two, and what it says; None where it has others."""
    leaves = [one for one in model.modules() if not [*one.children()]]
    known = [re.fullmatch(r"(\w+?)([123])d", type(one).__name__) for one in leaves]
    kinds = [found[1] if found else "" for found in known]
    if kinds not in ([kind] for kind in FAMILIES) and kinds != ["Conv", "BatchNorm"]:
        return None
    rank = int(known[0][2])  # type: ignore[index]
    family = FAMILIES[kinds[-1]]
    values = {word: value for one in leaves for word, value in _values(one, rank).items() if word in WORDS[family]}
    return Layer(family, rank, values), leaves


def _values(layer: nn.Module, rank: int) -> Values:
    found: Values = {}
    for word in ARGUMENTS:
        name = LAYER_NAMES.get(word, word)
        if not hasattr(layer, name):
            continue
        value = getattr(layer, name)
        if word == "stride" and value is None:
            value = layer.kernel_size
        if word in BY_AXIS and isinstance(value, int):
            value = (value,) * rank
        found[word] = (value is not None) if word == "bias" else value
    if hasattr(layer, "num_features"):
        found["k"] = layer.num_features
        found.pop("bias", None)
    return found


def called(name: str) -> tuple[str, int | None]:
    """The word of an argument, and which of three axes it is of; an empty word where nobody knows."""
    if word := _CALLED.get(name.lower()):
        return word, None
    stem, _, end = name.lower().rpartition("_")
    word = _CALLED.get(stem, "")
    return (word, AXES[end]) if end in AXES and word in BY_AXIS else ("", None)


def _plain(parameters: Mapping[str, inspect.Parameter]) -> dict[str, inspect.Parameter]:
    return {n: p for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


class Maker:
    """Makes modules of a class for problems. `own` are the arguments that the file gives."""

    def __init__(self, cls: type, reference: Callable[..., nn.Module], layer: Layer, own: Sequence[Any]) -> None:
        self.cls, self.reference, self.layer, self.own = cls, reference, layer, own
        words = {called(name)[0] for name in inspect.signature(reference).parameters}
        self.alone = layer.family == "conv_bn" and "window" not in layer.values.keys() | words
        """Whether it is a batch norm without its convolution."""
        self._taken = inspect.signature(cls).parameters
        self._parameters = _plain(inspect.signature(reference).parameters)
        self._own = dict(zip(self._parameters, own, strict=False))
        self.arguments = lru_cache(1 << 14)(self._arguments)

    def layer_of_own(self) -> Layer | None:
        """What the reference computes with the file's own arguments."""
        with torch.device("meta"):
            found = layer_of(self.reference(*self.own))
        return None if found is None else found[0]

    def express(self, values: Values) -> dict[str, Any]:
        """The arguments of `__init__` for a problem. Raises Unsupported with what it cannot say."""
        found = self.arguments(tuple(values.items()))
        if isinstance(found, str):
            raise Unsupported(found)
        return found

    def make(self, arguments: Mapping[str, Any]) -> nn.Module:
        """A module. Raises Unsupported where `__init__` refuses the arguments in words."""
        names = _plain(self._taken)
        required = {n for n, p in names.items() if p.default is p.empty}
        try:
            if required <= arguments.keys() and (len(names) < len(self._taken) or arguments.keys() <= names.keys()):
                return self.cls(**arguments)
            if required <= arguments.keys():
                return self.cls(**{n: v for n, v in arguments.items() if n in names})
            return self.cls(*[*arguments.values()][: len(names)])
        except (NotImplementedError, ValueError, AssertionError) as refusal:
            if not str(refusal).strip():
                raise
            raise Unsupported(f"__init__ refuses: {refusal}") from None

    def _arguments(self, wanted: tuple[tuple[str, Any], ...]) -> dict[str, Any] | str:
        values = dict(wanted)
        found: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            word, axis = called(name)
            has_own = name in self._own or parameter.default is not parameter.empty
            own = self._own.get(name, parameter.default)
            if word not in values:
                if not has_own:
                    return f"nobody knows what to give __init__ for {name}"
                found[name] = own
                continue
            value = values[word]
            if axis is not None:
                value = value[axis - 3 + self.layer.rank]
            elif word in BY_AXIS and not (isinstance(own, (tuple, list)) or "uple" in str(parameter.annotation)):
                if len({*value}) > 1:
                    return f"__init__ takes one {name} for all axes"
                value = value[0]
            found[name] = value
        return self._unlike(found, values) or self._beyond(found) or found

    def _unlike(self, arguments: Mapping[str, Any], values: Values) -> str:
        """What the reference, made with these arguments, does otherwise than the problem asks; empty for nothing."""
        try:
            with torch.device("meta"):
                made = layer_of(self.reference(**arguments))
        except Exception as error:
            return f"the reference refuses: {error}"
        if made is None:
            return "the reference has other layers with these arguments"
        for word, value in values.items():
            has = made[0].values.get(word, 0 if word in ("c", "k") else SPARE.get(word))
            if word in ("c", "k") and not has:
                continue
            if has != value and not (word in SPARE and has and not value):
                return f"__init__ cannot say {word} {value}"
        return ""

    def _beyond(self, arguments: Mapping[str, Any]) -> str:
        """What the reference is told and the class does not take, unless it is what the class has been made for."""
        names = _plain(self._taken)
        if len(names) < len(self._taken):
            return ""
        required = {n for n, p in names.items() if p.default is p.empty}
        kept = names if required <= arguments.keys() else [*arguments][: len(names)]
        for name in arguments.keys() - {*kept}:
            parameter = self._parameters[name]
            if arguments[name] != self._own.get(name, parameter.default):
                return f"__init__ has no {name}"
        return ""


def named(name: str) -> str:
    """The family of a problem by its name; empty where this tells none, or says more."""
    text, found = _in_words(name), ""
    text = re.sub(r"(?<=[a-z])_?([123])_?d(?=_|$)", "", text)
    for family, pattern in NAMED:
        text, count = re.subn(rf"(?<![a-z])(?:{pattern.pattern})(?![a-z])", "", text)
        found = found or (family if count else "")
    left = [word for word in text.split("_") if word and not BESIDE.fullmatch(word)]
    return "" if left else found


def rank_in(name: str) -> int | None:
    """The number of dimensions that a name says."""
    found = re.search(r"([123])_?d(?=_|$)", _in_words(name))
    return int(found[1]) if found else None


def _in_words(name: str) -> str:
    return "_".join(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


def stand_in(cls: type, family: str, rank: int) -> Callable[..., nn.Module]:
    """Torch's own layer, told what the class is told: the reference of a class that has none."""
    conv = getattr(nn, f"Conv{'Transpose' * (family == 'conv_transpose')}{rank}d")
    norm, pools = getattr(nn, f"BatchNorm{rank}d"), {"avg_pool": "AvgPool", "max_pool": "MaxPool"}

    def made(**arguments: Any) -> nn.Module:
        said: Values = {}
        for name, value in arguments.items():
            word, axis = called(name)
            if axis is not None:
                every = list(said.get(word, (int("padding" not in word),) * rank))
                every[axis - 3 + rank] = value
                value = tuple(every)
            said[LAYER_NAMES.get(word, word or name)] = value
        if family in pools:
            return getattr(nn, f"{pools[family]}{rank}d")(**{n: v for n, v in said.items() if n != "in_channels"})
        of_norm = {name: said.pop(name) for name in ("eps", "momentum", "affine") if name in said}
        if family == "conv_bn" and "kernel_size" not in said:
            return norm(said.get("out_channels", said.get("in_channels")), **of_norm)
        said.setdefault("kernel_size", 1)
        if "out_channels" not in said:  # depthwise
            said |= {"out_channels": said["in_channels"], "groups": said["in_channels"]}
        layer = conv(**said)
        return nn.Sequential(layer, norm(said["out_channels"], **of_norm)) if family == "conv_bn" else layer

    made.__signature__ = inspect.signature(cls)  # type: ignore[attr-defined]
    return made


def computes(model: nn.Module, layer: Layer, leaves: Sequence[nn.Module]) -> bool:
    """Whether a reference computes its layer and nothing else, on a small image."""
    values = layer.values
    window, dilation = values.get("window", (3,) * layer.rank), values.get("dilation", 1)
    steps = (dilation,) * layer.rank if isinstance(dilation, int) else dilation
    size = [(r - 1) * d + 4 for r, d in zip(window, steps, strict=True)]
    x = torch.rand(2, values.get("c", values.get("k", 3)), *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = x
        for one in leaves:
            y = one.eval()(y)
        found = model.eval()(x)
    return isinstance(found, torch.Tensor) and bool(torch.equal(found, y)) and math.prod(y.shape) > 0
