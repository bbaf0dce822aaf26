"""Functions of nki.language that compute, each by instructions on new tiles.

Page of each: "nki.language.<name>", Neuron SDK 2.32. They stand for operators
too, as in nisa.tensor_tensor(..., op=nl.add).
"""

from __future__ import annotations

from typing import Any

from .dtypes import FLOAT32, DType
from .errors import refuse
from .isa_memory import select_reduce, tensor_copy
from .isa_scalar import activation
from .isa_vector import reciprocal as reciprocal_instruction
from .isa_vector import reduced_axes, tensor_reduce, tensor_scalar, tensor_tensor
from .lang_create import ndarray
from .operands import tile
from .operators import ACTIVATIONS, OPERATORS, Operator
from .tensor import NkiTensor


class Function:
    """A function of nki.language: callable on tiles, and a name for `op=` of instructions."""

    def __init__(self, name: str, operator: Operator | None, is_activation: bool) -> None:
        self.__name__, self.operator, self.is_activation = name, operator, is_activation

    def __call__(self, *operands: Any, dtype: DType | None = None) -> NkiTensor:
        """A new tile in SBUF. Binary functions take a positional dtype last, as all do."""
        arity = 1 if self.operator is None else self.operator.arity
        if len(operands) == arity + 1 and dtype is None:
            operands, dtype = operands[:arity], operands[arity]
        if len(operands) != arity:
            refuse("operand", f"nl.{self.__name__} takes {arity} operands, not {len(operands)}")
        return self._binary(*operands, dtype) if arity == 2 else self._unary(*operands, dtype)

    def _binary(self, x: Any, y: Any, dtype: DType | None) -> NkiTensor:
        tiles = [found for found in (x, y) if isinstance(found, NkiTensor)]
        if not tiles:
            refuse("operand", f"nl.{self.__name__} of two numbers; one operand is a tile")
        result = ndarray(tiles[0].shape, _result_dtype(self.__name__, tiles, dtype))
        if len(tiles) == 1:
            reverse = tiles[0] is y
            tensor_scalar(result, tiles[0], self, x if reverse else y, reverse0=reverse)
        elif x.shape != y.shape:
            refuse("shape", f"nl.{self.__name__} of {x} and {y}: shapes differ, and broadcasting is not documented")
        else:
            tensor_tensor(result, x, y, self)
        return result

    def _unary(self, x: Any, dtype: DType | None) -> NkiTensor:
        result = ndarray(tile(x, "x").shape, x.dtype if dtype is None else dtype)
        if self.__name__ == "reciprocal":
            reciprocal_instruction(result, x)
        elif self.is_activation:
            activation(result, self, x)
        else:
            tensor_scalar(result, x, self, None)
        return result


def _result_dtype(name: str, tiles: list[NkiTensor], dtype: DType | None) -> DType:
    if dtype is None and tiles[0].dtype is not tiles[-1].dtype:
        refuse("dtype", f"nl.{name} of {tiles[0].dtype} and {tiles[-1].dtype}: give the dtype of the result")
    return tiles[0].dtype if dtype is None else dtype


def functions() -> dict[str, Any]:
    """Every operator and activation function by its name."""
    names = OPERATORS.keys() | ACTIVATIONS.keys()
    return {name: Function(name, OPERATORS.get(name), name in ACTIVATIONS) for name in names}


FUNCTIONS = functions()


class Reduction:
    """nl.sum and its kin: one tensor_reduce, rounded once to dtype, which defaults to that of the tile.

    So a sum of bf16 is rounded to bf16 before anything else is done with it.
    """

    is_activation = False

    def __init__(self, name: str, operator: Operator) -> None:
        self.__name__, self.operator = name, operator

    def __call__(self, x: NkiTensor, axis: Any, dtype: DType | None = None, keepdims: bool = False) -> NkiTensor:
        """A new tile in SBUF without the reduced dimensions, or with size 1 there; at least two dimensions stay."""
        result = ndarray(_reduced_shape(x, axis, keepdims), x.dtype if dtype is None else dtype)
        tensor_reduce(result, self, x, axis, keepdims=keepdims)
        return result


def _reduced_shape(x: NkiTensor, axis: Any, keepdims: bool) -> tuple[int, ...]:
    count = reduced_axes(tile(x, "x"), axis)
    kept = x.shape[: x.ndim - count]
    return kept + (1,) * count if keepdims or len(kept) < 2 else kept


REDUCTIONS = {
    name: Reduction(name, OPERATORS[operator])
    for name, operator in (("sum", "add"), ("max", "maximum"), ("min", "minimum"), ("prod", "multiply"))
}


def mean(x: NkiTensor, axis: Any, dtype: DType | None = None, keepdims: bool = False) -> NkiTensor:
    """The sum in float32 times the reciprocal of the count, rounded once to dtype (that of x)."""
    total = REDUCTIONS["sum"](x, axis, FLOAT32, keepdims)
    result = ndarray(total.shape, x.dtype if dtype is None else dtype)
    tensor_scalar(result, total, FUNCTIONS["multiply"], total.size / x.size)
    return result


def var(x: NkiTensor, axis: Any, dtype: DType | None = None, keepdims: bool = False) -> NkiTensor:
    """The mean of squared distances from the mean, in float32, rounded once to dtype (that of x)."""
    count = reduced_axes(tile(x, "x"), axis)
    if count != x.ndim - 1:
        refuse("not-implemented", "var over some of the free dimensions")
    average = mean(x, axis, FLOAT32).reshape((x.shape[0], 1))
    distances = ndarray(x.shape, FLOAT32)
    tensor_scalar(distances, x, FUNCTIONS["subtract"], average)
    tensor_tensor(distances, distances, distances, FUNCTIONS["multiply"])
    return mean(distances, axis, x.dtype if dtype is None else dtype, keepdims)


def negative(x: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """-x."""
    result = ndarray(tile(x, "x").shape, x.dtype if dtype is None else dtype)
    tensor_scalar(result, x, FUNCTIONS["multiply"], -1.0)
    return result


def copy(x: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """A new tile in SBUF with the elements of another."""
    result = ndarray(tile(x, "x").shape, x.dtype if dtype is None else dtype)
    tensor_copy(result, x)
    return result


class Copy:
    """nl.copy: a function, and the identity among the activation functions."""

    __name__ = "copy"
    operator = None
    is_activation = True

    def __call__(self, x: NkiTensor, dtype: DType | None = None) -> NkiTensor:
        """A copy."""
        return copy(x, dtype)


def where(condition: NkiTensor, x: NkiTensor, y: Any, dtype: DType | None = None) -> NkiTensor:
    """x where condition is not 0, else y, which is a number here."""
    if isinstance(y, NkiTensor):
        refuse("not-implemented", "where with a tile as y; use tensor_copy_predicated")
    result = ndarray(tile(x, "x").shape, x.dtype if dtype is None else dtype)
    select_reduce(result, condition, x, y)
    return result
