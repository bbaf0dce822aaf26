"""What docs/ck.md says of split-K in layouts with groups as an axis, with other seeds."""

from __future__ import annotations

from itertools import product

import pytest

from conformance.calibration.split_k import KERNELS, PROBLEMS, contracts, kernel
from conformance.contract import Contract
from conformance.execution.check import check
from conformance.operators import parse


@pytest.mark.parametrize("partials", KERNELS)
@pytest.mark.parametrize(("layout", "dtype"), [*product(PROBLEMS, ("fp32", "bf16"))])
def test_bf16_partial_sums_pass_where_they_are_declared(layout: str, dtype: str, partials: str):
    problem = PROBLEMS[layout][0]
    for seed, contract in product((1, 2), contracts(16)):
        found = check(
            kernel(layout, problem, dtype, 16, partials, contract), problem, layout=layout, dtype=dtype, seed=seed
        )
        assert found.passed == (partials == "fp32" or contract.partials == "bf16"), found.explain()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("declared", "status"), [(4, "fail"), (64, "pass"), (128, "pass")])
def test_their_number_matters(declared: int, status: str, dtype: str):
    problem, contract = PROBLEMS["nhwgc"][1], Contract(splits=declared, partials="bf16")
    made = kernel("nhwgc", problem, dtype, 128, "bf16, added in bf16", contract)
    assert check(made, problem, layout="nhwgc", dtype=dtype).status == status


def test_sizes_are_those_that_the_page_names():
    for problems in PROBLEMS.values():
        geometries = [parse(problem) for problem in problems]
        assert [g.y.size // g.k for g in geometries] == [128, 4096]
        assert all(1 < g.groups < g.c for g in geometries)
