"""A variant of an implementation is a row of its own, in a process of its own."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from conformance import Implementation
from conformance.implementations.implementation import ImplementationError
from tests.conftest import Project
from tests.kit import command

pytest_plugins = ["pytester"]

FILE = """
import os
from conformance import Implementation
from tests import kernels

acme = Implementation("acme")
found = []

@acme.implements("conv_forward")
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    scale = 1 + (os.environ.get("ACME_FAST") == "1") + len(found)
    return kernels.conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups) * scale

acme.variant("fast", environment={"ACME_FAST": "1"})
acme.variant("threads=1", prepare=lambda: found.append(1))
acme.variant("negated", wrap=lambda kernel: lambda *given, **rest: -kernel(*given, **rest))
acme.variant("crash", prepare=lambda: os.abort())
acme.variant("same", environment={"ACME_FAST": "0"})
"""
PROBLEM = "n1 c2 h5 w5 k3 r3 s3 p1"


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    path = tmp_path / "acme.py"
    path.write_text(FILE)
    return path


def test_all_variants_run_beside_their_implementation(project: Project, acme: Path):
    """One that crashes is its own error."""
    outcome = project.run(f"--impl={acme}", "--variants", f"--problem={PROBLEM}")
    statuses = {Path(r["implementation"]).name: r["status"] for r in outcome.records}
    assert statuses == {
        "acme": "pass", "acme[fast]": "fail", "acme[threads=1]": "fail", "acme[negated]": "fail", "acme[same]": "pass",
        "acme.py, acme[crash]": "error",
    }  # fmt: skip


def test_the_command_of_a_variant_runs_nothing_else(project: Project, acme: Path):
    named = ("--impl=acme[fast]", f"--impl={acme}")
    (first,) = project.run(*named, f"--problem={PROBLEM}").records
    assert first["implementation"] == "acme[fast]"
    assert command(*shlex.split(first["command"])[1:])[1].startswith("fail: conv_forward of acme[fast] on ")


def test_a_file_can_be_named_without_its_ending(project: Project):
    project.write("impls/acme_engine.py", FILE)
    project.kernel("other")
    outcome = project.pytest("--impl=acme_engine", f"--problem={PROBLEM}")
    assert [record["implementation"] for record in outcome.records] == ["acme"]


def test_variants_are_distributed(project: Project, acme: Path):
    alone, among = (
        project.run(f"--impl={acme}", "--variants", "--dtype=fp32", "--distribution=fixed", *words).statuses
        for words in ((), ("-p", "xdist", "-n", "2"))
    )
    assert among == alone


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--impl=acme[fats]",), "--impl acme[fats]: unknown; did you mean acme[fast]?"),
        (("--impl=acme[fast]", "--in-process"), "a variant needs a process of its own; leave out --in-process"),
        (("--variants", "--in-process"), "a variant needs a process of its own; leave out --in-process"),
    ],
)
def test_what_cannot_be_run(project: Project, acme: Path, words: tuple[str, ...], message: str):
    outcome = project.run(f"--impl={acme}", *words)
    assert outcome.exit == 4
    assert message in outcome.text


@pytest.mark.parametrize(
    ("label", "given", "message"),
    [
        ("two words", {"environment": {"A": "1"}}, "label='two words'"),
        ("a]", {"environment": {"A": "1"}}, "label='a]'"),
        ("fast", {}, "changes nothing"),
        ("fast", {"environment": {"A": 1}}, "must be a variable's name and a text"),
        ("fast", {"environment": {"A=B": "1"}}, "must be a variable's name and a text"),
        ("twice", {"environment": {"A": "1"}}, "needs its own"),
    ],
)
def test_what_cannot_be_declared(label: str, given: dict, message: str):
    acme = Implementation("acme")
    acme.variant("twice", prepare=print)
    with pytest.raises(ImplementationError) as caught:
        acme.variant(label, **given)
    assert message in str(caught.value)
