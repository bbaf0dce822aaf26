"""Device functions on the tables of `product`: digits of a number, linear forms, whether a pixel is in the image."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .storage import inline

Form = tuple[int, ...]
"""Value at the start, and increment of each digit; of counts, the total and each digit's."""
Number = tuple[int, ...]
"""Digits of a number."""


@inline
def digits(number: int, counts: Form) -> tuple[int, int, int]:
    """Return the three digits of a composite number."""
    rest = number // counts[3]
    return rest // counts[2], rest % counts[2], number % counts[3]


@inline
def place(form: Form, first: int, second: int, third: int) -> int:
    return form[0] + first * form[1] + second * form[2] + third * form[3]


@inline
def _three_digits(number: int, counts: Form) -> Number:
    return digits(number, counts)


@inline
def _place_of_three(form: Form, number: Number) -> int:
    return place(form, number[0], number[1], number[2])


@inline
def _four_digits(number: int, counts: Form) -> Number:
    first, second, third = digits(number // counts[4], counts)
    return first, second, third, number % counts[4]


@inline
def _place_of_four(form: Form, number: Number) -> int:
    return place(form, number[0], number[1], number[2]) + number[3] * form[4]


class Space(NamedTuple):
    """Device functions for a number of spatial axes: digits(number, counts) and place(form, digits)."""

    digits: Callable[[int, Form], Number]
    place: Callable[[Form, Number], int]


SPACES = {2: Space(_three_digits, _place_of_three), 3: Space(_four_digits, _place_of_four)}
"""By rank. A number has a digit more than space has axes: that of the image, or of the channel."""


@inline
def inside(row: int, column: int, height: int, width: int) -> bool:
    return row >= 0 and row < height and column >= 0 and column < width


@inline
def owner(element: int, channels: int, columns: int, along_channels: bool) -> tuple[int, int]:
    """Return channel of the result and column of an element, so that neighbouring threads write to neighbouring
    memory."""
    if along_channels:
        return element % channels, element // channels
    return element // columns, element % columns
