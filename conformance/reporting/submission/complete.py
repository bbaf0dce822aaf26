"""Whether records answer everything that a level asks: each case exactly once, and nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.execution.claims import Key
from conformance.reporting.submission.required import Required, Share
from conformance.results.reading import shown
from conformance.results.schema import Attempt, CheckRecord, Record, TrainingRecord

Absent = Counter[tuple[str, str, int]]
"""(operator, check, cases) -> how often such an absence is recorded. What was required is taken out of it."""


def defects(records: Sequence[Record], required: Required) -> Iterator[str]:
    """What is missing, given twice, or not required in the records of one implementation."""
    cases = _attempts(records)
    given = Counter(map(_key, cases))
    shares = (*required.verdicts, *required.behaviour, *required.measured, *required.drawn)
    known = frozenset().union(*(share.keys for share in shares))
    yield from (f"{_name(key)} has {count} verdicts" for key, count in given.items() if count > 1)
    yield from (f"{_name(key)} is not required" for key in given if key not in known)
    absent = Counter((r.operator, r.check, r.cases) for r in records if not isinstance(r, Attempt))
    for share in (*required.verdicts, *required.measured):
        missing = sorted(share.keys - given.keys())
        if len(missing) < len(share.keys):
            stored = [key for key in missing if key.storage]  # what a framework does not have, in one record a reason
            for lacked in (stored, [key for key in stored if ":reversed" in key.storage]):
                if lacked and _take(absent, share.operator, share.check, len(lacked)):
                    missing = [key for key in missing if key not in lacked]
                    break
            yield from (f"{_name(key)} has no verdict" for key in missing)
        elif not _take(absent, share.operator, share.check, share.cases):
            yield f"{_title(share)}: none of its {share.cases} cases has a verdict"
    implemented = {share.operator for share in required.verdicts if not share.keys.isdisjoint(given)}
    for share in required.drawn:
        here = len(share.keys & given.keys())
        if here > share.cases:
            yield f"{_title(share)}: {here} problems were drawn, {share.cases} are required"
        if not here and not _take(absent, share.operator, "", 1) and share.operator in implemented:
            yield f"{_title(share)}: no problem that was drawn has a verdict"
    have_kernel = {
        (record.operator, record.dtype, record.problem)
        for record in cases
        if record.contract and not isinstance(record, CheckRecord)
    }
    yield from _in_behaviour(required, given, absent, Counter(found[:2] for found in have_kernel))
    trained = Counter(record.problem for record in records if isinstance(record, TrainingRecord))
    yield from (f"training {shown(name)} has {count} verdicts" for name, count in trained.items() if count > 1)
    yield from (f"training {shown(name)} is not required" for name in trained if name not in required.networks)
    for network in required.networks:
        if network not in trained and not _take(absent, "training", "", 1):
            yield f"training {network} has no verdict"
    yield from (
        f"{shown(f'{operator} {check}'.strip())}: an absence of {count} cases is not required"
        for operator, check, count in absent
    )


def _attempts(records: Sequence[Record]) -> list[Attempt]:
    return [record for record in records if isinstance(record, Attempt) and not isinstance(record, TrainingRecord)]


def _key(record: Attempt) -> Key:
    return Key._make(getattr(record, name) for name in Key._fields)


def with_layouts(required: Required, records: Sequence[Record]) -> Required:
    """What is required with the layouts that an implementation has verdicts in beside the plain ones."""
    given = [_key(record) for record in _attempts(records)]

    def widened(share: Share) -> Share:
        mine = [key for key in given if (key.operator, key.check) == (share.operator, share.check)]
        return replace(share, keys=share.keys | share.in_layouts(mine))

    verdicts, behaviour, drawn = (
        tuple(map(widened, shares)) for shares in (required.verdicts, required.behaviour, required.drawn)
    )
    return replace(required, verdicts=verdicts, behaviour=behaviour, drawn=drawn)


def _in_behaviour(
    required: Required, given: Counter[Key], absent: Absent, have_kernel: Counter[tuple[str, str]]
) -> Iterator[str]:
    """The checks of one operator run on the same cases, as many of a dtype as its quota and its kernels allow.

    `have_kernel` counts problems by (operator, dtype), as far as the verdicts tell.
    """
    found = [(share, share.keys & given.keys()) for share in required.behaviour]
    counts: defaultdict[str, Counter[frozenset[tuple[str, ...]]]] = defaultdict(Counter)
    for share, here in found:
        if here and share.few:
            counts[share.operator][frozenset(key[1:4] for key in here)] += 1
    usual = {operator: places.most_common(1)[0][0] for operator, places in counts.items()}
    for share, here in found:
        if not here:
            answered = any(_take(absent, share.operator, share.check, cases) for cases in (share.cases, 1))
            if share.cases and not answered:
                yield f"{_title(share)} has no verdict"
            continue
        if not share.few:
            continue
        if frozenset(key[1:4] for key in here) != usual[share.operator]:
            yield f"{_title(share)} has verdicts on other cases than the other checks"
        dtypes = Counter(key.dtype for key in here)
        for dtype, quota in required.quota.items():
            if dtypes[dtype] < min(quota, have_kernel[share.operator, dtype]):
                yield f"{_title(share)} has {dtypes[dtype]} verdicts in {dtype}, {quota} are required"


def _name(key: Key) -> str:
    return shown(" ".join(part for part in key if part))


def _title(share: Share) -> str:
    return shown(f"{share.operator} {share.check}".strip())


def _take(absent: Absent, operator: str, check: str, cases: int) -> bool:
    """Whether an absence answers for so many cases; it answers once only."""
    key = (operator, check, cases)
    if key not in absent:
        return False
    absent[key] -= 1
    if not absent[key]:
        del absent[key]
    return True
