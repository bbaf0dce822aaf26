"""What a run asks for, whichever front end has it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from conformance import suites
from conformance.engine.tasks import BEHAVES, TRAINS, VERIFIED


def test_the_suites_of_pytest_are_those_of_a_run():
    """Each is listed twice, in a test file and as data: a suite that stands in one of them alone runs in one front end
    alone."""
    marks: dict[str, Any] = {}
    for name in suites.__all__:
        test = getattr(import_module("conformance.suites"), name)
        (marks[name.removeprefix("test_")],) = test.pytestmark
    of_kind = {
        kind: {name: mark for name, mark in marks.items() if mark.name == kind}
        for kind in ("verifies", "behaves", "trains")
    }
    assert {n: (m.args[0], m.kwargs.get("when")) for n, m in of_kind["verifies"].items()} == VERIFIED
    assert {name: mark.args for name, mark in of_kind["behaves"].items()} == BEHAVES
    assert {name: mark.args[0] for name, mark in of_kind["trains"].items()} == {name: name for name in TRAINS}
    assert [*of_kind["behaves"]] == [*BEHAVES], "in one order, which decides between equal places"
