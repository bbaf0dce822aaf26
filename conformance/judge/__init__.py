"""From an output and its exact reference to a judgement. No pytest, no framework, no implementation."""

from __future__ import annotations

from conformance.judge.contract import Contract, ContractError
from conformance.judge.judgement import Check, Judgement, Worst, judge
from conformance.judge.output import Output, outputs_of

__all__ = ["Check", "Contract", "ContractError", "Judgement", "Output", "Worst", "judge", "outputs_of"]
