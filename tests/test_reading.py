"""How tables of problems are read, and what is said of a line that is none."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from conformance.operators import FAMILIES
from conformance.problems import Problem, Variant, of_section
from conformance.problems.reading import TABLE, MalformedTable, read
from conformance.resources import of_family

HEAD = "[edges]  standard\nrun: fp32 nchw fixed\n"
ROW = "edge.tall  n2 c5 h12 w10 k7 r5 s1\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "conv.txt"


def problems(table: Path, text: str) -> list[Problem]:
    table.write_text(textwrap.dedent(text), "utf-8")
    return [problem for section in read(table, "conv").values() for problem in section.problems]


def ways(problem: Problem) -> set[str]:
    return {f"{v.dtype} {v.layout} {v.distribution}" for v in problem.variants}


def test_every_family_has_a_table_and_every_table_a_family():
    folder = of_family("conv", TABLE).parents[1]
    assert {path.parent.name for path in folder.glob(f"*/{TABLE}")} == {*FAMILIES}


def test_a_row_is_run_as_its_section_says(table: Path):
    text = """
        # Why there are these.
        [edges]  full
        run: fp32 nchw,nhwc fixed
        run: bf16 nchw integer

        edge.tall   n2 c5 h12 w10 k7 r5 s1  # why
        edge.plain  n2 c8 w9 k16 s3
    """
    tall, plain = problems(table, text)
    assert (tall.name, tall.geometry.descriptor, tall.level) == ("edge.tall", "n2 c5 h12 w10 k7 r5 s1", "full")
    assert ways(tall) == {"fp32 nchw fixed", "fp32 nhwc fixed", "bf16 nchw integer"}
    assert ways(plain) == {"fp32 ncw fixed", "fp32 nwc fixed", "bf16 ncw integer"}


def test_alternatives_come_in_turn(table: Path):
    text = """
        [sizes]  standard
        run:      fp32 nchw fixed
        in turn:  bf16 nchw fixed / fp16 nchw fixed + fp64 nhwc fixed
        in turn:  fp32 nchw integer
        names:    sizes.

        n1 c1 h1 w9 k1 r1 s1
        n2 c1 h1 w9 k1 r1 s1
        n3 c1 h1 w9 k1 r1 s1
        n4 c1 h1 w9 k1 r1 s1
    """
    found = problems(table, text)
    assert [problem.name for problem in found][:2] == ["sizes.n1_c1_h1_w9_k1_r1_s1", "sizes.n2_c1_h1_w9_k1_r1_s1"]
    also = [ways(problem) - {"fp32 nchw fixed"} for problem in found]
    first = {"bf16 nchw fixed"}
    assert also == [first, {"fp16 nchw fixed", "fp64 nhwc fixed"}, {"fp32 nchw integer"}, first]
    seldom = problems(table, text.replace("in turn:  bf16", "in turn, one row in 3: bf16"))
    also = [ways(problem) - {"fp32 nchw fixed"} for problem in seldom]
    assert also == [first, set(), set(), {"fp16 nchw fixed", "fp64 nhwc fixed"}]


def test_grouped_stands_for_every_layout_with_groups_as_an_axis(table: Path):
    (problem,) = problems(table, f"[groups]  standard\nrun: bf16 grouped fixed\n{ROW}")
    assert problem.variants == tuple(Variant("bf16", layout, "fixed") for layout in ("gnhwc", "nhwgc", "ngchw"))


def test_sections_are_found_by_name():
    assert [problem.name for problem in of_section("conv", "huge.output", "huge")] == [
        "huge.output",
        "huge.rows",
        "huge.images",
    ]


WRONG = {
    "above the first section": (ROW, 1, "stands above the first section; begin one"),
    "a section without level": ("[edges]\n", 1, "'[edges]': a section begins with its name and level"),
    "a level that is none": ("[edges]  fast\n", 1, "'fast' is no level of a section; choices: standard, full, huge"),
    "smoke": ("[edges]  smoke\n", 1, "which the ranking chooses"),
    "a section twice": (f"{HEAD}{ROW}{HEAD}", 4, "there is a section [edges] above; choose another name"),
    "a section that is not run": (f"[edges]  standard\n{ROW}", 2, "add a line as `run: fp32 nchw fixed`"),
    "a name alone": (f"{HEAD}edge.tall\n", 3, "'edge.tall': must be a name that has a point and a descriptor"),
    "a descriptor alone": (f"{HEAD}n2 c5 h12 w10\n", 3, "must be a name that has a point and a descriptor"),
    "a heading that is none": (f"{HEAD}runs: fp32 nchw fixed\n", 3, "or a heading: run, in turn, names"),
    "a heading below rows": (f"{HEAD}{ROW}run: bf16 nchw fixed\n", 4, "stands below rows of [edges]; move it above"),
    "seldom run": ("[edges]  standard\nrun, one row in 2: fp32 nchw fixed\n", 2, "is for `in turn` alone"),
    "a beginning without point": (f"{HEAD}names: edge\n", 3, "ends in a point, as `names: sizes.`"),
    "two words": ("[edges]  standard\nrun: fp32 nchw\n", 2, "'fp32 nchw': must be dtypes, layouts and distributions"),
    "an unknown dtype": (f"{HEAD}in turn: fp31 nchw fixed\n", 3, "'fp31' is no dtype of conv; choices: fp32, "),
    "an unknown layout": ("[edges]  standard\nrun: fp32 ncwh fixed\n", 2, "'ncwh' is no layout of conv; choices: nchw"),
    "another family's distribution": (f"{HEAD}run: fp32 nchw scaled\n", 3, "'scaled' is no distribution of conv"),
    "a spread of no format": (
        f"{HEAD}spread: fp32\n",
        3,
        "'fp32': must be a dtype and a layout, as `spread: fp32 nchw`",
    ),
    "nothing to run": ("[edges]  standard\nrun: fp64 nchw wide\n", 2, "none of these distributions exists in these"),
    "a descriptor that is none": (f"{HEAD}edge.tall  n2 c5 h12 w10 k7 r5\n", 3, "'n2 c5 h12 w10 k7 r5': "),
    "another family": (f"{HEAD}edge.pool  pool n2 c5 h9 w9 r3 s3\n", 3, "move the line to its problems.txt"),
    "a name twice": (f"{HEAD}{ROW}\n{ROW}", 5, "edge.tall stands in line 3 too; remove one of them"),
}


@pytest.mark.parametrize(("text", "line", "message"), WRONG.values(), ids=WRONG)
def test_an_error_names_the_file_and_the_line_and_says_what_to_do(table: Path, text: str, line: int, message: str):
    with pytest.raises(MalformedTable) as error:
        problems(table, text)
    assert str(error.value).startswith(f"{table}, line {line}: ")
    assert message in str(error.value)


def test_a_file_in_another_encoding_is_an_error(table: Path):
    table.write_bytes(f"# {chr(252)}".encode("latin-1"))
    with pytest.raises(MalformedTable, match=r"conv\.txt: is not a text file in UTF-8"):
        read(table, "conv")


def test_a_section_without_rows_is_an_error(table: Path):
    with pytest.raises(MalformedTable, match=r"conv\.txt: section \[edges\] has no rows; add some, or remove it"):
        problems(table, HEAD)
