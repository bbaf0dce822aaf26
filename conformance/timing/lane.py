"""The table at the end of a benchmark run: by operator and problem, torch on the same device first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from conformance.timing.facts import Facts
from conformance.timing.relative import Key, baseline, means, ratios
from conformance.timing.table import ABSENT, figures

MAIN = ("implementation", "ms", "iqr", "GFLOP/s", "GB/s", "roof", "x torch")
MORE = ("first ms", "in ms", "out ms", "host MB", "device MB")
LEGEND = (
    "ms: median of calls, each on inputs that are new to the kernel; iqr: interquartile range, as a share of it; roof: "
    "least time of the operations or the bytes at the measured ceilings, over this time; x torch: torch's time on the "
    "same device over this one's (higher is faster); first: the first call, with compilation; in, out: copies to the "
    "device and back; MB: the most that a call takes beyond its inputs. Only what was verified has a time. A finding "
    "is marked ! and compared with nothing."
)


def compared(found: Sequence[Facts]) -> dict[Key, float]:
    """(Operator, problem, implementation) -> ratio to torch on the same device; findings have none and give none."""
    return ratios(facts.timing for facts in found if not facts.finding)


def lines(found: Sequence[Facts], width: int) -> Iterator[str]:
    """Lines of at most `width` columns, from 60 on: a row is one line where all columns fit, else two."""
    known = compared(found)
    rows = {id(facts): _cells(facts, known) for facts in found}
    heads = {name: name for name in (*MAIN, *MORE)}
    widths = {name: max(len(row[name]) for row in (heads, *rows.values())) for name in heads}
    whole = sum(widths.values()) + 2 * len(widths) <= width
    groups = [(*MAIN, *MORE)] if whole else [MAIN, MORE]
    spare = width - 2 * len(groups[0]) - sum(widths[name] for name in groups[0][1:])
    widths["implementation"] = min(widths["implementation"], max(6, spare))
    yield from textwrap.wrap(LEGEND, width)
    for operator in dict.fromkeys(facts.case.operator.name for facts in found):
        here = [facts for facts in found if facts.case.operator.name == operator]
        yield from ("", operator, *_row(heads, widths, groups))
        for place, same in _by_problem(here).items():
            yield from _wrapped(f"{place}, {same[0].intensity:.3g} flop/byte", width)
            for facts in same:
                yield from _row(rows[id(facts)], widths, groups)
        yield from _means(operator, known, width)
    yield from _findings(found, width)


def _by_problem(found: Sequence[Facts]) -> dict[str, list[Facts]]:
    places: dict[str, list[Facts]] = {}
    for facts in found:
        places.setdefault(f"{facts.case.problem.name} on {facts.case.implementation.device}", []).append(facts)
    for same in places.values():
        same.sort(key=lambda facts: facts.timing.implementation != baseline(facts.timing.device))
    return places


def _cells(facts: Facts, known: Mapping[Key, float]) -> dict[str, str]:
    timing, found, memory = facts.timing, facts.rounds, facts.rounds.memory
    ratio = known.get(timing.key)
    return {
        "implementation": timing.implementation + ("!" if facts.finding else ""),
        "ms": figures(timing.seconds * 1e3),
        "iqr": f"{facts.spread / timing.seconds:.0%}",
        "GFLOP/s": figures(facts.flops / 1e9),
        "GB/s": figures(facts.bandwidth / 1e9),
        "roof": ABSENT if timing.share is None else f"{timing.share:.0%}",
        "x torch": figures(ratio),
        "first ms": figures(facts.first * 1e3),
        "in ms": figures(found.copy_in * 1e3),
        "out ms": figures(found.copy_out * 1e3),
        "host MB": ABSENT if memory.host is None else f"{memory.host / 1e6:,.1f}",
        "device MB": ABSENT if memory.device is None else f"{memory.device / 1e6:,.1f}",
    }


def _row(row: Mapping[str, str], widths: Mapping[str, int], groups: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, names in enumerate(groups):
        cells = [_name(row[n], widths[n]) if n == "implementation" else row[n].rjust(widths[n]) for n in names]
        yield ("  " + "      " * number + "  ".join(cells)).rstrip()


def _name(text: str, width: int) -> str:
    """One that is too long keeps its end, where it differs from its neighbours'."""
    return (text if len(text) <= width else f"~{text[len(text) - width + 1 :]}").ljust(width)


def _means(operator: str, known: dict[Key, float], width: int) -> Iterator[str]:
    own = {name: pair for (of, name), pair in means(known).items() if of == operator}
    words = ", ".join(f"{name} {mean:.2f}x of {count}" for name, (mean, count) in own.items())
    yield from _wrapped(f"{operator} geometric mean relative to torch: {words}", width) if words else ()


def _findings(found: Sequence[Facts], width: int) -> Iterator[str]:
    doubted = [facts for facts in found if facts.finding]
    if doubted:
        yield from ("", f"findings: {len(doubted)}")
    for facts in doubted:
        timing = facts.timing
        yield from _wrapped(f"  {timing.implementation} {timing.operator} {timing.problem}: {facts.finding}", width)
        yield from _wrapped(f"  reproduce: {facts.case.command}", width)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="    ", break_on_hyphens=False)
