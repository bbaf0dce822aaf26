"""The check that reads the arithmetic off a kernel whose contract is that of a matrix unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import Accumulator, Contract
from conformance.__main__ import main
from conformance.checks import CHECKS
from conformance.checks.behaviour_demand import BehaviourDemand
from conformance.execution.share import Ranked
from tests.kit import command, only, results, standard
from tests.report_samples import sample
from tests.report_samples import written as written_records

FILE = """
from conformance import Contract, Implementation
from tests.reading import kernels as k

acme = Implementation("acme", contract=Contract({contract}))

@acme.implements("conv_forward", dtypes=("fp8_e4m3",), when=lambda p: p.rank == 2 and p.groups == p.dilation[0] == 1)
def conv_forward(x, w, bias, *, stride, padding):
    return k.convolution(k.unit(32, {bits}, 13))(x, w, bias, stride=stride, padding=padding)
"""
UNIT = 'accumulate="hopper-fp8"'


def written(folder: Path, contract: str = UNIT, bits: int = 13) -> Path:
    file = folder / "acme.py"
    file.write_text(FILE.format(contract=contract, bits=bits))
    return file


@pytest.mark.parametrize(("bits", "said"), [(13, ()), (12, ("accumulate: contract=Contract(",))])
def test_what_the_declared_unit_does_not_allow_is_a_fact_and_no_failure(
    tmp_path: Path, bits: int, said: tuple[str, ...]
):
    records = tmp_path / "records.jsonl"
    problem, only_check = "n1 c4 h2 w2 k3 r1 s1", "arithmetic_is_as_declared"
    code, text = command(
        "run", str(written(tmp_path, bits=bits)), "--problem", problem, "--dtype", "fp8_e4m3", "--in-process",
        "-k", f"{only_check} or integer", f"--records={records}",
    )  # fmt: skip
    (record,) = [record for record in results(records) if record.get("check") == only_check]
    found = record["facts"].get("contradictions", [])
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))
    assert (record["status"], code) == ("pass", 0)
    assert ("contradicts its contract (not counted as a failure): conv_forward" in text) == bool(said)


@pytest.mark.parametrize(("contract", "asked"), [(UNIT, 1), ('accumulate="fp32"', 0)])
def test_only_matrix_units_are_read(tmp_path: Path, contract: str, asked: int):
    """A reading takes a second: kernels of ordinary sums have `conformance contract`."""
    acme = only(written(tmp_path, contract))
    plan = standard(acme)
    demand = BehaviourDemand(Ranked(plan.selection), CHECKS["arithmetic_is_as_declared"], "conv_forward")
    assert demand.is_foreign(acme) == (not asked)


def test_a_page_is_made_of_records_whose_contract_has_an_accumulator(tmp_path: Path):
    """None was: texts that many records share are held once, and fields of an accumulator are no key of these."""
    pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")
    unit = Accumulator(bits=12, group=4)
    records = written_records(tmp_path / "r.jsonl", [sample(contract=Contract(accumulate=unit).as_record())])
    assert main(["report", str(records), "-o", str(tmp_path / "page")]) == 0
    assert str(unit) in (tmp_path / "page" / "index.html").read_text()
