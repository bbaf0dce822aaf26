"""A case is its text: whatever stands in a table or is drawn prints as arguments of a command, and parses back."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.operators import OPERATORS, takes
from conformance.problems import PROBLEMS, Variant
from conformance.problems.case import Case, CaseError, read, sequence

USUAL = "n1 c1 h1 w1 k1 r1 s1"


def test_cases_of_all_tables_are_their_texts():
    every = [
        Case.of(operator, problem.geometry, variant, seed)
        for seed, problem in enumerate(PROBLEMS)
        for operator in OPERATORS
        if takes(operator, problem.geometry)
        for variant in problem.variants
        if variant.suits(operator, problem.geometry) and variant.dtype in OPERATORS[operator].dtypes
    ]
    assert len(every) > 10_000
    for case in every:
        assert Case.parse(str(case)) == case
    for case in every[::50]:
        problem, *words = case.words()
        reverse = [word for place in range(len(words) - 2, -1, -2) for word in words[place : place + 2]]
        assert Case.parse(shlex.join([problem, *reverse])) == case
        check = replace(case, distribution="behaviour", storage="", check="results_are_plain")
        assert Case.parse(str(check)) == check


def test_no_two_problems_of_the_tables_have_a_case_in_common():
    """Two names of one descriptor were two cases of one identity."""
    names: dict[tuple[str, Variant], str] = {}
    for problem in PROBLEMS:
        for variant in problem.variants:
            assert names.setdefault((problem.geometry.descriptor, variant), problem.name) == problem.name


def test_calls_before_it_stand_before_a_case():
    cases = Case.parse(f"'{USUAL}' --operator conv_forward"), Case.parse(f"'{USUAL}' --operator conv_forward --seed 2")
    assert sequence("; ".join(map(str, cases))) == cases


def test_a_training_is_a_case():
    case = Case("training", "digits", "fp32", "nhwc", "training", seed=3)
    assert str(case) == "digits --operator training --layout nhwc --seed 3"
    assert Case.parse(str(case)) == case


def test_what_is_usual_is_not_written():
    assert str(Case("conv_forward", USUAL, "fp32", "nchw", "fixed")) == f"'{USUAL}' --operator conv_forward"
    assert Case("conv_forward", USUAL, "bf16", "nchw", "fixed").words(operator=False) == [USUAL, "--dtype", "bf16"]
    assert Case.parse("'w1 c1  k1 s1 n1' --operator conv_forward").problem == "n1 c1 w1 k1 s1"
    assert Case.parse(f"'{USUAL}' --operator conv_forward --dtype int8").distribution == "integer"
    # the command was refused, and named a distribution of another family
    assert Case.parse(f"'{USUAL}' --operator conv_forward --storage x:expanded-all").distribution == "integer"


BAD = {
    "nothing": ("", "must be: 'DESCRIPTOR' --operator NAME"),
    "form": (f"conv_forward | {USUAL} | fp32 nchw fixed | 0", "must be: 'DESCRIPTOR' --operator NAME"),
    "quote": (f"'{USUAL}", "must be: 'DESCRIPTOR' --operator NAME"),
    "no operator": (f"'{USUAL}'", "must be: 'DESCRIPTOR' --operator NAME"),
    "twice": (f"'{USUAL}' --operator conv_forward --dtype fp32 --dtype bf16", "must be: 'DESCRIPTOR'"),
    "option": (f"'{USUAL}' --operator conv_forward --level smoke", "must be: 'DESCRIPTOR' --operator NAME"),
    "operator": (f"'{USUAL}' --operator conv", "operator conv: unknown. Choices: "),
    "problem": ("n1 --operator conv_forward", "problem 'n1': field 'c' is missing"),
    "family": ("'maxpool n1 c1 h1 w1 r1 s1' --operator conv_forward", "conv_forward: does not take"),
    "dtype": (f"'{USUAL}' --operator conv_forward --dtype fp8", "dtype fp8: unknown. Choices: "),
    "layout": (f"'{USUAL}' --operator conv_forward --layout ncw", "layout ncw: there is none for"),
    "groups": ("'maxpool n1 c1 h1 w1 r1 s1' --operator max_pool_forward --layout nhwgc", "has groups as an axis"),
    "distribution": (f"'{USUAL}' --operator conv_forward --distribution scaled", "there is none for conv"),
    "wide": (f"'{USUAL}' --operator conv_forward --dtype fp64 --distribution wide", "none for conv in fp64"),
    "storage": (f"'{USUAL}' --operator conv_forward --storage x:far", "storage 'x:far': must be"),
    "operand": (f"'{USUAL}' --operator conv_forward --storage dy:crop", "has the operands x, w"),
    "repeats": (f"'{USUAL}' --operator conv_forward --storage x:expanded-all --distribution natural", "values repeat"),
    "seed": (f"'{USUAL}' --operator conv_forward --seed x", "'x': the seed must be a whole number"),
}


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD)
def test_a_text_that_is_no_case_is_refused(line: str, message: str, tmp_path: Path):
    with pytest.raises(CaseError) as error:
        Case.parse(line)
    assert message in str(error.value)
    file = tmp_path / "table.txt"
    file.write_text(f"# a comment\n\n{line or ';'}\n")
    with pytest.raises(CaseError) as error:
        [*read(file)]
    assert message in str(error.value)
    assert str(error.value).startswith(f"{file}, line 3: ")
