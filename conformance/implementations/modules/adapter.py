"""From a file with a torch module to an implementation: which operator its reference is, and its own problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from conformance.implementations.bridges.torch import TorchArrays
from conformance.implementations.errors import described
from conformance.implementations.implementation import Adapted, Implementation, Unsupported
from conformance.implementations.modules import layers
from conformance.implementations.modules.kernels import Kernels
from conformance.implementations.modules.switches import Switches
from conformance.operators.avg_pool.geometry import PoolGeometry
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.conv_transpose.geometry import TransposedGeometry
from conformance.operators.max_pool.geometry import MaxPoolGeometry

DTYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}
GEOMETRIES: dict[str, Any] = {
    "conv": ConvGeometry,
    "conv_transpose": TransposedGeometry,
    "conv_bn": ConvBnGeometry,
    "avg_pool": PoolGeometry,
    "max_pool": MaxPoolGeometry,
}
CHOICES = ", ".join(f"{family}_forward" for family in GEOMETRIES)


class ModuleArrays(TorchArrays):
    """Torch tensors, for modules."""

    untimed = "a call of a torch module makes the module, too"


class Adapter:
    """Of one file; made before it is imported, so that what the import changes in torch is seen."""

    def __init__(self, stem: str, file: str, device: str, interpreted: bool, compiles: bool) -> None:
        self._stem, self._file, self._device = stem, file, device
        self._interpreted, self._compiles = interpreted, compiles
        if device == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # by default torch's own layers round fp32
        self._before = Switches()

    def implementations(self, defined: Mapping[str, Any]) -> list[Implementation]:
        """Of `ModelNew`, or else of every class of modules that the file defines, without the reference `Model`."""
        new = defined.get("ModelNew")
        if _is_module(new):
            return [self.implementation(new, self._stem, defined)]
        own = {n: c for n, c in defined.items() if _is_module(c) and c.__module__ == defined["__name__"]}
        own = {n: c for n, c in own.items() if n != "Model" and not n.startswith("_")} or own
        return [self.implementation(c, self._stem if len(own) == 1 else n, defined) for n, c in own.items()]

    def implementation(self, cls: Any, name: str, defined: Mapping[str, Any]) -> Implementation:
        """Of a class, by what the file says of it."""
        changed = self._before.restored()
        one = Implementation(
            name, self._device, ModuleArrays(self._device), version=torch.__version__, compiles_per_shape=self._compiles
        )
        try:
            maker = self._maker(cls, defined)
            problem, dtype = _own(maker, _inputs(defined)) if maker.own else ("", "fp32")
            if self._interpreted and dtype == "bf16":
                raise Unsupported("Triton's interpreter has no bf16: a verdict on it needs CUDA")
        except Unsupported as why:
            one.adapted = Adapted(unmapped=str(why))
            return one
        one.adapted = Adapted(problem, f"{maker.layer.family}_forward", dtype)
        Kernels(maker, changed, dtype).offer(one)
        return one

    def _maker(self, cls: Any, defined: Mapping[str, Any]) -> layers.Maker:
        """How modules of the class are made for a problem. Raises Unsupported with the line to declare."""
        given = defined.get("get_init_inputs")
        own: Sequence[Any] = given() if callable(given) else ()
        reference = defined.get("Model")
        if not _is_module(reference) or isinstance(defined.get("operator"), str):
            family, rank = self._declared(cls, defined)
            stand_in = layers.stand_in(cls, family, rank)
            return layers.Maker(cls, stand_in, layers.Layer(family, rank, {}), own)
        try:
            model = reference(*own)  # type: ignore[misc]
            found = layers.layer_of(model)
            if found is not None and layers.computes(model, *found):
                return layers.Maker(cls, reference, found[0], own)
        except Exception as error:
            raise Unsupported(f"the reference Model of {self._file} cannot be used: {described(error)}") from None
        has = ", ".join(dict.fromkeys(type(one).__name__ for one in model.modules() if one is not model))
        raise self._unmapped(
            f"its reference Model is not one layer of torch.nn and nothing else (it has {has or 'none'})"
        )

    def _declared(self, cls: Any, defined: Mapping[str, Any]) -> tuple[str, int]:
        """Family and dimensions: by a line in the file, or by its name or that of the class."""
        operator = defined.get("operator")
        if isinstance(operator, str):
            family = operator.removesuffix("_forward")
            if family not in GEOMETRIES:
                raise Unsupported(f"operator = {operator!r} in {self._file}: must be one of {CHOICES}")
        else:
            family = layers.named(self._stem) or layers.named(cls.__name__)
        shape = next((x.shape for x in _inputs(defined)), None)
        names = (self._stem, cls.__name__)
        rank = len(shape) - 2 if shape is not None else next(filter(None, map(layers.rank_in, names)), 0)
        if not family or rank not in (1, 2, 3):
            raise self._unmapped("it has no reference Model, and its name does not tell operator and dimensions")
        return family, rank

    def _unmapped(self, why: str) -> Unsupported:
        return Unsupported(
            f'cannot tell which operator {self._file} is: {why}; add a line such as operator = "conv_forward" '
            f"({CHOICES}), and give the dimensions by get_inputs or a name such as conv2d"
        )


def _is_module(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module) and value is not nn.Module


def _inputs(defined: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that a file says its module is called with; on the meta device, as they may be large."""
    given = defined.get("get_inputs")
    if not callable(given):
        return []
    with suppress(Exception), torch.device("meta"):
        return [one for one in given() if isinstance(one, torch.Tensor)]
    return []


def _own(maker: layers.Maker, inputs: Sequence[torch.Tensor]) -> tuple[str, str]:
    """The problem that a file is about, as a descriptor (empty where it has none), and its dtype."""
    if not inputs or (x := inputs[0]).dtype not in DTYPES:
        return "", "fp32"
    layer, rank = maker.layer_of_own(), maker.layer.rank
    if layer is None or x.dim() != rank + 2:
        return "", DTYPES[x.dtype]
    values = dict(layer.values)
    if layer.family == "conv_bn":
        eps, momentum = values.pop("eps"), values.pop("momentum")
        values = {"window": (1,) * rank} | values | {"bias": False}
        values |= {"eps_digits": -round(math.log10(eps)), "momentum_percent": round(100 * momentum)}
    if "padding" in values:
        values["padding"] = tuple((one, one) for one in values["padding"])
    values |= {"n": x.shape[0], "c": x.shape[1], "size": tuple(x.shape[2:])}
    try:
        return GEOMETRIES[layer.family](**values).descriptor, DTYPES[x.dtype]
    except (ValueError, TypeError):
        return "", DTYPES[x.dtype]
