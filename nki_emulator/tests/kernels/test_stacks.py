"""The environments for Neuron: each has a solution, of one release of the SDK; the one before them had none. What is
missing is named with the command that installs it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from conformance.implementations.bridges.neuron_stacks import INSTALL, JAX, NKI, SIMULATOR, STACKS, TORCH, VENDOR, Stack
from nki_emulator.tests.kernels.neuron_index import (
    BEFORE,
    TABLE,
    Conflict,
    environments,
    own,
    releases,
    resolve,
    wheels,
)

ENVIRONMENTS = environments()
ON_DEVICES = {"nki": NKI, "torch": TORCH, "jax": JAX, "vendor": VENDOR}
NAMES = {f"{kind}-{name}": stack for kind in ("trn1", "trn2") for name, stack in ON_DEVICES.items()}
NAMES["nki-sim"] = SIMULATOR
CASES = [(name, python) for name, stack in NAMES.items() if not name.startswith("trn2") for python in stack.pythons]


EVERY = wheels()


@pytest.mark.parametrize("name", NAMES)
def test_tox_and_the_messages_have_the_same_pins(name: str):
    pythons, needs = ENVIRONMENTS[name]
    stack = NAMES[name]
    assert (set(pythons), set(needs)) == (set(stack.pythons), set(stack.packages))
    assert name == stack.environment.format(name.partition("-")[0])


def test_no_environment_is_left_out():
    assert ENVIRONMENTS.keys() == NAMES.keys()


@pytest.mark.parametrize(("name", "python"), CASES)
def test_an_environment_resolves_to_one_release(name: str, python: str):
    found = resolve([*ENVIRONMENTS[name][1], *own()], python, EVERY)
    by_package = releases(found)
    assert set.intersection(*by_package.values()) == {NAMES[name].sdk}
    versions = {row["version"] for row in TABLE["packages"] if row["sdk"] == NAMES[name].sdk}
    assert {found[package] for package in by_package} <= versions


def test_both_devices_have_the_same_environments():
    for stack in ON_DEVICES:
        assert ENVIRONMENTS[f"trn1-{stack}"] == ENVIRONMENTS[f"trn2-{stack}"]


def test_one_environment_for_all_has_no_solution():
    """Of the releases that have both; an older jax-neuronx does not say which libneuronxla is too new for it."""
    with pytest.raises(Conflict):
        resolve([*BEFORE, *own()], "3.12", [one for one in EVERY if one.sdk != VENDOR.sdk])
    found = resolve([*BEFORE, *own()], "3.12", EVERY)
    assert not set.intersection(*releases(found).values())
    assert found["islpy"] == "2026.2.2", "with which the compiler ends every compilation"


@pytest.mark.parametrize("other", [JAX, VENDOR, NKI])
def test_no_other_stack_installs_beside_torch(other: Stack):
    with pytest.raises(Conflict):
        resolve([*TORCH.packages, *other.packages], "3.11", EVERY)


def test_the_vendors_kernel_needs_its_own_python():
    with pytest.raises(Conflict):
        resolve(VENDOR.packages, "3.12", EVERY)


def test_without_its_pin_the_compiler_gets_a_library_that_breaks_it():
    needs = [text for text in NKI.packages if not text.startswith("islpy")]
    assert resolve(needs, "3.12", EVERY)["islpy"] == "2026.2.2"


def test_every_row_has_its_page():
    for row in TABLE["packages"]:
        pages = {row["page"], *row.get("requires", {}).values(), *row.get("stable", {}).values()}
        assert pages <= TABLE["pages"].keys(), row["name"]
    assert {row["sdk"] for row in TABLE["packages"]} == {stack.sdk for stack in STACKS}


@pytest.mark.parametrize(
    ("pythons", "words"),
    [(("3.11",), "3.11"), (("2.6", "2.7"), "2.6 or 2.7"), (("1.5", "2.6", "2.7"), "1.5, 2.6 or 2.7")],
)
def test_a_command_says_which_python_it_needs(pythons: tuple[str, ...], words: str):
    found = ".".join(map(str, sys.version_info[:2]))
    this = "" if found in pythons else f" (this is {found})"
    way = replace(JAX, pythons=pythons).way("trn2")
    assert way.startswith(f"tox -e trn2-jax; or with Python {words}{this}: {INSTALL} 'jax-neuronx[stable]==")
    assert way.endswith(f" (SDK {JAX.sdk})")
