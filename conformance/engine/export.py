"""One case as files, with a script that replays it where the suite is not installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from conformance.dtypes import PACKED, STORAGE, packed
from conformance.engine.check import CheckResult
from conformance.execution.invocation import handed
from conformance.execution.remote import declared_at
from conformance.execution.selection import SelectionError
from conformance.inputs.npz import encode
from conformance.layouts import arranged

BRIDGES = {
    "numpy": (
        "import ml_dtypes  # tells NumPy what bf16 and fp8 are\n",
        "array.astype(dtype)",
        "np.asarray(result).astype(np.float64)",
    ),
    "torch": (
        "import torch\n",
        "torch.from_numpy(array).to({bridge.device!r}, getattr(torch, dtype))",
        "result.detach().cpu().double().numpy()",
    ),
    "jax": (
        "import jax\n",
        "jax.device_put(jax.numpy.asarray(array, dtype), jax.devices({bridge.platform!r})[0])",
        "np.asarray(result).astype(np.float64)",
    ),
}
"""Name of a bridge -> what the script imports, how it makes an argument of a host array, and an array of a result."""
BEYOND_NUMPY = tuple(STORAGE[name] for name in ("bf16", "fp8_e4m3", "fp8_e5m2"))
UNKNOWN = ("", "array  # EDIT: what the kernel takes", "np.asarray(result).astype(np.float64)  # EDIT: result to NumPy")
DECLARES = """\
try:
    import conformance
except ModuleNotFoundError:  # the kernel's file declares it to the suite; here the declaration does nothing
    from unittest.mock import MagicMock

    suite = sys.modules["conformance"] = MagicMock(Unsupported=NotImplementedError)
    suite.Implementation.return_value.implements.return_value = lambda function: function
"""
SCRIPT = '''\
"""{title}

Calls the kernel with the arrays beside this file, compares what it returns with expected.npz within limit.npz, prints
the mismatches, and exits 1 if there are any. bf16 and fp8 are stored as float32, which holds them exactly.{note}
"""

import sys
from importlib import import_module
from pathlib import Path

{imports}import numpy as np

{kernel}
inputs, expected, limit = (np.load(Path(__file__).parent / f"{{name}}.npz") for name in ("inputs", "expected", "limit"))


def native(array, dtype):
    return {native}


def host(result):
    return {host}


{arguments}
results = kernel({call})
results = results if isinstance(results, (tuple, list)) else (results,)

wrong = 0
outputs = {outputs}
for (name, dtype), result in zip(outputs.items(), results, strict=True):
    actual, exact, bound = host(result), expected[name], limit[name]
    if actual.shape != exact.shape or not str(result.dtype).endswith(dtype):
        sys.exit(f"{{name}}: {{result.dtype}} {{actual.shape}}; expected {{dtype}} {{exact.shape}}")
    with np.errstate(invalid="ignore"):
        right = (np.abs(actual - exact) <= bound) | (actual == exact) | (np.isnan(actual) & np.isnan(exact))
    mismatched = [tuple(map(int, index)) for index in np.argwhere(~right)]
    print(f"{{name}}: {{len(mismatched):,}} of {{right.size:,}} elements mismatched")
    for index in mismatched[:10]:
        print(f"  {{name}}{{list(index)}} = {{actual[index]}}, expected {{exact[index]}}, limit {{bound[index]:.3g}}")
    wrong += len(mismatched)
sys.exit(wrong > 0)
'''


def _require_free(folder: Path) -> None:
    """Raise SelectionError where a file of an export would replace another one: a kernel's own replay.py was lost."""
    names = ("replay.py", "case.json", *(f"{name}.npz" for name in ("inputs", "expected", "limit", "actual")))
    there = [place for place in (folder / name for name in names) if place.is_symlink() or place.exists()]
    if there and (any(map(Path.is_symlink, there)) or not (folder / "case.json").exists()):
        raise SelectionError(f"{there[0]}: exists, and is of no earlier export; choose another folder")


def export(result: CheckResult, folder: str | Path) -> Path:
    """Write a case to a folder, which is created if it is missing; return the path of the script.

    `inputs.npz`, `expected.npz`, `limit.npz` and, where the kernel returned something, `actual.npz` hold one array for
    each tensor, in the kernel's layout: inputs in their dtype (bf16 and fp8 as float32, which holds them exactly),
    expected and limit in float64. `case.json` describes the case, and holds the parameters and the verdict.
    `replay.py` calls the kernel and compares, with NumPy and the kernel's framework only. Beside it lies a copy of the
    file or folder that connects the kernel.

    Raises ValueError for a case that the kernel was not called for, or that is judged by probes; OSError if the folder
    cannot be written.
    """
    trial, variant, verdict = result.trial, result.trial.variant, result.verdict
    if not result.outputs:
        raise SelectionError(f"nothing to export: {result.explain()}")
    if result.limit is None:
        raise SelectionError("nothing to compare with: the case is judged by probes; use method exact")
    invocation = trial.invocation()
    operator, geometry = trial.operator, trial.problem.geometry
    tensors, returned = trial.workload.inputs, trial.workload.outputs
    parameters = invocation.parameters()

    def stored(name: str, array: np.ndarray) -> np.ndarray:
        """Return an array in the kernel's layout, as NumPy alone can load it."""
        place = arranged(tensors[name] if name in tensors else returned[name], variant.layout, geometry)
        memory = np.ascontiguousarray(place.to_memory(array))
        return packed(memory) if array.dtype == STORAGE[PACKED] else _plain(memory)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _require_free(folder)
    outputs = result.outputs.items()
    files = {
        "inputs": {name: stored(name, array) for name, array in result.inputs.items()},
        "expected": {name: stored(name, comparison.expected) for name, comparison in outputs},
        # where the limit is not finite, only the expected value itself will do
        "limit": {
            name: stored(name, np.where(np.isfinite(comparison.limit), comparison.limit, 0))
            for name, comparison in outputs
        },
        "actual": {
            # an output that could not be compared is in the kernel's layout already
            name: stored(name, comparison.actual) if comparison.error is not None else _plain(comparison.actual)
            for name, comparison in outputs
            if comparison.actual is not None
        },
    }
    facts = {
        "operator": operator.name,
        "implementation": trial.implementation.name,
        "problem": geometry.descriptor,
        "dtype": variant.dtype,
        "layout": variant.layout,
        "distribution": variant.distribution,
        "seed": trial.seed,
        "arguments": [name if name in tensors else None for name in operator.arguments],
        "parameters": parameters,
        "results": list(returned),
        "status": result.status,
        "reason": result.reason,
        "diagnosis": result.diagnosis,
    }

    dtypes = {
        name: handed(tensor, variant.dtype, variant.layout, geometry)[0].name
        for name, tensor in {**returned, **tensors}.items()
    }
    arguments = [
        f'{name} = native(inputs["{name}"], "{dtypes[name]}")' if name in tensors else f"{name} = None"
        for name in operator.arguments
    ]
    bridge = trial.implementation.arrays
    imports, native, host = BRIDGES.get(bridge.name, UNKNOWN)
    if bridge.name == "numpy" and not {dtype.name for dtype in BEYOND_NUMPY} & {*dtypes.values()}:
        imports = ""
    note = ""
    if (
        result.status == "fail"
        and verdict.judgements
        and not any(comparison.mismatched.any() for _, comparison in outputs)
    ):
        note = "\nThe suite failed the tensor by its statistics (see case.json); each element is within its limit."
    script = SCRIPT.format(
        title=str(result).replace("\\", "/").replace('"', "'"),
        note=note,
        imports=imports,
        kernel=_import(invocation.kernel.function, folder),
        native=native.format(bridge=bridge),
        host=host,
        arguments="\n".join(arguments),
        call=", ".join([*operator.arguments, *(f"{name}={value!r}" for name, value in parameters.items())]),
        outputs={name: dtypes[name] for name in returned},
    )

    for name, arrays in files.items():
        if arrays:
            (folder / f"{name}.npz").write_bytes(encode(arrays))
    (folder / "case.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    path = folder / "replay.py"
    path.write_text(script, encoding="utf-8")
    return path


def _plain(array: np.ndarray) -> np.ndarray:
    """Convert bf16 and fp8, which NumPy alone does not know, to float32, which holds them exactly."""
    return array.astype(np.float32) if array.dtype in BEYOND_NUMPY else array


def _import(function: Any, to: Path) -> str:
    """Return the lines of a script that import a kernel; if they cannot be known, one that says so when it is run.

    The kernel is imported from where it is; the file or folder that connects it is copied beside the script, for
    whoever gets the folder on another machine.
    """
    described = declared_at(function)
    place, name, file = described.module, described.qualname, described.file
    if not file or place == "__main__" or not all(map(str.isidentifier, name.split("."))):
        return 'sys.exit("replay.py: EDIT this line: kernel = import_module(MODULE).FUNCTION")\n'
    loaded = place.startswith("conformance_impls.")
    module = place.split(".", 2)[2] if loaded else place
    path = Path(file).resolve()
    folder = (path.parent if path.name == "__init__.py" else path).parents[module.count(".")]
    place = repr(str(folder))
    if loaded and module != "replay":
        top = module.partition(".")[0]
        if (folder / top).is_dir():
            shutil.copytree(folder / top, to / top, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        elif (to / path.name).resolve() != path:
            shutil.copyfile(path, to / path.name)
        place += ", str(Path(__file__).parent)"
    return f"{DECLARES if loaded else ''}sys.path[:0] = [{place}]\nkernel = import_module({module!r}).{name}\n"
