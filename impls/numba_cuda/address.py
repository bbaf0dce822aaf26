"""Device functions on the tables of `product`: digits of a number, linear forms, whether a pixel is in the image."""

from __future__ import annotations

from .storage import inline

Form = tuple[int, int, int, int]
"""What the start gives, and one more of each of three digits; of counts, the total and each digit's."""


@inline
def digits(number: int, counts: Form) -> tuple[int, int, int]:
    """The three digits of a composite number."""
    rest = number // counts[3]
    return rest // counts[2], rest % counts[2], number % counts[3]


@inline
def place(form: Form, first: int, second: int, third: int) -> int:
    return form[0] + first * form[1] + second * form[2] + third * form[3]


@inline
def inside(row: int, column: int, height: int, width: int) -> bool:
    return row >= 0 and row < height and column >= 0 and column < width


@inline
def whose(element: int, channels: int, columns: int, along_channels: bool) -> tuple[int, int]:
    """Channel of the result and column of an element, so that neighbouring threads write to neighbouring memory."""
    if along_channels:
        return element % channels, element // channels
    return element // columns, element % columns
