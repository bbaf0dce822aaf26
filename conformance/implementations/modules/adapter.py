"""From a file with a torch module to an implementation: the operator of its reference, and its own problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import nn

from conformance.implementations.bridges.torch import TorchArrays
from conformance.implementations.errors import described
from conformance.implementations.implementation import Adapted, Implementation, Unsupported
from conformance.implementations.modules import interpreter, layers, products
from conformance.implementations.modules.kernels import ModuleKernels, lacking, operator_of
from conformance.implementations.modules.no_cuda import as_if_cuda
from conformance.implementations.modules.source import REFERENCE
from conformance.implementations.modules.switches import Switches, Watch
from conformance.operators.avg_pool.geometry import PoolGeometry
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.conv_transpose.geometry import TransposedGeometry
from conformance.operators.matmul.geometry import MatmulGeometry
from conformance.operators.max_pool.geometry import MaxPoolGeometry

DTYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}
GEOMETRIES = (ConvGeometry, TransposedGeometry, ConvBnGeometry, PoolGeometry, MaxPoolGeometry, MatmulGeometry)
MAX_INTERPRETED = 1 << 15
"""Most elements of an image in Triton's interpreter, which takes milliseconds for each block."""
MAX_OWN = 1 << 23
"""Elements of the file's own image and result above which the batch is halved: whole batches of KernelBench need 48
GiB, or minutes to judge."""
MAX_OWN_WEIGHT = 4 * MAX_OWN
"""Most elements of the second operand of the file's own product, which has as many for fewer rows."""
MAPPED = ", ".join("nn.Linear" if kind == "Linear" else f"nn.{kind}1d to 3d" for kind in layers.FAMILIES)


class ModuleArrays(TorchArrays):
    """Torch tensors, for modules."""

    untimed = "a call of a torch module makes the module, too"
    own: Callable[[], tuple[Callable[..., Any], Callable[..., Any], Sequence[torch.Tensor]]]
    """Returns the module and its reference as the file makes them, without gradients, and new inputs."""
    on_import: Sequence[str]
    """The switches of torch that the import of the file has changed, in words."""
    watch: Watch
    """Keeps what calls have changed in torch."""
    counts_launches: bool
    """Whether the file has kernels for Triton's interpreter."""

    @property
    def launches(self) -> int | None:
        """Number of kernels that Triton's interpreter has launched; None where the file has no kernels for it."""
        return interpreter.launched() if self.counts_launches else None

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Switch oneDNN off in the block, as the bridge of any torch kernels does, without taking that for a call's
        change."""
        with super().bare(), self.watch.knowing("backends.mkldnn.enabled"):
            yield

    def switched(self, call: Callable[[], Any]) -> list[str]:
        """Return, in words, what a call and the import of the file change in the whole process."""
        self.watch.changes.clear()
        with suppress(BaseException):  # which a case of the problem reports
            call()
        sources = (("its import", self.on_import), ("a call", self.watch.changes))
        return [
            f"{what} changes a switch of the whole process: {change}" for what, changes in sources for change in changes
        ]


class Adapter:
    """Makes the implementations of one file; created before the file is imported, so that changes of torch by the
    import are seen."""

    def __init__(
        self, stem: str, device: str, *, interpreted: bool = False, compiles: bool = False, needs_cuda: bool = False
    ) -> None:
        self._stem, self._device, self._interpreted, self._compiles = stem, device, interpreted, compiles
        self._needs_cuda = needs_cuda
        if device == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # by default torch's own layers round fp32
        self._before, self._on_import = Switches(), list[str]()

    def implementations(self, defined: Mapping[str, Any]) -> list[Implementation]:
        """Return the implementation of `ModelNew`, of a `Model` that is not the reference, or else one of every class
        of modules that the file defines, without the reference."""
        self._on_import = self._before.restored(str(defined.get("__file__", "")))
        if _is_module(new := defined.get("ModelNew")):
            return [self.implementation(new, self._stem, defined)]
        classes = {n: c for n, c in defined.items() if _is_module(c) and c.__module__ == defined["__name__"]}
        classes.pop(REFERENCE, None)
        if _is_kernel(classes, defined):
            return [self.implementation(classes["Model"], self._stem, defined)]
        classes = {n: c for n, c in classes.items() if n != "Model" and not n.startswith("_")} or classes
        return [self.implementation(c, self._stem if len(classes) == 1 else n, defined) for n, c in classes.items()]

    def implementation(self, cls: Any, name: str, defined: Mapping[str, Any]) -> Implementation:
        """Return the implementation of a class, by what the file says of it."""
        implementation = Implementation(
            name, "simulator" if self._interpreted else self._device, ModuleArrays(self._device),
            version=str(torch.__version__), compiles_per_shape=self._compiles,
            unsafe=("threads",) if self._interpreted else (),  # docs/findings/triton-threads.md
        )  # fmt: skip
        if self._needs_cuda:  # behind `if torch.cuda.is_available()` else torch's own layer was verified instead
            implementation.adapted = Adapted(
                unmapped="its CUDA kernels cannot run here, and what it calls instead is not verified"
            )
            return implementation
        try:
            maker = self._maker(cls, defined)
        except Unsupported as why:
            implementation.adapted = Adapted(unmapped=str(why))
            return implementation
        geometry, dtype, shape, unknown, whole = None, "fp32", torch.Size(), "", ""
        watch = Watch(self._before, str(defined.get("__file__", "")))
        counts = self._interpreted and interpreter.has_kernels(defined)
        vars(implementation.arrays).update(on_import=self._on_import, watch=watch, counts_launches=counts)
        arrays = implementation.arrays
        assert isinstance(arrays, ModuleArrays)
        most = MAX_INTERPRETED if self._interpreted else None
        is_product = isinstance(maker, products.ProductMaker)
        kind: Any = products.ProductKernels if is_product else ModuleKernels
        kernels = partial(kind, maker, watch, most=most, launches=lambda: arrays.launches)
        try:
            inputs = _inputs(defined)
            x = _first_tensor(inputs)
            maker.image = tuple(x.shape)
            dtype = DTYPES.get(x.dtype, dtype)
            of_file = maker.problem(inputs) if isinstance(maker, products.ProductMaker) else _problem(maker, x)
            geometry = products.affordable(of_file, MAX_OWN, most or MAX_OWN)
            whole = of_file.descriptor if geometry != of_file else ""
            if not geometry.rank and geometry.filter.size > MAX_OWN_WEIGHT:
                size = geometry.filter.size
                raise Unsupported(f"its second operand has {size:,} elements; at most {MAX_OWN_WEIGHT:,} are judged")
            kernels(dtype=dtype).require(geometry)
            shape = maker.part(0, x, geometry).shape
            shape = shape if geometry.rank or geometry.groups > 1 else torch.Size((math.prod(shape[:-1]), shape[-1]))
        except Unsupported as why:
            geometry, whole, unknown = None, "", str(why)
        if self._interpreted and dtype == "bf16":
            implementation.adapted = Adapted(unmapped="Triton's interpreter has no bf16: a verdict on it needs CUDA")
            return implementation
        if geometry is not None:
            vars(implementation.arrays)["own"] = partial(_made, maker, defined, implementation.arrays, geometry)
        problem = "" if geometry is None else geometry.descriptor
        beside = "the indices that it returns are not verified" if maker.layer.returns_indices else ""
        implementation.adapted = Adapted(
            problem, whole, unknown, operator_of(maker.layer.family, "forward"), dtype, unverified=beside
        )
        kernels(dtype=dtype, shape=shape).offer(implementation)
        return implementation

    def _maker(self, cls: Any, defined: Mapping[str, Any]) -> layers.Maker:
        """Return the maker of the class's modules for problems. Raises Unsupported with the line to declare, or with
        the part of the reference that no problem can express."""
        reference: Any = defined.get(REFERENCE, defined.get("Model"))
        why = "it has no reference Model"
        if reference is cls and not layers.is_torch(cls):
            why = (
                f"its class {cls.__name__} is the kernel, and no reference of itself (`cat problem.py solution.py` "
                "puts one before it)"
            )
        elif _is_module(reference):
            try:
                init_inputs = _given(defined)
                model = _referred(cls, reference, init_inputs)
                layer = layers.layer_of(model)
                if layer is not None and layers.computes(model, layer):
                    maker = layers.Maker(cls, reference, layer, init_inputs)
                    before = Switches()
                    maker.lack(lacking(maker))
                    before.restored()  # or what the class changes is as it was when it is called
                    return maker
                if (of_product := products.maker_of(cls, reference, model, init_inputs, _seen(defined))) is not None:
                    return of_product
                layers.require_alike(model)
                has = ", ".join(dict.fromkeys(type(part).__name__ for part in model.modules() if part is not model))
                why = f"its reference Model is not one layer and nothing else (it has {has or 'none'})"
            except Unsupported as refusal:
                if isinstance(refusal, products.NoProduct):
                    raise Unsupported(f"cannot tell which operator {self._stem} is: {refusal}") from None
                raise
            except Exception as error:
                why = f"its reference Model cannot be called: {described(error)}"
        raise Unsupported(
            f"cannot tell which operator {self._stem} is: {why}; declare it by a line such as `Model = nn.Conv2d` "
            f"if that is what it computes ({MAPPED}, or a class of one of them)"
        )


def _is_kernel(classes: Mapping[str, Any], defined: Mapping[str, Any]) -> bool:
    """Return whether the `Model` among the classes of a file is the kernel: beside another class of that name, or
    beside a line that declares the reference, unless the file has other classes, which `Model` does not use."""
    reference = defined.get(REFERENCE)
    if "Model" not in classes or reference is None:
        return False
    functions = [value for value in vars(classes["Model"]).values() if isinstance(value, FunctionType)]
    used = {name for function in functions for name in function.__code__.co_names}
    helpers = classes.keys() - {"Model"}
    return reference.__module__ == defined["__name__"] or not helpers or not used.isdisjoint(helpers)


def _is_module(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module) and value is not nn.Module


def _given(defined: Mapping[str, Any]) -> layers.Given:
    """Return the arguments that a file gives its classes; none where it has no get_init_inputs."""
    function = defined.get("get_init_inputs")
    with as_if_cuda():
        return layers.Given.by(function()) if callable(function) else layers.Given()


def _referred(cls: Any, reference: Any, init_inputs: layers.Given) -> nn.Module:
    """Make the reference with the arguments that the file gives; where it gives none, make a layer of torch with
    ones."""
    arguments = init_inputs.to(cls, reference) if init_inputs else layers.Given([1] * len(layers.required(reference)))
    with as_if_cuda():
        module: nn.Module = reference(*arguments.args, **arguments.kwargs)
    return module


def _made(maker: layers.Maker, defined: Mapping[str, Any], arrays: Any, geometry: Any) -> tuple[Any, ...]:
    if arrays.watch.changes:  # else the reference is timed with the module's switches
        raise Unsupported("its calls change switches of the whole process")
    with as_if_cuda():
        inputs = layers.Given.by(defined["get_inputs"]())
        module = maker.cls(*maker.init_inputs.args, **maker.init_inputs.kwargs)

    places = count()

    def there(argument: Any) -> Any:
        is_tensor = isinstance(argument, torch.Tensor)
        return maker.part(next(places), argument, geometry).to(arrays.device) if is_tensor else argument

    args, kwargs = [*map(there, inputs.args)], {name: there(argument) for name, argument in inputs.kwargs.items()}
    dtype = _first_tensor(inputs).dtype
    modules = (
        part.to(arrays.device, dtype) for part in (module, _referred(maker.cls, maker.reference, maker.init_inputs))
    )
    return *(partial(torch.no_grad()(part.forward), **kwargs) for part in modules), args


def _inputs(defined: Mapping[str, Any]) -> layers.Given:
    """Return what get_inputs returns, on the meta device if possible. Raises Unsupported."""
    function = defined.get("get_inputs")
    if not callable(function):
        raise Unsupported("the file has no get_inputs")
    for device in ("meta", "cpu"):  # the tensor may be large, or the function look at values
        try:
            with torch.device(device), as_if_cuda():
                returned = function()
        except Exception as error:
            why = f"get_inputs raises {described(error)}"
        else:
            return layers.Given.by(returned)
    raise Unsupported(why)


def _seen(defined: Mapping[str, Any]) -> layers.Given | None:
    """Return what get_inputs returns; None where it cannot be called."""
    with suppress(Unsupported):
        return _inputs(defined)
    return None


def _first_tensor(inputs: layers.Given) -> torch.Tensor:
    """Return the first tensor of what get_inputs returns. Raises Unsupported."""
    tensors = [argument for argument in (*inputs.args, *inputs.kwargs.values()) if isinstance(argument, torch.Tensor)]
    if not tensors:
        raise Unsupported("get_inputs returns no tensor")
    return tensors[0]


def _problem(maker: layers.Maker, x: torch.Tensor) -> Any:
    """Return the geometry of a file's own problem. Raises Unsupported."""
    layer, rank = maker.layer, maker.layer.rank
    if not maker.init_inputs and layers.required(maker.reference):
        raise Unsupported("the file has no get_init_inputs")
    if rank and x.dim() != rank + 2:
        raise Unsupported(f"get_inputs returns an image of {x.dim()} axes, not {rank + 2}")
    if x.dim() < 2:
        raise Unsupported("get_inputs returns a vector, no matrix")
    values = dict(layer.values)
    if layer.family == "conv_bn":
        eps, momentum = values.pop("eps"), values.pop("momentum")
        values = {"window": (1,) * rank} | values | {"bias": False}
        values["eps_digits"] = round(-math.log10(eps)) if eps > 0 else 0
        # for a cumulative average that of the second call, which is neither the batch's nor torch's default of 0.1
        values["momentum_percent"] = round(100 * (0.5 if momentum is None else momentum))
        if eps not in [float(f"1e-{digits}") for digits in range(1, 10)]:
            raise Unsupported(f"its eps is {eps}; problems have 0.1, 0.01 to 1e-09")
        if momentum not in (None, *(percent / 100 for percent in range(101))):
            raise Unsupported(f"its momentum is {momentum}; problems have whole percent")
    if rank:
        values |= {"n": x.shape[0], "c": x.shape[1], "size": tuple(x.shape[2:])}
    else:
        values |= {"n": math.prod(x.shape[:-1]), "c": x.shape[-1]}
    geometry: Any = next(kind for kind in GEOMETRIES if kind.family == layer.family)
    try:
        return geometry(**values)
    except (ValueError, TypeError) as why:
        raise Unsupported(f"{tuple(x.shape)} is no input of its layer: {why}") from None
