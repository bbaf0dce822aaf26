"""Every rule of the NKI emulator is broken by a small kernel, in the line that says so; its neighbours are accepted."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from nki_emulator import BETA_RULES, RULES, EmulationError
from nki_emulator.tests.documented import ROWS
from nki_emulator.tests.refusals import ACCEPTED, BETA_REFUSED, REFUSED
from nki_emulator.tests.sources import FOLDER, Refused, arguments, loaded, source

TESTED_IN_LOADING = {
    "stale-tensor", "argument", "input-written", "outside-kernel", "instruction-limit", "time-limit", "memory-limit",
    "jit-option", "cores",
}  # fmt: skip
"""Rules that need more than a kernel; their tests are in test_loading."""


def _named(case: Refused) -> str:
    cases = REFUSED if case in REFUSED else BETA_REFUSED
    position = [other for other in cases if other.rule == case.rule].index(case)
    return f"{'' if cases is REFUSED else 'beta-'}{case.rule}-{position}"


@pytest.mark.parametrize("refused", [*REFUSED, *BETA_REFUSED], ids=_named)
def test_refused(tmp_path, refused):
    with pytest.raises(EmulationError) as caught:
        loaded(tmp_path, refused.source, target=refused.target).kernel(*refused.arguments)
    found = caught.value
    assert (found.rule, found.line) == (refused.rule, refused.line or found.line), str(found)
    assert found.kernel == ("(file)" if refused.rule == "mixed-generations" else "kernel")


@pytest.mark.parametrize("lines", ACCEPTED.values(), ids=list(ACCEPTED))
def test_accepted(tmp_path, lines):
    found = loaded(tmp_path, source(lines)).kernel(*arguments())
    np.testing.assert_array_equal(found[0] if isinstance(found, tuple) else found, arguments()[0])


def test_every_rule_is_broken():
    documented = {row.rule for row in ROWS if row.breaks}
    assert {refused.rule for refused in REFUSED} | documented | TESTED_IN_LOADING == RULES.keys()
    assert {refused.rule for refused in BETA_REFUSED} >= BETA_RULES.keys()


def test_no_error_has_an_unknown_rule():
    text = "".join(path.read_text() for path in FOLDER.glob("*.py") if path.name != "rules.py")
    named = set(re.findall(r'(?:refuse|outside)\(\s*"([a-z-]+)"', text)) | set(re.findall(r'"(python-[a-z-]+)"', text))
    assert named <= RULES.keys() | BETA_RULES.keys()
    assert not RULES.keys() & BETA_RULES.keys()
    assert len(named) > 60


@pytest.mark.parametrize(
    ("rule", "body"),
    {
        "psum-not-started": "nisa.memset(dst=p, value=0)\nnisa.nc_matmul(dst=p, stationary=x, moving=x)",
        "target": "nl.abs_max(x, y)",
        "matmul-dtype": "q = nl.ndarray((24, 24), dtype=nl.bfloat16, buffer=nl.psum)\nnisa.nc_matmul(q, x, x)",
        "activation-bias": "nisa.activation(dst=t, op=nl.copy, data=x, bias=1.0)",
        "engine": "nisa.tensor_copy(dst=t, src=x, engine=nisa.engine.scalar)",
        "sbuf-capacity": "nl.ndarray((128, 60000), dtype=nl.float32)",
    }.items(),
)
def test_a_later_target_allows_it(tmp_path, rule, body):
    with pytest.raises(EmulationError, match=rule):
        loaded(tmp_path, source(body)).kernel(*arguments())
    loaded(tmp_path, source(body), target="gen4").kernel(*arguments())


def test_functions_that_no_kernel_calls_may_use_all_of_python(tmp_path):
    host = "\n\ndef reference(a):\n    return [v is None for v in a if 0 < v < 3]\n"
    found = loaded(tmp_path, source("") + host)
    assert found.reference([1, 2]) == [False, False]


def test_functions_that_a_kernel_calls_keep_to_the_subset(tmp_path):
    helpers = "\n\ndef outer(v):\n    return inner(v)\n\n\ndef inner(v):\n    return [w for w in v]\n"
    text = source("outer((1, 2))") + helpers
    with pytest.raises(EmulationError, match="python-comprehension") as caught:
        loaded(tmp_path, text)
    assert caught.value.line == len(text.splitlines())


def test_nothing_of_the_suite_is_imported():
    files = [*FOLDER.glob("*.py"), *Path(__file__).parent.glob("*.py")]
    imports = [line for file in files for line in re.findall(r"^\s*(?:from|import) .*", file.read_text(), re.MULTILINE)]
    assert len(imports) > 100
    assert [line for line in imports if re.match(r"\s*(?:from|import) (?:conformance|impls)\b", line)] == []
