"""The files of the pages on contracts pass as they stand, and fail without what they declare."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from conformance import Contract, check
from conformance.contract import ContractError
from conformance.results.reading import verdicts
from tests.conftest import ROOT
from tests.documents import UNDECLARED, contract_examples
from tests.kit import command

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")  # infinity minus infinity
EXAMPLES = dict(contract_examples())
POINTWISE, SQUARE = "n2 c8 h9 w9 k16 r1 s1", "n1 c1 h6 w6 k4 r3 s3 p1"
SHOWN_BY = {
    "tf32": (POINTWISE, "fp32", "fixed"),
    "fp16": (POINTWISE, "fp16", "fixed"),
    "fp8": ("n1 c64 h2 w2 k24 r1 s1", "fp8_e4m3", "absorbed"),
    "stochastic": (POINTWISE, "bf16", "fixed"),
    "splitk": (POINTWISE, "bf16", "fixed"),
    "ozaki": (POINTWISE, "fp32", "range"),
    "winograd": (SQUARE, "fp32", "nonfinite"),
    "winograd16": (SQUARE, "fp16", "fixed"),
    "fft": (SQUARE, "fp32", "nonfinite"),
    "flushed": (POINTWISE, "fp32", "subnormal"),
}
"""File -> the case that fails where its contract is not declared."""
LEAST = {"fp8": 1, "winograd16": 20}
"""File -> number of cases of level smoke that more must pass than, if not 50: fp16 runs without its sizes."""


def test_every_example_passes_at_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, text in EXAMPLES.items():
        (tmp_path / f"{name}.py").write_text(text)
    files = [f"{name}.py" for name in EXAMPLES]
    # sums in a loop of fp16 took most of the time, and what depends on the extents of an image is the others' as well
    few = ("-k", "not (fp16 and sizes)")
    status, text = command("run", *files, "--level=smoke", "--records=run.jsonl", "--in-process", *few)
    assert status == 0, text
    judged = [(record.implementation, record.status) for _, record in verdicts(tmp_path / "run.jsonl")]
    counts = Counter(one for one in judged if one[1] != "unsupported")
    assert {status for _, status in counts} == {"pass"}
    assert {name for name, _ in counts if counts[name, "pass"] > LEAST.get(name, 50)} == EXAMPLES.keys()


def test_every_example_that_declares_something_is_here():
    assert SHOWN_BY.keys() == {name for name, text in EXAMPLES.items() if UNDECLARED.search(text)}
    assert len(EXAMPLES) == len(SHOWN_BY) + 1


@pytest.mark.parametrize("name", SHOWN_BY)
def test_an_example_fails_without_its_contract(tmp_path: Path, name: str):
    file = tmp_path / f"{name}.py"
    file.write_text(UNDECLARED.sub("", EXAMPLES[name]))
    problem, dtype, distribution = SHOWN_BY[name]
    assert check(file, problem, dtype=dtype, distribution=distribution, in_process=True).status == "fail"


def test_the_page_quotes_what_is_said_of_a_misspelt_contract():
    with pytest.raises(ContractError) as refused:
        Contract(inputs="tf23")
    assert f"`{refused.value}`" in (ROOT / "docs/contracts.md").read_text()
