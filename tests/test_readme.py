"""What README and documentation tell a newcomer to do works as written."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.__main__ import FAMILIES, MAINTAINERS, _parser, main
from conformance.cli.words import read
from conformance.engine.options import EVERYDAY
from tests.documents import DOCUMENTS
from tests.kit import command

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """Arguments of every command of a program in a code block, fenced or indented; each once."""
    text = "\n".join(path.read_text() for path in DOCUMENTS if path.name != "CHANGELOG.md")
    blocks = [*re.findall(r"```sh\n(.*?)```", text, re.DOTALL), *re.findall(r"^    .*", text, re.MULTILINE)]
    parts = [part.strip() for block in blocks for line in block.splitlines() for part in line.split("&&")]
    found = dict.fromkeys(part.split(" #")[0].rstrip() for part in parts if part.startswith(f"{program} "))
    return [shlex.split(command)[len(program.split()) :] for command in found]


def test_example_of_readme_passes(tmp_path: Path):
    example, *_ = EXAMPLE.findall((ROOT / "README.md").read_text())
    acme = tmp_path / "acme.py"
    acme.write_text(example)
    words = (str(acme), "--operator", "conv_forward", "-k", "1x1 or pointwise or one-product", "--in-process")
    status, text = command("run", *words)
    assert status == 0, text
    assert int(re.findall(r"acme conv_forward .*: (\d+) of \1 pass", text)[0]) > 10


@pytest.mark.parametrize("swapped", [False, True])
def test_the_case_that_readme_looks_at_is_the_one_that_it_shows_failing(tmp_path: Path, swapped: bool):
    """Its problem had a stride of 1, on which the kernel that swaps its strides passes."""
    readme = (ROOT / "README.md").read_text()
    kernel, look, *_ = EXAMPLE.findall(readme)
    (shown,) = re.findall(r"^reproduce: conformance check acme.py '(.*)'", readme, re.MULTILINE)
    assert f'"{shown}"' in look
    wrong = kernel.replace(":: stride[0], :: stride[1]", ":: stride[1], :: stride[0]")
    (tmp_path / "acme.py").write_text(wrong if swapped else kernel)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("fail: " if swapped else "pass: ")
    assert ("likely cause: strides swapped" in run.stdout) == swapped


def test_vendor_guide_has_the_example_of_readme():
    first, second = (EXAMPLE.findall((ROOT / name).read_text())[0] for name in ("README.md", "docs/vendor-guide.md"))
    assert first == second


def understood(program: str, folder: Path) -> list[list[str]]:
    """The commands of a program, at the lowest level and of one kernel where they name neither, without workers and
    without files that a run reads and writes. One that requires a device refuses to start without it, as it should;
    variants have processes of their own."""
    (folder / "acme.py").write_text(EXAMPLE.findall((ROOT / "README.md").read_text())[0])
    files = ("--records", "--resume", "--overwrite", "--problems", "--report", "--benchmark-json", "--store-durations")
    few = {"--impl": "numpy-direct", "--level": "smoke"}
    shortened = []
    for words in commands(program):
        if "--require" not in words and "[" not in " ".join(words):
            kept = [word.replace("acme.py", f"{folder}/acme.py") for word in words if not word.startswith(files)]
            if "-n" in kept:
                place = kept.index("-n")
                del kept[place : place + 2]
            usual = [f"{option}={name}" for option, name in few.items() if option not in " ".join(words)]
            shortened.append(["--in-process", *kept, *usual])
    return shortened


def test_runs_are_understood(tmp_path: Path):
    runs = understood("conformance run", tmp_path)
    assert len(runs) > 20
    for words in runs:
        read(words)


COLLECT = """
import json, sys, pytest
for words in json.load(sys.stdin):
    print("ENDED", int(pytest.main("--collect-only -qq -p no:xdist -p no:cacheprovider".split() + words)), *words)
"""
"""Every command in one process, which imports the frameworks once."""


def test_pytest_commands_are_understood(tmp_path: Path):
    # not what would take away the snapshots of tests that are only collected
    given = [words for words in understood("pytest", tmp_path) if "--snapshot-update" not in words]
    # a worker of pytest-xdist would pass on what it is
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-c", COLLECT]
    run = subprocess.run(command, input=json.dumps(given), cwd=ROOT, env=alone, capture_output=True, text=True)
    ended = re.findall(r"^ENDED (\d+) ?(.*)$", run.stdout, re.MULTILINE)
    assert len(ended) == len(given), run.stdout + run.stderr
    # 5: of a device that is not here there is nothing to collect
    assert [command for status, command in ended if status not in ("0", "5")] == [], run.stdout + run.stderr


@pytest.mark.parametrize("words", [w for w in commands("conformance") if w[0] != "run"], ids=" ".join)
def test_commands_of_the_package_are_understood(words: list[str]):
    arguments = _parser(words[:1]).parse_args(words)
    assert words[0] == "plan" or hasattr(arguments, "run")  # a plan reads the words of a run


def test_help_lists_what_people_use_and_the_rest_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]):
    listed = []
    for words in (["run", "--help"], ["run", "--help-expert"], ["--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        listed.append(capsys.readouterr().out)
    known = [set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)) for text in listed]
    assert known[0] == {*EVERYDAY, *["--all", "--help-expert", "--maxfail", "--lf", "--ff", "--pdb", "--junitxml"]}
    assert known[1] > {*EVERYDAY, "--programs", "--in-process"}
    assert set(re.findall(r"^    ([\w-]+)  ", listed[2], re.MULTILINE)) == FAMILIES.keys() - {*MAINTAINERS}


def test_tox_environments_exist():
    ini = configparser.ConfigParser(interpolation=None)
    ini.read(ROOT / "tox.ini")
    sections = {name.removeprefix("testenv:") for name in ini.sections()}
    assert {"trn{1,2}", "cpu", "docs"} < sections
    known = [re.sub(r"\{(.*?)\}", lambda factors: f"({factors[1].replace(',', '|')})", name) for name in sections]
    named = {words[words.index("-e") + 1] for words in commands("tox")}
    assert {"cpu", "selftest"} <= named
    assert [name for name in named if not any(re.fullmatch(pattern, name) for pattern in known)] == []
