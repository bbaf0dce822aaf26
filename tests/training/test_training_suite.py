"""What the suite makes of a training: data, configurations, statuses, records, the table."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip(
    "torch._dynamo"
)  # runs in this process forget modules that they import; these cannot be imported twice
pytest.importorskip("sklearn.datasets")
pytest.importorskip("PIL")

from conformance.__main__ import main  # noqa: E402
from conformance.execution.process import Crash, Limits  # noqa: E402
from conformance.execution.workers import Loader, Workers  # noqa: E402
from conformance.implementations import registry  # noqa: E402
from conformance.results.reading import decode  # noqa: E402
from conformance.training import loop, samples, train, training_demand  # noqa: E402
from conformance.training.audit import Audit, BrokenStepError  # noqa: E402
from conformance.training.exchange import Call, Place  # noqa: E402
from conformance.training.tables import ACCELERATOR, CPU, TrainingConfiguration, configuration  # noqa: E402
from tests.conftest import Outcome, Project  # noqa: E402
from tests.training.planted import on_torch  # noqa: E402

pytest_plugins = ["pytester"]

SUITE = """
import pytest

@pytest.mark.trains("digits")
def test_digits(train, case):
    train(case)
"""
MODULE = """
import os
from conformance import Implementation, Unsupported
from tests import kernels
from tests.training.planted import planted, spoiled

def exhausted(dy, w):
    raise MemoryError("out of tiles")

def leaving(dy, w):
    os._exit(3)

def refusing(x, w, bias):
    raise Unsupported("needs c % 4 == 0")

def malformed(x, w, bias):
    return x

acme = planted("{name}"{changes})
{tail}
"""


class Trained:
    """A project whose suite trains by the smallest configuration."""

    def __init__(self, project: Project) -> None:
        self.project = project
        project.write("suite/test_suite.py", SUITE)

    def implementation(self, name: str = "acme", changes: str = "", tail: str = "") -> None:
        """A right implementation, but for `changes`."""
        text = MODULE.format(name=name, changes=f", {changes}" if changes else "", tail=tail)
        self.project.write(f"impls/{name}.py", text)

    def train(self, *arguments: str, processes: bool = False) -> Outcome:
        """Run the suite: every process of its own takes seconds to import torch."""
        return self.project.pytest("--level=standard", *([] if processes else ["--in-process"]), *arguments)


@pytest.fixture
def trained(project: Project, monkeypatch: pytest.MonkeyPatch) -> Trained:
    monkeypatch.setitem(CPU, ("digits", "standard"), SMALLEST)
    return Trained(project)


SMALLEST = TrainingConfiguration("digits", 2, 1, 1, 1, 5e-4, falls_to=2.0)
PLACE = "step 1 of 2, layer 3, backward-data: conv_backward_data of n1 c32 h26 w26 k64 r3 s3"

WAIVER = 'acme.waive("conv_forward", reason="sums in fp16", url="https://example.org/1")'
FLIPPED = 'conv_backward_weight=spoiled("conv_backward_weight", lambda dw: dw[:, :, ::-1, ::-1].copy())'
DOUBLED = 'conv_forward=spoiled("conv_forward", lambda y: y * 2)'

STATUSES = {
    "pass": ("", "", "pass", 0, ""),
    "flipped": (FLIPPED, "", "fail", 1, "step 1 of 2, layer 3, backward-weight: conv_backward_weight of n1 c32 h26"),
    "malformed": ("conv_forward=malformed", "", "fail", 1, "y is fp32 (1, 1, 28, 28); expected fp32 (1, 32, 26, 26)"),
    "memory": ("conv_backward_data=exhausted", "", "error", 1, f"{PLACE} ("),
    "refuses": ("conv_forward=refusing", "", "unsupported", 5, "conv_forward of acme: needs c % 4 == 0"),
    "when": ("when=lambda p: p.k % 64 == 0", "", "unsupported", 5, "acme has no conv_forward for it: outside the"),
    "direction": ("conv_backward_data=None", "", "unsupported", 5, "conv_backward_data is not implemented; training"),
    "simulator": ("", "acme.device = 'simulator'", "unsupported", 5, "the simulator is too slow to train a network on"),
    "other source": ("", "open(__file__, 'a').write('#')", "error", 1, "acme.py was changed during the run"),
    "waived": (DOUBLED, WAIVER, "waived", 5, "waived: sums in fp16 (https://example.org/1)"),
}
"""What an implementation does -> status, exit code, reason."""


@pytest.mark.parametrize(("changes", "tail", "status", "code", "reason"), STATUSES.values(), ids=STATUSES)
def test_every_end_of_a_training_is_counted(
    trained: Trained, changes: str, tail: str, status: str, code: int, reason: str
):
    trained.implementation(changes=changes, tail=tail)
    outcome = trained.train()
    assert (outcome.exit, outcome.statuses) == (code, {status: 1})
    record = decode(json.dumps(outcome.of("acme")))
    assert reason in record.explanation
    assert record.operator == "training"
    assert ("NOTHING WAS VERIFIED" in outcome.text) == (status in ("unsupported", "error", "waived"))


CHEATERS = """
from dataclasses import replace
from conformance.training import exchange
from tests.training.planted import planted

honest, begins, returned = exchange.train, exchange.Consulting.begins, exchange.Consulting.returned

class Skipping(exchange.Consulting):
    def begins(self, place):
        if not place.when.startswith("step 2"):
            begins(self, place)
    def returned(self, place, call):
        if not place.when.startswith("step 2"):
            returned(self, place, call)

class Swapping(exchange.Consulting):
    def returned(self, place, call):
        returned(self, place, replace(call, inputs=call.outputs))

class Silent(exchange.Consulting):
    def begins(self, place):
        pass

OBSERVERS = {"skips": Skipping, "swaps": Swapping, "silent": Silent, "right": exchange.Consulting}

def train(server, name, *given):
    if name == "idle":
        return exchange.History((1.0, 0.1), (1.0,) * 2, 0.1, 1.0, 0.5)
    exchange.Consulting = OBSERVERS[name]
    return honest(server, name, *given)

exchange.train = train
idle, skips, swaps, silent, right = map(planted, ("idle", *OBSERVERS))
"""
"""What a file does to the loop that it is trained in; the last one lets it be."""
SEEN = {
    "leaving": ("error", "crashed: its process exited with status 3"),
    "idle": ("fail", "reports a training of 2 steps; 0 were seen complete"),
    "skips": ("fail", "reports a training of 2 steps; 1 were seen complete"),
    "swaps": ("fail", "reports other tensors than those of the call"),
    "silent": ("fail", "reports the results of a call that it did not announce"),
    "right": ("pass", ""),
}


def test_a_process_may_end_and_is_not_believed_and_the_run_goes_on(trained: Trained):
    trained.implementation("leaving", changes="conv_backward_data=leaving")
    trained.project.write("impls/others.py", CHEATERS)
    outcome = trained.train(processes=True)
    assert {name: outcome.of(name)["status"] for name in SEEN} == {name: status for name, (status, _) in SEEN.items()}
    assert all(reason in outcome.of(name).get("reason", "") for name, (_, reason) in SEEN.items())
    assert outcome.of("leaving")["reason"].startswith(f"{PLACE} (")


PLANTED = """
import time
from pathlib import Path
from tests.training.planted import planted, spoiled

def slowly(y):
    time.sleep(1000 if (Path(__file__).parent / "hang").exists() else 0.4)
    return y

right = planted("right")
doubled = planted("doubled", conv_forward=spoiled("conv_forward", lambda y: y * 2))
slow = planted("slow", conv_forward=spoiled("conv_forward", slowly))
"""


def test_a_process_trains_as_this_one_does_fails_and_hangs(tmp_path: Path):
    """One after the other, in one process: it takes seconds to import torch."""
    file = tmp_path / "planted.py"
    file.write_text(PLANTED)
    audits, histories = [Audit(), Audit()], []
    with Workers(Limits()) as workers:
        loaders: tuple[Loader, ...] = (workers, registry)
        for loader, audit in zip(loaders, audits, strict=True):
            right = loader.load([file]).implementations["right"]
            histories.append(train.run(SMALLEST, right, "nchw", 0, audit))
        assert histories[0] == histories[1]
        assert (audits[0].worst, audits[0].calls) == (audits[1].worst, audits[1].calls)

        found = workers.load([file]).implementations
        home: Any = found["doubled"].arrays
        process = home.home.process()
        for _ in range(2):  # one that failed leaves its process to the next
            with pytest.raises(BrokenStepError, match="step 1 of 2, layer 0, forward"):
                train.run(SMALLEST, found["doubled"], "nchw", 0, Audit())
        assert home.home.process() is process

        process.limits = Limits(seconds=2.0)  # of a call, not of the whole training
        start = time.monotonic()
        train.run(SMALLEST, found["slow"], "nchw", 0, Audit())
        assert time.monotonic() - start > 2.0
        (tmp_path / "hang").touch()
        with pytest.raises(
            Crash, match=r"^no answer within 2 s at .*planted.py:7: hangs, or needs longer \(--timeout\)"
        ):
            train.run(SMALLEST, found["slow"], "nchw", 0, Audit())


def test_a_loss_that_does_not_fall_fails(trained: Trained, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(CPU, ("digits", "standard"), replace(SMALLEST, falls_to=1e-6))
    trained.implementation()
    outcome = trained.train()
    assert (outcome.exit, outcome.statuses) == (1, {"fail": 1})
    assert "it must fall to 1e-06 of its first value" in outcome.of("acme")["reason"]


def test_a_missing_package_makes_training_unavailable(trained: Trained, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(training_demand.NEEDED, "not_installed", "paquet")
    trained.implementation()
    outcome = trained.train()
    assert (outcome.exit, outcome.statuses) == (5, {"unavailable": 1})
    assert "training needs paquet, which is not installed" in outcome.text


def test_record_and_table_say_how_it_went(trained: Trained):
    trained.implementation()
    outcome = trained.train()
    record = outcome.of("acme")
    went = record["training"]
    assert (record["problem"], record["distribution"], record["layout"], record["seed"]) == (
        "digits",
        "training",
        "nchw",
        0,
    )
    assert (went["steps"], len(went["losses"]), went["verified"]) == (2, 2, 2 * (2 + 1 + 4) + 2)
    assert all(0 < check["worst error / bound"][0] < 1 for check in record["checks"].values())
    assert record["contracts"]["conv_backward_weight"]["accumulate"] == "auto"
    row = next(line.split() for line in outcome.text.splitlines() if line.startswith("acme  ") and "digits" in line)
    scores = went["scores"]
    assert row[2:4] == ["pass", "2"]
    assert f"{scores['first_loss']:.3f} to {scores['last_loss']:.3f}" in " ".join(row)


@pytest.mark.parametrize(
    "selection", ["--distribution=fixed", "--dtype=bf16", "--operator=conv_forward", "--problem=n1 c1 h3 w3 k1 r1 s1"]
)
def test_who_asks_for_something_else_trains_nothing(trained: Trained, selection: str):
    trained.implementation()
    assert trained.train(selection).records == []


def test_command_trains_the_same_again(trained: Trained):
    trained.implementation(changes=FLIPPED)
    outcome = trained.train("--seed=3")
    first = outcome.of("acme")
    assert f"reproduce: {first['command']}" in outcome.text
    program, run, file, *words = shlex.split(first["command"])
    assert (program, run) == ("conformance", "run")
    # in this process, whose trainings are short
    status = main([run, file, *words, "--records=again.jsonl", "--in-process"])
    (second,) = trained.project.records("again.jsonl")
    assert (status, second["reason"]) == (1, first["reason"])


@pytest.mark.parametrize("network", ["digits", "unet"])
def test_data_is_the_same_every_time_and_the_test_s_is_other_data(network: str):
    asked = configuration(network, "standard", "cpu")
    first, again, other = (loop.data(asked, seed) for seed in (0, 0, 1))
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.truth, two.truth)
    assert not torch.equal(first[0].images, other[0].images)
    seen, held = (set(map(bytes, half.images.numpy().reshape(len(half), -1))) for half in first)
    assert len(seen) == asked.images
    assert len(held) == asked.held
    assert not seen & held


def test_images_are_real_and_masks_are_where_the_ink_is():
    digits, _ = samples.digits(64, 1, 0)
    shapes, _ = samples.shapes(16, 1, 32, 0)
    assert len(digits.truth.unique()) == 10
    for some in (digits, shapes):
        assert (some.images.min() >= 0, some.images.max() <= 1, some.images.dtype) == (True, True, torch.float32)
    assert 0.03 < shapes.truth.float().mean() < 0.4
    assert all(0 < mask.sum() < mask.numel() for mask in shapes.truth)


def test_every_configuration_trains_on_whole_batches_of_images_that_there_are():
    for (network, level), asked in [*CPU.items(), *ACCELERATOR.items()]:
        assert (asked.network, asked.images % asked.batch, level in ("smoke", "standard", "full")) == (network, 0, True)
        assert asked.images + asked.held <= 1797
        assert 0 < asked.falls_to <= (0.5 if network == "digits" else 0.1)
        assert network == "digits" or asked.side % 16 == 0


class Unwatched:
    """Sees nothing: what is asked is how losses go, and every call of a right kernel is verified elsewhere."""

    when = ""

    def begins(self, place: Place) -> None: ...

    def returned(self, place: Place, call: Call) -> None: ...


@pytest.mark.parametrize("network", ["digits", "unet"])
def test_losses_fall_and_follow_the_seed(network: str):
    asked = configuration(network, "standard", "cpu")
    history = loop.run(asked, on_torch(), "nchw", 0, Unwatched())
    train.require_fallen(asked, history)
    assert len(history.losses) == asked.steps
    assert train.scores(asked, history)["accuracy"] > 0.8
    other = loop.run(replace(asked, epochs=1), on_torch(), "nchw", 1, Unwatched())
    assert history.losses[0] != other.losses[0]
