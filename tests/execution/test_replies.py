"""Texts of a kernel's process reach records and terminal: short, few, and never in the suite's own name."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.execution import remote
from conformance.execution.workers import Workers
from conformance.implementations.devices import Unavailable
from tests.conftest import Project
from tests.kit import loaded, source

pytest_plugins = ["pytester"]

BRIDGE = """
from conformance import numpy_arrays
class Bridge(type(numpy_arrays())):
    {line}
"""
UNCUT = "from conformance.worker import serve; serve.plain = lambda text, *_: text\n"
"""A kernel may put its own function in the place of the one that shortens there."""


@pytest.mark.parametrize("option", ["--level=smoke", "--in-process"])
@pytest.mark.parametrize("base", ["Exception", "BaseException"])
def test_what_an_exception_says_of_itself_is_no_finding_of_the_suite(project: Project, option: str, base: str):
    """Its class may have any attributes: here such as the judge gives to what was raised in another process."""
    known = "{'blame': 'ran out of memory', 'failure': Failure(kind='reference', message='no reference')}"
    project.kernel(
        head="from conformance.failure import Failure", body=f"raise type('Odd', ({base},), {known})('boom')"
    )
    (record,) = project.run(option).records
    assert record["reason"].startswith("raised Odd: boom at ")
    assert record["failure"]["kind"] == "raised"
    assert record["failure"]["message"] == "Odd: boom"


@pytest.mark.parametrize("option", ["--level=smoke", "--in-process"])
@pytest.mark.parametrize(
    "changes",
    [
        {"construct": ", version='\\ud800'"},
        {"tail": "acme.waive('conv_forward', reason='\\ud800', url='https://x.org/\\udfff')"},
        {"head": BRIDGE.format(line="name = 'odd\\ud800'"), "construct": ", arrays=Bridge()"},
        {"head": BRIDGE.format(line="untimed = install = '\\ud800'"), "construct": ", arrays=Bridge()"},
        {"head": BRIDGE.format(line="describe = lambda _: {'\\ud800': '\\ud800'}"), "construct": ", arrays=Bridge()"},
    ],
    ids=["version", "waiver", "bridge", "untimed", "describe"],
)  # fmt: skip
def test_text_that_no_file_can_hold_is_written_as_python_does(project: Project, option: str, changes: dict[str, str]):
    """A lone surrogate ended in a UnicodeEncodeError, of the kernel's process or of the run."""
    project.kernel(**changes)
    outcome = project.run(option)
    (record,) = outcome.records
    assert record["status"] in ("pass", "fail"), record
    assert "UnicodeEncodeError" not in outcome.text
    if "version" in str(changes) and option != "--in-process":
        assert record["versions"]["implementation"] == "\\ud800"


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("", "raise ValueError('<' + 'x' * 10**7 + '>')"),
        (UNCUT + "serve.blame = lambda error: '<' + 'x' * 10**7 + '>'", "raise ValueError"),
    ],
    ids=["as it is told", "past the process's own limit"],
)
def test_a_long_text_is_cut_in_the_middle(project: Project, head: str, body: str):
    project.kernel(head=head, body=body)
    (record,) = project.run().records
    assert len(record["reason"]) < 10_000
    assert "<xxx" in record["reason"]
    assert " characters) " in record["reason"]


def test_a_bridge_that_tells_too_much_says_which(project: Project):
    describe = "def describe(self): return {str(n): 'x' for n in range(60_000)}"
    project.kernel(head=BRIDGE.format(line=describe), construct=", arrays=Bridge()")
    outcome = project.run()
    assert "describe() has 60,000 entries; there may be at most 100" in outcome.text
    assert all(len(record.get("versions", {})) < 100 for record in outcome.records)


def test_a_list_without_end_is_no_answer(workers: Workers, tmp_path: Path):
    """A process that has rewritten what describes its bridge."""
    told = "{str(n): 'x' for n in range(100_001)}"
    rewritten = (
        f"def described(bridge) -> 'dict[str, str]': return {told}\ncall.described.__code__ = described.__code__"
    )
    bridge = loaded(workers, tmp_path, source(head=f"from conformance.worker import call\n{rewritten}")).arrays
    with pytest.raises(Unavailable, match=r"describe\(\) has 100,001 entries"):
        bridge.require()


def test_what_a_process_tells_is_bounded_where_it_is_read():
    """Whatever its type: a text, its end included, and a list with how long it is."""
    long = "<" + "x" * 10**6 + ">"
    shown = remote._shown([long, {long: long}])
    assert shown[0] == shown[1][shown[0]]
    assert shown[0].startswith("<xxx")
    assert shown[0].endswith("xxx>")
    assert len(shown[0]) < 8_100
    assert "992,002 characters" in shown[0]
    with pytest.raises(ValueError, match=r"list of 200,000 items; at most 131,072"):
        remote._shown([0] * 200_000)
