"""Whether records answer everything that a level asks: each case exactly once, and nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.execution.claims import Key
from conformance.reporting.submission.required import Required, Share
from conformance.results.reading import shown
from conformance.results.schema import Attempt, CheckRecord, Record, TrainingRecord

Absent = Counter[tuple[str, str]]
"""(operator, check) -> cases that are recorded as absent. What was required is taken out of it."""


def defects(records: Sequence[Record], required: Required) -> Iterator[str]:
    """What is missing, given twice, or not required in the records of one implementation."""
    cases = _attempts(records)
    given = Counter(map(_key, cases))
    shares = (*required.verdicts, *required.behaviour, *required.measured, *required.drawn)
    known = frozenset().union(*(share.keys for share in shares))
    yield from (f"{_name(key)} has {count} verdicts" for key, count in given.items() if count > 1)
    yield from (f"{_name(key)} is not required" for key in given if key not in known)
    absent: Absent = Counter()
    for record in records:
        if not isinstance(record, Attempt):
            absent[record.operator, record.check] += record.cases
    needed: Absent = Counter()
    for share in (*required.verdicts, *required.measured):
        needed[share.operator, share.check] += len(share.keys - given.keys())
    for share in required.drawn:
        here = len(share.keys & given.keys())
        if here > share.cases:
            yield f"{_title(share)}: {here} problems were drawn, {share.cases} are required"
        counted = absent[share.operator, ""] > needed[share.operator, ""]
        needed[share.operator, ""] += counted and not here  # it says so once where it takes none
    for (operator, check), count in needed.items():
        found = absent.pop((operator, check), 0)
        if found < count:
            yield f"{shown(f'{operator} {check}'.strip())}: {count - found} cases have no verdict"
        elif found > count:
            yield f"{shown(f'{operator} {check}'.strip())}: an absence of {found - count} cases is not required"
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
        if network in trained:
            continue
        absent["training", ""] -= 1
        if absent["training", ""] < 0:
            yield f"training {network} has no verdict"
    yield from (
        f"{shown(f'{operator} {check}'.strip())}: an absence of {count} cases is not required"
        for (operator, check), count in absent.items()
        if count > 0
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
            if share.cases and absent.pop((share.operator, share.check), 0) not in (share.cases, 1):
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
