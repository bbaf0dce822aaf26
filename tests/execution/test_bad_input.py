"""Bad input of every kind: the message names the file or option, the field and the remedy, and nobody else suffers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from conformance.cli.choosing import LastRun
from conformance.execution.process import Limits
from conformance.execution.workers import Workers
from conformance.implementations.registry import discover
from conformance.resources import IMPLS, OWN_NAMES
from tests import kit
from tests.conftest import Project, no_traceback_of_ours

pytest_plugins = ["pytester"]

KEPT = "--workers=30"
"""Every file keeps its process, instead of being loaded again for its cases."""

OPTIONS = {
    ("--impl=amce",): "--impl amce: unknown; did you mean acme? Choices: acme, right",
    ("-mtrn9",): "-m trn9: unknown; did you mean trn3? Choices: cpu, cuda",
    ("--seed=1", "--seed=1"): "--seed is given twice; it takes one value",
}


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_pytest_refuses_what_the_command_does(project: Project, words: tuple[str, ...]):
    """Read options at one place for both: tests/test_refused_words.py has all of them."""
    project.kernel()
    project.kernel("right")
    outcome = project.pytest(*words)
    assert (outcome.exit, outcome.records) == (4, [])
    assert OPTIONS[words] in outcome.text
    assert no_traceback_of_ours(outcome.text)


def test_a_name_of_the_suites_own_is_refused(project: Project):
    """Also where that is not loaded: records and claims would be taken for its own."""
    project.kernel("acme").write_text(kit.source("torch-cpu"))
    outcome = project.run("--impl=impls/acme.py")
    assert outcome.exit == 1
    assert "the name 'torch-cpu' is defined here and in impls/torch_native of the suite" in outcome.text
    assert "torch-cpu" not in {record["implementation"] for record in outcome.records}


def test_all_names_of_the_suites_own_are_known():
    with Workers(Limits()) as workers:
        found = workers.load(discover(IMPLS))
    own = {name: str(Path(path).relative_to(IMPLS.parent)) for name, path in found.paths.items()}
    assert own.items() <= OWN_NAMES.items()
    assert {Path(file).stem for file in OWN_NAMES.values()} == {path.stem for path in discover(IMPLS)}


CHECK = ("check", "impls/acme.py", "n1 c2 h4 w4 k2 r3 s3 p1")
RUN = ("run", CHECK[1], "--problem", CHECK[2], "--operator=conv_forward", "--distribution=integer")
STREAMS = {
    "nowhere to print": (CHECK, ">/dev/full", 4, "conformance: [Errno 28] No space left on device"),
    "nowhere at all": (CHECK, ">/dev/full 2>/dev/full", 4, ""),
    "closed": (CHECK, "<&- >&- 2>&-", 0, ""),
    "closed, in a run": (RUN, "<&- >&- 2>&-", 0, ""),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(("words", "streams", "status", "said"), STREAMS.values(), ids=STREAMS)
def test_streams_that_cannot_be_used(project: Project, words: tuple[str, ...], streams: str, status: int, said: str):
    """A kernel's process has other descriptors than the three that are standard, also where these are free."""
    project.kernel()
    line = f"exec {shlex.join([sys.executable, '-m', 'conformance', *words])} {streams}"
    found = subprocess.run(line, shell=True, cwd=project.folder, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr.strip()) == (status, said)


RIGHT = 'from conformance import *\na = Implementation("acme")\n'
FORWARD = "def f(x, w, bias, *, stride, padding, dilation, groups): pass\n"

FILES = {
    "raises": ("\n\nint('x')", "ValueError: invalid literal for int() with base 10: 'x' (acme.py, line 3)"),
    "exits": ("raise SystemExit('not for import')", "SystemExit: not for import (acme.py, line 1)"),
    "skips": ("import pytest\npytest.skip('x', allow_module_level=True)", "a kernel must not know that it is tested"),
    "syntax": ("def f(:\n", "SyntaxError: invalid syntax (acme.py, line 1)"),
    "nothing": ("x = 1", "defines no conformance.Implementation at module level"),
    "not-text": ("x = '\0'", "source code string cannot contain null bytes"),
    "wrong-import": ("from conformance import Contrakt", "ImportError: cannot import name 'Contrakt'"),
    "wrong-name": ("from json import nothing", "ImportError: cannot import name 'nothing' from 'json'"),
    "wrong-module": ("import conformance.contracts", "No module named 'conformance.contracts'"),
    "device": (
        "from conformance import *\nImplementation('acme', device='gpu')",
        "device='gpu': must be one of cpu, cuda, rocm, ",
    ),
    "arrays": (
        "from conformance import *\nImplementation('acme', arrays=numpy_arrays)",
        "arrays=<function numpy_arrays",
    ),
    "contract": (
        "from conformance import *\nImplementation('acme', contract='fp32')",
        "contract='fp32': must be a Contract",
    ),
    "dtype": (
        RIGHT + "a.implements('conv_forward', dtypes=('float32',))",
        "dtypes: 'float32' is not one of fp32, bf16",
    ),
    "dtype-of-numpy": (
        RIGHT + "import numpy as np\na.implements('conv_forward', dtypes=(np.float32,))",
        "int8; did you mean fp32?",
    ),
    "option": (RIGHT + "a.implements('conv_forward', dtype=('fp32',))", "when, contract; did you mean dtypes?"),
    "misspelt": (RIGHT + "a.implements(operater='conv_forward')", "takes no operater, but operator, dtypes"),
    "when": (RIGHT + "a.implements('conv_forward', when=True)", "when=True: must be a function of a problem"),
    "layout": (RIGHT + "a.implements('conv_forward', layouts=('NCHW',))", "ngcdhw; did you mean nchw?"),
    "no-operator": (RIGHT + "@a.implements\ndef f(x, w, bias): pass", "needs the operator: @acme.implements("),
    "operator": (RIGHT + "a.implements('conv')", "operator: 'conv' is not one of conv_forward, "),
    "keyword": (
        RIGHT + "@a.implements('conv_forward')\ndef f(x, w, bias, *, strides): pass",
        "f has a keyword parameter 'strides'; did you mean stride? the suite passes (x, w, bias, *, stride, padding, ",
    ),
    "missing": (
        RIGHT + "@a.implements('conv_forward')\ndef f(x, w, bias, strides, padding): pass",
        "f cannot be called, missing a required argument: 'strides'; the suite passes (x, w, bias, *, stride, padding",
    ),
    "too-few": (
        RIGHT + "@a.implements('conv_forward')\ndef f(x, w, *, stride): pass",
        "f cannot be called, too many positional arguments; the suite passes (x, w, bias, *, stride, padding, ",
    ),
    "field": (RIGHT + "Contract(accumulator='fp32')", "unexpected keyword argument 'accumulator'"),
    "value": (RIGHT + "Contract(inputs='fp8')", "Contract(inputs='fp8'): must be one of exact, "),
    "waiver": (RIGHT + "a.waive('conv_forward', reason='', url='')", "waive(...) needs a reason and a url"),
    "waived-distribution": (
        RIGHT + "a.waive('conv_forward', reason='r', url='u', distributions=('wild',))",
        "distributions: 'wild' is not one of integer, fixed",
    ),
}


def test_files(project: Project):
    """All of them in one run, beside a right one."""
    for name, (source, _) in FILES.items():
        project.write(f"impls/{name}.py", source)
    project.kernel("right")
    outcome = project.pytest()
    assert (outcome.exit, outcome.statuses) == (1, {"error": len(FILES), "pass": 1})
    unwrapped = " ".join(outcome.text.split())
    for name, (_, message) in FILES.items():
        reason = outcome.of(f"{name}.py")["reason"]
        assert message.replace("acme.py", f"{name}.py") in reason
        assert f"impls/{name}.py: {reason}" in unwrapped
    assert no_traceback_of_ours(outcome.text)


def test_two_implementations_of_one_name_in_a_file(project: Project):
    project.kernel("right", tail='again = Implementation("right")')
    outcome = project.pytest()
    assert (outcome.exit, outcome.of("right")["status"]) == (1, "pass")
    assert outcome.of("right.py")["reason"] == "the name 'right' is defined twice; rename one"


def test_missing_folder_of_implementations(project: Project):
    (project.folder / "impls").rmdir()
    outcome = project.pytest()
    assert outcome.exit == 4
    assert f"impls = {project.folder / 'impls'}: no such file or folder; set it in the ini file" in outcome.text
    assert no_traceback_of_ours(outcome.text)


RESULTS = {
    "shape": ("return y[..., :-1]", "fail", "y has shape (1, 2, 4, 3); expected (1, 2, 4, 4) (nchw)"),
    "scalar": ("return y.sum()", "fail", "returned numpy.float32; expected numpy.ndarray"),
    "dtype": ("return y.astype('float64')", "fail", "y has dtype fp64; expected fp32"),
    "byte-order": ("return y.astype('>f4')", "fail", "y has dtype >f4; expected fp32"),
    "nan": ("return y * float('nan')", "fail", "all of them are NaN"),
    "some-nan": ("y[0, 0, 0, 0] = float('nan'); return y", "fail", "1 are NaN where the reference is not"),
    "infinite": ("return y * 0 + float('inf')", "fail", "y: 32 of 32 elements mismatched"),
    "two": ("return y, y", "fail", "returned 2 results; expected 1 (y)"),
    "none-at-all": ("return ()", "fail", "returned 0 results; expected 1 (y)"),
    "None": ("return None", "fail", "returned None; expected numpy.ndarray"),
    "list-of-channels": ("return y[0].tolist()", "fail", "returned list; expected numpy.ndarray"),
    "empty-list": ("return []", "fail", "returned list; expected numpy.ndarray"),
    "dict": ("return {'y': y}", "fail", "returned dict; expected numpy.ndarray"),
    "foreign": (
        "import array; return array.array('f', y.ravel())",
        "fail",
        "returned array.array; expected numpy.ndarray",
    ),
    "subclass": ("import numpy; return y.view(numpy.recarray)", "fail", "returned numpy.rec.recarray; expected"),
    "object": ("return y.astype(object)", "fail", "y has dtype object; expected fp32"),
    "own-fault": ("return undefined", "error", "raised NameError: name 'undefined' is not defined at "),
}


def test_results(project: Project):
    for name, (body, *_) in RESULTS.items():
        project.kernel(name, body=body)
    project.kernel("right")
    outcome = project.pytest("--distribution=integer", "--distribution=fixed", KEPT)
    assert outcome.exit == 1
    assert len(outcome.records) == 2 * (len(RESULTS) + 1)
    for name, (_, status, message) in {**RESULTS, "right": ("", "pass", "")}.items():
        mine = [record for record in outcome.records if record["implementation"] == name]
        assert [record["status"] for record in mine] == [status] * 2, name
        assert all(message in record["reason"] for record in mine), name
        assert message in outcome.text
    assert no_traceback_of_ours(outcome.text)


FAULTS = {
    "decorated": (  # the signature is not its own
        "",
        "@__import__('functools').wraps(lambda x, w: x)\ndef f(*given): np.reshape(given[0], 5)",
        "cannot reshape array of size 32 into shape (5,) at ",
    ),
    "deep": ("", "def f(x, w, bias):\n    np.reshape(x, 5)", "cannot reshape array of size 32 into shape (5,) at "),
    "when": (", when=lambda p: p.group == 1", FORWARD, "when=... raised AttributeError: 'ConvGeometry' object has no"),
}


def test_faults_of_kernels(project: Project):
    for name, (declares, function, _) in FAULTS.items():
        head = RIGHT.replace("acme", name) + f"@a.implements('conv_forward'{declares})"
        project.write(f"impls/{name}.py", f"import numpy as np\n{head}\n{function}")
    project.kernel("right")
    outcome = project.pytest(KEPT)
    assert (outcome.exit, outcome.statuses) == (1, {"error": len(FAULTS), "pass": 1})
    for name, (*_, message) in FAULTS.items():
        reason = outcome.of(name)["reason"]
        assert message in reason
        assert reason.endswith(f"{name}.py:6") or not message.endswith(" at ")
    assert no_traceback_of_ours(outcome.text)


def test_a_run_that_was_given_an_implementation_and_has_no_case_for_it_does_not_end_well(project: Project):
    file = project.kernel(folder=".")
    project.write("suite/test_suite.py", "def test_of_my_own(): pass")
    outcome = project.pytest(f"--impl={file}")
    assert (outcome.exit, "no test here verifies anything" in outcome.text) == (5, True)
    assert project.pytest().exit == 0


def test_tests_of_one_s_own_can_be_selected(project: Project):
    project.kernel()
    project.write("suite/test_own.py", "def test_of_my_own(): pass")
    outcome = project.pytest("-k", "of_my_own")
    assert (outcome.exit, "NOTHING WAS VERIFIED" in outcome.text) == (0, False)


@pytest.mark.parametrize("words", ["report pipe -o page", "verify pipe", "compare pipe other"])
def test_a_pipe_where_a_file_should_be_is_refused_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
):
    monkeypatch.chdir(tmp_path)
    for name in ("pipe", "other"):
        os.mkfifo(name)
    with kit.patience(30):
        status, text = kit.command(*words.split())
    assert (status, "pipe: cannot be read (Not a regular file)" in text) == (4, True), text


def test_what_the_shell_has_opened_is_read(project: Project):
    project.kernel()
    project.run("--records=records.jsonl")
    words = f"{sys.executable} -m conformance verify <(cat records.jsonl)"
    ended = subprocess.run(["bash", "-c", words], cwd=project.folder, capture_output=True, text=True, check=False)
    assert "cannot be read" not in ended.stderr, ended.stderr


def test_a_last_run_that_became_a_pipe_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: tmp_path)
    LastRun().end(["a"], ["a"])
    (file,) = tmp_path.rglob("failed.json")
    assert LastRun().failed == {"a"}
    file.unlink()
    os.mkfifo(file)
    LastRun().end(["a"], ["a"])
    assert LastRun().failed == frozenset()


@pytest.mark.filterwarnings("ignore:Passing a value that is not a string")
def test_a_list_of_implementations_in_the_settings_is_refused(project: Project):
    (project.folder / "tox.ini").unlink()
    project.write("pyproject.toml", '[tool.pytest.ini_options]\nimpls = ["impls", "impls"]\ntestpaths = ["suite"]\n')
    outcome = project.pytest()
    assert outcome.exit == 4
    assert "impls: is one file or folder, not a list; give --impl=FILE for each of several" in outcome.text
    assert no_traceback_of_ours(outcome.text)
