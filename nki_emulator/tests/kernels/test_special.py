"""One NaN or infinity anywhere in an operand of the NKI kernels: the Tensor Engine of gen2 spreads it in transposes.

The special distribution of the suite has them in the data; here they are in weights and gradients too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from nki_emulator.tests.kernels.nki_kernels import FOLDER, implementation
from nki_emulator.tests.kernels.nki_mutants import Mutant

GEOMETRY: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}
SHAPES = {
    "parts of the channels": (130, 140, 5, 3),
    "joined channels": (256, 256, 6, 3),
    "filters in one run": (140, 130, 3, 1),
    "packed taps": (3, 64, 8, 3),
    "positions stationary": (64, 64, 8, 3),
    "turns in pairs": (20, 32, 9, 3),
}
"""Channels, filters, rows and columns, window."""
PLACES = {"first": 0.0, "middle": 0.5, "last": 1.0}
VALUES = {"NaN": math.nan, "-Inf": -math.inf}


def operands(shape: tuple[int, int, int, int]) -> dict[str, np.ndarray]:
    """x, w, dy of -1 and 1: no product of an infinity with 0."""
    c, k, size, window = shape
    draw, p = np.random.default_rng(5), size - window + 1
    shapes = {"x": (2, c, size, size), "w": (k, c, window, window), "dy": (2, k, p, p)}
    return {name: draw.choice(np.array([-1, 1], np.float32), found) for name, found in shapes.items()}


def expected(x: np.ndarray, w: np.ndarray, dy: np.ndarray, operator: str) -> np.ndarray:
    """In float64; without padding every sum has the same terms in every algorithm."""
    x, w, dy = (found.astype(np.float64) for found in (x, w, dy))
    window = w.shape[2:]
    with np.errstate(invalid="ignore"):
        if operator == "conv_backward_data":
            found = np.zeros(x.shape)
            for r in range(window[0]):
                for s in range(window[1]):
                    part = np.einsum("nkpq,kc->ncpq", dy, w[..., r, s])
                    found[..., r : r + dy.shape[2], s : s + dy.shape[3]] += part
            return found
        seen = sliding_window_view(x, window, (2, 3))
        if operator == "conv_forward":
            return np.asarray(np.einsum("ncpqrs,kcrs->nkpq", seen, w, optimize=True))
        return np.asarray(np.einsum("ncpqrs,nkpq->kcrs", seen, dy, optimize=True))


def computed(kernels: Path, target: str, operator: str, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """By the kernels of a folder."""
    found = next(kernel for kernel in implementation(kernels, target).kernels if kernel.operator == operator).function
    if operator == "conv_forward":
        return np.asarray(found(x, w, None, **GEOMETRY))
    if operator == "conv_backward_data":
        return np.asarray(found(dy, w, input_size=x.shape[2:], **GEOMETRY))
    return np.asarray(found(x, dy, kernel_size=w.shape[2:], with_bias=False, **GEOMETRY))


READS = {"conv_forward": ("x", "w"), "conv_backward_data": ("dy", "w"), "conv_backward_weight": ("x", "dy")}


def differs(kernels: Path, target: str, operator: str, shape: str) -> list[str]:
    """Where one special value leads to another result than the sum of its products."""
    found = []
    for name in READS[operator]:
        for place, share in PLACES.items():
            for value_name, value in VALUES.items():
                given = operands(SHAPES[shape])
                flat = given[name].reshape(-1)
                flat[int(share * (flat.size - 1))] = value
                right, result = expected(**given, operator=operator), computed(kernels, target, operator, **given)
                if operator == "conv_backward_data" and name == "w":
                    # at the border a kernel may multiply the weight by the zero of padding
                    border = SHAPES[shape][3] - 1
                    inner = slice(border, right.shape[2] - border)
                    right, result = right[..., inner, inner], result[..., inner, inner]
                if not np.array_equal(result, right, equal_nan=True):
                    found.append(f"{value_name} {place} in {name}")
    return found


@pytest.mark.parametrize("target", ["gen2", "gen3"])
@pytest.mark.parametrize("operator", READS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_special_value_stays_in_its_own_sums(shape: str, operator: str, target: str):
    assert differs(FOLDER / "kernels", target, operator, shape) == []


REPEATED = {
    "weights": ("conv_windows.py", "nl.while_loop(register, load_again)", "conv_forward", "parts of the channels"),
    "positions": ("conv_packed.py", "nl.while_loop(register, repeat)", "conv_forward", "positions stationary"),
    "gradient": ("conv_weight.py", "nl.while_loop(register, repeat)", "conv_backward_weight", "turns in pairs"),
    "x": ("conv_weight.py", "(dy.shape[3], tile[3]), spoilt)", "conv_backward_weight", "turns in pairs"),
}


@pytest.mark.parametrize("name", REPEATED)
def test_without_the_repetition_it_spreads(name: str, tmp_path: Path):
    file, text, operator, shape = REPEATED[name]
    mutant = Mutant(file, text, text.replace("spoilt", "[]") if "spoilt" in text else "found = register")
    assert differs(mutant.planted(tmp_path), "gen2", operator, shape)
