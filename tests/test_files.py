"""What lies where a file should be, put there before the run or by a kernel of it: a pipe without a writer, a device
without end, a file of holes, folders in one another. The judge says so, and nobody waits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import platformdirs
import pytest

from conformance import files
from conformance.execution import compiler_cache
from conformance.execution.compiler_cache import SHIPPED
from conformance.implementations.source_files import SourceFiles
from conformance.reporting import github
from tests.conftest import Project, no_traceback_of_ours
from tests.kit import command, patience

pytest_plugins = ["pytester"]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def holes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(6 << 30)


KINDS = {pipe: "Not a regular file", device: "Not a regular file", holes: "Larger than 64 MiB"}


def deep(folder: Path, levels: int = 1200) -> None:
    """Folders in one another, more than Python recurses and than descriptors may be open."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def ended(*words: str) -> tuple[int, str]:
    """Run a case in the project's folder, which takes a few seconds of these; return the exit status and the output."""
    chosen = ("--problem=edge.plain", "--dtype=fp32", "--layout=nchw", "--distribution=fixed", "--timeout=300")
    with patience(300):
        status, text = command("run", *words, *chosen)
    assert no_traceback_of_ours(text)
    return status, text


def test_files_of_the_command_line_that_are_none_are_errors_and_the_others_run(project: Project):
    given = []
    for make in KINDS:
        name = make.__name__
        (project.folder / f"{name}s").mkdir()
        make(project.folder / f"{name}.py")
        make(project.folder / f"{name}s" / "__init__.py")
        given += [f"{name}.py", f"{name}s"]
    project.kernel("right", folder=".")
    status, text = ended(*given, "right.py")
    assert status == 1
    for make, said in KINDS.items():
        assert f"{said}: '{make.__name__}.py'" in text
        assert f"{said}: '{make.__name__}s/__init__.py'" in text
    assert "right conv_forward fp32: 1 of 1 pass" in text


@pytest.mark.parametrize(
    ("replaces", "said"),
    [("os.mkfifo(f)", KINDS[pipe]), ("os.truncate(os.open(f, os.O_CREAT | os.O_WRONLY), 6 << 30)", KINDS[holes])],
)
def test_a_kernel_that_replaces_the_next_file_and_its_own_is_told(project: Project, replaces: str, said: str):
    both = f"for f in ({str(project.folder / 'next.py')!r}, __file__): os.unlink(f); {replaces}"
    project.kernel(folder=".", head="import os", body=f"{both}\n    return y")
    project.kernel("next", folder=".")
    status, text = ended("acme.py", "next.py")
    assert status == 1
    assert f"acme.py was replaced ({said})" in text
    assert f"next.py was replaced ({said})" in text


@pytest.mark.parametrize("make", KINDS)
def test_a_line_of_a_kernel_is_looked_for_in_no_pipe(tmp_path: Path, make: Callable[[Path], None]):
    make(tmp_path / "acme.py")
    assert [*github._lines(tmp_path / "acme.py")] == []


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="a log that only root reads")
def test_a_log_of_the_system_that_holds_nothing_just_now_is_no_file():
    with suppress(OSError):
        while True:  # what it holds is read first
            files.content_of(Path("/proc/kmsg"))
    with pytest.raises(OSError, match="Not a regular file"):
        files.content_of(Path("/proc/kmsg"))


def test_large_data_beside_sources_is_none_of_them(tmp_path: Path):
    (tmp_path / "__init__.py").write_text("")
    before = SourceFiles(tmp_path).digest
    holes(tmp_path / "weights.bin")
    pipe(tmp_path / "pipe")
    assert SourceFiles(tmp_path).digest == before


def test_folders_in_one_another_are_no_source_and_can_be_removed(project: Project):
    folder = project.folder / "package"
    project.kernel("__init__", folder="package")
    deep(folder)
    status, text = ended("package")
    assert (status, "package: OSError: [Errno 40] More than 100 folders in one another" in text) == (1, True)
    (folder / "d" / "closed").mkdir(mode=0)
    (folder / "link").symlink_to(project.folder)
    files.remove(folder)
    assert not folder.exists()
    assert (project.folder / "tox.ini").exists()


@pytest.mark.parametrize("spoil", [deep, lambda folder: holes(folder / "f"), lambda folder: pipe(folder / "f")])
def test_a_cache_of_compiled_code_that_cannot_be_read_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
):
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path))
    with compiler_cache.kept() as folder:
        (folder / SHIPPED).mkdir()
        (folder / SHIPPED / "kept").write_text("")
    with compiler_cache.kept() as again:
        assert again == folder
        assert (folder / SHIPPED / "kept").exists()
        (programs := folder / SHIPPED / "jax").mkdir(parents=True)
        spoil(programs)
    with compiler_cache.kept() as again:
        assert again == folder
        assert not [*folder.iterdir()]


def test_files_to_write_that_are_pipes_nobody_reads_are_refused(project: Project):
    project.kernel(folder=".")
    for name in ("pipe", "j.xml", "records.jsonl"):
        pipe(project.folder / name)
    status, text = ended("acme.py", "--records=pipe")
    assert (status, "--records pipe: cannot be written (No such device or address)" in text) == (4, True)
    status, text = ended("acme.py", "--junitxml=j.xml")
    assert (status, "--junitxml j.xml: cannot be written (" in text) == (4, True)


def test_a_pipe_that_somebody_reads_takes_all_records(project: Project):
    project.kernel(folder=".")
    pipe(project.folder / "pipe")
    with subprocess.Popen(["cat", "pipe"], cwd=project.folder, stdout=subprocess.PIPE) as reader:
        status, _ = ended("acme.py", "--records=pipe")
        written, _ = reader.communicate(timeout=60)
    assert status == 0
    assert [*dict.fromkeys(line.split(b'"')[3] for line in written.splitlines())] == [
        b"header",
        b"absence",
        b"case",
        b"footer",
    ]
