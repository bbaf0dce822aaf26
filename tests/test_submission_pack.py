"""Packing, running again, and shards of a run."""

from __future__ import annotations

import json
import math
import pkgutil
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from conformance import suites
from conformance.__main__ import main
from conformance.checks import required
from conformance.execution.claims import Key
from conformance.problems import named
from conformance.reporting.submission import archive
from conformance.reporting.submission.complete import defects, with_layouts
from conformance.reporting.submission.required import required_cases
from conformance.results.schema import Record
from conformance.training.tables import networks
from tests.report_samples import absent, as_read, sample, trained
from tests.submissions import STATEMENT, Vendor, vendor, verdicts


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Vendor:
    return vendor(tmp_path_factory.mktemp("acme"))


def submitted(acme: Vendor, output: Path, *results: str) -> int:
    words = ["submit", "--statement", acme.path("statement.txt"), "-o", output]
    return main([str(word) for word in (*words, *map(acme.path, results or ("records.jsonl", "bench.json")))])


def without_seconds(path: Path) -> Counter[str]:
    """Records by what they say, except how long it took."""
    records = map(json.loads, verdicts(path))
    return Counter(json.dumps({k: v for k, v in r.items() if k != "seconds"}, sort_keys=True) for r in records)


def test_two_packings_are_the_same_bytes(acme, tmp_path):
    assert submitted(acme, tmp_path / "a.zip") == submitted(acme, tmp_path / "b.zip") == 0
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_incomplete_records_are_not_packed(acme, tmp_path, capsys):
    text = verdicts(acme.path("records.jsonl"))
    text.remove(next(line for line in text if '"distribution":"fixed"' in line))
    acme.path("less.jsonl").write_text("".join(text))
    assert submitted(acme, tmp_path / "a.zip", "less.jsonl") == 1
    assert "NOT PACKED: 1 defects" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_run_that_was_cut_off_is_not_packed(acme, tmp_path, capsys):
    lines = acme.path("records.jsonl").read_text().splitlines(keepends=True)
    acme.path("cut.jsonl").write_text("".join(lines[:-1]))
    assert submitted(acme, tmp_path / "a.zip", "cut.jsonl") == 4
    assert "cut.jsonl: the run of 20" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_records_of_others_are_left_out(acme, tmp_path, capsys):
    text = verdicts(acme.path("records.jsonl"))
    acme.path("mixed.jsonl").write_text("".join([*text, text[0].replace('"acme"', '"other"')]))
    assert submitted(acme, tmp_path / "a.zip", "mixed.jsonl") == 0
    assert "left out: 1 records" in capsys.readouterr().out
    assert b'"other"' not in archive.unpacked((tmp_path / "a.zip").read_bytes())["records/00.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("statement.txt", STATEMENT.replace("Signed-off-by", "Yours"), "is not signed"),
        ("records.jsonl", "nonsense\n", "is not JSON"),
        ("records.jsonl", '{"schema": 1}\n', "written in schema 1"),
        ("bench.json", "{}", "missing required field `machine_info`"),
        ("notes.md", "# Notes", "neither records (.jsonl) nor benchmarks (.json)"),
    ],
)
def test_bad_input_is_named(name, content, reason, acme, tmp_path, capsys):
    spoilt = Vendor(tmp_path)
    for own in ("statement.txt", "records.jsonl", "bench.json"):
        spoilt.path(own).write_bytes(acme.path(own).read_bytes())
    spoilt.path(name).write_text(content)
    results = [own for own in ("records.jsonl", "bench.json", "notes.md") if spoilt.path(own).exists()]
    assert submitted(spoilt, tmp_path / "a.zip", *results) == 4
    told = capsys.readouterr().err
    assert reason in told
    assert "Traceback" not in told
    assert not (tmp_path / "a.zip").exists()


def test_files_that_cannot_be_read_or_written(acme, tmp_path, capsys):
    assert submitted(acme, tmp_path / "a.zip", "none.jsonl") == 4
    assert "cannot be read" in capsys.readouterr().err
    assert submitted(acme, tmp_path / "no" / "a.zip") == 4
    assert "cannot be written" in capsys.readouterr().err


def verified(path: Path, *options: str) -> int:
    return main(["verify", str(path), *options])


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "none.zip")]) == 4
    assert "cannot be read" in capsys.readouterr().err


def test_a_sample_repeats(acme, tmp_path, capsys):
    assert submitted(acme, tmp_path / "a.zip") == 0
    capsys.readouterr()
    options = ["--rerun", "4", f"--impl={acme.path('acme.py')}", "--draw", "5"]
    assert verified(tmp_path / "a.zip", *options) == 0
    told = capsys.readouterr().out
    assert told.count("  agrees: conv_forward acme-") == 4
    assert "4 of 37 verdicts were drawn and run again" in told
    assert f"escape: {math.comb(36, 4) / math.comb(37, 4):.2%} if 1 is, " in told
    assert verified(tmp_path / "a.zip", *options) == 0
    assert capsys.readouterr().out == told
    assert verified(tmp_path / "a.zip", *options[:-1], "6") == 0
    assert capsys.readouterr().out != told.replace("--draw 5", "--draw 6")


def test_what_is_claimed_is_not_unsupported(acme, tmp_path, capsys):
    """A file of claims says that a case was verified which the submission calls unsupported."""
    own = tmp_path / "acme.py"
    own.write_text(acme.path("acme.py").read_text())
    assert main(["claims", "write", str(own), str(acme.path("records.jsonl"))]) == 0
    assert submitted(acme, tmp_path / "a.zip") == 0
    assert verified(tmp_path / "a.zip", "--rerun", "1", f"--impl={own}") == 0
    claims = json.loads((tmp_path / "acme.claims.json").read_text())
    section = claims["implementations"]["acme"]
    section["problems"]["edge.asymmetric-all"] = named("edge.asymmetric-all").geometry.descriptor
    group = next(group for group in section["cases"]["conv_forward"] if "fp32 nchw fixed" in group["variants"])
    group["problems"].append("edge.asymmetric-all")
    (tmp_path / "acme.claims.json").write_text(json.dumps(claims))
    capsys.readouterr()
    assert verified(tmp_path / "a.zip", "--rerun", "1", f"--impl={own}") == 1
    assert "DIFFERS: conv_forward edge.asymmetric-all fp32 nchw" in (told := capsys.readouterr().out)
    assert "claimed in acme.claims.json, but unsupported" in told


def test_nothing_is_run_where_the_kernel_is_not(acme, tmp_path, capsys):
    assert submitted(acme, tmp_path / "a.zip") == 0
    assert verified(tmp_path / "a.zip", "--rerun", "4") == 5
    assert "NOTHING WAS RUN AGAIN" in capsys.readouterr().out
    other = tmp_path / "acme.py"
    other.write_text(acme.path("acme.py").read_text() + "\n# changed\n")
    assert verified(tmp_path / "a.zip", "--rerun", "4", f"--impl={other}") == 5
    assert "the sources here are not those of the submission" in capsys.readouterr().out


def test_two_groups_make_the_whole(acme, tmp_path):
    """Every case is in exactly one group, whether or not a group is run by several workers; a submission of both files
    is as good as one of the whole run's."""
    pytest.importorskip("pytest_split")
    lengths = tmp_path / "lengths.json"
    for group, more in (("1", ("--store-durations", f"--durations-path={lengths}")), ("2", ("-n", "2"))):
        shard = "--splits=2", f"--group={group}", f"--records={acme.path(f'{group}.jsonl')}"
        ended = acme.run("--level=smoke", *more, *shard)
        assert ended.returncode == 0, ended.stdout
    assert len(json.loads(lengths.read_text())) > 15
    one, two = (without_seconds(acme.path(f"{group}.jsonl")) for group in "12")
    assert one
    assert two
    assert one + two == without_seconds(acme.path("records.jsonl"))
    assert submitted(acme, tmp_path / "a.zip", "1.jsonl", "2.jsonl") == 0
    assert submitted(acme, tmp_path / "b.zip", "1.jsonl") == 1
    assert submitted(acme, tmp_path / "b.zip", "1.jsonl", "2.jsonl", "2.jsonl") == 1


def suite_marks(kind: str) -> list[pytest.Mark]:
    """The marks of one kind on the test functions of the suites."""
    modules = [import_module(f"{suites.__name__}.{info.name}") for info in pkgutil.iter_modules(suites.__path__)]
    functions = {value for module in modules for name, value in vars(module).items() if name.startswith("test_")}
    return [mark for function in functions for mark in getattr(function, "pytestmark", []) if mark.name == kind]


def test_what_is_required_is_what_suites_collect():
    verified = Counter((mark.args[0], mark.kwargs.get("when")) for mark in suite_marks("verifies"))
    assert verified == Counter(required.VERIFIED)
    assert sorted(name for mark in suite_marks("behaves") for name in mark.args) == sorted(required.CHECKS)
    assert {mark.args[0] for mark in suite_marks("trains")} == set(networks("standard"))


@pytest.mark.parametrize("level", ["smoke", "standard", "full"])
def test_what_is_due_grows_with_the_level(level: str):
    found = required_cases(level)
    assert found.networks == (() if level == "smoke" else ("digits", "unet"))
    assert {share.operator for share in found.verdicts} == {share.operator for share in found.behaviour}
    keys = [key for share in found.verdicts for key in share.keys]
    assert len(keys) == len(set(keys)) == sum(share.cases for share in found.verdicts)
    if level != "smoke":
        assert set(keys) > {key for share in required_cases("smoke").verdicts for key in share.keys}


@pytest.mark.parametrize(("layout", "like"), [("nhwgc", ""), ("mine", "nhwc"), ("mine", "ndhwc")])
def test_who_declares_a_layout_owes_all_of_its_cases(layout: str, like: str):
    """An implementation that leaves out a failure in one would look as if it had none."""
    usual = required_cases("standard")
    shares = [share for share in usual.verdicts if share.operator == "conv_forward"]
    due = sorted(key for share in shares for key in share.optional if key.layout == layout)
    if like:
        due = sorted(key._replace(layout=layout) for share in shares for key in share.keys if key.layout == like)
    every = [as_read(sample(**dict(zip(Key._fields, key, strict=True)))) for key in due]

    def told(records: list[Record]) -> list[str]:
        return [*defects(records, with_layouts(usual, records))]

    def without(count: int) -> str:
        return f"conv_forward: {count} cases have no verdict"

    others = sum(len(share.keys) for share in shares)
    assert len(due) > 10
    assert without(others) in told(every)
    assert without(others + 1) in told(every[1:])
    stray = as_read(sample(**dict(zip(Key._fields, due[0]._replace(problem="bn.plain"), strict=True))))
    assert any(f" {layout} " in line and line.endswith("is not required") for line in told([*every, stray]))


def test_a_network_is_trained_once_or_declared_absent():
    def told(*records: Record) -> list[str]:
        return [defect for defect in defects(records, required_cases("standard")) if defect.startswith("training ")]

    digits = as_read(trained())
    untrained = as_read(absent(operator="training", cases=1))
    assert told() == ["training digits has no verdict", "training unet has no verdict"]
    assert told(digits, digits) == ["training digits has 2 verdicts", "training unet has no verdict"]
    assert told(digits, untrained) == []
