"""The order of benchmarks: by chance, so that no implementation always runs when the machine is warm or busy."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def shuffled(items: Sequence[Item], place: Callable[[Item], Hashable], seed: int) -> list[Item]:
    """Places by chance, and those of one place by chance, but beside each other: they are compared."""
    chance = random.Random(seed)
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(place(item), []).append(item)
    found = list(groups.values())
    chance.shuffle(found)
    for group in found:
        chance.shuffle(group)
    return [item for group in found for item in group]
