"""Layouts with groups as an axis, and declared ones: where elements lie, who is run in them, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

import conformance
from conformance import Implementation
from conformance.diagnosis.arrangements import misreadings
from conformance.diagnosis.diagnose import diagnose
from conformance.execution.required import VerificationDemand
from conformance.execution.trial import Absence, Trial
from conformance.implementations.implementation import ImplementationError, Unsupported
from conformance.inputs import Expectation, Recipe
from conformance.layouts import (
    GROUPED,
    LAYOUTS,
    arranged,
    arrangement,
    declare,
    filter_letters,
    in_rank,
    of_letters,
    rank_of,
)
from conformance.operators import CONVOLUTIONS, OPERATORS, parse, takes
from conformance.problems import PROBLEMS, at_level
from impls.numpy_direct import conv
from tests.conftest import Project
from tests.kit import standard

pytest_plugins = ["pytester"]

OF_GROUPS = [problem for problem in PROBLEMS if problem.name.startswith("groups.")]
GEOMETRY = next(problem.geometry for problem in OF_GROUPS if problem.name == "groups.rank2")
GROUPS_3_OF_4_AND_5 = {  # einops' patterns: what Composable Kernel's names say, axis by axis
    "gnhwc": (lambda x: x.reshape(2, 3, 4, 7, 9).transpose(1, 0, 3, 4, 2), lambda w: w.transpose(0, 1, 3, 4, 2)),
    "nhwgc": (lambda x: x.reshape(2, 3, 4, 7, 9).transpose(0, 3, 4, 1, 2), lambda w: w.transpose(0, 1, 3, 4, 2)),
    "ngchw": (lambda x: x.reshape(2, 3, 4, 7, 9), lambda w: w),
    "ours": (lambda x: x.reshape(2, 3, 4, 7, 9).transpose(1, 3, 4, 2, 0), lambda w: w.transpose(0, 3, 4, 2, 1)),
}


@pytest.mark.parametrize("layout", GROUPS_3_OF_4_AND_5)
def test_elements_lie_as_composable_kernels_names_say(layout: str):
    declare("ours", "khwcn", "tests")
    x, w = (np.arange(tensor.size).reshape(tensor.shape) for tensor in (GEOMETRY.x, GEOMETRY.filter))
    images, filters = GROUPS_3_OF_4_AND_5[layout]
    for array, tensor, expected in (
        (x, GEOMETRY.x, images(x)),
        (w, GEOMETRY.filter, filters(w.reshape(3, 5, 4, 2, 3))),
    ):
        place = arranged(tensor, layout, GEOMETRY)
        np.testing.assert_array_equal(place.to_memory(array), expected)
        np.testing.assert_array_equal(place.from_memory(np.ascontiguousarray(expected)), array)
        assert place.stored == expected.shape


def test_the_axis_of_groups_is_in_every_rank():
    assert arrangement((7,), "gnhwc", 7).stored == (7,)
    assert [in_rank("nhwgc", rank) for rank in (1, 2, 3)] == ["nwgc", "nhwgc", "ndhwgc"]
    assert filter_letters("ndhwgc") == "gktrsc"
    assert filter_letters("ngcw") == "gkcs"


def acme(layouts: Any, name: str = "acme") -> Implementation:
    made = Implementation(name)

    @made.implements("conv_forward", layouts=layouts)
    def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
        """Taken and returned in its own order, with whatever is to be found in the declared letters."""
        axes = {"mine": (3, 0, 1, 2), "ours": (4, 0, 3, 1, 2)}[layout]
        image, weights = x.transpose(axes), w.transpose(axes if layout == "mine" else (0, 4, 3, 1, 2))
        if layout == "ours":
            image, weights = image.reshape(len(image), -1, *image.shape[3:]), weights.reshape(-1, *weights.shape[2:])
        y = conv.conv_forward(image, weights, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
        if layout == "ours":
            y = y.reshape(len(y), groups, -1, *y.shape[2:])
        return y.transpose([axes.index(axis) for axis in range(len(axes))])

    return made


OURS = {"mine": "chwn", "ours": "khwcn"}
BAD = [
    ({"mine": "chwx"}, "unknown x; give each axis once"),
    ({"mine": "chw"}, "lacks n; give each axis once"),
    ({"mine": "cdwn"}, "lacks h; give each axis once"),
    ({"mine": "nchh"}, "has h twice; give each axis once"),
    ({"mine": "gkhwcn"}, "has g twice; give each axis once"),
    ({"mine": ""}, "lacks n, c, w; give each axis once"),
    ({"mine": 4}, "4 are no letters; give each axis once"),
    ({"nhwc": "nchw"}, "'nhwc' is taken: the suite's layout nhwc is another one; choose another name"),
    ({"Mine": "chwn"}, "a name is 1 to 40 small letters"),
    ({"my layout": "chwn"}, "a name is 1 to 40 small letters"),
    (("mine_too",), "layouts: 'mine_too' is not one of nchw"),
]


@pytest.mark.parametrize(("layouts", "message"), BAD, ids=lambda value: str(value)[:24])
def test_a_layout_that_cannot_be_meant_is_refused(layouts: Mapping[str, str], message: str):
    with pytest.raises(ImplementationError, match="layouts: ") as error:
        Implementation("acme").implements("conv_forward", layouts=layouts)
    assert message in str(error.value)


def test_a_name_stands_for_one_order():
    one, other = Implementation("one"), Implementation("other")
    one.implements("conv_forward", layouts={"order_of_one": "chwn"})(lambda x, w, bias: x)
    with pytest.raises(ImplementationError, match="'order_of_one' is chwn already; choose another name"):
        one.implements("conv_backward_data", layouts={"order_of_one": "cwhn"})
    with pytest.raises(ImplementationError, match="is taken: one declares it as chwn; choose another name for cwhn"):
        other.implements("conv_forward", layouts={"order_of_one": "cwhn"})
    other.implements("conv_forward", layouts={"order_of_one": "chwn", "nhwc": "nhwc"})
    again = Implementation("one")  # the file was mended, and is read anew
    again.implements("conv_forward", layouts={"order_of_one": "cwhn"})


@pytest.mark.parametrize(("layout", "dtype"), [("mine", "fp32"), ("ours", "fp32")])
def test_a_declared_layout_is_verified(layout: str, dtype: str):
    made = acme(OURS)
    for problem in ("n2 c6 h7 w5 k9 r3 s2 u2 p1 g3 b1", "n2 c5 h7 w5 k4 r3 s2 b1"):
        for storage in ("", "x:crop,w:expanded,bias:offset-1", "x:transposed,w:other-format"):
            distribution = "integer" if "expanded" in storage else "fixed"
            found = conformance.check(
                made, problem, dtype=dtype, layout=layout, distribution=distribution, storage=storage
            )
            assert found.status == "pass", found.explain()
    assert found.trial.variant.layout == layout


SOURCE = """
import numpy as np
from conformance import Implementation
from impls.numpy_direct import conv
acme = Implementation("acme")

@acme.implements("conv_forward", layouts={"mine": "chwn"})
def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout):
    assert layout == "mine"
    x, w = x.transpose(3, 0, 1, 2), w.transpose(3, 0, 1, 2)
    y = conv.conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return y.transpose(1, 2, 3, 0)
"""


@pytest.mark.parametrize("by_name", [False, True])
def test_a_declared_layout_is_run_as_channels_last_is(project: Project, by_name: bool):
    """Through a process of the kernel's own, under its name in records."""
    project.write("impls/acme.py", SOURCE)
    layouts = [f"--layout={name}" for name in (*LAYOUTS, *(("mine",) * by_name))]
    found = project.run(
        "--problem=edge.groups-uneven", *layouts, "--dtype=fp32", "--dtype=bf16",
        "--distribution=fixed", "--distribution=special",
    )  # fmt: skip
    # in three layouts of two dimensions, each in two dtypes and two distributions
    assert found.statuses == {"pass": 2, "unsupported": 10}
    passed = {(r["layout"], r["dtype"], r["distribution"]) for r in found.records if r["status"] == "pass"}
    assert passed == {("mine", "fp32", "fixed"), ("mine", "fp32", "special")}


def test_an_unknown_layout_ends_the_run(project: Project):
    project.write("impls/acme.py", SOURCE)
    found = project.run("--layout", "mime")
    assert "--layout mime: unknown; did you mean mine? Choices: " in found.text


def cases_of(
    one: Implementation, layouts: tuple[str, ...] = LAYOUTS, claims: Any = None, operator: str = "conv_forward"
):
    chosen = {"dtypes": ("fp32", "bf16"), "layouts": layouts, "distributions": ("fixed", "special")}
    plan = standard(one, claims, operators=(operator,), **chosen)
    return plan.required(VerificationDemand(plan.ranked, operator))


def declaring(*layouts: str) -> Implementation:
    made = Implementation("acme")
    for operator in CONVOLUTIONS:
        made.implements(operator, dtypes=("fp32", "bf16"), layouts=layouts)(lambda *given, **parameters: None)
    return made


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_each_layout_meets_grouped_depthwise_and_dense_problems(operator: str):
    found = set()
    for case in (case for case in cases_of(declaring(*GROUPED), operator=operator) if isinstance(case, Trial)):
        if case.variant.layout in GROUPED and case.problem.origin != "drawn":
            g, v = case.problem.geometry, case.variant
            kind = "dense" if g.groups == 1 else "depthwise" if g.groups == g.c else "grouped"
            found.add((v.layout, v.dtype, kind))
    assert {(layout, kind) for layout, _, kind in found} == {*product(GROUPED, ("grouped", "depthwise", "dense"))}
    assert {(layout, dtype) for layout, dtype, _ in found} == {*product(GROUPED, ("fp32", "bf16"))}


def test_who_declares_no_such_layout_has_no_case_in_one():
    every = cases_of(declaring("nchw"))
    assert {case.variant.layout for case in every if isinstance(case, Trial)} == {"nchw"}
    said = {case.reason for case in every if isinstance(case, Absence)}  # would fill everybody's totals
    assert said.isdisjoint(f"layout {layout} is not declared" for layout in GROUPED)
    absence, *_ = (case for case in cases_of(declaring("nchw"), ("gnhwc",)) if isinstance(case, Absence))
    asked = sum(
        takes("conv_forward", p.geometry) and v.suits("conv_forward", p.geometry)
        for p, variants in at_level(PROBLEMS, "standard") for v in variants
        if v.layout == "gnhwc" and v.distribution in ("fixed", "special") and v.dtype in ("fp32", "bf16")
    )  # fmt: skip
    assert (absence.status, absence.reason) == ("unsupported", "layout gnhwc is not declared")
    assert absence.cases == asked > 0


def test_problems_differ_in_every_extent_that_may_be_exchanged():
    for problem in OF_GROUPS:
        g = problem.geometry
        extents = [g.n, g.groups, g.c // g.groups, *g.size] if 1 < g.groups < g.c else [g.n, g.c, *g.size]
        assert len({*extents}) == len(extents), problem.name


def test_other_families_have_no_groups():
    made = Implementation("acme")
    made.implements("avg_pool_forward", layouts=("nhwgc",))(lambda x: x)
    with pytest.raises(Unsupported, match="layout nhwgc has groups as an axis, the problem has none"):
        made.find("avg_pool_forward", parse("pool n2 c5 h9 w9 r3 s3"), "fp32", "nhwgc")
    with pytest.raises(ValueError, match="layout nhwgc: has groups as an axis; 'pool n2 c5 h9 w9 r3 s3' has none"):
        conformance.check(made, "pool n2 c5 h9 w9 r3 s3", layout="nhwgc")


def misreading(role: str, layout: str, other: str) -> Any:
    """conv_forward that takes x or w for `other`'s memory, or writes y into it, where it is called in `layout`."""

    def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
        operands = {"x": (x, GEOMETRY.x), "w": (w, GEOMETRY.filter)}
        places = {name: arranged(tensor, layout, GEOMETRY) for name, (_, tensor) in operands.items()}
        given = {name: places[name].from_memory(array) for name, (array, _) in operands.items()}
        if role in operands:
            array, tensor = operands[role]
            place = of_letters(tensor.shape, other.translate(IMAGE_LETTERS), groups, role == "w")
            given[role] = place.from_memory(np.ascontiguousarray(array).reshape(place.stored))
        how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        y = conv.conv_forward(given["x"], given["w"], bias, **how)
        due = arranged(GEOMETRY.y, layout, GEOMETRY)
        if role != "y":
            return due.to_memory(y)
        wrong = of_letters(GEOMETRY.y.shape, other, groups, False)
        return np.ascontiguousarray(wrong.to_memory(y)).reshape(due.stored)

    return conv_forward


SAME = ("filters interleaved over groups", "filter read as KRSC instead of KCRS")
"""What KGRSC, and GKRSC for GKCRS, are in a plain layout."""
IMAGE_LETTERS = str.maketrans("krs", "nhw")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("role", "layout", "other", "name"),
    [
        ("x", "gnhwc", "nhwgc", "image read as NHWGC instead of GNHWC"),
        ("x", "nhwgc", "gnhwc", "image read as GNHWC instead of NHWGC"),
        ("x", "nhwgc", "ngchw", "image read as NGCHW instead of NHWGC"),
        ("y", "gnhwc", "nhwgc", "y (dy) laid out as NHWGC instead of GNHWC"),
        ("w", "nhwgc", "krsgc", "filter read as KRSGC instead of GKRSC"),
        ("w", "gnhwc", "kgrsc", "filter read as KGRSC instead of GKRSC"),
        ("w", "ngchw", "gkrsc", "filter read as GKRSC instead of GKCRS"),
    ],
)
def test_a_kernel_that_takes_one_layout_for_another_is_told_so(
    role: str, layout: str, other: str, name: str, dtype: str
):
    found = conformance.check(
        misreading(role, layout, other), GEOMETRY, operator="conv_forward", layout=layout, dtype=dtype
    )
    assert found.status == "fail"
    assert found.diagnosis is not None
    assert name in found.diagnosis
    assert {*found.diagnosis} <= {name, *SAME}


def test_plain_layouts_have_the_diagnoses_that_they_had():
    assert [misreadings(layout, rank_of(layout)) for layout in LAYOUTS] == [()] * len(LAYOUTS)


@pytest.mark.parametrize("operator", CONVOLUTIONS)
def test_gradients_have_the_same_names(operator: str):
    """An order that is read wrong in one direction is written wrong in another."""
    workload = OPERATORS[operator].on(GEOMETRY)
    inputs = Expectation(Recipe(workload, "fp32", "fixed", 0)).inputs
    for mistake in misreadings("gnhwc", 2):
        wrong = mistake.outputs(workload, inputs)
        assert wrong is not None
        outputs = {name: array.astype(np.float32) for name, array in wrong.items()}
        found = diagnose(workload, inputs, outputs, layout="gnhwc")
        assert found is not None
        assert {mistake.name} <= {*found.names} <= {mistake.name, *SAME}
