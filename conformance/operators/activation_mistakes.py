"""Mistakes of operators with an activation: another function, parts in another order, and the residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.operators.activation_geometry import SMOOTH
from conformance.operators.activations import activated
from conformance.operators.base import Arrays, Operator
from conformance.operators.mistakes import (
    ROUNDING,
    Change,
    Compute,
    InapplicableError,
    Mistake,
    in_format_of,
    misread,
    rolled,
)
from conformance.operators.spatial import Index

Parts = Callable[[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(geometry, products, bias, residual) -> y, in float64; bias and residual broadcast, and are zero where absent."""
Function = Callable[[np.ndarray], np.ndarray]


def act(geometry: Any, sums: np.ndarray) -> np.ndarray:
    """Return the activation of the problem."""
    return activated(geometry.activation, sums)


def by_parts(parts: Parts) -> Compute:
    """Return the computation that adds and activates the parts in some order."""

    def compute(operator: Operator, geometry: Any, inputs: Arrays, dtype: Any) -> Arrays:
        linear = operator.linear  # type: ignore[attr-defined]  # of an Activated, which no caller knows
        wide = {name: array.astype(np.float64) for name, array in inputs.items()}
        products = linear.reference(replace(geometry, bias=False), wide)["y"]
        bias = wide["bias"].reshape(-1, *(1,) * geometry.rank) if geometry.bias else np.zeros(())
        y = parts(geometry, products, bias, wide.get("residual", np.zeros(())))
        return {"y": np.broadcast_to(y, products.shape).astype(dtype)}

    return compute


def in_place_of(function: Function) -> Compute:
    """Return the mistake of another function of the whole sum."""
    return by_parts(lambda g, products, bias, residual: function(products + bias + residual))


def _on_channels(chosen: Callable[[int], slice]) -> Compute:
    """Return the mistake that leaves the activation of some channels out; `chosen` has those of a group of so many."""

    def parts(g: Any, products: np.ndarray, bias: np.ndarray, residual: np.ndarray) -> np.ndarray:
        s = products + bias + residual
        count = s.shape[1] // (1 if g.rank else g.groups)
        without = np.zeros(count, bool)
        without[chosen(count)] = True
        if without.all() or not without.any():
            raise InapplicableError
        kept = np.tile(without, s.shape[1] // count).reshape(-1, *(1,) * g.rank)
        return np.where(kept, s, act(g, s))

    return by_parts(parts)


def _of_first_image(residual: np.ndarray, g: Any) -> np.ndarray:
    return np.repeat(residual[:1], len(residual), axis=0)


def _of_first_channel(residual: np.ndarray, g: Any) -> np.ndarray:
    return np.repeat(residual[:, :1], residual.shape[1], axis=1)


def _of_first_place(residual: np.ndarray, g: Any) -> np.ndarray:
    if not g.rank:
        raise InapplicableError
    first: Index = (..., *[slice(1)] * g.rank)
    return np.broadcast_to(residual[first], residual.shape)


def _sigmoid(s: np.ndarray) -> np.ndarray:
    """Return s times the logistic function of 1.702 s."""
    return activated("silu", 1.702 * s) / 1.702


def _quick_silu(s: np.ndarray) -> np.ndarray:
    """Return the hard swish s * relu6(s + 3) / 6."""
    return s * np.clip(s + 3, 0, 6) / 6


_EXCHANGED: dict[str, tuple[str, ...]] = {
    "relu": (*SMOOTH, "relu6"),
    "gelu": ("gelu_tanh", "silu"),
    "gelu_tanh": ("gelu",),
    "silu": ("gelu", "gelu_tanh"),
    "relu6": ("relu",),
}
"""Activation that a kernel computes -> those that it is computed in place of."""
_FUNCTIONS: dict[str, tuple[Function, tuple[str, ...]]] = {
    "s * sigmoid(1.702 s) in place of gelu": (_sigmoid, ("gelu", "gelu_tanh")),
    "hard swish in place of silu": (_quick_silu, ("silu",)),
    "slope of 0.01 below zero": (lambda s: np.where(s < 0, 0.01 * s, s), ("relu",)),
    "NaN becomes 0": (lambda s: np.nan_to_num(np.maximum(s, 0), nan=0.0, posinf=np.inf), ("relu",)),
    "NaN becomes 6": (lambda s: np.nan_to_num(np.clip(s, 0, 6), nan=6.0), ("relu6",)),
    "absolute value in place of relu": (np.abs, ("relu",)),
    "logistic function without its factor": (
        lambda s: activated("silu", s) / np.where(s == 0, 1.0, s) + (s == 0) / 2,
        ("silu",),
    ),
}
_ORDERS: dict[str, tuple[Parts, Callable[[Any], bool]]] = {
    "activation before the bias": (lambda g, y, bias, rest: act(g, y + rest) + bias, lambda g: g.bias),
    "activation before the residual": (lambda g, y, bias, rest: act(g, y + bias) + rest, lambda g: g.residual),
    "activation before bias and residual": (
        lambda g, y, bias, rest: act(g, y) + bias + rest,
        lambda g: g.bias and g.residual,
    ),
    "activation once more after the residual": (
        lambda g, y, bias, rest: act(g, act(g, y + bias) + rest),
        lambda g: g.residual,
    ),
}
_PARTS: dict[str, tuple[Parts, Callable[[Any], bool]]] = {
    "activation left out": (lambda g, y, bias, rest: y + bias + rest, lambda g: g.activation != "none"),
    "activation applied twice": (
        lambda g, y, bias, rest: act(g, act(g, y + bias + rest)),
        lambda g: g.activation in SMOOTH,
    ),
    "activation of the residual alone": (
        lambda g, y, bias, rest: y + bias + act(g, rest),
        lambda g: g.residual and g.activation != "none",
    ),
    "residual left out": (lambda g, y, bias, rest: act(g, y + bias), lambda g: g.residual),
    "residual added twice": (lambda g, y, bias, rest: act(g, y + bias + 2 * rest), lambda g: g.residual),
    "residual subtracted": (lambda g, y, bias, rest: act(g, y + bias - rest), lambda g: g.residual),
    "residual in place of the sum": (lambda g, y, bias, rest: act(g, rest), lambda g: g.residual),
    "bias left out": (lambda g, y, bias, rest: act(g, y + rest), lambda g: g.bias),
    "bias added twice": (lambda g, y, bias, rest: act(g, y + 2 * bias + rest), lambda g: g.bias),
    "bias left out where there is a residual": (
        lambda g, y, bias, rest: act(g, y + rest),
        lambda g: g.bias and g.residual,
    ),
}
_CHANNELS: dict[str, Callable[[int], slice]] = {
    "activation of the first half of the channels only": lambda count: slice(count // 2, None),
    "activation of the last channel left out": lambda count: slice(count - 1, None),
    "activation left out beyond whole blocks of 4 channels": lambda count: slice(count // 4 * 4, None),
    "activation left out beyond whole blocks of 8 channels": lambda count: slice(count // 8 * 8, None),
    "activation left out beyond whole blocks of 16 channels": lambda count: slice(count // 16 * 16, None),
}
_RESIDUALS: dict[str, Change] = {
    "residual of the first image for all": _of_first_image,
    "residual of the image before": rolled(0),
    "residual of the first channel for all": _of_first_channel,
    "residual of the channel before": rolled(1),
    "residual of the first place for all": _of_first_place,
}


def _is(activations: tuple[str, ...]) -> Callable[[Any], bool]:
    """Return the predicate of problems with one of these activations."""
    return lambda g: g.activation in activations


def _has_bias(g: Any) -> bool:
    return bool(g.bias)


def _has_residual(g: Any) -> bool:
    return bool(g.residual)


def _active(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda g: g.activation != "none" and holds(g)


def _of_product(name: str) -> str:
    """Say rows and columns of images and channels."""
    return name.replace("image", "row").replace("channel", "column")


def _rounded_between(operator: Operator, g: Any, inputs: Arrays, dtype: Any) -> Arrays:
    """Round the sum to the format of y, and compute its activation from that."""
    s = operator.sums(g, inputs)  # type: ignore[attr-defined]
    y: np.ndarray = act(g, in_format_of(inputs[operator.data], s))
    return {"y": y.astype(dtype)}


def of_activations(*, product: bool) -> tuple[Mistake, ...]:
    """Return the mistakes of sums with an activation; of a `product`, images are called rows, and channels columns."""
    named = _of_product if product else str
    exchanged = [
        Mistake(f"{other} in place of {word}", "activation", in_place_of(partial(activated, other)), (), _is((word,)))
        for other, words in _EXCHANGED.items()
        for word in words
    ]
    return (
        *exchanged,
        *(
            Mistake(name, "activation", in_place_of(function), when=_is(words))
            for name, (function, words) in _FUNCTIONS.items()
        ),
        *(
            Mistake(name, "activation", by_parts(parts), when=_active(holds))
            for name, (parts, holds) in _ORDERS.items()
        ),
        *(Mistake(name, "activation", by_parts(parts), when=holds) for name, (parts, holds) in _PARTS.items()),
        *(
            Mistake(named(name), "activation", _on_channels(chosen), when=_active(lambda g: True))
            for name, chosen in _CHANNELS.items()
        ),
        *(
            Mistake(named(name), "index", misread(residual=change), when=_has_residual)
            for name, change in _RESIDUALS.items()
            if not (product and "place" in name)
        ),
    )


BIASES: dict[str, Change] = {
    "bias of the {} before": rolled(0),
    "bias of the first {} for all": lambda bias, g: np.repeat(bias[:1], g.k),
}


def of_biases(channel: str) -> tuple[Mistake, ...]:
    """Return the mistakes that read the bias elsewhere; `channel` is what has a bias of its own."""
    return tuple(
        Mistake(name.format(channel), "bias", misread(bias=change), when=_has_bias) for name, change in BIASES.items()
    )


ROUNDED = Mistake(
    "sum rounded to the tensors' format before the activation", ROUNDING, _rounded_between, when=_active(lambda g: True)
)
