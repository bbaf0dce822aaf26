"""`conformance check` and `conformance export`: exit codes, and files that replay a case without the suite."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import check, export, jax_arrays, torch_arrays
from conformance.__main__ import main
from conformance.operators import FAMILIES
from conformance.resources import IMPLS
from tests import kernels
from tests.execution.test_check import CONV, HOW, PROBLEMS

LIBRARY = '''
import numpy as np
def conv_forward(x, w, bias, *, stride, padding, layout):
    """1x1 convolution."""
    assert type(stride) is tuple
    if layout == "nhwc":
        x, w = x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2)
    x = np.pad(x, ((0, 0), (0, 0), *padding))[:, :, :: stride[0], :: stride[1]]
    y = np.einsum("kc,nchw->nkhw", w[:, :, 0, 0], x, dtype=np.promote_types(x.dtype, np.float32)).astype(x.dtype)
    return y if layout == "nchw" else np.ascontiguousarray(y.transpose(0, 2, 3, 1))
'''
DECLARED = """
from conformance import Contract, Implementation, Unsupported
acme = Implementation("acme", contract=Contract())
every = dict(dtypes=("fp32", "bf16", "fp16", "fp64"), layouts=("nchw", "nhwc"), when=lambda p: p.r == p.s == 1)
""" + LIBRARY.replace("def conv", "@acme.implements('conv_forward', **every)\ndef conv")
ONE_BY_ONE = "n2 c4 h5 w6 k3 r1 s1 u2x1 p0:1x1:0"


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    path = tmp_path / "ker nels" / "acme.py"
    path.parent.mkdir()
    path.write_text(DECLARED)
    return path


def replayed(script: Path) -> subprocess.CompletedProcess[str]:
    """In another folder, by an interpreter that finds no module of this checkout."""
    return subprocess.run(
        [sys.executable, "-I", "-B", script], cwd=script.parent.parent, capture_output=True, text=True, check=False
    )


def test_an_exported_case_can_be_sent_to_somebody_else(acme: Path, tmp_path: Path):
    acme.write_text(DECLARED.replace("y if layout", "2 * y if layout"))
    export(check(acme, ONE_BY_ONE), tmp_path / "case")
    moved = (tmp_path / "case").rename(tmp_path / "another place")
    acme.unlink()
    done = replayed(moved / "replay.py")
    assert (done.returncode, "elements mismatched" in done.stdout) == (1, True), done.stderr


@pytest.mark.parametrize(
    ("dtype", "layout", "distribution"),
    [
        ("fp32", "nchw", "fixed"),
        ("fp32", "nhwc", "special"),
        ("bf16", "nhwc", "integer"),
        ("fp16", "nchw", "wide"),
        ("fp64", "nchw", "impulse"),
    ],
)
def test_replay_says_what_the_suite_said(acme: Path, dtype: str, layout: str, distribution: str):
    asked: dict[str, Any] = {"dtype": dtype, "layout": layout, "distribution": distribution}
    passing = export(check(acme, ONE_BY_ONE, **asked), acme.parent.parent / "case")
    done = replayed(passing)
    assert (done.returncode, done.stdout) == (0, "y: 0 of 126 elements mismatched\n"), done.stderr
    acme.write_text(DECLARED.replace("y = np.einsum", "x = x.copy(); x[0, 0, 0, 0] = 3; y = np.einsum"))
    result = check(acme, ONE_BY_ONE, **asked)
    failing = export(result, acme.parent.parent / "wrong")
    done = replayed(failing)
    assert result.status == "fail"
    assert done.returncode == 1, done.stderr
    assert f"y: {np.count_nonzero(result.mismatched)} of 126 elements mismatched\n  y[0, 0, 0, 0] = " in done.stdout
    acme.write_text(DECLARED)
    assert replayed(failing).returncode == 0


def test_files_hold_the_case_in_the_kernels_layout(acme: Path):
    result = check(acme, ONE_BY_ONE, dtype="bf16", layout="nhwc")
    folder = export(result, acme.parent.parent / "case").parent
    facts = json.loads((folder / "case.json").read_text())
    arrays = {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}
    assert sorted(arrays) == ["actual", "expected", "inputs", "limit"]
    assert arrays["inputs"]["x"].dtype == np.float32
    assert (arrays["inputs"]["x"] == result.inputs["x"].transpose(0, 2, 3, 1).astype(np.float32)).all()
    for name in ("limit", "expected", "actual"):
        assert (arrays[name]["y"] == getattr(result, name).transpose(0, 2, 3, 1)).all()
    assert facts["parameters"] == {"stride": [2, 1], "padding": [[0, 1], [1, 0]], "layout": "nhwc"}
    assert facts["arguments"] == ["x", "w", None]
    assert (facts["problem"], facts["dtype"], facts["status"]) == (ONE_BY_ONE, "bf16", "pass")


def test_a_kernel_that_raises_or_returns_another_shape_is_exported(acme: Path):
    acme.write_text(DECLARED.replace("    assert", "    raise IndexError('tile 7')\n    assert"))
    result = check(acme, ONE_BY_ONE)
    script = export(result, acme.parent.parent / "raises")
    assert not (script.parent / "actual.npz").exists()
    assert "IndexError: tile 7" in replayed(script).stderr
    acme.write_text(DECLARED.replace("    assert", "    return x\n    assert"))
    done = replayed(script)
    assert done.returncode == 1
    assert "y: float32 (2, 4, 5, 6); expected float32 (2, 3, 3, 7)" in done.stderr
    acme.write_text(DECLARED.replace("astype(x.dtype)", "astype(np.float64)"))
    assert "y: float64 (2, 3, 3, 7); expected float32 (2, 3, 3, 7)" in replayed(script).stderr
    acme.write_text(DECLARED.replace("    assert", "    return x\n    assert"))
    shaped = export(check(acme, ONE_BY_ONE, layout="nhwc"), acme.parent.parent / "shaped")
    assert np.load(shaped.parent / "actual.npz")["y"].shape == (2, 5, 6, 4)


def test_an_infinity_is_not_within_an_infinite_limit(acme: Path):
    narrow = DECLARED.replace("Contract()", "Contract(inputs='bf16', accumulate='bf16')")
    acme.write_text(narrow.replace("return y if", "y = np.nan_to_num(y, nan=0, posinf=0, neginf=0)\n    return y if"))
    result = check(acme, ONE_BY_ONE, distribution="special")
    assert np.isposinf(result.limit).any()
    done = replayed(export(result, acme.parent.parent / "case"))
    assert f"y: {np.count_nonzero(result.mismatched)} of 126 elements mismatched" in done.stdout


def test_a_kernel_that_exceeds_a_statistic_is_said_to(tmp_path: Path):
    def biased(x, w, bias, **parameters):
        y = kernels.conv_forward(x, w, bias, **parameters)
        return np.nextafter(np.nextafter(y, np.float32(np.inf)), np.float32(np.inf))

    result = check(biased, "n2 c64 h8 w8 k8 r3 s3 p1", operator="conv_forward")
    assert result.status == "fail"
    assert not result.mismatched.any()
    assert "failed the tensor by its statistics" in export(result, tmp_path).read_text()


@pytest.mark.parametrize("family", PROBLEMS)
def test_shipped_kernels_with_several_outputs_are_replayed(family: str, tmp_path: Path):
    *_, operator = (one.name for one in FAMILIES[family].operators)
    how: dict[str, Any] = {"dtype": "bf16"} | HOW.get(operator, {})
    script = export(check(IMPLS / "numpy_direct", PROBLEMS[family], operator=operator, **how), tmp_path)
    # these kernels use helpers of the suite: it is found here, as where it is installed
    text = script.read_text().replace(
        "import numpy as np", f"import numpy as np\nsys.path.append({str(IMPLS.parent)!r})", 1
    )
    script.write_text(text)
    done = replayed(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_arguments_are_those_of_the_kernels_framework(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip(framework)
    (tmp_path / "library.py").write_text(
        {
            "torch": "import torch\ndef kernel(x, w, bias): return torch.nn.functional.conv2d(x, w, bias)",
            "jax": "import jax\ndef kernel(x, w, bias): return jax.lax.conv(x, w, (1, 1), 'VALID')",
        }[framework]
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "library", raising=False)
    library = import_module("library")
    bridge = {"torch": torch_arrays, "jax": jax_arrays}[framework]("cpu")
    result = check(library.kernel, "n1 c2 h5 w5 k2 r3 s3", operator="conv_forward", arrays=bridge, dtype="bf16")
    assert result.passed
    done = replayed(export(result, tmp_path / "case"))
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_known_is_to_be_edited(tmp_path: Path):
    script = export(check(lambda x, w, bias: x, CONV, operator="conv_forward"), tmp_path)
    done = replayed(script)
    assert done.returncode == 1
    assert "EDIT this line: kernel = import_module(MODULE).FUNCTION" in done.stderr


def test_what_was_not_compared_is_not_exported(acme: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=r"nothing to export: unsupported: .*\n.*outside the declared"):
        export(check(acme, CONV), tmp_path)
    with pytest.raises(ValueError, match="judged by probes; use method exact"):
        export(check(acme, ONE_BY_ONE, method="probes"), tmp_path)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([ONE_BY_ONE], 0, "pass: conv_forward of acme"),
        (["--problem", ONE_BY_ONE, "--impl", "acme", "--operator", "conv_forward"], 0, "pass: conv_forward of acme"),
        ([CONV], 5, "unsupported: conv_forward of acme"),
    ],
)
@pytest.mark.parametrize("command", ["check", "export"])
def test_commands_explain_and_tell_by_their_status(acme, tmp_path, capsys, command, words, code, text):
    more = ["-o", str(tmp_path / "case")] if command == "export" else []
    assert main([command, str(acme), *words, *more]) == code
    assert text in "".join(capsys.readouterr())
    assert (tmp_path / "case" / "replay.py").exists() == (command == "export" and code == 0)


def test_a_file_may_have_colons_in_its_name(acme: Path, capsys):
    file = acme.rename(acme.with_name("acme::v2.py"))
    assert main(["check", str(file), ONE_BY_ONE]) == 0
    assert main(["check", f"{file}::acme", ONE_BY_ONE]) == 4
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "export"])
def test_what_a_kernel_prints_and_raises_is_shown_and_not_obeyed(acme: Path, tmp_path: Path, capsys, command: str):
    """Nothing was shown of what it had printed, and a terminal turned red."""
    raising = "print('tile 7'); raise IndexError('\\x1b[31mred')\n    y = np.einsum"
    acme.write_text(DECLARED.replace("y = np.einsum", raising))
    more = ["-o", str(tmp_path / "case")] if command == "export" else []
    main([command, str(acme), ONE_BY_ONE, *more])
    shown = capsys.readouterr().out
    assert "\nprinted: tile 7\n" in shown
    assert "raised IndexError: \\x1b[31mred at " in shown
    assert "\x1b" not in shown


def test_what_a_right_kernel_prints_is_shown_too(acme: Path, capsys):
    """Who looks into a kernel prints from it, and its case may pass."""
    acme.write_text(DECLARED.replace("y = np.einsum", "print('tile 7')\n    y = np.einsum"))
    assert main(["check", str(acme), ONE_BY_ONE]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("pass: ")
    assert "\nprinted: tile 7\n" in shown


def test_a_wrong_kernel_fails_the_check_and_is_exported(acme: Path, tmp_path: Path, capsys):
    acme.write_text(DECLARED.replace("y = np.einsum", "y = 2 * np.einsum"))
    assert main(["check", str(acme), ONE_BY_ONE]) == 1
    assert "elements mismatched" in capsys.readouterr().out
    assert main(["export", str(acme), ONE_BY_ONE, "-o", str(tmp_path / "case")]) == 0
    assert f"replay it with: python {tmp_path / 'case' / 'replay.py'}" in capsys.readouterr().out
    (tmp_path / "file").touch()
    assert main(["export", str(acme), ONE_BY_ONE, "-o", str(tmp_path / "file")]) == 4
    assert "error: " in capsys.readouterr().err
