"""The tables and what they name."""

from __future__ import annotations

from conformance.data import ARMS
from conformance.problems import PROBLEMS, table


def test_every_arm_has_a_name_and_a_function():
    assert tuple(ARMS) == table.ARMS


def test_names_and_geometries_are_unique():
    names = [problem.name for problem in PROBLEMS]
    assert len(set(names)) == len(names)


def test_every_level_adds_problems():
    counts = [sum(len(variants) for _, variants in table.at_level(PROBLEMS, level)) for level in table.LEVELS]
    assert counts == sorted(set(counts))
