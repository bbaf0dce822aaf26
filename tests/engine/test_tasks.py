"""What a run asks for, whichever front end has it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance import suites
from conformance.engine.tasks import BEHAVES, TRAINS, VERIFIED
from tests.conftest import Project

pytest_plugins = ["pytester"]


def test_the_suites_of_pytest_are_those_of_a_run():
    """Suites of checks and networks are listed twice, in a test file and as data: one that stands in one of them alone
    runs in one front end alone."""
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


def test_an_operator_without_a_kernel_is_absent_once(project: Project):
    """However many cases its tables have, and checks are made of it."""
    project.kernel()
    outcome = project.run("--operator=conv_forward", "--operator=conv_backward_weight", "--problem=edge.plain")
    absent = [record for record in outcome.records if (record.get("undeclared") or {}).get("kind") == "operator"]
    assert [(record["operator"], record["cases"]) for record in absent] == [("conv_backward_weight", 1)]


READ = """
import sys
from conformance.__main__ import main
from conformance.problems import reading

assert main(["run", *sys.argv[1:]]) == 0
assert reading.table_of.cache_info().currsize == 1, "tables of families that nobody has kernels of were read"
assert not [name for name in sys.modules if name.endswith(".mistakes") and name.count(".") == 3], "nothing is wrong"
"""


def test_a_run_reads_the_tables_of_its_kernels_alone(tmp_path: Path):
    kernel = "from conformance import Implementation\nfrom tests import kernels\nacme = Implementation('acme')\n"
    file = tmp_path / "acme.py"
    file.write_text(f"{kernel}acme.implements('conv_forward', dtypes=('fp32',))(kernels.conv_forward)\n")
    words = str(file), "--level=smoke", "--layout=nchw", "--distribution=fixed"
    subprocess.run([sys.executable, "-c", READ, *words], check=True, cwd=Path(__file__).parents[2])
