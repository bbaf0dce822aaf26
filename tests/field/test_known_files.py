"""Known-bad and known-good kernels of contracts.py and storage.py, in processes of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from conformance.dtypes import DTYPES
from conformance.execution.case import Case
from conformance.execution.plan import Plan
from conformance.execution.process import Limits
from conformance.execution.required import VerificationDemand
from conformance.execution.selection import Selection
from conformance.execution.status import Verdict
from conformance.execution.verify import verify
from conformance.execution.workers import Workers
from conformance.inputs import DISTRIBUTIONS
from conformance.operators import OPERATORS, ORDINARY
from conformance.problems import LAYOUTS, PROBLEMS, Problem
from tests.field import contracts, storage


class Tried:
    """The implementations of a file, and their verdicts on the planned cases of some problems."""

    def __init__(self, module: ModuleType, level: str, problems: Sequence[Problem], workers: Workers) -> None:
        file = Path(str(module.__file__))
        every = (tuple(OPERATORS), DTYPES, LAYOUTS, tuple(DISTRIBUTIONS))
        selection = Selection((), (file,), level, tuple(problems), *every, 0, "auto")
        self.plan, self.workers = Plan(selection, file.parent, {}, workers), workers
        self.every = dict(self.plan.registry.implementations)
        self.stored = problems is STORED  # where what is drawn and has none would be planned as well

    def verdicts(self, name: str, *operators: str, turn: slice = slice(None)) -> Iterator[Verdict]:
        """Of the cases whose turn it is, one after the other, so that a failure can be the last."""
        self.plan.registry.implementations = {name: self.every[name]}
        demands = (VerificationDemand(self.plan.ranked, operator) for operator in operators)
        planned = chain.from_iterable(map(self.plan.required, demands))
        cases = (case for case in planned if isinstance(case, Case) and (case.variant.storage or not self.stored))
        for case in islice(cases, turn.start, turn.stop, turn.step):
            verdict = verify(case)
            self.workers.conclude(case.implementation, verdict)
            yield verdict

    def failures(self, name: str, *operators: str, statuses: Sequence[str] = ("fail",)) -> Iterator[str]:
        return (verdict.reason for verdict in self.verdicts(name, *operators) if verdict.status in statuses)


def named(prefix: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(prefix)]


@pytest.fixture(scope="module")
def of_contracts() -> Iterator[Tried]:
    with Workers(Limits()) as workers:
        yield Tried(contracts, "smoke", PROBLEMS, workers)


@pytest.mark.parametrize("name", named("bad-", contracts.NAMES))
def test_known_bad_contract_is_detected(of_contracts: Tried, name: str):
    operator = "conv_backward_weight" if name == "bad-last-result-is-zero" else "conv_forward"
    refused = (reason.startswith("refuses these values") for reason in of_contracts.failures(name, operator))
    assert any(refused) if "refuses" in name else not next(refused)


@pytest.mark.parametrize("operator", ORDINARY)
def test_zeros_are_detected(of_contracts: Tried, operator: str):
    assert next(of_contracts.failures("bad-zeros", operator))


TURNS = ("conv_backward_weight", "conv_bn_backward", "avg_pool_forward")
"""Operators beside conv_forward that known-good contracts are tried on, by turns."""


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        (name, tried)
        for i, name in enumerate(named("good-", contracts.NAMES))
        for tried in ("conv_forward", TURNS[i % len(TURNS)])
    ],
)
def test_known_good_contract_is_not(of_contracts: Tried, name: str, operator: str):
    found = {verdict.status for verdict in of_contracts.verdicts(name, operator)}
    assert {"pass"} <= found <= {"pass", "unsupported"}


def test_a_refusal_at_run_time_is_told_from_a_declared_one(of_contracts: Tried):
    found = of_contracts.verdicts("good-refuses-strides", "conv_forward")
    assert {verdict.refused for verdict in found if verdict.reason == "strides of two"} == {True}
    assert not any(verdict.refused for verdict in of_contracts.verdicts("good-tf32", "conv_bn_inference"))


ONLY = {"beta": "beta", "running-var": "running_var", "statistics": "running_mean", "gradient": "dy"}
"""Word in a known-bad kernel's name -> the operand that it spoils: operators without it have nothing to detect."""
STORED = [
    replace(problem, variants=stored)
    for problem in PROBLEMS
    if (stored := tuple(variant for variant in problem.variants if variant.storage))
]
"""The tables, without what is no case of storage: to plan all of these and to draw more took most of the time."""


@pytest.fixture(scope="module")
def of_storage() -> Iterator[Tried]:
    with Workers(Limits()) as workers:
        yield Tried(storage, "standard", STORED, workers)


@pytest.mark.parametrize("name", named("bad-", storage.NAMES))
def test_known_bad_storage_is_detected(of_storage: Tried, name: str):
    only = next((operand for word, operand in ONLY.items() if word in name), "")
    operators = [name for name, operator in OPERATORS.items() if not only or only in operator.arguments]
    reason = next(of_storage.failures(name, *operators, statuses=("fail", "error")))
    assert "only with" in reason or reason.startswith("raised ")


KNOWN_GOOD = named("good-", storage.NAMES)


@pytest.mark.parametrize("name", KNOWN_GOOD)
def test_known_good_storage_is_not(of_storage: Tried, name: str):
    """They take turns, so that every case is one of them's."""
    turn = slice(KNOWN_GOOD.index(name), None, len(KNOWN_GOOD))
    found = list(of_storage.verdicts(name, "conv_backward_weight", "max_pool_backward", turn=turn))
    assert {verdict.status for verdict in found} <= {"pass", "unsupported"}
    # torch accumulates 16-bit gradients in 16 bits where the processor has no instructions for them
    refused = {verdict.reason for verdict in found if verdict.status == "unsupported"}
    assert {r for r in refused if not r.startswith(("refuses ", "the declared contract allows zeros"))} == set()
