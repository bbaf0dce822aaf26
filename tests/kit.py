"""What tests set up again and again: the source of an implementation, one case of a kernel, a plan, ceilings."""

from __future__ import annotations

import json
import re
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from conformance import Implementation, numpy_arrays
from conformance.__main__ import main
from conformance.execution.plan import Plan
from conformance.execution.selection import Selection
from conformance.execution.trial import Trial
from conformance.execution.workers import Workers
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.devices import DEVICES, missing
from conformance.implementations.registry import Registry, load
from conformance.inputs import DISTRIBUTIONS, Expectation, Recipe
from conformance.operators import OPERATORS, Geometry, parse
from conformance.problems import PROBLEMS, Problem, Variant, typed
from conformance.resources import IMPLS
from conformance.timing.measurement import Measurement
from conformance.timing.roofline import Ceilings
from conformance.timing.rotation import Rotation

MODULE = """
{head}
from conformance import Contract, Implementation, Unsupported
from tests import kernels

acme = Implementation("{name}"{construct})

@acme.implements("conv_forward"{declares})
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    y = kernels.conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    {body}

{tail}
"""
"""A right implementation in which a test changes one thing."""
SUMS = "n2 c6 h9 w8 k4 r3 s3 p1 b1"
"""The result is smaller than x, so that it fits there, and sums are long enough for their order to show."""
TINY = replace(typed("n2 c4 h6 w6 k4 r3 s3 p1 b1"), name="unet.4x4@6")
OTHER = replace(typed("n2 c4 h6 w6 k8 r3 s3 p1 b1"), name="unet.4x8@6")
CEILINGS = Ceilings(1e12, 1e10, "given")


def source(name: str = "acme", body: str = "return y", **changes: str) -> str:
    """The text of a file with an implementation, right unless `changes` say otherwise."""
    return MODULE.format(name=name, body=body, **{"head": "", "construct": "", "declares": "", "tail": ""} | changes)


def command(*words: str) -> tuple[int, str]:
    """Run the command line in this process and in this folder, where an import of a framework is not made again; return
    its exit status and all that it prints."""
    with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
        try:
            status = main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, printed.getvalue()


def lasting(text: str) -> str:
    """Return an output without what differs between runs and machines: folders, times, progress, versions,
    devices, cores."""
    for device in DEVICES:
        text = text.replace(missing(device) or device, device)
    for pattern, constant in {
        r"/\S+/(?=impls/)": "",
        r"\d+ \w+ 20\d\d, .*|20\d\d-[-\d]+ [:\d]+ UTC": "TIME",
        r"\b(\d+ min )?[\d.]+ ?m?s\b( \(\d+:\d+:\d+\))?": "0 s",
        r"(?m)^\d+( done|/\d+(, \d+ failed)?), 0 s(, now .*)?\n": "",
        r"with \d+ cores?, \d+ ": "with so many cores, so many ",
        r"kernel-conformance \S+: (.*), devices .*": r"kernel-conformance: \1",
        "1 warning, |, 1 warning": "",
        r".* not isolated here: .*\n": "",
        "={3,}": "===",
    }.items():
        text = re.sub(pattern, constant, text)
    return text


@contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Fail where something is waited for longer, as a pipe is that nobody writes to."""

    def end(*_: object) -> None:
        pytest.fail(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as on a full disk; processes that are started inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def timeless(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records in an order of their own, without what differs from one run to the next."""
    differing = dict.fromkeys(("seconds", "printed", "covers"))
    return sorted((record | differing for record in records), key=str)


def results(records: Path) -> list[dict[str, Any]]:
    """Return the verdicts of a file of records like that."""
    lines = map(json.loads, records.read_text().splitlines())
    return timeless(line for line in lines if line["kind"] not in ("header", "footer"))


def loaded(workers: Workers, folder: Path, text: str = "") -> Implementation:
    """Load a file of this text, by default with a right kernel, in a process of its own; return its `acme`."""
    (file := folder / "acme.py").write_text(text or source())
    catalogue = workers.load([file])
    assert catalogue.broken == {}
    return catalogue.implementations["acme"]


def unusable(workers: Workers, folder: Path, text: str) -> str:
    """Load a file of this text in a process of its own; return why it cannot be used, empty if it can."""
    (file := folder / "acme.py").write_text(text)
    return "".join(map(str, workers.load([file]).broken.values()))


def only(path: Path) -> Implementation:
    """Load the one implementation of a file."""
    registry = load([path])
    assert (registry.broken, registry.unavailable) == ({}, {})
    (implementation,) = registry.implementations.values()
    return implementation


def trial_of(
    kernel: Callable[..., Any] | Implementation,
    problem: str | Problem = SUMS,
    operator: str = "conv_forward",
    *,
    dtype: str = "fp32",
    layout: str = "",
    distribution: str = "fixed",
    storage: str = "",
    arrays: ArrayBridge | None = None,
    method: str = "exact",
) -> Trial:
    """One case of an implementation, or of a kernel that becomes one."""
    known = typed(problem) if isinstance(problem, str) else problem
    layout = layout or ("nchw" if known.geometry.rank else "nn")
    if not isinstance(kernel, Implementation):
        implementation = Implementation("acme", arrays=arrays or numpy_arrays())
        implementation.implements(operator, dtypes=(dtype,), layouts=(layout,))(kernel)
        kernel = implementation
    return Trial(kernel, OPERATORS[operator], known, Variant(dtype, layout, distribution, storage), 0, method)


def expectation(
    operator: str, problem: str | Geometry, dtype: str = "fp32", distribution: str = "fixed", seed: int = 0
) -> Expectation:
    """Draw the inputs of a case, which have a reference."""
    geometry = parse(problem) if isinstance(problem, str) else problem
    return Expectation(Recipe(OPERATORS[operator].on(geometry), dtype, distribution, seed))


def rotate(case: Trial) -> Measurement:
    """The time of one visit. Raises what `Rotation.visit` raises."""
    rotation = Rotation(case, 1.0)
    rotation.visit()
    return rotation.measurement


def standard(one: Implementation, claims: Any = None, **changes: Any) -> Plan:
    """The plan of a run of one implementation, made in this process, of all problems at standard in fp32 and nchw;
    `changes` are of the selection."""

    class Loader:
        def load(self, paths: Any, registry: Registry | None = None) -> Registry:
            found = registry or Registry()
            found.implementations[one.name] = one
            found.paths[one.name] = f"{one.name}.py"
            return found

        def load_installed(self, registry: Registry) -> None: ...

    selection = Selection(
        (), (), "standard", PROBLEMS, tuple(OPERATORS), ("fp32",), ("nchw",), tuple(DISTRIBUTIONS), 0, "auto"
    )
    return Plan(replace(selection, **changes), IMPLS, claims, loader=Loader())
