"""The generator of inputs: golden/README.md states it, and another language can draw the same numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from conformance.inputs.stream import Stream
from conformance.resources import GOLDEN


def words(name: str) -> Iterator[int]:
    """The generator as golden/README.md states it."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    while True:
        key = (key + 0x9E3779B97F4A7C15) % 2**64
        z = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield z ^ (z >> 31)


def values(name: str, count: int) -> list[int]:
    return list(islice((half for word in words(name) for half in (word % 2**32, word >> 32)), count))


def fixed_point(name: str, count: int, bits: int) -> list[float]:
    signed = (v - 2**32 if v >= 2**31 else v for v in values(name, count))
    return [((v >> (31 - bits)) | 1) / 2**bits for v in signed]


def integers(name: str, count: int, largest: int) -> list[int]:
    return [v * (2 * largest + 1) // 2**32 - largest for v in values(name, count)]


def ternary(name: str, count: int, density: float) -> list[int]:
    threshold = min(round(density * 2**31), 2**31 - 1)
    return [0 if v // 2 > threshold else -1 if v % 2 else 1 for v in values(name, count)]


@pytest.mark.parametrize("count", [1, 7, 70_001])
def test_the_generator_is_the_one_that_the_readme_states(count: int):
    name, double = f"stream {count}", np.dtype(np.float64)
    for bits in (1, 8, 19, 27, 30):
        assert Stream(name).fixed_point((count,), bits, double).tolist() == fixed_point(name, count, bits)
    for largest in (1, 5, 127):
        assert Stream(name).integers((count,), largest, double).tolist() == integers(name, count, largest)
    for density in (0.0, 0.1, values(name, 1)[0] // 2 / 2**31, 1.0):
        assert Stream(name).ternary((count,), density, double).tolist() == ternary(name, count, density)
    assert Stream(name).below(81, 4) == [word * 81 >> 64 for word in islice(words(name), 4)]
    assert Stream(name).below(81, 70001)[-1:] == [word * 81 >> 64 for word in islice(words(name), 70000, 70001)]


def test_blocks_drawn_in_parallel_are_one_stream():
    assert Stream("a").integers((530_001,), 5, np.dtype(np.float32)).tolist() == integers("a", 530_001, 5)


def test_the_readme_shows_the_first_numbers():
    example: dict[str, list[Any]] = {
        "word": [f"{word:016x}" for word in islice(words("example"), 3)],
        "fixed_point(8)": [f"{round(x * 256)}/256" for x in fixed_point("example", 6, 8)],
        "integers(5)": integers("example", 6, 5),
        "ternary(0.5)": ternary("example", 6, 0.5),
        "below(81)": [word * 81 >> 64 for word in islice(words("example"), 4)],
    }
    text = (GOLDEN / "README.md").read_text()
    for draw, numbers in example.items():
        assert f"    {draw:<19}{' '.join(map(str, numbers))}\n" in text
