"""The emulator does what the documentation says, page by page: kernels that keep each rule run, those that break it are
refused with its page; every documented operation is offered or named as missing."""

from __future__ import annotations

import re
import tomllib
from collections import Counter

import numpy as np
import pytest

from nki_emulator import RULES, EmulationError, missing, operations
from nki_emulator.pages import BY_RULE
from nki_emulator.tests.documented import ROWS, Row
from nki_emulator.tests.refusals import FOLDER
from nki_emulator.tests.sources import arguments, loaded

OPERATIONS: dict[str, dict[str, list[str]]] = tomllib.loads((FOLDER / "documented_operations.toml").read_text())
"""Module -> part of its page -> what is listed there, SDK 2.32."""


def _named(row: Row) -> str:
    position = [other for other in ROWS if other.page == row.page].index(row)
    return f"{row.page}-{position}".replace(" ", "_")


@pytest.mark.parametrize("row", [row for row in ROWS if row.keeps], ids=_named)
def test_kept(tmp_path, row):
    a, b, c = (np.array(array) for array in arguments())
    found = loaded(tmp_path, row.kept, target=row.target).kernel(a, b, c)
    if row.gives:
        expected = np.asarray(eval(row.gives, {"np": np, "a": a, "b": b, "c": c}))
        assert found.shape == expected.shape
        if row.within:  # the page gives no arithmetic: functions in float32 against NumPy's in float64
            np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=row.within)
        else:
            np.testing.assert_array_equal(found, expected.astype(found.dtype))


@pytest.mark.parametrize("row", [row for row in ROWS if row.breaks], ids=_named)
def test_broken(tmp_path, row):
    broken = row.broken
    with pytest.raises(EmulationError) as caught:
        loaded(tmp_path, broken.source, target=row.target).kernel(*(np.array(array) for array in arguments()))
    found = caught.value
    assert (found.rule, found.line) == (row.rule, broken.line), str(found)
    of_operation = not row.page.startswith("nki.") and found.page.startswith("nki.")
    assert found.page in (row.page, BY_RULE.get(row.rule, row.page)) or of_operation, str(found)


def test_every_row_has_a_test():
    """Kernels for both sides, or a result, or a refusal where nothing keeps the rule."""
    assert [row for row in ROWS if not (row.breaks or row.gives)] == []
    assert [row for row in ROWS if row.breaks and not row.rule] == []
    assert {row.rule for row in ROWS if row.rule} <= RULES.keys()
    assert len({(row.page, row.says) for row in ROWS}) == len(ROWS)


def _documented(module: str, parts: dict[str, list[str]]) -> set[str]:
    short = {"nki.isa": "nisa", "nki.language": "nl"}.get(module, module)
    return {f"{short}.{name}" for names in parts.values() for name in names}


def test_every_documented_operation_is_offered_or_named_as_missing(tmp_path):
    """And nothing is both, and what is offered is there in a kernel."""
    documented = {name for module, parts in OPERATIONS.items() for name in _documented(module, parts)}
    offered, absent = set(operations()), set(missing())
    assert not offered & absent
    assert absent <= documented | {"nl.divide", "nl.fmod", "nl.mod"}
    names = sorted(name for name in documented - absent if name != "nki.jit")
    lines = "\n".join(f"    {name}" for name in names if not name.startswith("nki."))
    source = f"import nki\nimport nki.language as nl\nimport nki.isa as nisa\n\n\n@nki.jit\ndef kernel(a):\n{lines}\n"
    with pytest.raises(EmulationError) as caught:
        loaded(tmp_path, source).kernel(arguments()[0])
    assert caught.value.rule == "output-missing", str(caught.value)


def test_every_page_of_an_operation_has_rows():
    pages = Counter(row.page for row in ROWS)
    listed = {
        f"{module}.{name}"
        for module, part in (("nki.isa", "instructions"), ("nki.language", "functions"))
        for name in OPERATIONS[module][part]
    }
    absent = {name.replace("nisa.", "nki.isa.").replace("nl.", "nki.language.") for name in missing()}
    assert sorted(listed - pages.keys() - absent) == []


@pytest.mark.parametrize("name", [name for name in missing() if name.startswith("nisa.")])
def test_what_is_missing_says_so(tmp_path, name):
    source = f"import nki\nimport nki.isa as nisa\n\n\n@nki.jit\ndef kernel(a):\n    {name}(a)\n"
    with pytest.raises(EmulationError) as caught:
        loaded(tmp_path, source, target="gen4").kernel(arguments()[0])
    found = caught.value
    assert (found.rule, found.page) == ("not-implemented", name.replace("nisa", "nki.isa"))
    assert re.search(rf"{name}\b", found.message)
