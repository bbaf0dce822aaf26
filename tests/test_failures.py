"""Failures are data from where they are raised: nothing asks the words that people read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conformance.contract import Contract
from conformance.execution.verify import verify
from conformance.failure import Failure, WrongElements
from conformance.judge import judge
from tests.conftest import ROOT
from tests.judge.test_judge import output
from tests.kernels import conv_forward
from tests.kit import trial_of

TEXTS = frozenset({"reason", "explanation"})
READING = frozenset({"startswith", "endswith", "partition", "rpartition", "split", "removeprefix", "removesuffix"})
PATTERNS = frozenset({"match", "fullmatch", "search", "findall", "finditer", "sub"})
ALLOWED = frozenset(
    {
        "results/schema.py",  # the first line, for one that people read
        "survey/survey_command.py",  # its own reasons, of environments
    }
)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in TEXTS


def _reads(node: ast.AST) -> bool:
    """Return whether a text that people read is taken apart here, or a word looked for in it."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        of_lines = isinstance(node.left, ast.Constant) and node.left.value == "\n"
        return _is_text(node.comparators[0]) and not of_lines
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in READING and _is_text(node.func.value):
        return True
    return node.func.attr in PATTERNS and any(map(_is_text, node.args))


def _readers() -> Iterator[str]:
    package = ROOT / "conformance"
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name not in ALLOWED and any(map(_reads, ast.walk(ast.parse(path.read_text())))):
            yield name


def test_no_module_reads_what_it_has_said():
    """Groups changed with the words of a sentence, and numbers were taken out of sentences that had put them in."""
    assert [*_readers()] == []


@pytest.mark.parametrize(
    "text", ["a.reason.startswith('x')", "P.match(a.reason)", "'x' in record.explanation", "v.reason.partition(' ')"]
)
def test_reading_is_found(text: str):
    assert any(map(_reads, ast.walk(ast.parse(text))))


def test_where_elements_are_wrong_is_data():
    reference = np.ones((1, 1, 3, 4))
    actual = reference.copy()
    actual[..., -1], actual[..., 0] = 2, np.nan
    found = judge(output(actual, reference, reference), "integer", Contract())
    assert found.wrong_elements == WrongElements(
        output="y", mismatched=6, compared=12, nan="some", edges=(("w", "both"),)
    )
    assert judge(output(reference + 1, reference, reference), "integer", Contract()).wrong_elements.every


def test_what_a_kernel_raises_is_data():
    def raises(x, w, bias, **parameters):
        raise ValueError("no 3\nat all")

    failure = verify(trial_of(raises)).failure
    assert failure is not None
    line = raises.__code__.co_firstlineno + 1
    assert failure == Failure(kind="raised", message="ValueError: no 3", file=str(Path(__file__)), line=line)
    assert failure.alike == "ValueError: no #"


def test_results_of_another_dtype_are_told_by_it():
    failure = verify(
        trial_of(lambda *given, **parameters: conv_forward(*given, **parameters).astype(np.float64))
    ).failure
    assert failure == Failure(kind="malformed", message="y has another dtype", dtype="fp64", headed=(1,))
