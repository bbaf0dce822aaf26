"""Compiled kernels are kept between runs; whatever has become of them, verdicts are those of a run without."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.execution import compiled
from conformance.execution.compiled import Compiled
from conformance.execution.process import Limits
from conformance.execution.workers import Workers
from conformance.plugin.compiling import COMPILED, LONG, Compiling
from conformance.worker import repeating, wire
from tests.conftest import ROOT, Project

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kernels run in the judge's process there")

JAX, NUMBA = compiled.OF_JAX[0], compiled.OF_NUMBA
TELLS = """
import os, pathlib
with open({file!r}, "a") as told:
    told.write(repr({{name: value for name, value in os.environ.items() if "CACHE" in name}}) + "\\\\n")
"""


FAKE = """
event = seconds = None
done = False

def register_event_listener(listener):
    global event
    event = listener

def register_event_duration_secs_listener(listener):
    global seconds
    seconds = listener

def compiles():
    global done
    if not done and event is not None:
        done = True
        event("/jax/compilation_cache/cache_hits")
        for each in (90.0, 9.75, 0.25):
            seconds("/jax/core/compile/backend_compile_duration", each, fun_name="f")
            seconds("/jax/core/compile/jaxpr_trace_duration", 1000.0)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of all versions are, for this test."""
    for name in (*compiled.OF_JAX, NUMBA, "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compiled, "home", lambda: tmp_path / "compiled")
    return tmp_path / "compiled"


def entry(folder: Compiled, name: str = "jit_f-0", content: bytes = b"code", where: str = "jax/of") -> Path:
    """As JAX keeps it."""
    file = folder.folder / where / f"{name}-cache"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def run(project: Project, *words: str) -> tuple[Any, dict[str, tuple[int, bytes]]]:
    """A run of one of the suite's own implementations, and the compiled kernels that are there after it."""
    found = project.run(*words, "--distribution=fixed", subprocess=True, patience=300)
    kept = project.folder.rglob("kernel-conformance/compiled/*/*/**/*")
    files = {
        str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in kept if compiled.ENTRIES.search(file.name)
    }
    return found, files


@pytest.mark.parametrize(("name", "folder"), [("jax", "jax_native"), ("numba", "numba_cpu")])
def test_a_second_run_compiles_nothing_and_a_damaged_entry_changes_no_verdict(
    project: Project, name: str, folder: str, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip(name)
    for variable in (*compiled.OF_JAX, NUMBA):
        monkeypatch.delenv(variable, raising=False)
    implementation = f"--impl={ROOT}/impls/{folder}"
    first, cold = run(project, implementation)
    second, warm = run(project, implementation)
    assert first.of(f"{name}-cpu")["status"] == second.of(f"{name}-cpu")["status"] == "pass", first.text
    assert cold, first.text
    assert warm == cold
    assert "compilation cache: " in first.text
    assert "compilation cache: " not in second.text  # a short run that has added nothing
    for file, (_, content) in cold.items():
        Path(file).write_bytes(content[: len(content) // 2] + b"\0" * (len(content) - len(content) // 2))
    third, mended = run(project, implementation)
    assert third.statuses == first.statuses, third.text
    assert mended.keys() == cold.keys()
    assert not any(content.endswith(b"\0" * (len(content) // 2)) for _, content in mended.values())


def test_what_has_no_digest_or_another_one_is_deleted(home: Path):
    with_digest = Compiled()
    kept, damaged = entry(with_digest, "kept"), entry(with_digest, "damaged")
    with_digest.close()
    late = entry(with_digest, "late")  # of a run that was killed
    damaged.write_bytes(b"cod\xe5")
    again = Compiled()
    again.close()
    assert kept.exists()
    assert not damaged.exists()
    assert not late.exists()
    assert again.begun[0] == 1


def test_what_was_half_written_is_not_kept(home: Path):
    first = Compiled()
    half = first.folder / "numba/0/of/f.nbc.tmp.0123"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"co")
    first.close()
    Compiled().close()
    assert not half.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"jax/of/jit_f-0-cache": 1}', b"\xff"])
def test_damaged_digests_keep_nothing(home: Path, content: bytes):
    first = Compiled()
    file = entry(first)
    first.close()
    (first.folder / compiled.DIGESTS).write_bytes(content)
    Compiled().close()
    assert not file.exists()


def test_nothing_is_deleted_while_another_run_is_going_on(home: Path):
    first = Compiled()
    file = entry(first)
    second = Compiled()
    assert file.exists()
    first.close()
    later = entry(second, "later")
    Compiled().close()
    assert later.exists()
    second.close()
    Compiled().close()
    assert file.exists()
    assert later.exists()


def test_no_two_judges_give_numba_one_folder(home: Path):
    keeper = Compiled(judge=False)
    judges = [Compiled(keeper.folder, keeper=False) for _ in range(3)]
    folders = [judge.environment({}, True)[NUMBA] for judge in judges]
    assert len(set(folders)) == 3
    assert NUMBA not in keeper.environment({}, True)
    judges[1].close()
    assert Compiled(keeper.folder, keeper=False).environment({}, True)[NUMBA] == folders[1]


def test_environments_that_a_key_leaves_out_have_folders_of_their_own(home: Path, monkeypatch: pytest.MonkeyPatch):
    cache = Compiled()

    def folders(**given: str) -> tuple[str, ...]:
        found = cache.environment(given, True)
        return found[JAX], found[NUMBA]

    usual = folders()
    assert usual == folders()
    assert not {*usual} & {*folders(ACME_FAST="1")}  # a variant's, whatever it is
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert folders() == usual
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert folders()[0] != usual[0]
    monkeypatch.setenv("NUMBA_ENABLE_AVX", "0")
    assert folders()[1] != usual[1]


def test_what_a_user_has_set_is_left_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch):
    cache, size = Compiled(), "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"
    assert {JAX, NUMBA, size} <= cache.environment({}, True).keys()
    assert NUMBA not in cache.environment({}, False)  # a vendor's are kept where Numba keeps them
    assert JAX not in cache.environment({JAX: "/elsewhere"}, True)
    monkeypatch.setenv(size, "100")
    assert size not in cache.environment({}, True)
    monkeypatch.setenv(NUMBA, "/elsewhere")
    assert NUMBA not in cache.environment({}, True)
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    assert cache.environment({}, True) == {}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a jaxlib is installed, as it says itself."""
    folder = tmp_path / "site"
    (folder / "jaxlib").mkdir(parents=True)
    (folder / "jaxlib/__init__.py").touch()
    (folder / "jaxlib/libjax.so").write_bytes(b"1")
    note = folder / "jaxlib-99.dist-info"
    note.mkdir()
    (note / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxlib\nVersion: 99\n")
    (note / "RECORD").write_text("jaxlib/libjax.so,sha256=DIGEST,1\njaxlib-99.dist-info/RECORD,,\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "jaxlib", raising=False)  # else what another test has imported is found
    return folder


@pytest.mark.parametrize("what", ["processor", "size", "time", "digest", "plugin", "package"])
def test_other_machines_and_versions_have_other_folders(site: Path, monkeypatch: pytest.MonkeyPatch, what: str):
    library, note = site / "jaxlib/libjax.so", site / "jaxlib-99.dist-info/RECORD"
    plugin = site / "plugin.so"
    plugin.touch()
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"acme:{plugin}")
    before = compiled.about()
    assert before == compiled.about()
    assert "libjax.so 1 DIGEST\n" in before
    if what == "processor":
        monkeypatch.setattr(compiled, "_processor", lambda: ["another one"])
    elif what == "size":
        library.write_bytes(b"12")
    elif what == "time":  # somebody's own build, of the version of the last one
        os.utime(library, (2e9, 2e9))
    elif what == "digest":
        note.write_text(note.read_text().replace("DIGEST", "ANOTHER"))
    elif what == "plugin":
        os.utime(plugin, (2e9, 2e9))
    else:
        (site / "numba-0.99.dist-info").mkdir()
    assert compiled.about() != before


def test_an_environment_that_is_made_anew_has_the_same_folder(site: Path):
    before = compiled.about()
    for file in (site / "jaxlib/libjax.so", site / "jaxlib-99.dist-info/RECORD"):
        os.utime(file, (2e9, 2e9))
    assert compiled.about() == before


def test_the_limit(home: Path, monkeypatch: pytest.MonkeyPatch):
    """Other versions go first, the one that was used longest ago before the others; then half of what is left."""

    def made(name: str, used: int) -> Compiled:
        one = Compiled(home / name)
        for number in range(4):
            os.utime(entry(one, f"{number}", b"0" * 100), (used + number, used + number))
        one.close()
        os.utime(one.folder / compiled.DIGESTS, (used, used))
        return one

    old, older, own = made("old", 2000), made("older", 1000), made("own", 3000)
    monkeypatch.setattr(compiled, "LIMIT", 1200)
    Compiled(own.folder).close()
    assert old.folder.exists()
    assert older.folder.exists()
    monkeypatch.setattr(compiled, "LIMIT", 1199)
    Compiled(own.folder).close()
    assert old.folder.exists()
    assert not older.folder.exists()
    running = Compiled(old.folder)
    monkeypatch.setattr(compiled, "LIMIT", 399)
    Compiled(own.folder).close()
    assert running.folder.exists()  # a run is going on there
    running.close()
    Compiled(own.folder).close()
    assert not old.folder.exists()
    assert [file.name for file in sorted(own.folder.rglob("*-cache"))] == ["3-cache"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every look counts as use")
def test_to_look_after_an_entry_is_no_use_of_it(home: Path):
    first = Compiled()
    file = entry(first)
    os.utime(file, (1000, 1000))
    first.close()
    Compiled().close()
    assert file.stat().st_atime == 1000


def told(project: Project, *words: str, **changes: str) -> tuple[Any, list[dict[str, str]]]:
    """A run, and the variables of caches in the processes of a kernel."""
    file = project.folder / "told.txt"
    project.kernel(head=TELLS.format(file=str(file)).strip().replace("\\\\n", "\\n"), **changes)
    found = project.run(*words, subprocess=True)
    return found, [eval(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("words", [(), ("-p", "xdist", "-n", "2")], ids=["serial", "parallel"])
def test_kernels_processes_are_told(project: Project, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(JAX, raising=False)
    found, environments = told(project, *words)
    assert found.exit == 0, found.text
    assert "compilation cache" not in found.text  # nothing was compiled
    folders = {environment[JAX] for environment in environments}
    assert len(folders) == 1
    assert Path(folders.pop()).is_relative_to(project.folder)


@pytest.mark.parametrize("words", [("--no-compile-cache",), ("--in-process",)])
def test_a_run_without(project: Project, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(JAX, raising=False)
    found, environments = told(project, *words)
    assert found.exit == 0, found.text
    assert environments
    assert not any(JAX in environment for environment in environments)
    assert not [*project.folder.rglob("kernel-conformance")]


def test_a_folder_that_cannot_be_used_is_a_note(project: Project, monkeypatch: pytest.MonkeyPatch):
    project.write("file", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.folder / "file"))
    found, environments = told(project)
    assert found.exit == 0, found.text
    assert not any(JAX in environment for environment in environments)
    assert "compilation cache: none, the folder cannot be used (Not a directory: " in found.text
    assert "Traceback" not in found.text


def test_lines_of_the_summary(home: Path):
    option = SimpleNamespace(collectonly=False, benchmark_only=False, numprocesses=None, no_compile_cache=False)
    cleanups: list[Any] = []
    config: Any = SimpleNamespace(
        option=option,
        add_cleanup=cleanups.append,
        getoption=lambda name, *_: vars(option)[name.strip("-").replace("-", "_")],
    )
    run = Compiling(config, isolated=True)
    assert run.compiled is not None
    assert run.lines(200) == []
    entry(run.compiled, content=b"0" * 2_600_000)
    kept = "compilation cache: 1 kernel, 2.6 MB, {} of them new; --no-compile-cache runs without; " + str(
        run.compiled.folder
    )
    assert run.lines(999) == [kept.format(1)]
    assert all(len(line) <= 79 or str(home) in line for line in run.lines(79))  # a path can be copied
    cleanups[0]()
    later = Compiling(config, isolated=True)
    assert later.lines(999) == []
    for spent in ((7, 5, LONG - 1), (2, 0, 0.9)):
        later.pytest_testnodedown(SimpleNamespace(workeroutput={COMPILED: spent}))
    later.pytest_testnodedown(SimpleNamespace())  # it has crashed
    assert later.lines(999) == []
    later.workers = SimpleNamespace(compiled=wire.Compiled(1, 0, 0.1))  # type: ignore[assignment]
    assert later.lines(999) == [kept.format(0), f"JAX compiled 5 programs and read 5, in {LONG:.0f} s"]
    option.benchmark_only = True
    timed = Compiling(config, isolated=True)
    assert timed.compiled is None
    timed.workers = SimpleNamespace(compiled=wire.Compiled(1, 0, LONG))  # type: ignore[assignment]
    assert timed.lines(999) == [f"JAX compiled 1 program and read 0, in {LONG:.0f} s"]


@pytest.mark.parametrize("words", [(), ("-p", "xdist", "-n", "2")], ids=["serial", "parallel"])
def test_what_jax_compiles_is_counted(project: Project, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """By listeners of a module that calls itself jax: three programs, one of which was read."""
    project.write("fake/jax/__init__.py", "from jax import monitoring")
    project.write("fake/jax/monitoring.py", FAKE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project.folder / "fake"), str(ROOT)]))
    project.kernel(head="import jax", body="jax.monitoring.compiles(); return y")
    found = project.run(*words, "--problem=edge.plain", subprocess=True)
    assert found.exit == 0, found.text
    assert "JAX compiled 2 programs and read 1, in 100 s" in found.text


def test_what_processes_have_compiled_that_have_ended_counts(monkeypatch: pytest.MonkeyPatch):
    def process(*_: Any) -> Any:
        return SimpleNamespace(ended="", compiled=wire.Compiled(1, 0, 0.5))

    monkeypatch.setattr("conformance.execution.workers.Process", process)
    monkeypatch.setattr(Workers, "_watched", lambda _: None)
    run = Workers(Limits())
    for number in range(1, 5):
        one: Any = run._process_of(Limits())
        one.compiled = wire.Compiled(10, 1, 2.0)
        one.ended = "crashed" if number % 2 else ""
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
    repeating.growth(bridge, kernel, [((), {})] * 9, 3, 0.01)
    assert seen
    assert set(seen) == {float("inf")}
    assert values == {repeating.KEPT_FROM: 0.0}
