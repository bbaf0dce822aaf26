"""Modules that multiply two matrices, or two batches of them: which operand the reference transposes, and the kernels.

The reference tells: called with small whole numbers, it returns the product of its operands, each as it is or
transposed, to the last bit, or it is not one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from conformance.implementations.implementation import Unsupported
from conformance.implementations.modules import KEEPS_OPERANDS
from conformance.implementations.modules.kernels import (
    OF_PRODUCT,
    OTHER,
    ModuleKernels,
    Results,
    Tensors,
    by_rows,
    of_shape,
)
from conformance.implementations.modules.layers import Given, Layer, Maker, required
from conformance.implementations.modules.no_cuda import as_if_cuda
from conformance.layouts import MATRICES
from conformance.operators.matmul.geometry import MatmulGeometry

MATRIX, BATCHES, VECTOR, *ROWS = AXES = ((2, 2), (3, 3), (2, 1), (3, 2), (4, 2))
"""Numbers of axes of the two operands: matrices, batches of them, a matrix and a vector, and rows in two or three axes
beside a matrix."""
SIZES = ((3, 5, 4), (4, 4, 4), (1, 6, 3), (5, 1, 7), (2, 8, 1))
"""Sizes m, k, n of the products that a reference is asked for."""
BATCH = 3
GRAPHS = ((6, 5, 4), (16, 16, 16), (33, 64, 48))
"""Sizes m, k, n of problems on which a module is asked for a graph."""
SCOPE = (
    "verified is the product of two matrices, or of two batches of them, each as it is or transposed, without a scale, "
    "a mask or an activation"
)


@dataclass(frozen=True)
class Form:
    """The way in which the operands of a product lie: layout, and numbers of axes."""

    layout: str
    axes: tuple[int, int]

    def shapes(self, m: int, k: int, n: int, batch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of both operands."""
        before = (batch, 2)[: self.axes[0] - 2]
        a, b = (*before, m, k), (*before[: self.axes[1] - 2], k, n)
        return _turned(a, self.layout[0]), _turned(b, self.layout[1]) if self.axes != VECTOR else (k,)

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Multiply two operands that lie in this way."""
        first, second = (x.mT if letter == "t" else x for x, letter in zip((a, b), self.layout, strict=True))
        return first @ second

    def geometry(self, a: Sequence[int], b: Sequence[int]) -> MatmulGeometry:
        """Return the problem of operands with these shapes. Raises ValueError where they cannot be multiplied."""
        *before, m, k = _turned(a, self.layout[0]) if self.axes not in ROWS else (math.prod(a[:-1]), a[-1])
        *more, terms, n = _turned(b, self.layout[1]) if self.axes != VECTOR else (*b, 1)
        if terms != k or more != before:
            raise ValueError(f"{tuple(a)} and {tuple(b)} cannot be multiplied")
        batch = before[0] if before else 1
        return MatmulGeometry(m, k * batch, n * batch, batch)


def _turned(shape: Sequence[int], letter: str) -> tuple[int, ...]:
    """Return the shape of the transpose where the letter of a layout says that a matrix lies transposed."""
    return (*shape[:-2], shape[-1], shape[-2]) if letter == "t" else tuple(shape)


def affordable(geometry: Any, most: int, most_of_image: int) -> Any:
    """Return a problem with so few images or rows, or products of a batch, that both operands, or image and result,
    have at most `most` elements, and the image `most_of_image`; with a row, or two products, if it cannot have fewer.
    """
    while True:
        batch = geometry.groups if isinstance(geometry, MatmulGeometry) else 1
        size = geometry.x.size + geometry.y.size + (geometry.filter.size if batch > 1 else 0)
        if size <= most and geometry.x.size <= most_of_image:
            return geometry
        if batch > 2:
            fewer = (batch + 1) // 2
            geometry = replace(geometry, c=geometry.c // batch * fewer, k=geometry.k // batch * fewer, groups=fewer)
        elif geometry.n > 1:
            geometry = replace(geometry, n=(geometry.n + 1) // 2)
        else:
            return geometry


def form_of(model: nn.Module, axes: tuple[int, int], dtype: torch.dtype) -> Form | None:
    """Return the form of the product that a model computes, and computes nothing else; None if there is none."""
    # a vector is not transposed, nor are rows in several axes
    stays = {VECTOR: 1, **dict.fromkeys(ROWS, 0)}.get(axes)
    forms = [Form(layout, axes) for layout in MATRICES if stays is None or layout[stays] == "n"]
    return next((form for form in forms if _computes(model, form, dtype)), None)


def _computes(model: nn.Module, form: Form, dtype: torch.dtype) -> bool:
    """Return whether a model returns the products of a form, of whole numbers whose sums every format holds."""
    dice = torch.Generator().manual_seed(0)
    for sizes in SIZES:
        a, b = (torch.randint(-3, 4, shape, generator=dice).to(dtype) for shape in form.shapes(*sizes, BATCH))
        try:
            with torch.no_grad():
                y = model.eval()(a.clone(), b.clone())
        except Exception:  # a form that the model does not take
            return False
        if not isinstance(y, torch.Tensor) or y.dtype != dtype or not torch.equal(y, form.product(a, b)):
            return False
    return True


class ProductMaker(Maker):
    """Makes modules of a class that multiplies its two inputs: all of them with what the file gives its `__init__`."""

    def __init__(self, cls: Any, reference: Callable[..., nn.Module], form: Form, init_inputs: Given) -> None:
        super().__init__(cls, reference, Layer("matmul", 0, {}, ()), init_inputs)
        self.form = form

    @property
    def layouts(self) -> Sequence[str]:
        """The layout in which the reference takes its operands."""
        return (self.form.layout,)

    def make(self, arguments: Mapping[str, Any]) -> nn.Module:
        """Make a module as the file does."""
        with as_if_cuda():
            module: nn.Module = self.cls(*self.init_inputs.args, **self.init_inputs.kwargs)
        return module

    def problem(self, inputs: Given) -> MatmulGeometry:
        """Return the problem of the file's own operands. Raises Unsupported."""
        a, b = (tuple(operand.shape) for operand in (*inputs.args, *inputs.kwargs.values()))
        try:
            return self.form.geometry(a, b)
        except ValueError as why:
            raise Unsupported(str(why)) from None

    def part(self, place: int, argument: torch.Tensor, geometry: Any) -> torch.Tensor:
        """Return what a problem of fewer rows, or products, has of the file's own operand at this place."""
        if self.form.axes in ROWS and not place:
            return super().part(place, argument, geometry)
        if self.form.axes == BATCHES:
            argument = argument[: geometry.groups]
        rows = -1 if self.form.layout[0] == "t" else -2
        return argument if place else argument.narrow(rows, 0, geometry.n)


class NoProduct(Unsupported):
    """Raised for a reference that takes two tensors and is no product of them."""


def maker_of(
    cls: Any, reference: Any, model: nn.Module, init_inputs: Given, inputs: Given | None
) -> ProductMaker | None:
    """Return the maker of a class whose reference takes two tensors; None where it takes something else or has
    weights. Raises Unsupported where these are not multiplied, or something else is done, too."""
    if [*model.parameters()]:
        return None
    operands = [] if inputs is None else [*inputs.args, *inputs.kwargs.values()]
    if inputs is None:
        if len(required(model.forward)) != 2:
            return None
        possible: Sequence[tuple[int, int]] = (MATRIX, BATCHES, VECTOR)
    elif len(operands) != 2 or not all(isinstance(operand, torch.Tensor) for operand in operands):
        return None
    else:
        possible = tuple(axes for axes in AXES if axes == tuple(operand.dim() for operand in operands))
        if not operands[0].is_floating_point():
            raise NoProduct(f"get_inputs returns whole numbers; {SCOPE}")
    dtype = operands[0].dtype if operands else torch.float32
    for axes in possible:
        if (form := form_of(model, axes, dtype)) is not None:
            return ProductMaker(cls, reference, form, init_inputs)
    raise NoProduct(f"what its reference Model returns is not the product of its two inputs and nothing else; {SCOPE}")


class ProductKernels(ModuleKernels):
    """The kernels of a class that multiplies its two inputs."""

    _maker: ProductMaker
    _keeps = KEEPS_OPERANDS

    def __init__(self, maker: ProductMaker, *arguments: Any, **named: Any) -> None:
        super().__init__(maker, *arguments, **named)
        self._copied = ()

    def require(self, geometry: Any, direction: str = "forward") -> None:
        """Raise Unsupported with the reason where the reference does not take a problem's operands, or one is empty or
        too large."""
        size, axes = max(geometry.x.size, geometry.filter.size, geometry.y.size), self._maker.form.axes
        if not min(geometry.x.size, geometry.filter.size):
            raise Unsupported("no module is asked for an empty operand")
        if size > self._most:
            raise Unsupported(f"a matrix of {size:,} elements: Triton's interpreter is given at most {self._most:,}")
        if geometry.bias:
            raise Unsupported("the reference adds no bias")
        if geometry.groups > 1 and axes != BATCHES:
            raise Unsupported("get_inputs returns two matrices, no batches of them")
        if geometry.k > 1 and axes == VECTOR:
            raise Unsupported("the second operand is a vector, one column")

    def _kernel(self, operands: Sequence[str], gradients: Sequence[str], direction: str) -> Callable[..., Any]:
        """Return the kernel of an operator with these operands by position: its result is the gradient by the tensor
        in `gradients`, or else the product."""

        def kernel(*arrays: Any, **parameters: Any) -> Any:
            passed = zip((OF_PRODUCT.get(name, name) for name in operands), arrays, strict=True)
            tensors = self._completed_product(dict(passed))

            def compute(module: nn.Module, pair: Tensors = tensors) -> Results:
                if not gradients:
                    return (self._multiplied(module, pair),)
                leaves = {name: pair[name].clone() for name in ("x", "w")}
                with torch.enable_grad():
                    y = self._multiplied(module, {n: leaf.requires_grad_() for n, leaf in leaves.items()})
                return self._differentiated(y, {name: leaves[name] for name in gradients[:1]}, tensors)

            filled = tensors | {name: torch.full_like(tensors[name], OTHER) for name in ("x", "w")}
            shapes = {name: tuple(tensors[name].shape) for name in ("x", "w")}
            return self._called(shapes, 0, tensors, compute, 0, (), partial(compute, pair=filled))[0]

        return kernel

    def _completed_product(self, tensors: Tensors) -> Tensors:
        """Return tensors with zeros for an operand on which a gradient does not depend."""
        for missing, present, place in (("x", "w", 0), ("w", "x", 1)):
            if missing not in tensors:
                dy, other = tensors["dy"], self._maker.form.layout[1 - place]
                k = _turned(tensors[present].shape, other)[place - 2]
                shape = (*dy.shape[:-1], k) if missing == "x" else (*dy.shape[:-2], k, dy.shape[-1])
                tensors[missing] = dy.new_zeros(_turned(shape, self._maker.form.layout[place]))
        return tensors

    def _multiplied(self, module: nn.Module, tensors: Tensors) -> Any:
        """Call a module with operands of as many axes as its reference takes; return a result of as many as the problem
        has. Raises KernelFailure where the result has not the axes of the reference's."""
        a, b, form = tensors["x"], tensors["w"], self._maker.form
        if form.axes in ROWS:
            return by_rows(module, self._maker.rows(len(a)), a, b)
        rows, columns = _turned(a.shape, form.layout[0])[-2], _turned(b.shape, form.layout[1])[-1]
        if form.axes == VECTOR:
            y = module(a, b[:, 0])
            return of_shape(y, (rows,)).unsqueeze(-1) if isinstance(y, torch.Tensor) else y
        if form.axes == BATCHES and a.dim() == 2:
            y = module(a[None], b[None])
            return of_shape(y, (1, rows, columns))[0] if isinstance(y, torch.Tensor) else y
        return module(a, b)

    def _differentiable(self, like: torch.Tensor) -> bool:
        """Return whether autograd goes through the module on some small problem."""
        if self._graphs is None:
            self._graphs = any(self._has_graph_on(sizes, like) for sizes in GRAPHS)
        return self._graphs

    def _has_graph_on(self, sizes: tuple[int, int, int], like: torch.Tensor) -> bool:
        with suppress(Exception), self._device(), torch.enable_grad():
            a, b = (like.new_ones(shape).requires_grad_() for shape in self._maker.form.shapes(*sizes, BATCH))
            before = self._launches()
            y = self._maker.make({}).to(a.device, a.dtype)(a, b)
            return bool(y.requires_grad) and (before is None or self._launches() != before)
        return False
