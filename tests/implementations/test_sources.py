"""What a verdict is about: the file that was named, and whatever else its process has loaded and read."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.files import state_of
from conformance.implementations.source_files import Covers, SourceFiles
from tests.conftest import Project

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kernels run in the judge's process there")

HERE = "import pathlib, sys; HERE = pathlib.Path(__file__).parent; "
REACHED = {
    "imports a helper beside it": ("helper.py", {"head": HERE + "sys.path.insert(0, str(HERE)); import helper"}),
    "imports it from another folder": (
        "../elsewhere/helper.py",
        {"head": HERE + "sys.path.insert(0, str(HERE.parent / 'elsewhere')); import helper"},
    ),
    "executes a text": ("helper.txt", {"head": HERE + "exec((HERE / 'helper.txt').read_text())"}),
    "reads numbers": ("deep/helper.bin", {"head": HERE + "W = (HERE / 'deep/helper.bin').read_bytes()"}),
    "imports it when it is called": (
        "helper.py",
        {"head": HERE + "sys.path.insert(0, str(HERE))", "body": "import helper; return y"},
    ),
    "reads it when it is called": (
        "helper.json",
        {"head": HERE, "body": "open(HERE / 'helper.json').close(); return y"},
    ),
    "maps it into memory": ("helper.bin", {"head": HERE + "W = open(HERE / 'helper.bin', 'r+b').read()"}),
    "reads what it may write behind": ("helper.bin", {"head": HERE + "W = open(HERE / 'helper.bin', 'a+b').read()"}),
    "names it by its process": (
        "helper.bin",
        {"head": HERE + "W = open(f'/proc/self/root{HERE}/helper.bin', 'rb').read()"},
    ),
    "reads it under another name": (
        "helper.bin",
        {"head": HERE + "import os; os.symlink(HERE / 'helper.bin', HERE / f'{os.getpid()}'); "
                        "W = (HERE / f'{os.getpid()}').read_bytes(); os.remove(HERE / f'{os.getpid()}')"},
    ),
    "loads compiled code by its path": (
        "__pycache__/helper.pyc",
        {"head": HERE + "W = (HERE / '__pycache__/helper.pyc').read_bytes()"},
    ),
}  # fmt: skip
"""How a kernel comes by another file -> that file, and what is in the kernel's."""


@pytest.mark.parametrize(("name", "changes"), REACHED.values(), ids=REACHED)
def test_a_pass_is_kept_only_while_what_a_kernel_reads_is_the_same(
    project: Project, name: str, changes: dict[str, str], capsys: pytest.CaptureFixture[str]
):
    file, helper = project.kernel(**changes), project.write(f"impls/{name}", "right = True")
    first = project.run(f"--impl={file}")
    (record,) = first.records
    assert first.exit == 0, first.text
    assert any(
        covered.endswith(Path(name).name) for kind in ("loaded", "later") for covered in record["covers"].get(kind, ())
    )
    assert project.run("--resume", f"--impl={file}").exit == 0
    claims = ["claims", "write", str(file), "records.jsonl"]
    assert main(claims) == 0
    helper.write_text("right = False")
    resumed = project.run("--resume", f"--impl={file}")
    assert resumed.exit == 4
    assert "acme was changed since (" in resumed.text
    assert main(claims) == 4
    assert "no verdict on" in capsys.readouterr().err


def test_what_nothing_reads_is_not_covered(project: Project):
    file = project.kernel(head="")
    folder = file.parent / "acme"
    folder.mkdir()
    file.rename(folder / "__init__.py")
    (folder / "weights.bin").write_bytes(b"\0")
    (record,) = project.run(f"--impl={folder}").records
    assert not [name for name in record["covers"]["loaded"] if name.startswith("acme/")]


CHANGES = """
    import pathlib
    text = pathlib.Path(__file__).with_name("helper.txt")
    exec(text.read_text())
    {after}
    return y"""


OWN = {
    "writes": "text.write_text('2')",
    "replaces": "text.with_suffix('.new').write_text('3'); text.with_suffix('.new').replace(text)",
    "has a child write": "__import__('subprocess').run(f'echo 4 >> {text}', shell=True)",
}


@pytest.mark.parametrize("after", OWN.values(), ids=OWN)
def test_a_kernel_that_reads_what_it_writes_is_right(project: Project, after: str):
    """It tunes and keeps something, or writes a log. Its passes are kept from no run to the next."""
    project.write("impls/helper.txt", "1")
    file = project.kernel(body=CHANGES.format(after=after))
    selection = f"--impl={file}", "--distribution=integer", "--distribution=fixed"
    outcome = project.run(*selection)
    assert outcome.statuses == {"pass": 2}, outcome.text
    resumed = project.run("--resume", *selection)
    assert (resumed.exit, "acme was changed since (helper.txt)" in resumed.text) == (4, True)


def test_what_nobody_else_can_have_seen_is_said_and_not_resumed(project: Project):
    project.write("impls/helper.txt", "1")
    file = project.kernel(body=CHANGES.format(after="text.unlink()"))
    (record,) = project.run(f"--impl={file}").records
    assert (record["status"], record["covers"]["later"]["helper.txt"]) == ("pass", "gone")
    project.write("impls/helper.txt", "1")
    assert "acme was changed since (helper.txt)" in project.run(f"--impl={file}", "--resume").text


def test_a_helper_that_is_written_over_once_it_was_imported_is_an_error(project: Project):
    """Records named the digest of code that had never run."""
    project.write("impls/helper.py", "right = True")
    body = "import helper; (HERE / 'helper.py').write_text('wrong = 1'); return y"
    file = project.kernel(head=HERE + "sys.path.insert(0, str(HERE))", body=body)
    (record,) = project.run(f"--impl={file}").records
    assert (record["status"], "helper.py was written" in record["reason"]) == ("error", True), record["reason"]


def test_a_file_that_is_another_one_while_it_is_read_is_an_error(project: Project):
    """A kernel read itself anew while another file had its name, and changed them back: what ran was never hashed."""
    project.write("impls/other.txt", "wrong = 1")
    exchanged = (
        "me, other, kept = HERE / 'acme.py', HERE / 'other.txt', HERE / 'kept'; "
        "me.rename(kept); other.rename(me); me.read_text(); me.rename(other); kept.rename(me); return y"
    )
    (record,) = project.run(f"--impl={project.kernel(head=HERE, body=exchanged)}").records
    assert record["status"] == "error"
    assert "what ran is not the source that the record names" in record["reason"]


def test_two_processes_of_one_source_have_imported_the_same(project: Project):
    """One that is replaced, after a crash, finds what another kernel or its user has written since."""
    project.write("impls/helper.py", "one = 1")
    project.write("impls/other.py", "two = 2")
    head = HERE + "import os; sys.path.insert(0, str(HERE)); import helper; calls = [1]"
    body = (
        "len(calls) == 2 and os.rename(HERE / 'other.py', HERE / 'helper.py') is os.abort(); calls.append(1); return y"
    )
    file = project.kernel(head=head, body=body)
    distributions = [f"--distribution={name}" for name in ("integer", "fixed", "wide")]
    first, *others = project.run(f"--impl={file}", *distributions).records
    assert (first["status"], {record["status"] for record in others}) == ("pass", {"error"})
    assert "helper.py was changed" in others[-1]["reason"]


COMPILES = """
import ctypes, subprocess, tempfile
from pathlib import Path

def one(kept=[]):
    kept[:] = [tempfile.TemporaryDirectory()]  # the last one goes
    source = Path(kept[0].name, "one.c")
    source.write_text("int one(void) { return 1; }")
    subprocess.run(["cc", "-shared", "-o", source.with_suffix(".so"), source], check=True)
    return ctypes.CDLL(source.with_suffix(".so")).one()
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="compiles C")
def test_a_kernel_that_compiles_for_each_shape_and_deletes_it_is_right_and_can_be_resumed(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setattr(tempfile, "tempdir", None)
    file = project.kernel(head=COMPILES, body="return y * one()")
    selection = f"--impl={file}", "--distribution=integer", "--distribution=fixed", "--distribution=wide"
    assert project.run(*selection).statuses == {"pass": 3}
    assert project.run("--resume", *selection).exit == 0


def distribution(place: Path, listing: str) -> None:
    """Install `acme-gpu`, which brings the module `acme_kernels`."""
    for name, text in {"acme_kernels/__init__.py": "", "acme_gpu-1.0.dist-info/RECORD": listing}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def test_an_installed_package_is_known_by_the_list_of_its_files(project: Project, monkeypatch: pytest.MonkeyPatch):
    place = project.folder / "site"
    distribution(place, "acme_kernels/__init__.py,sha256=one,0\n")
    monkeypatch.syspath_prepend(place)
    file = project.kernel(head="import acme_kernels")
    (record,) = project.run(f"--impl={file}").records
    assert "acme_gpu-1.0" in record["covers"]["packages"]
    assert not any("numpy" in name for name in record["covers"].get("loaded", ()))
    distribution(place, "acme_kernels/__init__.py,sha256=two,0\n")
    resumed = project.run("--resume", f"--impl={file}")
    assert (resumed.exit, "acme was changed since (acme_gpu-1.0)" in resumed.text) == (4, True)


def test_an_endless_number_of_files_is_not_covered_and_not_resumed(tmp_path: Path):
    file = tmp_path / "acme.py"
    file.write_text("")
    names = [tmp_path / f"{count}.txt" for count in range(1100)]
    for name in names:
        name.write_text("")
    files = SourceFiles(file)
    files.cover((str(name), state_of(name)) for name in names)
    assert len(files.covers.files) == 1001
    assert files.changed(files.covers) == "more files than are covered"
    assert not SourceFiles(file).changed(Covers(later=json.loads(json.dumps({"0.txt": files.covers.later["0.txt"]}))))
