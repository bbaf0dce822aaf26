"""Numbers that verify derives once more: none of what a right kernel's records say is a defect, each change is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean
from typing import Any

import msgspec
import pytest

from conformance.execution.case import Case
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.inputs import probing
from conformance.judge import Contract
from conformance.operators import OPERATORS
from conformance.problems import Variant, named
from conformance.reporting.submission import numbers
from conformance.resources import IMPLS
from conformance.results import build
from conformance.results.schema import CaseRecord, TrainingRecord
from conformance.training.tables import DIRECTIONS, configuration
from tests.report_samples import as_read, trained


@pytest.fixture(scope="module")
def record() -> Callable[..., CaseRecord]:
    """A function that verifies a case of the NumPy kernels."""
    kernels = registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"]

    def run(operator: str, problem: str, variant: str, method: str = "auto") -> CaseRecord:
        case = Case(kernels, OPERATORS[operator], named(problem), Variant(*variant.split()), 0, method)
        found = build.record(case, verify(case))
        assert found.status == "pass"
        return found

    return run


@pytest.mark.parametrize(
    "case",
    [
        ("conv_forward", "edge.plain", "fp32 nchw fixed"),
        ("conv_forward", "edge.plain", "bf16 nchw fixed"),
        ("conv_backward_weight", "edge.asymmetric-all", "fp32 nchw fixed"),
        ("conv_backward_data", "edge.stride2", "fp32 nchw special"),
        ("conv_forward", "edge.depthwise", "fp16 nchw wide"),
        ("conv_bn_forward", "bn.plain", "fp32 nchw fixed"),
        ("conv_bn_backward", "bn.groups-stride", "bf16 nchw fixed"),
        ("conv_bn_inference", "bn.plain", "fp32 nchw shifted"),
        ("avg_pool_forward", "pool.3x3s2-ceil", "fp32 nchw fixed"),
        ("avg_pool_backward", "pool.valid", "bf16 nchw fixed"),
        ("max_pool_backward", "maxpool.dilation", "bf16 nchw fixed"),
    ],
    ids=" ".join,
)
def test_a_right_kernel_has_no_defect(case: tuple[str, str, str], record):
    assert list(numbers.defects(record(*case))) == []


@pytest.mark.parametrize("distribution", ["fixed", "integer"])
@pytest.mark.parametrize("operator", DIRECTIONS)
def test_probes(operator: str, distribution: str, record, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probing, "WORTHWHILE", 1)
    numbers.expectation.cache_clear()
    problem = "n2 c16 h9 w9 k16 r3 s3 p1" + " b1" * (operator != "conv_backward_data")
    found = record(operator, problem, f"fp32 nchw {distribution}", "probes")
    (main, *_) = found.checks
    assert found.method == "probes"
    assert list(numbers.defects(found)) == []
    value, limit = found.checks[main]["projection error"]
    raised = {**found.checks[main], "projection error": (value, 1.01 * limit + 1e-6)}
    assert any(
        defect.startswith(f"{main} projection error has the limit")
        for defect in numbers.defects(msgspec.structs.replace(found, checks=found.checks | {main: raised}))
    )


KNOWN = configuration("digits", "standard", "cpu")
LOSSES = [2.0 * 0.9**step for step in range(KNOWN.steps)]
TRAINED: dict[str, Any] = {
    "level": "standard",
    "contracts": dict.fromkeys(DIRECTIONS, Contract().as_record()),
    "checks": {"forward": {"worst error / bound": [0.4, 1.0]}},
    "training.steps": KNOWN.steps,
    "training.losses": LOSSES,
    "training.configuration": asdict(KNOWN),
    "training.scores.first_loss": LOSSES[0],
    "training.scores.last_loss": fmean(LOSSES[-(KNOWN.images // KNOWN.batch) :]),
}
UNTRUE: dict[str, dict[str, Any]] = {
    "no training configuration for network": {"level": "smoke"},
    "Contract(inputs=": {"contracts": {name: {"inputs": "magic"} for name in DIRECTIONS}},
    "has contracts of conv_forward, not of": {"contracts": {"conv_forward": Contract().as_record()}},
    "must have worst error / bound of every role": {"checks": {"forward": {"worst error / bound": [0.4, 2.0]}}},
    "configuration is not that of the level": {"training.configuration": {}},
    "did not verify 24 steps": {"training.losses": LOSSES[:-1]},
    "its steps give": {"training.scores.last_loss": 0.01},
    "it must fall to 0.5 of its first value": {
        "training.losses": [2.0] * KNOWN.steps,
        "training.scores.last_loss": 2.0,
    },
}


def training_defects(changes: dict[str, Any]) -> list[str]:
    """The defects of a training that passed, but for what is changed in its record."""
    record = trained()
    for path, value in (TRAINED | changes).items():
        *folders, name = path.split(".")
        place = record
        for folder in folders:
            place = place[folder]
        place[name] = value
    read = as_read(record)
    assert isinstance(read, TrainingRecord)
    return list(numbers.training_defects(read))


def test_a_training_has_no_defect():
    assert training_defects({}) == []


@pytest.mark.parametrize("reason", UNTRUE)
def test_a_training_that_cannot_be(reason: str):
    assert reason in "\n".join(training_defects(UNTRUE[reason]))
