"""What a torch module computes, and how its `__init__` is told to.

The reference `Model` says it: made with some arguments, on the meta device, it has one layer, which is looked at.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
WORDS = {
    "conv": ("c", "k", "window", "stride", "padding", "dilation", "groups", "bias"),
    "avg_pool": ("c", "window", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "max_pool": ("c", "window", "stride", "padding", "dilation", "ceil_mode"),
}
"""What a problem of a family is, beside its image."""
WORDS["conv_transpose"] = (*WORDS["conv"], "output_padding")
WORDS["conv_bn"] = (*WORDS["conv"], "eps", "momentum", "affine")
OF_NORMALISATION = ("c", "k", "eps", "momentum", "affine")
"""Of a batch norm without a convolution."""
BY_AXIS = ("window", "stride", "padding", "dilation", "output_padding")
LAYER_NAMES = {"c": "in_channels", "k": "out_channels", "window": "kernel_size"}
"""Attributes of torch's layers that have another name than the word."""
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
"""What arguments of `__init__` are called, where that is not the word alone."""
AXES = {"d": 0, "depth": 0, "h": 1, "height": 1, "w": 2, "width": 2}
"""The end of an argument's name for one axis -> which of three."""
SPARE = ("bias", "affine")
"""What a layer may have that the problem has not: zeros, or ones, stand for it."""


@dataclass(frozen=True)
class Layer:
    """What a layer of torch.nn, or a convolution and the batch norm behind it, computes."""

    family: str
    rank: int
    values: Values
    parts: Sequence[nn.Module]

    def image(self, more: int) -> list[int]:
        """The shape of two images, each by so much larger than the window less one."""
        window, dilation = (self.values.get(word, (1,) * self.rank) for word in ("window", "dilation"))
        size = [(r - 1) * d + more for r, d in zip(window, dilation, strict=True)]
        return [2, self.values.get("c", self.values.get("k", 3)), *size]


def layer_of(model: nn.Module) -> Layer | None:
    """The one layer of a model, or two; None where it has others."""
    parts = [one for one in model.modules() if not [*one.children()]]
    known = [re.fullmatch(r"(\w+?)([123])d", type(one).__name__) for one in parts]
    kinds = [found[1] if found else "" for found in known]
    if kinds not in ([kind] for kind in FAMILIES) and kinds != ["Conv", "BatchNorm"]:
        return None
    family, rank = FAMILIES[kinds[-1]], int(known[0][2])  # type: ignore[index]
    values: Values = {}
    for one in parts:
        for word in WORDS[family]:
            name = LAYER_NAMES.get(word, word)
            if not hasattr(one, name) or (word == "bias" and one is not parts[0]):
                continue
            value = getattr(one, name)
            if word == "stride" and value is None:
                value = one.kernel_size
            per_axis = word in BY_AXIS and isinstance(value, int)
            values[word] = (value,) * rank if per_axis else value is not None if word == "bias" else value
    if hasattr(parts[-1], "num_features"):
        values["k"] = parts[-1].num_features
    return Layer(family, rank, values, parts)


def computes(model: nn.Module, layer: Layer) -> bool:
    """Whether a model computes its layer and nothing else, on a small image."""
    x = torch.rand(layer.image(4))
    with torch.no_grad():
        y = x
        for one in layer.parts:
            y = one.eval()(y)
        return bool(torch.equal(model.eval()(x), y))


def required(cls: Any) -> list[str]:
    """Arguments of a class without a default."""
    parameters = inspect.signature(cls).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def called(name: str) -> tuple[str, int | None]:
    """The word of an argument, and which of three axes it is of; an empty word where nobody knows."""
    stem, _, end = name.lower().rpartition("_")
    for text, axis in ((name.lower(), None), (stem, AXES.get(end, 3))):
        for word in {*WORDS["conv_bn"], *WORDS["avg_pool"], *WORDS["conv_transpose"]} if axis != 3 else ():
            if re.fullmatch(ARGUMENTS.get(word, word), text) and (axis is None or word in BY_AXIS):
                return word, axis
    return "", None


class Maker:
    """Makes modules of a class for problems. `own` are the arguments that the file gives."""

    def __init__(self, cls: Any, reference: Callable[..., nn.Module], layer: Layer, own: Sequence[Any]) -> None:
        self.cls, self.reference, self.layer = cls, reference, layer
        self.alone = layer.family == "conv_bn" and len(layer.parts) == 1
        """Whether it is a batch norm without its convolution."""
        self._taken, self._parameters = (inspect.signature(one).parameters for one in (cls, reference))
        of_class = self._taken.keys() <= self._parameters.keys()
        self._own = dict(zip(self._taken if of_class else self._parameters, own, strict=False))
        self._known: dict[tuple[Any, ...], dict[str, Any] | Unsupported] = {}

    def express(self, values: Values) -> dict[str, Any]:
        """The reference's arguments for a problem. Raises Unsupported with what these, or the class's, cannot say."""
        key = tuple(values.items())
        if key not in self._known:
            try:
                self._known[key] = self._arguments(values)
            except Unsupported as refusal:
                self._known[key] = refusal.with_traceback(None)
        found = self._known[key]
        if isinstance(found, Unsupported):
            raise found
        return found

    def make(self, arguments: Mapping[str, Any]) -> nn.Module:
        """A module."""
        made: nn.Module = self.cls(**self._passed(arguments))
        return made

    def _default(self, name: str) -> Any:
        return self._own.get(name, self._parameters[name].default)

    def _arguments(self, values: Values) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            (word, axis), own = called(name), self._default(name)
            value = values.get(word, own)
            if value is parameter.empty:
                raise Unsupported(f"cannot tell what to give __init__ for {name}")
            if word in BY_AXIS and word in values:
                meant = re.match(r"(<class ')?(typing\.)?tuple", str(parameter.annotation).lower())
                by_axis = isinstance(own, (tuple, list)) or meant is not None
                # of one number for all axes the reference says which it is: a window of (r, 1) has one as well
                value = value[axis - 3 + self.layer.rank] if axis is not None else value if by_axis else max(value)
            found[name] = value
        self._passed(found)
        try:
            with torch.device("meta"):
                made = layer_of(self.reference(**found))
        except Exception as error:
            raise Unsupported(f"the reference refuses: {error}") from None
        if made is None:
            raise Unsupported("the reference has other layers for this problem")
        for word, value in values.items():
            has = made.values.get(word)
            spare = (word in SPARE and not value) or (word in ("c", "k") and has is None)
            if has != value and not spare:
                raise Unsupported(f"__init__ cannot say this {word}")
        return found

    def _passed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the class is given of the reference's arguments: by name, or by place where it has other names. Raises
        Unsupported where it does not take one that is not what it is anyhow."""
        taken = [n for n, p in self._taken.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if len(taken) < len(self._taken):
            return dict(arguments)
        names = {n: n for n in arguments if n in taken}
        if not {*required(self.cls)} <= names.keys():
            names = dict(zip(arguments, taken, strict=False))
        for name in arguments.keys() - names.keys():
            if arguments[name] != self._default(name):
                raise Unsupported(f"__init__ has no {name}")
        return {names[name]: value for name, value in arguments.items() if name in names}
