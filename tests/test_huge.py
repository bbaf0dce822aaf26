"""Operands that are zero almost everywhere: exact results, the judge, the way to a kernel's process, level huge."""

from __future__ import annotations

import os

import numpy as np
import pytest

from conformance.dtypes import DTYPES, STORAGE
from conformance.inputs import Recipe, distributions
from conformance.inputs.expectation import Expectation
from conformance.judge.expected import Sparse
from conformance.judge.judgement import judge_sparse
from conformance.operators import OPERATORS, takes
from conformance.problems import PROBLEMS, at_level, typed
from conformance.worker import wire
from conformance.zeros import LARGE, copied
from tests.conftest import Project

pytest_plugins = ["pytester"]

SMALL = (
    "n2 c6 h11 w8 k10 r3 s2 u2x1 p0:1x2:0 d1x2 g2",
    "n3 c4 h9 w7 k4 r1 s1 u3x2",
    "pool n2 c3 h10 w9 r4 s2 u3x2 p1:2x0:1 ceil1 valid1",
    "pool n2 c3 h9 w9 r3 s3 u2 p1 div4",
    "maxpool n2 c3 h12 w11 r3 s2 u2x3 p1:0x0:1 d2x3 ceil1",
    "mm m9 n7 k11",
    "mm b3 m5 n4 k6",
)


SPARSE = [name for name, operator in OPERATORS.items() if operator.sparse]
HUGE = [problem for problem in PROBLEMS if problem.name.startswith("huge.")]


@pytest.mark.parametrize("text", SMALL)
@pytest.mark.parametrize("name", SPARSE)
def test_exact_results_are_those_of_the_reference(name: str, text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(distributions, "SPARSE", 8)
    geometry = typed(text).geometry
    if not takes(name, geometry):
        return
    expected = Expectation(Recipe(OPERATORS[name].on(geometry), "fp32", "sparse", 0))
    data = expected.inputs[OPERATORS[name].data]
    assert 0 < np.count_nonzero(data) < data.size
    for output, (places, values) in Sparse(expected).nonzero.items():
        found = np.zeros(expected.reference[output].shape)
        found.reshape(-1)[places] = values
        assert len(places)
        assert np.all(np.diff(places) > 0)
        exact = expected.reference[output]
        rounded = 4 * np.spacing(np.abs(exact).max(initial=0.0))  # of so many quotients, which may cancel
        np.testing.assert_allclose(found, exact, rtol=0, atol=rounded)


def test_every_huge_problem_is_beyond_2_to_the_31_and_has_results_beyond_them():
    for problem in HUGE:
        g = problem.geometry
        for name in (name for name in SPARSE if takes(name, g)):
            expected = Expectation(Recipe(OPERATORS[name].on(g), "bf16", "sparse", 0))
            tensors = OPERATORS[name].inputs(g) | OPERATORS[name].outputs(g)
            assert max(tensor.size for tensor in tensors.values()) > 1 << 30
            for output, (places, values) in Sparse(expected).nonzero.items():
                assert len(values), (problem.name, name)
                size = OPERATORS[name].outputs(g)[output].size
                assert size < 1 << 30 or places[-1] == size - 1 or problem.geometry.stride not in ((1, 1), ())


PLACES, VALUES = np.array([0, 7, 29]), np.array([3.0, -5.0, 1.0])
WRONG = {
    "a value": (7, 5.0),
    "one missing": (0, 0.0),
    "one too many": (13, 1.0),
    "the last": (29, 0.0),
    "NaN": (4, np.nan),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_judge(dtype: str):
    right = np.zeros((1, 5, 2, 3), STORAGE[dtype])
    right.reshape(-1)[PLACES] = VALUES
    right[0, 1, 1, 0] = -0.0
    assert judge_sparse("y", "NKPQ", right, PLACES, VALUES).passed
    for place, value in WRONG.values():
        actual = right.copy()
        actual.reshape(-1)[place] = value
        judgement = judge_sparse("y", "NKPQ", actual, PLACES, VALUES)
        assert (judgement.passed, judgement.mismatched) == (False, 1)
        assert judgement.worst is not None
        assert np.ravel_multi_index(judgement.worst.index, actual.shape) == place


def test_zeros_travel_as_holes_and_not_as_what_was_there_before():
    file = wire.memory_file()
    array = np.zeros(LARGE // 2, np.float32)
    array[[0, 12345, -1]] = 1, 2, 3
    try:
        wire.write(file, np.ones(LARGE, np.uint8), 64)
        tensor, end = wire.write(file, array, 64)
        assert end == 64 + array.nbytes
        assert os.fstat(file).st_blocks * 512 < LARGE // 4
        np.testing.assert_array_equal(wire.read(file, tensor), array)
        np.testing.assert_array_equal(copied(array), array)
    finally:
        os.close(file)


def test_huge_adds_to_smoke_what_no_other_level_runs():
    names, smoke = ({problem.name for problem, _ in at_level(PROBLEMS, level)} for level in ("huge", "smoke"))
    assert names == smoke | {problem.name for problem in HUGE}
    assert not any(
        problem.level == "huge" for level in ("standard", "full") for problem, _ in at_level(PROBLEMS, level)
    )


KERNEL = """
import numpy as np
from conformance import Implementation

{name} = Implementation("{name}")

@{name}.implements("conv_forward", dtypes=("bf16",), when=lambda p: p.r == p.s == p.k == p.c == 1 and p.n == 1)
def conv_forward(x, w, bias, *, stride, padding):
    rows, columns = (np.arange(0, size, step) for size, step in zip(x.shape[2:], stride))
    places = rows[:, None] * x.shape[3] + columns
    y = x.reshape(-1)[places{wrap}][None, None] * w
    return y if bias is None else y + bias[:, None, None]
"""


def test_an_index_that_wraps_at_31_bits_fails(project: Project):
    project.write("impls/right.py", KERNEL.format(name="right", wrap=""))
    project.write("impls/wrong.py", KERNEL.format(name="wrong", wrap=" % 2**31"))
    outcome = project.run("--problem=huge.rows", "--distribution=sparse", "--dtype=bf16", "--layout=nchw")
    assert {r["implementation"]: r["status"] for r in outcome.records} == {"right": "pass", "wrong": "fail"}
