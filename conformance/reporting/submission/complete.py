"""Whether records answer everything that a level asks: each case exactly once, and nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from conformance.execution.plan import BEHAVIOUR_PROBLEMS
from conformance.reporting.comparison.strict import shown
from conformance.reporting.submission.contents import Record, is_case
from conformance.reporting.submission.due import Due, Share, Slot
from conformance.training.tables import OPERATOR as TRAINING


def defects(records: Sequence[Record], due: Due) -> Iterator[str]:
    """What is missing, given twice, or not asked for in the records of one implementation."""
    cases = [record for record in records if is_case(record)]
    slots = Counter(_slot(record) for record in cases if record["operator"] != TRAINING)
    known = frozenset().union(*(share.slots for share in (*due.verdicts, *due.behaviour, *due.measured)))
    yield from (f"{_name(slot)} has {count} verdicts" for slot, count in slots.items() if count > 1)
    yield from (f"{_name(slot)} is not asked for" for slot in slots if slot not in known)
    absent = Counter(_counted(record) for record in records if not is_case(record))
    taken = _taken(cases)
    yield from _in_shares(due.verdicts, slots, absent)
    yield from _in_shares(due.measured, slots, absent)
    yield from _in_behaviour(due.behaviour, slots, absent, taken)
    yield from _in_trainings(due.networks, cases, absent)
    yield from (f"{_title(*key[:2])}: an absence of {key[2]} cases is not asked for" for key in absent)


Absent = Counter[tuple[str, str, int]]
"""(operator, check, cases) -> how often such an absence is recorded. What was due is taken out of it."""


def _slot(record: Record) -> Slot:
    return Slot._make(record.get(name, "") for name in Slot._fields)


def _counted(record: Record) -> tuple[str, str, int]:
    return record["operator"], record.get("check", ""), record["cases"]


def _name(slot: Slot) -> str:
    return shown(" ".join(part for part in slot if part))


def _title(operator: str, check: str) -> str:
    return shown(f"{operator} {check}".strip())


def _taken(cases: Iterable[Record]) -> Counter[tuple[str, str]]:
    """(operator, dtype) -> problems that have a kernel, as far as the verdicts tell."""
    found = {
        (record["operator"], record["dtype"], record["problem"])
        for record in cases
        if record.get("contract") and "check" not in record
    }
    return Counter((operator, dtype) for operator, dtype, _ in found)


def _in_shares(shares: Iterable[Share], slots: Counter[Slot], absent: Absent) -> Iterator[str]:
    """Every slot has its verdict, or one absence counts them all."""
    for share in shares:
        missing = sorted(share.slots - slots.keys())
        if len(missing) < len(share.slots):
            yield from (f"{_name(slot)} has no verdict" for slot in missing)
        elif not _take(absent, share, share.cases):
            yield f"{_title(share.operator, share.check)}: none of its {share.cases} cases has a verdict"


def _in_behaviour(
    shares: Iterable[Share], slots: Counter[Slot], absent: Absent, taken: Counter[tuple[str, str]]
) -> Iterator[str]:
    """The checks of one operator run on the same cases, as many of a dtype as its quota and its kernels allow."""
    found = [(share, share.slots & slots.keys()) for share in shares]
    usual = _usual(found)
    for share, here in found:
        name = _title(share.operator, share.check)
        if not here:
            if share.cases and not _take(absent, share, share.cases) and not _take(absent, share, 1):
                yield f"{name} has no verdict"
            continue
        if _places(here) != usual[share.operator]:
            yield f"{name} has verdicts on other cases than the other checks"
        counts = Counter(slot.dtype for slot in here)
        for dtype, quota in BEHAVIOUR_PROBLEMS.items():
            if counts[dtype] < min(quota, taken[share.operator, dtype]):
                yield f"{name} has {counts[dtype]} verdicts in {dtype}, {quota} are due"


Places = frozenset[tuple[str, ...]]
"""Problem, dtype and layout."""


def _places(slots: Iterable[Slot]) -> Places:
    return frozenset(slot[1:4] for slot in slots)


def _usual(found: Iterable[tuple[Share, Iterable[Slot]]]) -> dict[str, Places]:
    """Operator -> the places where most of its checks have their verdicts."""
    counts: defaultdict[str, Counter[Places]] = defaultdict(Counter)
    for share, here in found:
        if here:
            counts[share.operator][_places(here)] += 1
    return {operator: places.most_common(1)[0][0] for operator, places in counts.items()}


def _in_trainings(networks: Sequence[str], cases: Iterable[Record], absent: Absent) -> Iterator[str]:
    found = Counter(record["problem"] for record in cases if record["operator"] == TRAINING)
    yield from (f"training {shown(name)} has {count} verdicts" for name, count in found.items() if count > 1)
    yield from (f"training {shown(name)} is not asked for" for name in found if name not in networks)
    nothing = Share(TRAINING, "", frozenset(), 1)
    for network in networks:
        if network not in found and not _take(absent, nothing, 1):
            yield f"training {network} has no verdict"


def _take(absent: Absent, share: Share, cases: int) -> bool:
    """Whether an absence answers for a share; it answers for one only."""
    key = (share.operator, share.check, cases)
    if key not in absent:
        return False
    absent[key] -= 1
    if not absent[key]:
        del absent[key]
    return True
