"""Loading implementations: files, packages, names that others have too, and the hash of what was loaded."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.implementations.implementation import Implementation, ImplementationError, Unsupported
from conformance.implementations.registry import discover, load
from conformance.implementations.source_files import SourceFiles, source_hash
from conformance.operators import parse
from tests.kit import only

MODULE = """
from conformance import Implementation
acme = Implementation({name!r}, version={version})
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def module(path: Path, version: str = "''", head: str = "") -> Path:
    """A file with one implementation of the file's name."""
    name = path.parent.name if path.name == "__init__.py" else path.stem
    return write(path, head + MODULE.format(name=name, version=version))


def package(folder: Path, secret: str) -> Path:
    """A folder with one implementation, which takes its version from a module beside it."""
    write(folder / "deep" / "__init__.py", "from ..shared import secret")
    write(folder / "shared.py", f"secret = {secret!r}")
    module(folder / "__init__.py", "secret", head="from .deep import secret\n")
    return folder


def test_files_and_packages_are_found_in_order(tmp_path: Path):
    for name in ("b.py", "a.py", "_private.py", ".hidden.py", "README.md", "_pkg/__init__.py", "data/x.csv"):
        write(tmp_path / name, "")
    package(tmp_path / "pkg", "")
    assert [path.name for path in discover(tmp_path)] == ["a.py", "b.py", "pkg"]


CONTRACTS = """
from conformance import Contract, Implementation
acme = Implementation("acme", contract=Contract({declared}))


@acme.implements("conv_forward")
@acme.implements({second!r})
def kernel(*arguments):
    ...
"""


def test_a_contract_that_changes_nothing_of_its_kernels_is_an_error_of_the_file(tmp_path: Path):
    """`between="storage"` of a plain convolution was accepted, printed, and without effect."""
    for declared, second, effect in (
        ('between="storage"', "conv_backward_data", False),
        ('between="storage"', "conv_bn_forward", True),
        ('ties="away", variance="raw"', "conv_requantized", False),
        ('subnormals="flushed"', "conv_backward_data", True),
    ):
        file = write(tmp_path / "acme.py", CONTRACTS.format(declared=declared, second=second))
        broken = load([file]).broken
        assert (broken == {}) == effect, declared
    file = write(tmp_path / "acme.py", CONTRACTS.format(declared='ties="away"', second="avg_pool_forward"))
    said = 'contract=Contract(ties="away"): ties has no effect on avg_pool_forward, conv_forward; leave it out'
    assert said in load([file]).broken[str(file)].reason


LATER = """
from conformance import Implementation
acme = Implementation("acme")

@acme.implements("conv_forward")
def late(x, w, bias):
    from .shared import secret
    return secret
"""


def test_packages_of_one_name_keep_them_when_they_import_late(tmp_path: Path):
    found = []
    for place in ("here", "there"):
        write(tmp_path / place / "acme" / "shared.py", f"secret = {place!r}")
        found.append(only(write(tmp_path / place / "acme" / "__init__.py", LATER).parent))
    assert [i.kernels[0].function(None, None, None) for i in found] == ["here", "there"]


def test_folder_is_never_on_the_import_path(tmp_path: Path):
    file = module(tmp_path / "acme.py", "str(sys.path)", head="import sys\n")
    before = list(sys.path)
    assert str(tmp_path) not in only(file).version
    assert sys.path == before


@pytest.mark.parametrize("name", ["json", "numpy", "conformance"])
def test_file_may_be_called_like_what_it_imports(tmp_path: Path, name: str):
    real = sys.modules[name] if name in sys.modules else __import__(name)
    file = module(tmp_path / f"{name}.py", f"{name}.__file__", head=f"import {name}\n")
    assert only(file).version == real.__file__
    assert sys.modules[name] is real


def test_one_object_under_two_names_is_one_implementation(tmp_path: Path):
    file = module(tmp_path / "acme.py")
    write(file, file.read_text() + "default = acme\n")
    assert only(file).name == "acme"


def test_second_of_one_name_does_not_replace_the_first(tmp_path: Path):
    first, second = module(tmp_path / "a" / "acme.py", "'first'"), module(tmp_path / "b" / "acme.py", "'second'")
    registry = load([first, second])
    assert registry.implementations["acme"].version == "first"
    (broken,) = registry.broken.items()
    assert (broken[0], str(broken[1])) == (str(second), f"the name 'acme' is defined here and in {first}; rename one")


def test_import_of_a_missing_package_is_no_fault(tmp_path: Path):
    registry = load([module(tmp_path / "acme.py", head="import not_installed.part\n"), module(tmp_path / "b.py")])
    assert registry.unavailable == {"acme": "No module named 'not_installed'"}
    assert (list(registry.implementations), registry.broken) == (["b"], {})


def test_import_of_a_file_beside_it_is_named_with_what_to_do(tmp_path: Path):
    """Whose content a verdict would not name."""
    (tmp_path / "helper.py").write_text("")
    acme = module(tmp_path / "acme.py", head="import helper\n")
    registry = load([acme])
    assert registry.unavailable == {}
    assert str(registry.broken[str(acme)]) == (
        "ModuleNotFoundError: No module named 'helper'; files beside it are not imported: put both into a folder with "
        "an __init__.py, which gives the implementation, and import with `from . import helper`"
    )


@pytest.mark.parametrize("line", ["from . import helper", "from .helper import f", "from .. import helper"])
def test_a_relative_import_of_a_file_by_itself_is_told_what_to_do(tmp_path: Path, line: str):
    (tmp_path / "helper.py").write_text("f = None")
    (reason,) = map(str, load([module(tmp_path / "acme.py", head=f"{line}\n")]).broken.values())
    assert "conformance_impls" not in reason
    assert re.fullmatch(
        r"\w+: it is in no package; files beside it are not imported: put both into a folder with an __init__.py, "
        "which gives the implementation, and import with `from . import helper`",
        reason,
    )


def test_import_of_a_missing_module_of_its_own_is(tmp_path: Path):
    registry = load([module(tmp_path / "acme" / "__init__.py", head="from .kernel import f\n").parent])
    assert (registry.implementations, registry.unavailable) == ({}, {})
    (reason,) = map(str, registry.broken.values())
    assert reason.startswith("ModuleNotFoundError: No module named ")
    assert "acme.kernel" in reason


def test_fault_inside_a_package_is_placed(tmp_path: Path):
    folder = package(tmp_path / "acme", "x")
    write(folder / "shared.py", "\n\nsecret = 1 / 0")
    broken = load([folder]).broken[str(folder)]
    assert str(broken) == "ZeroDivisionError: division by zero (acme/shared.py, line 3)"
    assert (broken.failure.file, broken.failure.line) == (str(folder / "shared.py"), 3)


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda folder: write(folder / "shared.py", "secret = 'other'"),
    "new file": lambda folder: write(folder / "deep" / "more.py", ""),
    "kernel source": lambda folder: write(folder / "conv.cu", "__global__ void conv() {}"),
    "name": lambda folder: (folder / "shared.py").rename(folder / "shared2.py"),
    "place": lambda folder: (folder / "shared.py").rename(folder / "deep" / "shared.py"),
    "shared library": lambda folder: (folder / "conv.so.1").write_bytes(b"\x7fELF\0"),
    "device binary": lambda folder: (folder / "deep" / "conv.cubin").write_bytes(b"\x7fELF\0"),
    "removal": lambda folder: (folder / "shared.py").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_hash_changes_with_the_source(tmp_path: Path, change: Callable[[Path], object]):
    folder = package(tmp_path / "acme", "x")
    before = source_hash(folder)
    change(folder)
    assert source_hash(folder) != before


def test_hash_is_of_the_source_alone(tmp_path: Path):
    folder = package(tmp_path / "here" / "acme", "x")
    before = only(folder).source
    write(folder / "__pycache__" / "shared.cpython-311.pyc", "compiled")
    (folder / "conv.o").write_bytes(b"\x7fELF\0")
    assert source_hash(folder) == before == source_hash(package(tmp_path / "there" / "acme", "x"))
    assert len(before) == 64


def test_hash_of_a_file_covers_native_code_beside_it(tmp_path: Path):
    file = module(tmp_path / "acme.py")
    before = source_hash(file)
    write(tmp_path / "other.py", "")
    (tmp_path / "results.zip").write_bytes(b"PK\0")
    assert source_hash(file) == before
    (tmp_path / "libconv.so").write_bytes(b"\x7fELF\0")
    with_library = source_hash(file)
    (tmp_path / "libconv.so").write_bytes(b"\x7fELF\1")
    assert len({before, with_library, source_hash(file)}) == 3


WRITES = "from pathlib import Path; Path(__file__).write_text(Path(__file__).read_text() + '# more')"


def test_hash_is_taken_before_the_import(tmp_path: Path):
    """A file that is imported may not choose what its hash is about."""
    file = module(tmp_path / "acme.py", head=f"{WRITES}\n")
    before = source_hash(file)
    assert only(file).source == before != source_hash(file)


ALIKE: dict[str, Callable[[Path], object]] = {
    "the same again": lambda folder: write(folder / "shared.py", (folder / "shared.py").read_text()),
    "touched": lambda folder: (folder / "shared.py").touch(),
    "compiled": lambda folder: (folder / "conv.so").write_bytes(b"\x7fELF\0"),
    "records": lambda folder: write(folder / "run.jsonl", "{}"),
    "hidden": lambda folder: write(folder / ".git" / "HEAD", "other"),
}


def watched(tmp_path: Path) -> tuple[Path, SourceFiles]:
    folder = package(tmp_path / "acme", "x")
    write(folder / "run.jsonl", "")
    write(folder / ".git" / "HEAD", "main")
    return folder, SourceFiles(folder)


@pytest.mark.parametrize("change", ALIKE.values(), ids=ALIKE)
def test_what_is_written_beside_sources_is_no_change_of_them(tmp_path: Path, change: Callable[[Path], object]):
    folder, files = watched(tmp_path)
    change(folder)
    files.require_unchanged()


def changed_in_time(folder: Path) -> None:
    """Length and time of the last change are the same, as far as somebody can set them."""
    file = folder / "shared.py"
    before = file.stat()
    write(file, file.read_text()[::-1])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [changed_in_time, *(CHANGES[name] for name in ("content", "place", "removal"))])
def test_a_change_of_sources_is_one_for_good(tmp_path: Path, change: Callable[[Path], object]):
    folder, files = watched(tmp_path)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    change(folder)
    with pytest.raises(ImplementationError, match=r"acme: .* during the run: what ran is not the source that the rec"):
        files.require_unchanged()
    for file, content in before.items():
        file.write_bytes(content)
    with pytest.raises(ImplementationError, match="during the run"):
        files.require_unchanged()


def test_the_reason_is_that_of_the_kernel_that_comes_nearest():
    """The last of stacked declarations gave its reason, also where another dtype was the reason."""
    acme = Implementation("acme")
    acme.implements("conv_forward", dtypes=("fp32",), when=lambda p: False)(lambda x, w, bias: None)
    acme.implements("conv_forward", dtypes=("bf16",))(lambda x, w, bias: None)
    geometry = parse("n1 c1 h2 w2 k1 r1 s1")
    for dtype, layout, reason in (
        ("fp32", "nchw", "outside the declared capability (when=...)"),
        ("fp16", "nchw", "dtype fp16 is not declared (declared: fp32, bf16)"),
        ("bf16", "nhwc", "layout nhwc is not declared (declared: nchw)"),
    ):
        with pytest.raises(Unsupported) as caught:
            acme.find("conv_forward", geometry, dtype, layout)
        assert str(caught.value) == reason


def test_predicate_may_raise_why_a_problem_is_unsupported():
    def even(geometry: Any) -> bool:
        if geometry.c % 2:
            raise Unsupported("C is odd")
        return True

    acme = Implementation("acme")
    acme.implements("conv_forward", when=even)(lambda x, w, bias: None)
    acme.waive("conv_forward", reason="slow", url="acme#1", when=even)
    odd = parse("n1 c1 h2 w2 k1 r1 s1")
    with pytest.raises(Unsupported, match=r"^C is odd$"):
        acme.find("conv_forward", odd, "fp32", "nchw")
    with pytest.raises(ImplementationError, match=r"when=\.\.\. of a waiver raised Unsupported: C is odd"):
        acme.waiver("conv_forward", odd, "fp32", "fixed")
    assert acme.supports("conv_forward", parse("n1 c2 h2 w2 k1 r1 s1"), "fp32", "nchw")


def test_a_file_named_like_the_package_that_it_lacks_is_unavailable(tmp_path: Path):
    """It was taken for a neighbour of itself, and for broken."""
    file = tmp_path / "absent_engine.py"
    file.write_text("import absent_engine\nfrom conformance import Implementation\nacme = Implementation('acme')\n")
    assert load([file]).unavailable == {"absent_engine": "No module named 'absent_engine'"}


TWICE = """
from conformance import Contract, Implementation
acme = Implementation("acme")
threes = lambda p: p.r == 3

@acme.implements("conv_forward"{first})
def fast(x, w, bias): ...

@acme.implements("conv_forward"{second})
def general(x, w, bias): ...
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("", ""),
        (", dtypes=('fp32', 'bf16')", ", dtypes=('bf16',)"),
        ("", ", when=threes"),
        (", when=threes", ", when=threes"),
        (", layouts=('nhwc', 'nchw')", ""),
    ],
)
def test_a_function_that_is_never_called_is_an_error_of_the_file(tmp_path: Path, first: str, second: str):
    """The second of two for one operator was ignored in silence, and the first one verified in its place."""
    path = write(tmp_path / "acme.py", TWICE.format(first=first, second=second))
    registry = load([path])
    assert registry.implementations == {}
    reason = str(registry.broken[str(path)])
    assert f"conv_forward: general ({path}:9) is never called: fast ({path}:6) takes all" in reason


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (", dtypes=('fp32',)", ", dtypes=('fp32', 'bf16')"),
        (", when=threes", ""),
        (", when=threes", ", when=lambda p: p.r == 1"),
        (", layouts=('nhwc',)", ", layouts=('nchw',)"),
        (", dtypes=('bf16',), contract=Contract(accumulate='bf16')", ""),
    ],
)
def test_several_functions_of_an_operator_share_its_problems(tmp_path: Path, first: str, second: str):
    path = write(tmp_path / "acme.py", TWICE.format(first=first, second=second))
    assert [kernel.function.__name__ for kernel in only(path).kernels] == ["fast", "general"]


def test_two_functions_may_leave_nothing_to_a_third(tmp_path: Path):
    third = "acme.implements('conv_forward', dtypes=('fp32', 'bf16'))(max)"
    text = TWICE.format(first=", dtypes=('fp32',)", second=", dtypes=('bf16',)") + third
    path = write(tmp_path / "acme.py", text.replace("(max)", "(lambda x, w, bias: ...)"))
    reason = str(load([path]).broken[str(path)])
    assert f"<lambda> ({path}:11) is never called: fast ({path}:6), general ({path}:9) take all" in reason
