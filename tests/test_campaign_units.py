"""Units of the campaigns: together they are the whole, and a part is in one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conformance.results import units
from tests.calibration import __main__ as calibration
from tests.calibration import false_alarms, field, mutation, worse
from tests.calibration.kernels.kernel import KnownGood


class Pool:
    """Stands for the processes of a campaign: notes the tasks, and carries out none."""

    tasks: ClassVar[list[Any]] = []

    def __init__(self, jobs: int) -> None:
        pass

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def shutdown(self, *, cancel_futures: bool) -> None:
        pass

    def map(self, function: Callable[..., Any], tasks: Sequence[Any]) -> list[tuple[()]]:
        self.tasks.extend(tasks)
        return [() for _ in tasks]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_shares_are_the_whole(count: int):
    shares = [[*units.share(range(20), units.read(f"{number}/{count}"))] for number in range(1, count + 1)]
    assert sorted(part for share in shares for part in share) == [*range(20)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("module", "words"),
    [(mutation, ["mutation"]), (false_alarms, ["false-alarms"]), (worse, ["worse", "--operator=conv_forward"])],
)
def test_units_of_a_campaign_are_the_whole(monkeypatch: pytest.MonkeyPatch, module: Any, words: list[str]):
    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)

    def examine(files: Sequence[Path], *_: Any, **__: Any) -> list[field.Examined]:
        Pool.tasks.extend(files)
        return []

    def is_detected(kernel: KnownGood, _: str) -> bool:
        Pool.tasks.append(kernel.name)
        return True

    monkeypatch.setattr(module, "progress", lambda parts, *_: parts)
    monkeypatch.setattr(field, "examine", examine)
    monkeypatch.setattr(false_alarms, "detected_when_stricter", is_detected)

    def tasks(*unit: str) -> Counter[str]:
        monkeypatch.setattr(Pool, "tasks", [])
        calibration.main([*words, *unit])
        return Counter(map(str, Pool.tasks))

    whole, first, second = tasks(), tasks("--unit=1/2"), tasks("--unit=2/2")
    assert first + second == whole
    assert first
    assert second
