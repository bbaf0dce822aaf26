"""The survey: what is installed and run for which engine, and what becomes of what goes wrong."""

from __future__ import annotations

import json
import stat
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.execution.implementation_names import PREFIX
from conformance.resources import CHECKOUT, ENGINES, IMPLS
from conformance.survey import environments, survey_command, survey_file
from conformance.survey.environments import NATIVE, STAMP, Environments, Wanted, engines, requirements
from tests.conftest import ROOT

PYTHON = """#!{python}
# stands for the interpreter of an environment: what the suite is asked there, and canned answers
import json, pathlib, sys
words, here = sys.argv[2:], pathlib.Path(__file__).parent
with open(here / "asked", "a") as file:
    print(json.dumps(words), file=file)
if sys.argv[1:3] == ["-m", "pip"]:
    print(json.dumps([{{"name": "ncnn", "version": "1.0"}}, {{"name": "numpy", "version": "2.4"}}]))
elif words[:2] == ["conformance", "list"]:
    print(json.dumps([{{"name": "x", "variants": "{variants}"}}]))
else:
    records = pathlib.Path(next(w for w in words if w.startswith("--records=")).partition("=")[2])
    footer = {{"kind": "footer", "schema": 3, "ended": "now", "exit_status": {status}, "interrupted": False}}
    header = {{"kind": "header", "schema": 3, "started": "now", "command": [], "level": "smoke", "golden": ""}}
    header |= {{"seed": 0, "method": "auto", "versions": {{"processor": "P", "machine": "x86_64", "system": "Linux"}}}}
    footer |= {{"cases": {cases}, "digest": "0" * 64}}
    if {lines}:
        records.write_text("\\n".join(json.dumps(one) for one in (header, footer)[:{lines}]) + "\\n")
    print("said last")
    sys.exit({status})
"""


@pytest.fixture
def folder(tmp_path: Path):
    return tmp_path / "survey"


def environment(
    folder: Path, name: str, *, cases: dict | None = None, status: int = 0, lines: int = 2, variants: str = ""
) -> Path:
    """An environment that is there, and need not be made."""
    wanted = Wanted(name)
    python = environments.python_of(folder / "environments", wanted)
    python.parent.mkdir(parents=True)
    counts = {"pass": 3} if cases is None else cases
    text = PYTHON.format(python=sys.executable, cases=counts, status=status, lines=lines, variants=variants)
    python.write_text(text)
    python.chmod(python.stat().st_mode | stat.S_IEXEC)
    recipe = {"suite": str(CHECKOUT), "requirements": requirements(wanted), "python": sys.version}
    (python.parents[1] / STAMP).write_text(json.dumps(recipe))
    return python.parent / "asked"


def survey(folder: Path, *words: str) -> int:
    return main(["survey", "--folder", str(folder), "--level", "smoke", *words])


def runs(asked: Path) -> list[list[str]]:
    """The words of each `conformance run`."""
    found = [json.loads(line) for line in asked.read_text().splitlines()]
    return [words[1:] for words in found if words[:2] == ["conformance", "run"]]


def test_an_engine_is_run_and_noted(folder: Path, capsys: pytest.CaptureFixture[str]):
    asked = environment(folder, "ncnn", cases={"pass": 1234, "fail": 5}, status=1)
    assert survey(folder, "ncnn") == 0  # failures of an engine are results of a survey
    assert "ncnn: 1,234 pass, 5 fail; installed in" in capsys.readouterr().out
    (run,) = runs(asked)
    assert run[:5] == ["run", "--impl", "ncnn", "--level", "smoke"]
    (found,) = survey_file.read(folder).environments
    assert (found.name, found.records, found.reason, found.exit_status) == ("ncnn", "records/ncnn.jsonl", "", 1)
    assert found.packages == {"ncnn": "1.0"}
    assert survey_file.read(folder).machine == "P, x86_64, Linux"


def test_variants_run_after_it_at_smoke_level(folder: Path):
    asked = environment(folder, "ncnn", variants="[fp16]")
    assert main(["survey", "ncnn", "--folder", str(folder)]) == 0
    first, second = runs(asked)
    assert ("--variants" in first, first[first.index("--level") + 1]) == (False, "standard")
    assert ("--variants" in second, second[second.index("--level") + 1]) == (True, "smoke")
    assert [one.records for one in survey_file.read(folder).environments] == [
        "records/ncnn.jsonl", "records/ncnn-variants.jsonl",
    ]  # fmt: skip


def test_a_run_that_breaks_off_is_a_result_and_the_others_run(folder: Path):
    environment(folder, "ncnn", lines=1, status=3)
    environment(folder, "mlx")
    assert survey(folder, "ncnn", "mlx") == 1
    broken, other = survey_file.read(folder).environments
    assert broken.reason == "the run ended with 3: said last"
    assert (other.name, other.reason) == ("mlx", "")


def test_what_cannot_be_installed_is_a_result(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise survey_file.SurveyError("ncnn: pip install: no matching distribution")

    environment(folder, "mlx")
    monkeypatch.setattr(Environments, "_make", refused)
    assert survey(folder, "ncnn", "mlx") == 1
    assert [one.reason for one in survey_file.read(folder).environments] == [
        "ncnn: pip install: no matching distribution",
        "",
    ]


def test_engines_that_are_not_asked_for_stay(folder: Path):
    environment(folder, "ncnn")
    environment(folder, "mlx")
    survey(folder, "ncnn")
    survey(folder, "mlx")
    assert [one.name for one in survey_file.read(folder).environments] == ["ncnn", "mlx"]


def test_units_have_all_engines_and_one_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    engines = ("ncnn", "mlx", "onnxruntime")
    for name in engines:
        environment(folder, name)
    write = survey_file.write

    def writing(surveyed: survey_file.Survey, into: Path) -> None:
        """Let another unit end while this one is at work."""
        monkeypatch.setattr(survey_file, "write", write)
        write(surveyed, into)
        assert survey(folder, *engines, "--unit=2/2") == 0

    monkeypatch.setattr(survey_file, "locked", lambda folder: nullcontext())  # the other is in this process
    monkeypatch.setattr(survey_file, "write", writing)
    assert survey(folder, *engines, "--unit=1/2") == 0
    assert sorted(result.name for result in survey_file.read(folder).environments) == sorted(engines)


def test_a_run_that_is_to_be_stopped_is_a_sample(folder: Path):
    asked = environment(folder, "ncnn", status=2)
    assert survey(folder, "ncnn", "--minutes", "5") == 0
    assert "--minutes=5" in runs(asked)[0]
    assert survey_file.read(folder).environments[0].reason == "a sample: stopped after 5 minutes, as asked"


def test_records_of_an_earlier_run_are_not_taken_for_this_one(folder: Path):
    asked = environment(folder, "ncnn")
    assert survey(folder, "ncnn") == 0
    python = asked.with_name("python")
    python.write_text(python.read_text().replace("if 2:", "if 0:"))
    assert survey(folder, "ncnn") == 5
    (found,) = survey_file.read(folder).environments
    assert found.records == ""


def test_nothing_verified(folder: Path):
    environment(folder, "ncnn", cases={"unsupported": 9}, status=5)
    assert survey(folder, "ncnn") == 5


def test_every_engine_has_an_extra_a_tox_environment_and_its_name():
    tox = (ROOT / "tox.ini").read_text()
    for name in engines():
        assert requirements(Wanted(name))
        if name not in NATIVE:
            stem = name.replace("_", "-")
            assert stem in tox.partition(f"[testenv:{PREFIX}{{")[2].partition("}")[0].split(",")
            assert f'"{stem}' in (ENGINES / f"{name}.py").read_text()  # its implementations' names begin with it
    assert all((IMPLS / folder).is_dir() for folder in NATIVE.values())


def test_files_of_engines_are_short():
    assert {
        path.name: count for path in ENGINES.glob("*.py") if (count := len(path.read_text().splitlines())) > 160
    } == {}


def test_ends_of_a_file(tmp_path: Path):
    file = tmp_path / "r.jsonl"
    assert survey_command.ends(file) == (None, None)
    file.write_text("")
    assert survey_command.ends(file) == (None, None)
