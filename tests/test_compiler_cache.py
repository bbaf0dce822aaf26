"""Compiled kernels are kept between runs; whatever has become of them, verdicts are those of a run without."""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import platformdirs
import pytest

from conformance.__main__ import main
from conformance.execution import compiler_cache
from conformance.execution.compiler_cache import SHIPPED, CompilerCache, kept
from conformance.execution.process import Limits
from conformance.execution.workers import Workers
from conformance.worker import repeating, wire
from tests.conftest import ROOT, Project
from tests.kit import largest_file
from tests.worker.test_isolation_cheats import needs_isolation

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kernels run in the judge's process there")

JAX, NUMBA = compiler_cache.OF_JAX[0], compiler_cache.OF_NUMBA
ENTRY = re.compile(r"-cache$|\.nbc$")
"""The name of what JAX keeps, and Numba."""
FAKE = """
listeners = []
register_event_listener = register_event_duration_secs_listener = listeners.append

def compiles():
    event, seconds = listeners[:2]
    event("/jax/compilation_cache/cache_hits")
    for each in (90.0, 9.75, 0.25):
        seconds("/jax/core/compile/backend_compile_duration", each, fun_name="f")
        seconds("/jax/core/compile/jaxpr_trace_duration", 1000.0)
    listeners[:] = [lambda *_, **__: None] * 2
"""
PARALLEL = pytest.mark.parametrize("words", [(), ("-p", "xdist", "-n", "2")], ids=["serial", "parallel"])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders are kept; without what a user may have set."""
    for name in (*compiler_cache.OF_JAX, NUMBA, *compiler_cache.OTHERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path / "cache"))
    return tmp_path / "cache/compiled"


KEEPING = {"jax-cpu": "jax_native", "numba-cpu": "numba_cpu"}
"""Implementation that compiles -> its folder."""


def test_a_second_run_compiles_nothing_and_damage_changes_no_verdict(project: Project, home: Path):
    for name in ("jax", "numba"):
        pytest.importorskip(name)
    kernels = [f"--impl={ROOT}/impls/{folder}" for folder in KEEPING.values()]

    def run() -> tuple[dict[str, str], dict[Path, int]]:
        found = project.run(*kernels, "--distribution=fixed", "--timeout=300")
        entries = {f: f.stat().st_mtime_ns for f in home.rglob("*") if ENTRY.search(f.name)}
        return {name: found.of(name)["status"] for name in KEEPING}, entries

    statuses, cold = run()
    assert {*statuses.values()} == {"pass"}
    assert {"-cache", ".nbc"} <= {one for file in cold for one in ENTRY.findall(file.name)}
    assert run() == (statuses, cold)
    for file in cold:
        content = file.read_bytes()
        file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    again, mended = run()
    assert again == statuses
    assert mended.keys() == cold.keys()
    assert not {*mended.values()} & {*cold.values()}


SPY = """
import os
import os
import re
from pathlib import Path
own = Path(os.environ["TRITON_CACHE_DIR"])
seen = sorted(file.name for file in own.parents[2].rglob("*") if file.is_file())
own.mkdir(parents=True)
(own / "{name}").write_text("code")
raise ValueError(seen)
"""


@needs_isolation
def test_no_kernel_sees_what_is_kept_for_another_one_or_for_what_it_was_before(tmp_path: Path):
    with kept() as folder, Workers(Limits(), most=9, compiled=CompilerCache(folder, "main")) as workers:
        (folder / SHIPPED / "secret").parent.mkdir()
        (folder / SHIPPED / "secret").write_text("code")
        for name, text in (("one", SPY), ("other", SPY), ("one", SPY + "#")):
            file = tmp_path / f"{name}.py"
            file.write_text(text.format(name=name))
            workers.forget(file)
            (reason,) = map(str, workers.load([file]).broken.values())
            assert "ValueError: []" in reason
        assert sorted(file.name for file in folder.rglob("*") if file.is_file()) == ["one", "one", "other", "secret"]


FACTOR = """
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import numba
from helper import extra

TIMES = int(os.environ["XLA_TIMES"])

@numba.njit(cache=True)
def factor():
    return extra() * TIMES
"""


@pytest.mark.parametrize(("helper", "times"), [(2, 1), (1, 2)], ids=["a helper", "a variable"])
def test_what_numba_compiles_into_its_code_is_not_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch, helper: int, times: int
):
    """It finds what it has kept by the function's own file, whatever has become of what that calls and reads."""
    pytest.importorskip("numba")
    file = project.kernel(head=FACTOR, body="return y * y.dtype.type(factor())")
    for factors in ((1, 1), (helper, times)):
        text = "import numba\n\n\n@numba.njit\ndef extra():\n    return {}\n"
        project.write("impls/helper.py", text.format(factors[0]))
        monkeypatch.setenv("XLA_TIMES", str(factors[1]))
        monkeypatch.setattr(compiler_cache, "VARIABLES", re.compile("none"))
        (record,) = project.run(f"--impl={file}").records
        assert record["status"] == ("pass" if factors == (1, 1) else "fail")


def test_a_check_keeps_nothing_beside_the_source(project: Project, monkeypatch: pytest.MonkeyPatch):
    """The next one had the first one's results."""
    pytest.importorskip("numba")
    file = project.kernel(head=FACTOR, body="return y * y.dtype.type(factor())")
    project.write("impls/helper.py", "import numba\n\n\n@numba.njit\ndef extra():\n    return 1\n")
    for times in ("1", "2"):
        monkeypatch.setenv("XLA_TIMES", times)
        assert main(["check", str(file), "n1 c2 h4 w4 k2 r3 s3 p1", "--operator=conv_forward"]) == (times == "2")
    assert not [*project.folder.rglob("*.nb[ci]")]


def test_a_disk_that_is_full_at_the_end_costs_the_cache_alone():
    with ExitStack() as stack:
        cache = ExitStack()
        folder = cache.enter_context(kept())
        stack.enter_context(largest_file(0))
        (folder / "entry").touch()
        cache.close()
    with kept() as after:
        assert [*after.iterdir()] == []


def test_a_disk_that_is_full_at_the_start_leaves_a_temporary_one(monkeypatch: pytest.MonkeyPatch, home: Path):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=compiler_cache.ROOM - 1))
    with ExitStack() as stack:
        cache, note = compiler_cache.of_run(stack)
        assert note == f"compilation cache: none, the folder cannot be used (No space left on device: {home})"
        assert cache is not None
        assert cache.kept_for("it", Limits()).own == (str(cache.folder / "it"),)
    assert not cache.folder.exists()


def test_what_a_killed_run_has_left_and_what_was_changed_is_deleted():
    with kept() as folder:
        (folder / SHIPPED).mkdir()
        (folder / SHIPPED / "entry").write_text("code")
        (folder / "a source").mkdir()
    with kept() as again:
        assert [file.name for file in again.rglob("*")] == [SHIPPED, "entry"]
    (folder / SHIPPED / "entry").write_text("cofe")
    killed = ExitStack()
    changed = killed.enter_context(kept())
    assert [*changed.iterdir()] == []
    (changed / "entry").write_text("half")
    killed.pop_all()  # without its end
    with kept() as after:
        assert [*after.iterdir()] == []


def test_what_no_key_has_is_in_a_folders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache = CompilerCache(tmp_path, "main")
    usual, variant = cache.environment({}), cache.environment({"ACME_FAST": "1"})
    assert not {usual[JAX], usual[NUMBA]} & {variant[JAX], variant[NUMBA]}
    record = tmp_path / "jaxlib-99.dist-info/RECORD"
    record.parent.mkdir()
    names = {compiler_cache._name()}
    monkeypatch.syspath_prepend(str(tmp_path))
    for digest in ("1", "2"):  # somebody's own build of one version
        record.write_text(digest)
        names.add(compiler_cache._name())
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    names.add(compiler_cache._name())
    assert len(names) == 4
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert compiler_cache._name() in names


def test_what_a_user_has_set_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache, least = CompilerCache(tmp_path, "main"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    assert cache.environment({}).keys() == {JAX, NUMBA, *compiler_cache.SETTINGS, *compiler_cache.OTHERS}
    assert not {*cache.environment({}).values()} & {*cache.environment({}, "another").values()} - {
        *compiler_cache.SETTINGS.values()
    }
    assert JAX not in cache.environment({JAX: "/elsewhere"})
    for name, value in ((least, "9"), (NUMBA, "/elsewhere")):
        monkeypatch.setenv(name, value)
        assert name not in cache.environment({})
    for name in ("JAX_ENABLE_COMPILATION_CACHE", *compiler_cache.OTHERS):
        monkeypatch.setenv(name, "false")
    assert cache.environment({}) == {}


def test_too_much_is_deleted_but_what_another_run_has(home: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("idle", "used"):
        (home / name).mkdir(parents=True)
        (home / name / "entry").write_text("0" * 100)
    monkeypatch.setattr(compiler_cache, "LIMIT", 99)
    lock = compiler_cache._locked(home / "used")
    with kept():
        assert not (home / "idle").exists()
        assert (home / "used/entry").exists()
    assert lock is not None
    lock.close()


TELLS = "import os\nprint(os.environ.get('JAX_COMPILATION_CACHE_DIR'), file=open({file!r}, 'a'))"


def told(project: Project, *words: str) -> tuple[str, set[str]]:
    """Return what a run prints, and the folders for JAX in a kernel's processes."""
    file = project.folder / "told"
    project.kernel(head=TELLS.format(file=str(file)))
    found = project.pytest(*words)
    assert found.exit == 0, found.text
    return found.text, {*file.read_text().split()}


@PARALLEL
def test_kernels_processes_are_told(project: Project, words: tuple[str, ...], home: Path):
    (folder,) = told(project, *words)[1]
    assert Path(folder).is_relative_to(home)


def test_a_folder_that_cannot_be_used_is_a_note(project: Project, monkeypatch: pytest.MonkeyPatch):
    file = str(project.write("file", ""))
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: file)
    text, folders = told(project)
    assert not [folder for folder in folders if Path(folder).exists() or project.folder in Path(folder).parents]
    assert "compilation cache: none, the folder cannot be used (Not a directory: " in text


@PARALLEL
def test_what_jax_compiles_is_counted(project: Project, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """A module that calls itself jax has listeners: three programs, one of which was read."""
    project.write("fake/jax/__init__.py", "from jax import monitoring")
    project.write("fake/jax/monitoring.py", FAKE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project.folder / "fake"), str(ROOT)]))
    monkeypatch.syspath_prepend(project.folder / "fake")
    project.kernel(head="import jax", body="jax.monitoring.compiles(); return y")
    # a worker of pytest-xdist has imported jax itself, where a test of this process has
    found = project.pytest(*words, "--problem=edge.plain", subprocess=bool(words))
    assert "JAX compiled 2 programs and read 1, in 100 s" in found.text


def test_what_ended_processes_have_compiled_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("conformance.execution.workers.Process", lambda *_: SimpleNamespace(ended=""))
    monkeypatch.setattr(Workers, "_watched", lambda _: None)
    run = Workers(Limits())
    for number in range(1, 4):
        one: Any = run._process_of(Limits())
        one.compiled, one.ended = wire.Compiled(10, 1, 2.0), "crashed"
        assert run.compiled == wire.Compiled(10 * number, number, 2.0 * number)


def test_calls_on_new_shapes_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    """Else a later run is served what this one compiled, and measures another kernel."""
    seen, values = [], {repeating.KEPT_FROM: 0.0}
    config = SimpleNamespace(update=values.__setitem__, **{repeating.KEPT_FROM: 0.0})
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(config=config))

    def kernel(*_: Any, **__: Any) -> Any:
        seen.append(values[repeating.KEPT_FROM])
        return []

    bridge: Any = SimpleNamespace(from_host=lambda host: host, synchronize=lambda _: None, to_host=lambda _: None)
    repeating.growth_by_shape(bridge, kernel, [((), {})] * 9, 3, 0.01)
    assert {*seen} == {float("inf")}
    assert values == {repeating.KEPT_FROM: 0.0}
