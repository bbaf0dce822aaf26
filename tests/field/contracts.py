"""Kernels under contracts that hide what they compute, kernels that refuse by content, and honest weak contracts.

`bad-...` must be detected, `good-...` must not. Each is impls/numpy_direct, with its results or its arguments looked at
by a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance import Contract, Implementation, Unsupported
from impls import numpy_direct

EVERYTHING = Contract(
    inputs="bf16", accumulate="bf16", rounding="zero", algorithm="fft", splits=10**6, partials="bf16",
    subnormals="flushed", variance="raw",
)  # fmt: skip
"""As little as can be declared of fp32 tensors."""
Results = tuple[np.ndarray, ...]
Change = Callable[[Results], Results]
Look = Callable[[list[np.ndarray], dict[str, Any]], None]


def times(factor: float) -> Change:
    return lambda results: tuple((result * factor).astype(result.dtype) for result in results)


def last_is_zero(results: Results) -> Results:
    return (*results[:-1], np.zeros_like(results[-1])) if len(results) > 1 else results


def short(results: Results) -> Results:
    """About 17 bits of fp32."""
    return tuple((result.view(np.uint32) & np.uint32(0xFFFFFF80)).view(np.float32) for result in results)


def right(results: Results) -> Results:
    return results


def refuse_nan(arrays: list[np.ndarray], given: dict[str, Any]) -> None:
    if any(np.isnan(array).any() for array in arrays):
        raise Unsupported("NaN")


def refuse_large(arrays: list[np.ndarray], given: dict[str, Any]) -> None:
    if any(np.abs(array).max() > 1e18 for array in arrays):
        raise Unsupported("numbers this large")


def refuse_half_of_all_data(arrays: list[np.ndarray], given: dict[str, Any]) -> None:
    if int(np.abs(arrays[0]).astype(np.float64).sum() * 1024) % 2:
        raise Unsupported("a tile of this size")


def refuse_fractions(arrays: list[np.ndarray], given: dict[str, Any]) -> None:
    if any((np.rint(array) != array).any() for array in arrays if array.ndim == 4):
        raise Unsupported("this alignment")


def refuse_strides(arrays: list[np.ndarray], given: dict[str, Any]) -> None:
    """By the problem: what a `when=` could have said."""
    if given["stride"][0] == 2:
        raise Unsupported("strides of two")


def anything(arrays: list[np.ndarray], given: dict[str, Any]) -> None:
    """Refuses nothing."""


def implementation(
    name: str,
    contract: Contract,
    change: Change = right,
    look: Look = anything,
    when: Callable[[Any], bool] = lambda g: True,
    dtypes: tuple[str, ...] = ("fp32",),
) -> Implementation:
    made = Implementation(name, contract=contract)
    for kernel in numpy_direct.numpy_direct.kernels:
        made.kernels.append(
            replace(kernel, function=_changed(kernel.function, change, look), contract=contract, when=when,
                    dtypes=dtypes)
        )  # fmt: skip
    return made


def _changed(function: Callable[..., Any], change: Change, look: Look) -> Callable[..., Any]:
    names = inspect.signature(function).parameters

    def computed(*arguments: Any, **given: Any) -> Any:
        look([array for array in arguments if array is not None], given)
        results = function(*arguments, **{name: value for name, value in given.items() if name in names})
        changed = change(results if isinstance(results, tuple) else (results,))
        return changed if isinstance(results, tuple) else changed[0]

    return computed


def deep(geometry: Any) -> bool:
    return bool(geometry.c >= 64)


IMPLEMENTATIONS = (
    implementation("bad-zeros", EVERYTHING, times(0)),
    implementation("bad-zeros-of-many-channels", Contract(accumulate="bf16", rounding="zero"), times(0), when=deep),
    implementation("bad-one-percent", EVERYTHING, times(1.01)),
    implementation("bad-one-percent-bf16-sums", Contract(accumulate="bf16"), times(1.01)),
    implementation("bad-one-percent-bf16-inputs", Contract(inputs="bf16", accumulate="bf16"), times(1.01)),
    implementation("bad-last-result-is-zero", EVERYTHING, last_is_zero),
    implementation("bad-winograd-1x1", Contract(algorithm="winograd-f4"), short, when=lambda g: g.r == g.s == 1),
    implementation("bad-winograd-strides", Contract(algorithm="winograd-f4"), short,
                   when=lambda g: getattr(g, "stride", (1, 1)) != (1, 1)),
    implementation("bad-million-splits", Contract(splits=10**6, partials="bf16"), times(1.1)),
    implementation("bad-refuses-nan", Contract(), look=refuse_nan),
    implementation("bad-refuses-large", Contract(), look=refuse_large),
    implementation("bad-refuses-half", Contract(), look=refuse_half_of_all_data),
    implementation("bad-refuses-fractions", Contract(), times(1.5), look=refuse_fractions),
    implementation("good-refuses-strides", Contract(), look=refuse_strides),
    implementation("good-bf16-sums", Contract(accumulate="bf16"), dtypes=("bf16",)),
    implementation("good-fp16-sums", Contract(accumulate="fp16"), dtypes=("fp16",)),
    implementation("good-bf16-sums-of-fp32", Contract(accumulate="bf16")),
    implementation("good-bf16-partials", Contract(splits=8, partials="bf16"), dtypes=("bf16",)),
    implementation("good-tf32", Contract(inputs="tf32")),
    implementation("good-bf16-inputs", Contract(inputs="bf16")),
    implementation("good-bf16x6", Contract(inputs="bf16x6")),
    implementation("good-winograd-f4", Contract(algorithm="winograd-f4")),
    implementation("good-fft", Contract(algorithm="fft")),
    implementation("good-toward-zero", Contract(rounding="zero")),
    implementation("good-separate-raw", Contract(between="storage", variance="raw"), dtypes=("bf16",)),
)  # fmt: skip
NAMES = [one.name for one in IMPLEMENTATIONS]
globals().update({one.name: one for one in IMPLEMENTATIONS})
