"""Counts of cases by status, and other totals, from records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import cache, lru_cache

import msgspec

from conformance.checks import CHECKS
from conformance.contract import Contract, ContractError
from conformance.failure import Undeclared
from conformance.operators import OPERATORS, GeometryError, parse
from conformance.reporting.accuracy import AccuracyProfile
from conformance.reporting.failures import has_no_kernel, is_deciding, is_not_run
from conformance.results.schema import BatchInvariance, CaseRecord, CheckRecord, Record, Work
from conformance.training.tables import OPERATOR as TRAINING

ORDER = {name: place for place, name in enumerate((*OPERATORS, TRAINING))}
"""Operators in the suite's order; others come after them, by name."""
RAN = ("pass", "fail", "error", "waived")
"""Statuses of cases that ran. Fractions leave out cases that are unsupported or unavailable."""
NOT_ISOLATED = "kernels' processes are not isolated here: see docs/isolation.md"
NOT_VERIFIED, ACCEPTS, REFUSED = "not verified", "accepts invalid arguments", "refused when called"
CONTRADICTS = "contradicts its contract"
"""Findings that are not a status: an output whose limits are as large as its results; invalid arguments that a kernel
accepts; cases that it declares and then refuses; arithmetic, read off it, that its contract does not allow."""
UNTRIED = "whose bits no case tried"
"""Said of a kernel whose contract is that of a matrix unit."""
JUDGED = ("pass", "fail")
"""Statuses of which a good run has at least one: a waived case is known to be wrong."""


def operator_place(name: str) -> tuple[int, str]:
    """Return the sort key of an operator."""
    return ORDER.get(name, len(ORDER)), name


def exposure_of(record: Record) -> str:
    """Return in words how the kernel of a record could have found its judge; empty if it could not."""
    if record.in_process:
        return "kernels ran in the judge's process (--in-process)"
    return NOT_ISOLATED if record.versions.get("process") == "not isolated" else ""


@cache
def _contract(declared: bytes) -> Contract:
    """Return a contract that is given as JSON; that of fp32 sums if nobody can declare it."""
    try:
        return Contract.of_record(msgspec.json.decode(declared))
    except ContractError:
        return Contract()


def compares(record: Record) -> bool:
    """Return whether a pass or a failure says something about results: an empty batch has none to compare, and some
    checks only report."""
    if record.check in CHECKS:
        return CHECKS[record.check].judges
    if record.status == "fail" or not isinstance(record, CaseRecord):
        return True
    return _has_results(record.operator, record.descriptor)


@lru_cache(maxsize=1 << 15)
def _has_results(operator: str, descriptor: str) -> bool:
    try:
        outputs = OPERATORS[operator].outputs(parse(descriptor))
    except (KeyError, GeometryError):  # a problem of another version of the suite
        return True
    return any(tensor.size for tensor in outputs.values())


class Tally:
    """Totals of a run."""

    def __init__(self) -> None:
        self.cells: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """(implementation, operator) -> cases by status."""
        self.devices: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Device -> cases by status."""
        self.places: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        """Device by its marker and number, host, serial number -> cases by status; of records that say where it is."""
        self._verified: Counter[tuple[str, str]] = Counter()
        """(implementation, device) -> cases that were judged."""
        self.absent: dict[str, str] = {}
        """Implementation -> why it was unavailable."""
        self.profiles: defaultdict[tuple[str, str], AccuracyProfile] = defaultdict(AccuracyProfile)
        """(implementation, dtype) -> the worst of every number over its cases."""
        self.moved: defaultdict[tuple[str, str], list[tuple[Record, Work]]] = defaultdict(list)
        """(implementation, operator) -> its records, with the work that an emulator counted."""
        self.batches: defaultdict[tuple[str, str], dict[str, list[BatchInvariance]]] = defaultdict(dict)
        """(implementation, operator) -> dtype -> whether bits of images depend on their batch, for each problem."""
        self.seconds: Counter[str] = Counter()
        """Phase -> seconds over all cases."""
        self.overheads: list[float] = []
        """Seconds of each verdict that neither the kernel nor the reference nor the diagnosis took."""
        self.reasons: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        """Status or finding -> implementation -> what or why, with the number of cases."""
        self.undeclared: dict[str, Undeclared] = {}
        """Reason of unsupported cases -> what is not declared, if that is the reason."""
        self.weak: defaultdict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
        """(implementation, weakness of its contract compared with fp32) -> operator with dtype -> whether a case would
        have told its sums from those of a matrix unit with fewer bits."""
        self.not_implemented: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Implementation -> operators that it does not implement, and their cases."""
        self.ran: defaultdict[tuple[str, str], dict[str, Counter[str]]] = defaultdict(dict)
        """(implementation, operator) -> dtype -> cases that ran, by status."""
        self.is_isolated = True
        """Whether no record says that its process was not isolated."""
        self.not_run: Counter[tuple[str, str]] = Counter()
        """(implementation, operator) -> cases that were left out because other cases had crashed."""

    def add(self, record: Record) -> None:
        """Count one record. Problems that were run to find out where a kernel fails do not count: they are not of the
        level, and their number means nothing."""
        if is_deciding(record):
            return
        name, status, cases = record.implementation, record.status, record.cases
        self.cells[name, record.operator][status] += cases
        self.devices[record.device][status] += cases
        if record.host:
            index = "" if record.device_index is None else f":{record.device_index}"
            self.places[f"{record.device}{index}", record.host, record.device_serial][status] += cases
        if status in JUDGED and compares(record):
            self._verified[name, record.device] += cases
        if {"kernel", "total"} <= record.seconds.keys():
            self.seconds.update(record.seconds)
            timed = (record.seconds.get(phase, 0.0) for phase in ("kernel", "reference", "diagnosis"))
            self.overheads.append(record.seconds["total"] - sum(timed))
        self.is_isolated &= exposure_of(record) != NOT_ISOLATED
        if record.dtype:
            self.profiles[name, record.dtype].add(record)
        if status in RAN:
            ran = self.ran[name, record.operator].setdefault(record.dtype, Counter())
            if is_not_run(record):
                self.not_run[name, record.operator] += cases
            else:
                ran[status] += cases
        contract = _contract(msgspec.json.encode(record.contract or {}))
        if contract.weakness:
            kernels, kernel = self.weak[name, contract.weakness], f"{record.operator} {record.dtype}"
            tells_bits = status in JUDGED and isinstance(record, CaseRecord) and record.distribution == "absorbed"
            kernels[kernel] = kernels.get(kernel, contract.unit is None) or tells_bits
        for output in record.unverified:
            self.reasons[NOT_VERIFIED][name][f"{record.operator} {output}"] += cases
        if record.work is not None:
            self.moved[name, record.operator].append((record, record.work))
        if isinstance(record, CheckRecord):
            self.reasons[ACCEPTS][name].update(f"{record.operator}: {request}" for request in record.facts.accepted)
            kernel = f"{record.operator} {record.dtype}"
            self.reasons[CONTRADICTS][name].update(f"{kernel}: {what}" for what in record.facts.contradictions)
            if record.facts.batch_invariance is not None:
                self.batches[name, record.operator].setdefault(record.dtype, []).append(record.facts.batch_invariance)
        if status == "unavailable":
            self.absent[name] = record.reason
        if status == "unsupported" and has_no_kernel(record):
            self.not_implemented[name][record.operator] += cases
        elif status in ("unavailable", "unsupported", "waived"):
            self.reasons[REFUSED if record.refused else status][name][record.headline] += cases
            if record.undeclared:
                self.undeclared[record.headline] = record.undeclared

    def weaker(self, name: str = "") -> Iterator[tuple[str, str, str]]:
        """Yield the implementation, what its contract is weaker in than fp32, and its operators with dtypes, of each
        implementation, or of the one that is named."""
        for (implementation, weakness), kernels in sorted(self.weak.items()):
            if name in ("", implementation):
                texts = (kernel if is_tried else f"{kernel} {UNTRIED}" for kernel, is_tried in sorted(kernels.items()))
                yield implementation, weakness, ", ".join(texts)

    @property
    def totals(self) -> Counter[str]:
        """Number of cases by status, over everything."""
        return sum(self.cells.values(), Counter())

    @property
    def verified(self) -> int:
        """Number of cases that passed or failed, with results to compare."""
        return self._verified.total()

    def verified_on(self, device: str) -> int:
        return sum(cases for (_, judged_on), cases in self._verified.items() if judged_on == device)

    def speaks_of(self, names: Collection[str]) -> bool:
        """Return whether something was verified for one of these implementations, or an error says why not."""
        judged = any(cases and name in names for (name, _), cases in self._verified.items())
        return judged or any(counts["error"] and name in names for (name, _), counts in self.cells.items())
