"""The NKI implementation as it stands, in every tier that runs on the CPU: the vendor's simulator by a fake of it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.implementation import Implementation
from conformance.operators import OPERATORS, takes
from conformance.problems import Variant, typed
from conformance.results import build
from nki_emulator.tests.kernels.neuron_fakes import EmulatedToolchain, absence

FOLDER = Path(__file__).parents[3] / "impls" / "nki"
TIERS = {
    "nki@sim": ("simulator", "gen2", "1"),
    "nki@sim-gen3": ("simulator", "gen3", "1"),
    "nki@emu": ("emulator", "gen2", ""),
    "nki@emu-gen3": ("emulator", "gen3", ""),
}
PROBLEMS = ("n1 c3 h5 w5 k4 r3 s3 p1", "pool n1 c2 h6 w6 r2 s2")


@pytest.fixture
def toolchain(monkeypatch: pytest.MonkeyPatch) -> EmulatedToolchain:
    """A toolchain that simulates, on a machine that could have one."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    made = EmulatedToolchain()
    made.install(monkeypatch)
    return made


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Implementation]:
    """What a copy of the folder defines: a tier is asked once in a process whether it is available."""
    copy = shutil.copytree(FOLDER, tmp_path / "nki", ignore=shutil.ignore_patterns("__pycache__"))
    loaded = registry.load([copy])
    assert (loaded.broken, loaded.unavailable) == ({}, {})
    return loaded.implementations


def test_names_and_markers(found: dict[str, Implementation]):
    assert {name: found[name].device for name in found if name != "nki"} == {n: tier[0] for n, tier in TIERS.items()}
    assert found["nki"].device.startswith("trn")


def cases(implementation: Implementation, distribution: str = "fixed") -> list[Trial]:
    """A small case of every operator and dtype that is declared."""
    found = []
    for operator in (name for name in OPERATORS if any(k.operator == name for k in implementation.kernels)):
        for problem in (typed(text) for text in PROBLEMS if takes(operator, typed(text).geometry)):
            variants = (Variant(dtype, "nchw", distribution) for dtype in ("fp32", "bf16", "fp16"))
            due = (Trial(implementation, OPERATORS[operator], problem, variant, seed=5) for variant in variants)
            found += [
                case
                for case in due
                if implementation.supports(operator, problem.geometry, case.variant.dtype, case.variant.layout)
            ]
    return found


@pytest.mark.parametrize("name", TIERS)
def test_kernels_are_right_in_every_tier(found: dict[str, Implementation], toolchain: EmulatedToolchain, name: str):
    assert absence(found[name].arrays.require) == ""
    toolchain.calls.clear()
    wrong = [
        (case.id, case.operator.name, v.reason) for case in cases(found[name]) if (v := verify(case)).status != "pass"
    ]
    assert wrong == []
    settings = {(target, precise) for target, precise, _ in toolchain.calls}
    assert settings == ({TIERS[name][1:]} if TIERS[name][0] == "simulator" else set())


@pytest.mark.parametrize("name", TIERS)
def test_records_name_tier_toolchain_and_target(
    found: dict[str, Implementation], toolchain: EmulatedToolchain, name: str
):
    case = cases(found[name], "integer")[0]
    versions = build.record(case, verify(case)).versions
    tier, target, precise = TIERS[name]
    nki = "0.7.0+fake" if tier == "simulator" else "none"
    assert versions.items() >= {"tier": tier, "target": target, "nki": nki}.items()
    assert versions.get("NKI_PRECISE_FP", "") == precise


def test_without_a_toolchain_only_the_emulator_is_available(
    found: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "nki", None)
    available = {name for name in TIERS if not absence(found[name].arrays.require)}
    assert available == {"nki@emu", "nki@emu-gen3"}
