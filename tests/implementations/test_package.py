"""The package beside a project: when pytest loads the plugin, other packages' implementations, the command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.engine.tasks import BEHAVES, TRAINS, VERIFIED
from conformance.implementations import errors, registry
from conformance.plugin.entry import FOLDERS
from conformance.resources import IMPLS
from tests.conftest import ROOT, no_traceback_of_ours
from tests.kit import command

pytest_plugins = ["pytester"]

ENTRY = ("-p", "conformance.plugin.entry")
KERNEL = "from conformance import Implementation\nacme = Implementation({name!r})\n"
ONE = ["--problem=edge.plain", "--dtype=fp32", "--layout=nchw", "--distribution=fixed", "--operator=conv_forward"]
UNRELATED = "import sys\ndef test_it(): assert 'conformance.plugin.hooks' not in sys.modules\n"


@pytest.fixture
def vendor(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with an implementation, a test of its own, and the suite as if it were installed."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{pytester.path}")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "300")
    pytester.makepyfile(acme=KERNEL.format(name="acme"), test_own=UNRELATED)
    return pytester


def test_run_that_does_not_ask_for_the_suite_loads_none_of_it(vendor: pytest.Pytester):
    vendor.runpytest_subprocess(*ENTRY).assert_outcomes(passed=1)


ASKED = {
    "option": ("--impl=acme.py", str(FOLDERS["conformance.suites"])),
    "option of two words": ("--impl", "acme.py", str(FOLDERS["conformance.suites"])),
    "name": ("--pyargs", "conformance.suites", "--impl=acme.py"),
    "name of a module": ("--pyargs", "conformance.suites.test_operators", "--impl=acme.py"),
}


@pytest.mark.parametrize("words", ASKED.values(), ids=ASKED)
def test_run_that_asks_for_the_suite_has_it(vendor: pytest.Pytester, words: tuple[str, ...]):
    outcome = vendor.runpytest_inprocess(*ENTRY, *words, *ONE)
    assert outcome.ret == 5
    assert " does not implement conv_forward" in outcome.stdout.str()


def test_run_that_names_a_path_of_the_suite_has_its_options(vendor: pytest.Pytester):
    path = FOLDERS["conformance.suites"] / "test_operators.py"
    outcome = vendor.runpytest_inprocess(*ENTRY, "--noconftest", f"{path}::test_conv_forward", "--help")
    assert "--distribution=NAME" in outcome.stdout.str()


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["serial", "parallel"])
def test_suite_among_the_tests_of_a_project(vendor: pytest.Pytester, workers: tuple[str, ...]):
    vendor.makeini("[pytest]\nimpls = acme.py\n")
    vendor.makepyfile(test_conformance="from conformance.suites import *", test_own="def test_it(): pass")
    outcome = vendor.runpytest_inprocess(*ENTRY, *workers, *ONE)
    assert " does not implement conv_forward" in outcome.stdout.str()
    assert "1 passed" in outcome.stdout.str()


def test_suite_without_an_implementation_says_what_is_missing(vendor: pytest.Pytester):
    vendor.makepyfile(test_conformance="from conformance.suites import *", test_own="def test_it(): pass")
    outcome = vendor.runpytest_inprocess(*ENTRY)
    assert (outcome.ret, "set impls = acme.py" in outcome.stderr.str()) == (4, True)


CONFLICTS = {
    "conftest": ("conftest", ()),
    "plugin": ("other", ("-p", "other")),
}


@pytest.mark.parametrize(("file", "words"), CONFLICTS.values(), ids=CONFLICTS)
def test_option_that_somebody_else_has_too(vendor: pytest.Pytester, file: str, words: tuple[str, ...]):
    vendor.makepyfile(**{file: "def pytest_addoption(parser): parser.addoption('--level')"})
    vendor.syspathinsert()
    vendor.runpytest_subprocess(*ENTRY, *words).assert_outcomes(passed=1)
    outcome = vendor.runpytest_inprocess(*ENTRY, *words, "--impl=acme.py", *ONE)
    text = outcome.stderr.str()
    assert (outcome.ret, "'--level'" in text, "`conformance run`" in text) == (4, True, True)
    assert no_traceback_of_ours(text)
    assert " does not implement conv_forward" in command("run", "acme.py", *ONE)[1]


def test_a_run_leaves_nothing_behind(
    vendor: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))  # where compiled kernels are kept
    before = set(vendor.path.rglob("*"))
    command("run", "acme.py", *ONE)
    assert {*vendor.path.rglob("*")} == before


def test_command_ignores_settings_of_the_project(vendor: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    vendor.makeini("[pytest]\naddopts = --maxfail=1 --no-such-option\nimpls = nowhere\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--also-unknown")
    status, text = command("run", *ONE, "--level=full", "acme.py")
    assert (status, " does not implement conv_forward" in text) == (5, True)


INSTALLED = {
    "a module": ("acme_kernels", KERNEL.format(name="theirs"), ""),
    "an attribute": ("acme_kernels:acme", KERNEL.format(name="theirs"), ""),
    "no implementation": ("acme_kernels:other", "other = 1", "TypeError: is a int; it must be a module or a conf"),
    "broken": ("acme_kernels", "1 / 0", "ZeroDivisionError: division by zero"),
    "gone": ("acme_kernels.gone", "", "ModuleNotFoundError: No module named 'acme_kernels.gone'"),
    "taken": ("acme_kernels", KERNEL.format(name="acme"), "the name 'acme' is defined here and in "),
}


@pytest.mark.parametrize(("value", "source", "broken"), INSTALLED.values(), ids=INSTALLED)
def test_implementations_of_other_packages(vendor: pytest.Pytester, value: str, source: str, broken: str):
    vendor.syspathinsert()
    vendor.makepyfile(acme_kernels=source)
    folder = vendor.mkdir("acme_kernels-1.0.dist-info")
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{registry.GROUP}]\nacme = {value}\n")
    found = registry.load([Path("acme.py")])
    sys.modules.pop("acme_kernels", None)
    registry.load_installed(found)
    assert list(found.implementations) == ["acme", *([] if broken else ["theirs"])]
    assert [name for name in found.broken if not name.startswith(f"acme-kernels ({value})")] == []
    assert broken in "".join(map(str, found.broken.values()))
    assert bool(broken) == bool(found.broken)


def test_shipped_implementation_is_not_the_suites_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the wheel it lies inside the package, and an error in it would have no place."""
    monkeypatch.setattr(errors, "PACKAGE", tmp_path)
    monkeypatch.setattr(errors, "IMPLS", tmp_path / "shipped" / "impls")
    file = tmp_path / "shipped" / "impls" / "acme.py"
    names: dict[str, object] = {}
    exec(compile("def kernel(): 1 / 0", str(file), "exec"), names)
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("kernel()", str(tmp_path / "invocation.py"), "exec"), names)
    assert errors.blame(caught.value) == f"raised ZeroDivisionError: division by zero at {file}:1"


def test_names_that_import_star_brings():
    names: dict[str, object] = {}
    exec("from conformance.suites import *", names)
    suites = {f"test_{suite}" for suite in (*VERIFIED, *BEHAVES, *TRAINS)}
    assert {name for name in names if name.startswith("test_")} == suites


LISTS = {
    "implementations": "numpy-direct",
    "operators": "conv_forward",
    "problems": "edge.plain",
    "distributions": "fixed",
    "devices": "cpu",
}


@pytest.mark.parametrize(("kind", "name"), LISTS.items(), ids=LISTS)
def test_list(capsys: pytest.CaptureFixture[str], kind: str, name: str):
    words = [kind, str(IMPLS / "numpy_direct")] if kind == "implementations" else [kind]
    assert main(["list", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["list", *words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert name in [line.split()[0] for line in lines]
    assert [row["name"] for row in rows] == [line.split()[0] for line in lines]


def test_a_list_is_of_what_has_all_words(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "problems", "ResNet50", "3x3"]) == 0
    found = capsys.readouterr().out.splitlines()
    assert found
    assert all("resnet50" in line and "3x3" in line for line in found)


def test_an_interrupted_list_has_the_status_of_it(monkeypatch: pytest.MonkeyPatch):
    def interrupted(device: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("conformance.cli.listing.missing", interrupted)
    assert main(["list", "devices"]) == 2


def test_output_that_is_closed_or_cannot_show_a_name(vendor: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    name = vendor.path / "größe 核.py"
    name.write_text(KERNEL.format(name="größe-核"), encoding="utf-8")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    outcome = vendor.run(sys.executable, "-m", "conformance", "list", "implementations", str(name))
    assert (outcome.ret, "gr\\xf6\\xdfe-\\u6838" in outcome.stdout.str()) == (0, True)
    outcome = vendor.run(sys.executable, "-m", "conformance", "run", str(name), *ONE)
    assert (outcome.ret, " does not implement conv_forward" in outcome.stdout.str()) == (5, True)
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["list", "devices"]) == 0
