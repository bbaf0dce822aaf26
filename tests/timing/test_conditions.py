"""The machine is judged by stated limits, from what was seen in the whole run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conformance.timing.conditions import LIMITS, SHORTEST, Conditions, Look, judged
from tests.kit import CEILINGS

QUIET = Look(0.0, (1e-3, 5e-3), busy=100.0, own=50.0, stolen=0.0, frequency=2000.0, throttled=3)


def seen(*looks: Look) -> Conditions:
    found = Conditions(lambda: (1e-3, 5e-3))
    found.looks += looks
    return found


def later(look: Look, seconds: float = SHORTEST, **changed: Any) -> Look:
    """Another look, after seconds in which the run's own processes had one core."""
    return replace(look, at=look.at + seconds, busy=look.busy + seconds, own=look.own + seconds, **changed)


def test_a_quiet_machine_is_stable():
    looks = [QUIET]
    for _ in range(20):
        looks.append(later(looks[-1]))
    found = seen(*looks)
    found.ceilings["cpu"] = [CEILINGS, CEILINGS, replace(CEILINGS, flops=CEILINGS.flops * 1.1)]
    assert (found.state.state, found.state.reasons) == ("stable", ())
    assert found.values() == pytest.approx(
        {"reference": 0, "ceilings": 0.1, "others": 0, "steal": 0, "frequency": 0, "throttled": 0}
    )


def test_nothing_seen_is_nothing_against_it():
    assert seen().values() == {}
    assert seen(QUIET).state.state == "stable"


DISTURBED = {
    "others": (lambda look: replace(look, busy=look.busy + 0.5 * SHORTEST), "noisy", "they took 0.5 cores"),
    "all of it": (lambda look: replace(look, busy=look.busy + 2 * SHORTEST), "unusable", "they took 2 cores"),
    "frequency": (lambda look: replace(look, frequency=1500.0), "noisy", "its highest was 33% above"),
    "throttled": (lambda look: replace(look, throttled=4), "noisy", "processors were slowed down 1 times"),
}


@pytest.mark.parametrize(("disturb", "state", "reason"), DISTURBED.values(), ids=DISTURBED)
def test_a_disturbance_at_any_time_of_the_run_counts(disturb: Any, state: str, reason: str):
    quiet = later(QUIET)
    end = disturb(later(quiet))
    found = seen(QUIET, quiet, end, later(end)).state
    assert found.state == state
    assert reason in " ".join(found.reasons)


@pytest.mark.parametrize(("factor", "state"), [(1.2, "stable"), (1.3, "noisy"), (2.5, "unusable")])
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("last", [5, 15])  # most looks were slow, or few
def test_each_part_of_the_reference_kernel_counts(factor: float, state: str, part: int, last: int):
    looks = [QUIET]
    for number in range(20):
        seconds = [*QUIET.reference]
        seconds[part] *= factor if number > last else 1
        looks.append(later(looks[-1], reference=tuple(seconds)))
    assert seen(*looks).state.state == state


def test_a_single_slow_look_does_not_count():
    looks = [QUIET]
    for number in range(30):
        looks.append(later(looks[-1], reference=(1e-1, 5e-3) if number == 7 else QUIET.reference))
    assert seen(*looks).state.state == "stable"


def test_what_a_hypervisor_takes_is_a_share_of_all_processors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    found = seen(QUIET, later(QUIET, stolen=SHORTEST)).values()
    assert found["steal"] == pytest.approx(0.25)


def test_counters_of_a_moment_are_not_judged():
    """They count in hundredths of a second, so that two looks close to each other show anything."""
    looks = [QUIET]
    for number in range(100):
        last = later(looks[-1], 0.1)
        looks.append(replace(last, busy=last.busy + 0.1) if number == 50 else last)
    assert seen(*looks).values()["others"] == pytest.approx(0.1 / SHORTEST, rel=0.1)


def test_the_worst_decides_and_is_named_first():
    found = judged({"others": 0.5, "reference": 3.0, "steal": 0.0})
    assert found.state == "unusable"
    assert [reason.partition(":")[0] for reason in found.reasons] == ["the reference kernel", "other processes"]
    assert "(limit 1)" in found.reasons[0]
    assert all(limit.noisy < limit.unusable for limit in LIMITS.values())


def test_a_look_at_this_machine():
    found = Conditions(lambda: (1.0, 2.0))
    for _ in range(2):
        found.look()
        sum(range(10**6))
    first, last = found.looks
    assert last.own > 0
    assert last.busy >= first.busy > 0
    assert (first.reference, last.at > first.at) == ((1.0, 2.0), True)
