"""Goldens: they hold, every kind of damage is named, and another language can make them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.checks.partial import Accumulating
from conformance.dtypes import DECLARABLE, WHOLE
from conformance.inputs import (
    DISTRIBUTIONS,
    Expectation,
    Recipe,
    golden,
    golden_command,
    npz,
    recipes,
)
from conformance.inputs.golden_command import verify
from conformance.inputs.manifest import MANIFEST, SEED, TENSORS, GoldenError, Manifest, digest_of, read, render
from conformance.operators import FAMILIES, OPERATORS, ConvGeometry
from conformance.problems import PROBLEMS
from conformance.resources import GOLDEN
from tests.calibration import goldens
from tests.kit import command

PINNED = recipes.pinned()[:12]
STORED = recipes.stored()[:2]
KEY = PINNED[0].key
ENTRY = f"entry '{KEY}'"
FILE = npz.file_name(STORED[0])
TENSOR = f"{TENSORS}/{FILE}"
Damage = Callable[[Path], object]
REGENERATE = "python -m tests.calibration goldens"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("golden")
    goldens.regenerate(folder, PINNED, STORED, 1)
    return contents(folder)


@pytest.fixture
def folder(pristine: dict[str, bytes], tmp_path: Path) -> Path:
    """A small folder of goldens, to be damaged."""
    for name, content in pristine.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_the_manifest_pins_every_recipe_on_a_line():
    wanted = {recipe.key for recipe in recipes.pinned()}
    assert read().entries.keys() == wanted, f"the tables or their ranking have changed; run: {REGENERATE}"
    assert sum(line.startswith('"splitmix64') for line in MANIFEST.read_text().splitlines()) == len(wanted)
    assert MANIFEST.stat().st_size < 6e6


def test_a_sample_of_the_manifest_holds(tmp_path: Path):
    sample, real = recipes.pinned()[::60], read()
    kept = Manifest({recipe.key: real.entries[recipe.key] for recipe in sample}, real.tensors)
    (tmp_path / MANIFEST.name).write_text(render(kept))
    (tmp_path / TENSORS).symlink_to(GOLDEN / TENSORS)
    assert verify(tmp_path, sample, recipes.stored(), 2) == 0


def test_stored_tensors_are_plain_numbers():
    for recipe in recipes.stored():
        with np.load(GOLDEN / TENSORS / npz.file_name(recipe), allow_pickle=False) as found:
            tensors = recipe.workload.inputs | recipe.workload.outputs
            shapes = {name.split("/")[1]: found[name].shape for name in found}
            assert shapes == {name: tensor.shape for name, tensor in tensors.items()}
            held = {name.split("/")[0]: found[name].dtype.str for name in found}
            assert held == {"inputs": "<f8" if recipe.dtype in ("fp64", *WHOLE) else "<f4", "outputs": "<f8"}
            assert all(np.isfinite(found[name]).all() for name in found) == (
                recipe.distribution not in ("special", "nonfinite", "mixed")
            )


def test_stored_tensors_show_every_feature():
    stored = recipes.stored()
    geometries: list[Any] = [recipe.workload.geometry for recipe in stored if recipe.workload.operator.family == "conv"]
    assert {"grouped" if g.c > g.groups else "depthwise" for g in geometries if g.groups > 1} == {
        "grouped",
        "depthwise",
    }
    assert any(max(g.dilation) > 1 for g in geometries)
    assert any(max(g.stride) > 1 for g in geometries)
    pinned = DISTRIBUTIONS.keys() - {"sparse"}  # which is for level huge alone
    assert {r.dtype for r in stored} | {r.distribution for r in stored} == {*DECLARABLE} | pinned
    assert {r.workload.operator.name for r in stored} == OPERATORS.keys()


def test_an_operator_that_no_line_names_has_a_small_stored_tensor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FAMILIES, "avg_pool", replace(FAMILIES["avg_pool"], goldens=()))
    stored = recipes.stored(["avg_pool"])
    assert [recipe.workload.operator.name for recipe in stored] == ["avg_pool_forward", "avg_pool_backward"]
    assert all(0 < recipe.workload.geometry.x.size <= recipes.SMALL for recipe in stored)


def test_undamaged_goldens_hold(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert verify(folder, PINNED, STORED, 1) == 0
    out, err = capsys.readouterr()
    assert out.startswith("goldens hold: 12 recipes, 2 tensor files, ")
    assert (out.count("\n"), err) == (1, "")


def on(name: str, change: Callable[[Path], object]) -> Damage:
    return lambda folder: change(folder / name)


def edited(change: Callable[[Any], object]) -> Damage:
    return on(MANIFEST.name, lambda path: path.write_text(json.dumps(changed(json.loads(path.read_text()), change))))


def changed(value: Any, change: Callable[[Any], object]) -> Any:
    change(value)
    return value


def in_entry(change: Callable[[Any], object]) -> Damage:
    return edited(lambda document: change(document["entries"][KEY]))


def rewritten(change: Callable[[str], str]) -> Damage:
    return on(MANIFEST.name, lambda path: path.write_text(change(path.read_text())))


def with_other(change: Callable[[dict[str, np.ndarray]], object]) -> Damage:
    """A stored file that is not what its recipe gives, and a manifest that vouches for it."""

    def damage(folder: Path) -> None:
        path = folder / TENSOR
        content = npz.encode(changed(npz.decode(path.read_bytes()), change))
        path.write_bytes(content)
        edited(lambda d: d["tensors"][FILE].update(sha256=npz.sha256(content)))(folder)

    return damage


MALFORMED = {
    "truncated": (rewritten(lambda text: text[: len(text) // 2]), "is not JSON"),
    "empty": (rewritten(lambda text: ""), "is not JSON"),
    "not-utf8": (on(MANIFEST.name, lambda path: path.write_bytes(b"\xff\xfe{")), "is not JSON"),
    "nested-deep": (rewritten(lambda text: "[" * 100_000), "is not JSON"),
    "not-an-object": (rewritten(lambda text: "[]"), "Expected `object`, got `array`"),
    "missing": (on(MANIFEST.name, Path.unlink), "is missing"),
    "folder": (on(MANIFEST.name, lambda p: p.rename(p.parent / "a").with_name(p.name).mkdir()), "cannot be read"),
    "format": (edited(lambda d: d.update(format=2)), "at `$.format`"),
    "seed-long": (
        rewritten(lambda text: text.replace('"seed": 0', f'"seed": {"9" * 5000}')),
        "the document: a number has 5000 digits; restore it",
    ),
    "generator": (edited(lambda d: d.pop("generator")), "missing required field `generator`"),
    "entry-number": (edited(lambda d: d["entries"].update({KEY: 7})), f"{ENTRY}: Expected `object`"),
    "entry-no-outputs": (in_entry(lambda e: e.pop("outputs")), f"{ENTRY}: Object missing required field `outputs`"),
    "digest-short": (in_entry(lambda e: e["inputs"].update(x="ab")), f"{ENTRY}: Expected `str` matching"),
    "entry-twice": (rewritten(lambda text: text.replace('"entries": {', f'"entries": {{"{KEY}": 1,')), "given twice"),
    "surrogate": (edited(lambda d: d["entries"].update({"\ud800": 7})), r"entry '\ud800': Expected `object`"),
    "tensors-text": (edited(lambda d: d["tensors"].update({FILE: "x"})), f"file '{FILE}': Expected `object`"),
    "tensors-path": (edited(lambda d: d["tensors"].update({"../x.npz": {}})), "file '../x.npz': is not the name"),
}
UNTRUE = {
    "digest": (in_entry(lambda e: e["outputs"].update(y=e["outputs"]["y"][::-1])), f"{ENTRY}: outputs.y is"),
    "tensor-absent": (in_entry(lambda e: e["inputs"].pop("x")), f"{ENTRY}: inputs.x is absent there"),
    "tensor-extra": (in_entry(lambda e: e["inputs"].update(z="0" * 64)), f"{ENTRY}: inputs.z is 000000000000 there"),
    "entry-missing": (edited(lambda d: d["entries"].pop(KEY)), f"{ENTRY} is missing, which the tables ask for"),
    "entry-extra": (edited(lambda d: d["entries"].update(a=d["entries"][KEY])), "entry 'a' is nothing that the tables"),
    "file-missing": (on(TENSOR, Path.unlink), f"{FILE}: cannot be read"),
    "file-truncated": (on(TENSOR, lambda p: p.write_bytes(p.read_bytes()[:-9])), f"{FILE}: edited or truncated"),
    "file-edited": (on(TENSOR, lambda p: p.write_bytes(b"X" + p.read_bytes()[1:])), f"{FILE}: edited or truncated"),
    "file-extra": (edited(lambda d: d["tensors"].update({"a.npz": d["tensors"][FILE]})), "'a.npz' is nothing that"),
    "file-not-listed": (edited(lambda d: d["tensors"].pop(FILE)), f"file '{FILE}' is missing, which the stored"),
    "file-stray": (on(TENSOR, lambda p: p.with_name("stray.npz").write_bytes(b"")), "stray.npz:"),
    "other-recipe": (edited(lambda d: d["tensors"][FILE].update(recipe="x")), "field recipe is 'x'"),
    "other-value": (with_other(lambda t: t["outputs/y"].__setitem__((0, 0, 0, 0), 0.5)), "'outputs/y' is not what"),
    "other-dtype": (with_other(lambda t: t.update({"inputs/x": t["inputs/x"].view("<i4")})), "'inputs/x' is not what"),
    "array-missing": (with_other(lambda t: t.pop("inputs/w")), "array 'inputs/w' is missing"),
    "array-extra": (with_other(lambda t: t.update(more=t["inputs/w"])), "array 'more' is not of this recipe"),
}


@pytest.mark.parametrize(("damage", "said"), (MALFORMED | UNTRUE).values(), ids=MALFORMED | UNTRUE)
def test_damage_is_named(folder: Path, capsys: pytest.CaptureFixture[str], damage: Damage, said: str):
    damage(folder)
    assert verify(folder, PINNED, STORED, 1) == 1
    out, err = capsys.readouterr()
    assert out == ""
    named = [line for line in err.splitlines() if said in line]
    assert named
    assert all(line.startswith(str(folder)) and (REGENERATE in line or "delete it" in line) for line in named)


@pytest.fixture
def pinned_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have suites compare with what is in the folder."""
    monkeypatch.setattr(golden, "_pinned", lambda: read(folder / MANIFEST.name))
    return folder


@pytest.mark.parametrize(("damage", "said"), {
    "malformed": MALFORMED["truncated"],
    "differs": (UNTRUE["digest"][0], r"outputs\.y .*conformance golden verify"),
    "missing": (UNTRUE["entry-missing"][0], f"{re.escape(ENTRY)} is missing.*{REGENERATE}"),
}.values())  # fmt: skip
def test_suites_name_what_is_wrong_with_a_golden(pinned_here: Path, damage: Damage, said: str):
    damage(pinned_here)
    with pytest.raises(GoldenError, match=said):
        golden.check(Expectation(PINNED[0]))


def test_suites_are_silent_where_a_golden_holds_or_none_is_due(pinned_here: Path):
    UNTRUE["digest"][0](pinned_here)
    golden.check(Expectation(PINNED[1]))
    golden.check(Expectation(replace(PINNED[2], seed=1)))
    unlisted = PINNED[2].workload.operator.on(ConvGeometry(n=1, c=1, size=(1, 2), k=1, window=(1, 1)))
    golden.check(Expectation(replace(PINNED[2], workload=unlisted)))


def test_missing_goldens_are_no_sign_of_wrong_arithmetic(pinned_here: Path, monkeypatch: pytest.MonkeyPatch):
    """Before the goldens of a new family are written, its cases are errors, and the run is not distrusted."""
    monkeypatch.setattr(recipes, "stored", lambda families: PINNED[:1])
    UNTRUE["digest"][0](pinned_here)
    with pytest.raises(GoldenError, match="no verdict can be trusted"):
        golden.check_known(["conv_forward"])
    UNTRUE["entry-missing"][0](pinned_here)
    golden.check_known(["conv_forward"])
    with pytest.raises(GoldenError) as error:
        golden.check(Expectation(PINNED[0]))
    assert error.value.alike == f"goldens are missing: {REGENERATE}"


def test_a_manifest_with_much_damage_is_cut_short(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert verify(folder, recipes.pinned()[:60], STORED, 1) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[-1].startswith("goldens do not hold: 48 defects, 28 of them not shown")


def test_regenerating_changes_no_byte(folder: Path, pristine: dict[str, bytes]):
    said = goldens.regenerate(folder, PINNED[::-1], STORED[::-1], 2)
    with np.load(folder / TENSOR) as written:
        assert {member.date_time for member in written.zip.infolist()} == {npz.EPOCH}
    assert said.count("0 added, 0 changed, 0 removed") == 2
    assert contents(folder) == pristine


@pytest.mark.parametrize("damage", [damage for damage, _ in UNTRUE.values()], ids=UNTRUE)
def test_regenerating_repairs(folder: Path, pristine: dict[str, bytes], damage: Damage):
    damage(folder)
    goldens.regenerate(folder, PINNED, STORED, 1)
    assert contents(folder) == pristine


def test_regenerating_counts(folder: Path):
    UNTRUE["digest"][0](folder)
    said = goldens.regenerate(folder, recipes.pinned()[:10] + recipes.pinned()[12:15], STORED[:1], 1)
    assert "13 recipes (3 added, 1 changed, 2 removed), 1 tensor files (0 added, 0 changed, 1 removed)" in said


@pytest.mark.parametrize("accident", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_nothing_is_half_written(folder: Path, monkeypatch: pytest.MonkeyPatch, accident: BaseException, at: int):
    for damage in ("digest", "file-truncated"):
        UNTRUE[damage][0](folder)
    before, calls = contents(folder), iter(range(9))

    def interrupted(_: int) -> None:
        if next(calls) == at:
            raise accident

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises((GoldenError, KeyboardInterrupt)):
        goldens.regenerate(folder, PINNED, STORED, 1)
    assert contents(folder) == before


def test_export_can_be_read_back(tmp_path: Path):
    words = "--problem=edge.pad-top", "--operator=conv_backward_data", "--dtype=bf16", "--distribution=wide"
    assert command("golden", "export", str(tmp_path / "new"), *words)[0] == 0
    geometry = ConvGeometry.parse("n2 c4 h8 w8 k6 r3 s3 p2:0x0")
    chosen = [Recipe(OPERATORS["conv_backward_data"].on(geometry), "bf16", "wide", 0)]
    assert verify(tmp_path / "new", chosen, chosen, 1) == 0


def test_export_of_another_seed_draws_other_data(tmp_path: Path):
    words = "--problem=n1 c2 h3 w3 k2 r1 s1", "--operator=conv_forward", "--dtype=fp32", "--distribution=fixed"
    assert command("golden", "export", str(tmp_path), *words)[0] == 0
    assert command("golden", "export", str(tmp_path), *words, "--seed", "7")[0] == 0
    name = "conv_forward-n1_c2_h3_w3_k2_r1_s1-fp32-fixed{}.npz"
    one, other = (npz.decode((tmp_path / TENSORS / name.format(end)).read_bytes()) for end in ("", "-seed7"))
    assert not (one["inputs/x"] == other["inputs/x"]).any()
    assert '"seed": 7' in (tmp_path / MANIFEST.name).read_text()


def test_export_names_a_folder_that_it_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("here")
    monkeypatch.setattr(golden_command, "GOLDEN", tmp_path / "golden")
    for target, said in {"file": "cannot be written", "file/below": "cannot be written", "golden": "choose"}.items():
        status, text = command("golden", "export", str(tmp_path / target), "--problem", "n1 c1 h1 w1 k1 r1 s1")
        assert (status, bool(re.match(f"export {tmp_path / target}: .*{said}", text))) == (4, True), text
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_progress_is_said_every_few_seconds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    for seconds, shown in ((10.0, ""), (0.0, "1 of 2 recipes, 0 s\n2 of 2 recipes, 0 s\n")):
        monkeypatch.setattr(recipes, "SECONDS", seconds)
        assert list(recipes.progress([1, 2], 2, "recipes")) == [1, 2]
        assert capsys.readouterr().err == shown


def test_digests_see_values_only():
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000, 1 << 63], dtype="<u8").view("<f8")
    plain = np.array([np.nan, np.nan, 0.0])
    assert digest_of(odd) == digest_of(plain)
    assert digest_of(plain.astype(np.float16)) == digest_of(plain)
    assert digest_of(np.arange(6.0).reshape(2, 3).T.copy().T) == digest_of(np.arange(6.0).reshape(2, 3))
    assert digest_of(np.array([1.0])) == hashlib.sha256(bytes.fromhex("000000000000f03f")).hexdigest()


DIGESTS = """
from conformance.inputs import Expectation, recipes
from conformance.inputs.manifest import entry
from conformance.operators import OPERATORS
from conformance.problems import PROBLEMS, at_level

rows = [(p, variants[:1]) for p, variants in at_level(PROBLEMS, "standard") if p.geometry.x.size < 1 << 18]
for name in OPERATORS:
    affordable = [r for r in recipes.from_rows(rows, operators=[name]) if r.workload.flops < 2e8]
    print(entry(Expectation(max(affordable, key=lambda recipe: recipe.workload.flops))))
"""
"""Prints the digests of the dearest affordable problem of each operator: on small ones BLAS takes one thread."""


def test_digests_do_not_depend_on_threads():
    said = []
    for environment in (os.environ | {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count} for count in "12"):
        said.append(subprocess.check_output([sys.executable, "-c", DIGESTS], env=environment, text=True))
    assert said[0] == said[1]
    assert said[0].count("outputs") == len(OPERATORS)


def test_a_file_of_many_members_is_refused_unread():
    """Two took 46 s."""
    with pytest.raises(ValueError, match="it has 17 members"):
        npz.decode(npz.encode({str(place): np.ones(1) for place in range(npz.MEMBERS + 1)}))


def test_a_member_that_unpacks_to_a_thousand_times_its_length_is_refused_unread():
    bomb = BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00" + bytes(1 << 24))
    with pytest.raises(ValueError, match="its members are compressed"):
        npz.decode(bomb.getvalue())


def test_a_check_that_makes_an_operator_of_its_own_needs_no_golden():
    """Sums into arrays on a problem of the tables ended in a KeyError."""
    geometry = next(
        problem.geometry for problem in PROBLEMS if problem.geometry.family == "conv" and problem.geometry.n
    )
    own = Accumulating(OPERATORS["conv_forward"])
    assert not golden.required(Recipe(own.on(geometry), "fp32", "fixed", SEED))
