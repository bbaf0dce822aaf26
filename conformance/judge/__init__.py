"""Judges an output against its exact reference. Imports neither pytest nor a framework nor an implementation."""

from __future__ import annotations

from conformance.contract import Contract, ContractError
from conformance.judge.expected import Exact, Expected, expect
from conformance.judge.judgement import Check, Comparison, Judgement, Worst, compare, judge, passes
from conformance.judge.output import Output, outputs_of

__all__ = [
    "Check",
    "Comparison",
    "Contract",
    "ContractError",
    "Exact",
    "Expected",
    "Judgement",
    "Output",
    "Worst",
    "compare",
    "expect",
    "judge",
    "outputs_of",
    "passes",
]
