"""Documents: generated blocks have the form that the code prints, links lead somewhere, words are the field's."""

from __future__ import annotations

import re
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest

from conformance.contract import _CHOICES, Contract
from conformance.inputs import Expectation, Recipe
from conformance.operators import CONVOLUTIONS, OPERATORS, parse
from conformance.reporting import accuracy, training
from conformance.reporting.tally import Tally
from conformance.results.schema import SCHEMA, STATUSES
from conformance.storage import KINDS
from tests.calibration.conv import known_bad
from tests.conftest import ROOT
from tests.documents import BLOCKS, DOCUMENTS, Sources, blocks, main, render

TEXTS = {path: path.read_text() for path in DOCUMENTS}
GENERATED = {name: body for text in TEXTS.values() for name, body in blocks(text).items()}
EVERY = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
README_WORDS, PAGE_WORDS = 900, 1500
"""What is longer is not read."""


def heads(block: str) -> list[tuple[str, ...]]:
    """The headings of a block's tables."""
    rows = re.findall(r"^\| (.*) \|\n\|[-:| ]+\|$", block, re.MULTILINE)
    return [tuple(row.split(" | ")) for row in rows]


def test_readme_opens_with_the_users_kernel_and_its_failure():
    text = TEXTS[ROOT / "README.md"]
    assert len(text.split()) <= README_WORDS
    order = ("pip install .", "# acme.py", "conformance run acme.py", "reproduce:", "tox -e cpu", "tox -e selftest")
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)


def test_pages_are_short():
    pages = [*ROOT.glob("docs/*.md"), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
    assert {path.name for path in pages if len(path.read_text().split()) > PAGE_WORDS} == set()


@EVERY
def test_markers_are_pairs_of_known_names(path: Path):
    markers = re.findall(r"^<!-- (begin|end): (\S+) -->$", TEXTS[path], re.MULTILINE)
    names = [name for kind, name in markers if kind == "begin"]
    assert markers == [(kind, name) for name in names for kind in ("begin", "end")]
    assert set(names) <= BLOCKS.keys()
    assert set(names) == blocks(TEXTS[path]).keys()


def test_every_block_is_used_and_written():
    assert GENERATED.keys() == BLOCKS.keys()
    assert [name for name, body in GENERATED.items() if not body.strip()] == []


@pytest.mark.parametrize("name", [name for name, (needs, _) in BLOCKS.items() if not needs])
def test_blocks_made_from_the_code_are_current(name: str):
    assert GENERATED[name] == render(name, Sources([], Tally())), "run: python -m tests.documents"


def test_matrix_has_every_operator_and_its_note():
    """Run `python -m tests.documents RECORDS` after a run of `tox -e cpu` where this fails."""
    ((first, *_),) = heads(GENERATED["matrix"])
    rows = re.findall(r"^\| (\w+) \|", GENERATED["matrix"], re.MULTILINE)
    assert first == "operator"
    assert rows == ["operator", *OPERATORS, "training"]
    assert "\ncases that pass; " in GENERATED["matrix"]


def test_tables_of_a_run_have_the_columns_of_today():
    assert heads(GENERATED["accuracy"]) == [accuracy.HEADS]
    assert accuracy.NOTE in GENERATED["accuracy"]
    assert heads(GENERATED["training"]) == [training.HEADS]
    assert set(heads(GENERATED["memory"])) == {training.SAVED, training.STEP}
    assert {columns[0] for columns in heads(GENERATED["times"])} == {"problem"}
    assert re.findall("### (.*), time of a call", GENERATED["times"]) == list(CONVOLUTIONS)


def test_lines_of_a_run_have_the_form_of_today():
    form = {
        "counts": r"Level \w+, .+\.\n[\d,]+ cases: [\d,]+ pass.*\.",
        "mutation": r"[\d,]+ known-bad kernels: mutation score (\d+)/\1 = 100\.0%\.",
        "false-alarms": r"\d+ known-good kernels: [\d,]+ verdicts, 0 false alarms\.",
    }
    for name, pattern in form.items():
        assert re.fullmatch(pattern, GENERATED[name].strip()), GENERATED[name]
    for name in ("accepted", "waived"):
        assert all(re.match(r"- `[^`]+`: .+ \([\d,]+ x\)$", line) for line in GENERATED[name].strip().splitlines())


def test_tables_by_hand_name_what_there_is():
    statuses = re.findall(r"^\| (\w+) \| ", (ROOT / "README.md").read_text().split("Exit codes")[0], re.MULTILINE)
    assert statuses == ["status", *STATUSES]
    contract = TEXTS[ROOT / "docs/api.md"].split("## Contract")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (.*) \| .* \|$", contract, re.MULTILINE)
    assert [name for row, _ in rows for name in re.findall(r"`(\w+)`", row)] == [f.name for f in fields(Contract)]
    for row, values in rows:
        for name in re.findall(r"`(\w+)`", row):
            assert all(f"`{choice}`" in values for choice in _CHOICES.get(name, ())), name
    assert f"version {SCHEMA}" in (ROOT / "docs/reports.md").read_text()


def test_every_kind_of_storage_has_a_row():
    """`loose-ones`, in which kernels failed, was explained nowhere."""
    table = TEXTS[ROOT / "docs/checks.md"].split("\n| kind | ")[1].split("\n\n")[0]
    columns = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert sorted(name for column in columns for name in re.findall(r"`([\w-]+)`", column)) == sorted(KINDS)


def test_contributing_has_a_known_bad_kernel():
    """The example runs beside the others of its file, and is not its good kernel."""
    example = re.findall(r"^    ```python\n(.*?)^    ```", TEXTS[ROOT / "CONTRIBUTING.md"], re.DOTALL | re.MULTILINE)[0]
    names = dict(vars(known_bad))
    exec(textwrap.dedent(example).replace("\nMutant(", "\nmutant = Mutant("), names)
    recipe = Recipe(OPERATORS["conv_forward"].on(parse("n2 c8 h9 w9 k16 r3 s3 p1")), "fp32", "integer", 0)
    mutant, inputs = names["mutant"], Expectation(recipe).inputs
    assert mutant.applies("conv_forward", recipe.workload.geometry, "fp32")
    assert not mutant.equivalent(recipe.workload.operator, recipe.workload.geometry, inputs, "fp32")


@EVERY
def test_links_and_paths_lead_to_files(path: Path):
    text = TEXTS[path]
    links = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    assert [link for link in links if not (path.parent / link).exists()] == []
    named = re.findall(r"`((?:conformance|tests|impls|golden|docs)/[\w./-]+)`", text)
    assert [name for name in named if "FAMILY" not in name and not (ROOT / name).exists()] == []


def test_actions_are_pinned_by_commit():
    """A tag can be moved to another program."""
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / "docs" / "vendor-repository.md"]
    used = [name for file in files for name in re.findall(r"uses: (\S+)", file.read_text())]
    assert len(used) > 5
    assert [name for name in used if not re.search(r"@([0-9a-f]{40}|COMMIT)$", name)] == []


WRONG = {
    "other": (["--mutation"], b"nothing of a campaign\n", "no line with 'mutation score'"),
    "no text": (["--mutation"], b"\xff", "wrong: 'utf-8' codec can't decode byte 0xff"),
    "no records": ([], b"nothing\n", "wrong, lines 1 to 1: belong to no run"),
}


@pytest.mark.parametrize(("option", "content", "said"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_not_what_it_is_given_for_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys, option: list[str], content: bytes, said: str
):
    wrong = tmp_path / "wrong"
    wrong.write_bytes(content)
    before = {path: path.read_bytes() for path in DOCUMENTS}
    assert main([*option, str(wrong)]) == 4
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in DOCUMENTS} == before
