"""The tables and what they name."""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from itertools import combinations, product
from typing import Any

import pytest

from conformance import Implementation, suites
from conformance.checks import behaviour_demand
from conformance.inputs import DISTRIBUTIONS
from conformance.operators import CONVOLUTIONS, FAMILIES, OPERATORS, Family
from conformance.problems import PROBLEMS, at_level, of_section, table, typed
from conformance.problems.reading import table_of
from conformance.training.tables import networks
from tests.kit import standard


def test_every_distribution_has_a_name_and_a_function():
    assert tuple(DISTRIBUTIONS) == table.DISTRIBUTIONS


def test_names_and_geometries_are_unique():
    names = [problem.name for problem in PROBLEMS]
    assert len(set(names)) == len(names)


def test_every_level_adds_problems():
    counts = [sum(len(variants) for _, variants in at_level(PROBLEMS, level)) for level in table.LEVELS[:-1]]
    assert counts == sorted(set(counts))


def suite_marks(kind: str) -> list[pytest.Mark]:
    """The marks of one kind on the test functions of the suites."""
    modules = [import_module(f"{suites.__name__}.{info.name}") for info in pkgutil.iter_modules(suites.__path__)]
    functions = {value for module in modules for name, value in vars(module).items() if name.startswith("test_")}
    return [mark for function in functions for mark in getattr(function, "pytestmark", []) if mark.name == kind]


def test_suites_collect_every_operator_check_and_network_once():
    kinds = {
        name: (behaviour_demand.dense, behaviour_demand.grouped) if name in CONVOLUTIONS else (None,)
        for name in OPERATORS
    }
    every = Counter((name, when) for name, conditions in kinds.items() for when in conditions)
    assert Counter((mark.args[0], mark.kwargs["when"]) for mark in suite_marks("verifies")) == every
    assert sorted(name for mark in suite_marks("behaves") for name in mark.args) == sorted(behaviour_demand.CHECKS)
    assert {mark.args[0] for mark in suite_marks("trains")} == set(networks("standard"))


BY_HAND: dict[str, Callable[[Family], object]] = {
    "storages": lambda family: family.storages.everywhere or family.storages.once,
    "large": lambda family: family.storages.large,
    "odd": lambda family: family.storages.odd,
    "equal_shapes": lambda family: family.equal_shapes,
    "partial": lambda family: family.partial,
    "sizes": lambda family: "sizes" in table_of(family.name),
    "sparse": lambda family: all(operator.sparse for operator in family.operators),
}
"""Field of a family, or of its storages, table or operators -> what it has there."""


@pytest.mark.parametrize(("name", "field"), [*product(FAMILIES, BY_HAND)])
def test_a_family_is_tested_as_the_others_are(name: str, field: str):
    """What is chosen by hand and missing is tested less, and nothing says so."""
    family = FAMILIES[name]
    assert name == family.name, "copied from another family's folder"
    assert bool(BY_HAND[field](family)) != (field in family.lacks), f"give {field}, or name it in lacks"
    assert {*family.lacks} <= {*BY_HAND}


@pytest.mark.parametrize("check", ["outputs_asked_for_alone", "backward_keeps_what_is_declared"])
def test_who_tries_a_problem_by_hand_gets_no_checks_of_other_families(check: str):
    counts = []
    for chosen in (PROBLEMS, (typed("pool n2 c3 h6 w6 r2 s2 u2"),)):
        ranked = standard(Implementation("acme"), problems=chosen).ranked
        demands = behaviour_demand.CHECKS[check].demands(ranked)
        counts.append({OPERATORS[one.operator].family for one in demands if one.everything("cpu")[0]})
    assert counts[1] == counts[0] & {"avg_pool"} != counts[0]


FACTORS = {
    "images": (1, 2, 3),
    "size": ((6, 7), (9, 5), (8, 8), (5, 11), (4, 9)),
    "window": ((1, 1), (2, 2), (3, 3), (3, 1), (1, 4), (5, 5), (4, 2)),
    "stride": ((1, 1), (2, 2), (3, 3), (1, 2), (2, 1)),
    "padding": (
        ((0, 0), (0, 0)),
        ((1, 1), (1, 1)),
        ((1, 0), (0, 2)),
        ((2, 2), (0, 0)),
        ((3, 3), (3, 3)),
        ((0, 1), (2, 1)),
    ),
    "dilation": ((1, 1), (2, 2), (1, 2), (3, 1)),
    "grouping": ("none", "two", "three", "depthwise", "multiplier"),
    "bias": (False, True),
}
"""What the pairwise cross; `multiplier` is depthwise with two filters a channel."""
MOST_PRODUCTS = 6_000
PAIRWISE = of_section("conv", "pairwise")


def factors(geometry: Any) -> dict[str, Any]:
    """The value of each factor that a pairwise case has."""
    depthwise = geometry.groups == geometry.c > 1
    names = {1: "none", 2: "two", 3: "three"}
    grouping = ("multiplier" if geometry.k > geometry.c else "depthwise") if depthwise else names[geometry.groups]
    return {
        "images": geometry.n,
        "size": (geometry.h, geometry.w),
        "window": (geometry.r, geometry.s),
        "stride": geometry.stride,
        "padding": geometry.padding,
        "dilation": geometry.dilation,
        "grouping": grouping,
        "bias": geometry.bias,
    }


@pytest.mark.parametrize("pair", list(combinations(FACTORS, 2)), ids=" and ".join)
def test_pairwise_have_every_pair_of_values(pair: tuple[str, str]):
    found = {tuple(factors(problem.geometry)[name] for name in pair) for problem in PAIRWISE}
    assert set(product(*(FACTORS[name] for name in pair))) <= found


def test_pairwise_are_small():
    for problem in PAIRWISE:
        g = problem.geometry
        assert g.y.size * g.c // g.groups * g.r * g.s <= MOST_PRODUCTS, problem.name
